"""The ONNX project's cases for layout, slicing, indexing, generation, resizing and sampling.

Operands that decide sizes are run-time values in one pass and constants in the other.
"""

from __future__ import annotations

import pytest
from node_suite import FIXED, STRUCTURAL, cases_of, outcome

OPERATORS = [
    "AffineGrid",
    "CenterCropPad",
    "Col2Im",
    "Compress",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "DepthToSpace",
    "Expand",
    "EyeLike",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "GridSample",
    "OneHot",
    "Pad",
    "Range",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "TensorScatter",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Upsample",
]
# More than one greatest element per row is left to the reference.
NO_RULE = ("TopK",)
# Indices keep their contents for run time in both passes.
INDICES = ("GatherND", "ScatterND")


def _constants(operator: str) -> tuple[int, ...]:
    decides = () if operator in INDICES else FIXED.get(operator, ())
    return (*decides, *STRUCTURAL.get(operator, ()))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("known", [False, True])
def test_cases_pass(operator: str, known: bool) -> None:
    constants = {operator: _constants(operator)} if known else STRUCTURAL
    found = [outcome(case, constants) for case in cases_of([operator])]
    wanted = "no rule" if operator in NO_RULE else "pass"
    assert found
    bad = [f"{o.case}: {o.verdict} {o.detail}" for o in found if o.verdict != wanted]
    assert not bad, "\n".join(bad)
