"""What rules that decide shapes share: sizes from operands, their signs, and shape vectors.

Sizes may be expressions of named dimensions or of run-time values; nothing here branches on a size
that is not proved. Imports ``build`` and ``record``. Start with :func:`data_operand` and
:func:`size_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.build import Builder, array, cast, dimension
from tilewright.ops.record import RuleContext
from tilewright.ops.types import require_native
from tilewright.shape import (
    Expr,
    Truth,
    constant,
    equal,
    less,
    less_equal,
    maximum,
    minimum,
    select,
)

# Exporters write "until the end" as the greatest value of int32 or int64; no axis is longer.
UNLIMITED = 2**31 - 1


def data_operand(context: RuleContext, index: int = 0) -> Node:
    """Operand ``index``; raises NoRule where an operand's type is not handled by generated code."""
    require_native(context)
    return context.operand(index)


def integers_of(context: RuleContext, operand: Node) -> list[Expr]:
    """The contents of an integer node as expressions, run-time symbols where they are data."""
    return replace(context, inputs=(operand,)).integers(0)


def whole_numbers(context: RuleContext, index: int) -> list[Expr]:
    """Operand ``index``, of any numeric type, truncated to integers and read as expressions."""
    operand = context.operand(index)
    return integers_of(context, cast(operand, DType.INT64) if operand.dtype.is_float else operand)


def size_of(context: RuleContext, value: Expr, what: str, refusal: str | None = None) -> Expr:
    """``value`` as the size of an axis: demanded not to be negative, and known not to be.

    ``refusal`` says what is wrong with a negative one, where it stands for something else.
    """
    resolved = context.scope.resolve(value)
    low = context.scope.bounds(resolved).low
    if low is not None and low >= 0:
        return resolved
    message = refusal or f"{what} must not be negative"
    context.require(less_equal(0, resolved), message, valued=refusal is None)
    name = resolved.symbol_name
    if name is not None:
        context.scope.declare(name, low=0)
    else:
        context.scope.assume_equal(maximum(resolved, 0), resolved)
    return context.scope.resolve(resolved)


def require_multiple(context: RuleContext, value: Expr, divisor: int, message: str) -> Expr:
    """Demand that ``divisor`` divides ``value``, and give the quotient."""
    if context.scope.divisible(value, divisor) is not Truth.YES:
        context.require(equal(value % divisor, 0), message)
        context.scope.assume_equal(value % divisor, 0)
    return context.scope.resolve(value // divisor)


def named(builder: Builder, values: Sequence[Expr]) -> list[Expr]:
    """Run-time symbols for expressions that are too long to be sizes."""
    parts = [builder.reshape(dimension(value), [1]) for value in values]
    return [*builder.context.bind(builder.concat(parts, 0))]


def is_at_least(context: RuleContext, value: Expr, bound: int) -> bool:
    """Whether ``value`` is proved to be ``bound`` or more."""
    low = context.scope.bounds(value).low
    return low is not None and low >= bound


def is_negative(context: RuleContext, value: Expr) -> bool:
    """Whether ``value`` is proved to be less than 0."""
    high = context.scope.bounds(value).high
    return high is not None and high < 0


def from_end(context: RuleContext, position: Expr, size: Expr) -> Expr:
    """``position``, counted from the end of an axis where it is negative."""
    if is_at_least(context, position, 0):
        return position
    if is_negative(context, position):
        return position + size
    return select(less(position, 0), position + size, position)


def clamp(value: Expr, low: Expr | int, high: Expr | int) -> Expr:
    """``value`` moved into low..high; ``high`` wins where the range is empty."""
    return minimum(maximum(value, low), high)


def not_zero(value: Expr) -> Expr:
    """``value`` as a divisor: 1 in place of 0, for quotients that are not used then."""
    return select(equal(value, 0), 1, value)


def integer_vector(builder: Builder, values: Sequence[Expr | int]) -> Node:
    """A rank-1 int64 tensor of expressions."""
    known = builder.shape(values)
    if all(v.is_constant for v in known):
        return array([v.value for v in known], DType.INT64)
    parts: list[Node] = [
        array([v.value], DType.INT64) if v.is_constant else builder.reshape(dimension(v), [1])
        for v in known
    ]
    return builder.concat(parts, 0)


def flattened_axes(values: Sequence[int], rank: int, builder: Builder) -> list[int]:
    """Possibly negative axes as positions; raises InvalidModelError on one out of range."""
    return [builder.axis(value, rank) for value in values]


def scalar_of(builder: Builder, operand: Node) -> Node:
    """A one-element tensor of any rank as a scalar."""
    for size in operand.shape:
        builder.context.require_equal(size, constant(1), "an operand must hold one element")
    return builder.reshape(operand, [])
