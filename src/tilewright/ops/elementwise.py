"""Rules of elementwise arithmetic: one function per element, operands broadcast as in ONNX.

Most operators are a row of a table here. Logic and comparisons are in `comparison.py`, activations
in `activation.py`. Start with ``UNARY`` and ``BINARY``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Scan
from tilewright.ops.build import Builder, cast
from tilewright.ops.operands import numeric, widen
from tilewright.ops.record import Rule, RuleContext, operator
from tilewright.ops.types import require_native

UNARY = {
    "Abs": "absolute",
    "Acos": "arc_cosine",
    "Acosh": "area_hyperbolic_cosine",
    "Asin": "arc_sine",
    "Asinh": "area_hyperbolic_sine",
    "Atan": "arc_tangent",
    "Atanh": "area_hyperbolic_tangent",
    "Ceil": "ceil",
    "Cos": "cosine",
    "Cosh": "hyperbolic_cosine",
    "Exp": "exponential",
    "Floor": "floor",
    "Log": "logarithm",
    "Neg": "negate",
    "Round": "round_even",
    "Sign": "sign",
    "Sin": "sine",
    "Sinh": "hyperbolic_sine",
    "Sqrt": "square_root",
    "Tan": "tangent",
}
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(function: str) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, x = numeric(context)
        return [builder.map(function, x)]

    return rule


def _binary(function: str) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, left = numeric(context)
        return [builder.map(function, left, context.operand(1))]

    return rule


def _folded(function: str, context: RuleContext) -> tuple[Builder, Node]:
    """The function over all operands, in order."""
    builder, result = numeric(context)
    for index in range(1, len(context.inputs)):
        result = builder.map(function, result, context.operand(index))
    return builder, result


def _variadic(function: str) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        return [_folded(function, context)[1]]

    return rule


for _name, _function in UNARY.items():
    operator(_name)(_unary(_function))
# Before opset 7 broadcasting was told by attributes; those versions run on the ONNX reference
# evaluator.
for _name, _function in BINARY.items():
    operator(_name, since=7)(_binary(_function))
for _name, _function in VARIADIC.items():
    operator(_name)(_variadic(_function))


@operator("Mean")
def mean(context: RuleContext) -> Sequence[Node]:
    """The mean of the operands, element by element."""
    builder, result = _folded("add", context)
    return [builder.divide(result, len(context.inputs))]


@operator("Reciprocal")
def reciprocal(context: RuleContext) -> Sequence[Node]:
    """1 / x."""
    builder, x = numeric(context)
    return [builder.divide(1.0, x)]


@operator("Erf")
def erf(context: RuleContext) -> Sequence[Node]:
    """The error function; of integers it is computed in float64 and truncated."""
    builder, x = numeric(context)
    if x.dtype.is_float:
        return [builder.map("error_function", x)]
    return [cast(builder.map("error_function", cast(x, DType.FLOAT64)), x.dtype)]


@operator("Mod")
def mod(context: RuleContext) -> Sequence[Node]:
    """The remainder with the sign of the divisor, or of the dividend where fmod is set."""
    builder, left = numeric(context)
    function = "truncated_remainder" if context.integer("fmod", 0) else "remainder"
    return [builder.map(function, left, context.operand(1))]


@operator("Pow", since=7, computes=False)
def power(context: RuleContext) -> Sequence[Node]:
    """base ** exponent in the wider of the two types; the result has the type of the base."""
    require_native(context)
    builder = Builder(context)
    base, exponent = context.operand(0), context.operand(1)
    repeated = _whole_power(builder, context, base, exponent)
    if repeated is not None:
        return [repeated]
    work = _power_type(base.dtype, exponent.dtype)
    result = builder.map("power", cast(base, work), cast(exponent, work))
    return [cast(result, base.dtype)]


def _whole_power(builder: Builder, context: RuleContext, base: Node, exponent: Node) -> Node | None:
    """x, x * x or x * x * x where the exponent is the constant 1, 2 or 3."""
    values = context.constant(1)
    if values is None or values.size != 1 or exponent.rank > base.rank:
        return None
    value = float(values.reshape(-1)[0])
    if value not in (1.0, 2.0, 3.0):
        return None
    x = widen(base)
    result = x
    for _ in range(int(value) - 1):
        result = builder.multiply(result, x)
    return cast(result, base.dtype)


def _power_type(base: DType, exponent: DType) -> DType:
    """Where to compute: an integer exponent of a float base takes the type of the base."""
    if base.is_float:
        wide = DType.FLOAT64 in (base, exponent)
        return DType.FLOAT64 if wide else DType.FLOAT32
    if exponent.is_float:
        return DType.FLOAT64
    return base if base is exponent else DType.INT64


def _scan(context: RuleContext, kind: str) -> Node:
    """The running ``kind`` along the axis that operand 1 names."""
    builder, x = numeric(context)
    axis = builder.axis(context.static_integers(1, "the axis")[0], x.rank)
    exclusive, reverse = context.integer("exclusive", 0), context.integer("reverse", 0)
    return node(Scan(kind, axis, bool(exclusive), bool(reverse)), x)


@operator("CumSum")
def cumulative_sum(context: RuleContext) -> Sequence[Node]:
    """Running sums along an axis."""
    return [_scan(context, "sum")]


@operator("CumProd")
def cumulative_product(context: RuleContext) -> Sequence[Node]:
    """Running products along an axis."""
    return [_scan(context, "product")]
