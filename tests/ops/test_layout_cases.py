"""The ONNX project's cases for layout, slicing, indexing, generation, resizing and sampling.

Operands that decide sizes are run-time values in one pass and constants in the other.
"""

from __future__ import annotations

import pytest

from support.node_suite import FIXED, STRUCTURAL, cases_of, outcome

OPERATORS = [
    "AffineGrid",
    "CenterCropPad",
    "Col2Im",
    "Compress",
    "Concat",
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
# The contents of these are data, and no size depends on them.
INDICES = ("GatherND", "ScatterND")


def _check(operator: str, constants: dict[str, tuple[int, ...]]) -> None:
    found = [outcome(case, constants) for case in cases_of([operator])]
    wanted = "no rule" if operator in NO_RULE else "pass"
    assert found
    bad = [f"{o.case}: {o.verdict} {o.detail}" for o in found if o.verdict != wanted]
    assert not bad, "\n".join(bad)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_cases_pass_with_sizes_of_run_time(operator: str) -> None:
    _check(operator, STRUCTURAL)


@pytest.mark.parametrize("operator", [n for n in OPERATORS if n in FIXED and n not in INDICES])
def test_cases_pass_with_known_sizes(operator: str) -> None:
    _check(operator, {operator: (*FIXED[operator], *STRUCTURAL.get(operator, ()))})
