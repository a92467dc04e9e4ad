"""Rules of comparisons, logic, bits, and the choice between two operands.

Start with ``BINARY``; the operators that are not a single scalar function follow it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node
from tilewright.ops.build import Builder
from tilewright.ops.operands import numeric
from tilewright.ops.record import Rule, RuleContext, operator

BINARY = {
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
SWAPPED = {"Greater": "less", "GreaterOrEqual": "less_equal"}
UNARY = {"BitwiseNot": "bitwise_not", "IsNaN": "is_nan", "Not": "logical_not"}


def _binary(function: str, first: int, second: int) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, _ = numeric(context)
        return [builder.map(function, context.operand(first), context.operand(second))]

    return rule


def _unary(function: str) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, x = numeric(context)
        return [builder.map(function, x)]

    return rule


# Before opset 7 broadcasting was told by attributes; those versions run on the ONNX reference
# evaluator.
for _name, _function in BINARY.items():
    operator(_name, since=7)(_binary(_function, 0, 1))
for _name, _function in SWAPPED.items():
    operator(_name, since=7)(_binary(_function, 1, 0))
for _name, _function in UNARY.items():
    operator(_name)(_unary(_function))


@operator("IsInf")
def is_infinite(context: RuleContext) -> Sequence[Node]:
    """Whether an element is an infinity of a sign that is asked for."""
    builder, x = numeric(context)
    infinite = builder.map("is_infinite", x)
    if not context.integer("detect_negative", 1):
        infinite = builder.map("logical_and", infinite, builder.map("less", 0.0, x))
    if not context.integer("detect_positive", 1):
        infinite = builder.map("logical_and", infinite, builder.map("less", x, 0.0))
    return [infinite]


@operator("Where")
def where(context: RuleContext) -> Sequence[Node]:
    """Operand 1 where operand 0 holds, operand 2 elsewhere."""
    builder, condition = numeric(context)
    return [builder.select(condition, context.operand(1), context.operand(2))]


@operator("BitShift")
def bit_shift(context: RuleContext) -> Sequence[Node]:
    """Shifts by any amount; outside of 0 .. bits - 1 only what a sign fills in is left."""
    builder, x = numeric(context)
    amount = context.operand(1)
    left = context.text("direction") == "LEFT"
    if x.dtype.is_unsigned:
        return [builder.map("shift_left" if left else "shift_right", x, amount)]
    last = 8 * x.dtype.bytes - 1
    within = _within(builder, amount, last)
    # Outside amounts are replaced, so that every shift is defined.
    defined = builder.select(within, amount, last)
    if left:
        return [builder.select(within, builder.map("shift_left", x, defined), 0)]
    return [builder.map("shift_right", x, defined)]


def _within(builder: Builder, amount: Node, last: int) -> Node:
    """Whether 0 <= amount <= last."""
    positive = builder.map("less_equal", 0, amount)
    return builder.map("logical_and", positive, builder.map("less_equal", amount, last))
