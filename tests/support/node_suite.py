"""The ONNX project's own node cases, run through the fission rules.

Every case that is a single node of a given type is turned into primitives (its structural operands
as constants, everything else as inputs of unknown sizes), evaluated and compared with the expected
outputs. From a shell: ``python tests/ops/node_suite.py Softmax LayerNormalization`` lists what
passes and why the rest does not. Start with :func:`run_suite`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

import tilewright.ops  # noqa: F401  (registers the rules)
from support.operator_harness import Array, NoOperator, compare, fission, run, tolerance
from tilewright.ops.record import NoRule, StructuralInput

# Modules of cases that take seconds to load, and the operators in them.
SLOW_MODULES = {"averagepool": "AveragePool", "lppool": "LpPool", "maxpool": "MaxPool"}

# Operands that must be known when compiling; others that decide sizes are bound at run time.
STRUCTURAL: dict[str, tuple[int, ...]] = {
    "Col2Im": (2,),
    "Compress": (1,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (2,),
    "Dropout": (1, 2),
    "Squeeze": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Pad": (3,),
    **{f"Reduce{kind}": (1,) for kind in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
    )},
}  # fmt: skip

# Operands whose contents may be run-time values, but whose length must be known.
FIXED: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "GatherND": (1,),
    "Pad": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "ScatterND": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "Upsample": (1,),
}


@dataclass(frozen=True)
class Outcome:
    """How a case went: "pass", "no rule", "structural", "no operator", "not a tensor", "fail"."""

    case: str
    operator: str
    verdict: str
    detail: str = ""


@cache
def load_cases(with_slow: frozenset[str] = frozenset()) -> tuple[TestCase, ...]:
    """All node cases but those of slow modules, except the modules of ``with_slow`` operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(node_cases.__path__, node_cases.__name__ + "."):
            if SLOW_MODULES.get(module.name.rsplit(".", 1)[-1], "") in with_slow | {""}:
                importlib.import_module(module.name)
    return tuple(node_cases._NodeTestCases)


def cases_of(op_types: Collection[str], domain: str = "") -> list[TestCase]:
    """The cases whose model is one node of such a type."""
    slow = frozenset(SLOW_MODULES.values()) & frozenset(op_types)
    return [
        case
        for case in load_cases(slow)
        if len(case.model.graph.node) == 1
        and case.model.graph.node[0].op_type in op_types
        and case.model.graph.node[0].domain in (domain, "ai.onnx" if domain == "" else domain)
    ]


def _array(value: Any) -> Array:
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | onnx.TensorProto)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _operands(names: Iterable[str], values: Iterable[Any]) -> list[Array | None]:
    """One entry per operand of the node; those left out have no value in a case."""
    following = iter(values)
    return [_array(next(following)) if name else None for name in names]


def check_case(
    case: TestCase, constants: Mapping[str, Collection[int]] = STRUCTURAL, *, symbolic: bool = True
) -> None:
    """Run one case; raises what the rule raises, or AssertionError."""
    made = case.model.graph.node[0]
    opset = next(i.version for i in case.model.opset_import if i.domain in (made.domain, "ai.onnx"))
    attributes = {a.name: _attribute(a) for a in made.attribute}
    for values, results in case.data_sets:
        operands = _operands(made.input, values)
        known = constants.get(made.op_type, ())
        graph = fission(
            made.op_type, operands, attributes, opset=opset, outputs=len(made.output),
            domain=made.domain, constants=known, fixed=FIXED.get(made.op_type, ()),
            symbolic=symbolic,
        )  # fmt: skip
        actual = [y for y, name in zip(run(graph, operands), made.output, strict=True) if name]
        for index, (own, expected) in enumerate(zip(actual, results, strict=True)):
            wanted = _array(expected)
            exact = wanted.dtype.kind in "biuO"
            # The expectations carry rounding errors of their own type, too.
            least = 0.0 if exact else tolerance(wanted.dtype)
            compare(
                own, wanted, relative=0.0 if exact else max(case.rtol, least),
                absolute=max(case.atol, least), name=f"y{index}",
            )  # fmt: skip


def outcome(
    case: TestCase, constants: Mapping[str, Collection[int]] = STRUCTURAL, *, symbolic: bool = True
) -> Outcome:
    """How a case goes, with any failure as text."""
    operator = case.model.graph.node[0].op_type
    values, results = case.data_sets[0]
    if not all(map(_is_tensor, [*values, *results])):
        return Outcome(case.name, operator, "not a tensor")
    try:
        check_case(case, constants, symbolic=symbolic)
    except StructuralInput as error:
        return Outcome(case.name, operator, "structural", error.args[0])
    except NoRule as error:
        return Outcome(case.name, operator, "no rule", error.args[0])
    except NoOperator as error:
        return Outcome(case.name, operator, "no operator", str(error))
    except Exception as error:
        return Outcome(case.name, operator, "fail", f"{type(error).__name__}: {error}")
    return Outcome(case.name, operator, "pass")


def run_suite(
    op_types: Collection[str], domain: str = "", *, symbolic: bool = True
) -> list[Outcome]:
    """The outcome of every case of these operators."""
    return [outcome(case, symbolic=symbolic) for case in cases_of(op_types, domain)]


def main(arguments: list[str]) -> int:
    """Print the outcomes of the operators named; 1 if a case fails."""
    concrete = "--concrete" in arguments
    names = [a for a in arguments if not a.startswith("--")]
    outcomes = run_suite(names, symbolic=not concrete)
    for result in outcomes:
        if result.verdict != "pass":
            detail = " ".join(result.detail.split())[:300]
            print(f"{result.verdict:12} {result.operator:20} {result.case}: {detail}")
    print(dict(Counter(result.verdict for result in outcomes)))
    return int(any(result.verdict == "fail" for result in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
