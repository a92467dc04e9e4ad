"""Computed whole numbers that are positions. Start with :func:`as_index`."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, IndexValue, Literal, Value
from tilewright.shape import Expr, constant, maximum, minimum


def as_index(value: Value) -> Expr | None:
    """A computed int64 value as an index expression, if it can be one."""
    match value:
        case IndexValue(expression=expression):
            return expression
        case Literal(value=number, dtype=DType.INT64):
            return constant(int(number))
        case Apply(function=function, operands=(left, right), dtype=DType.INT64):
            one, other = as_index(left), as_index(right)
            return None if one is None or other is None else _applied(function, one, other)
        case _:
            return None


def _applied(function: str, one: Expr, other: Expr) -> Expr | None:
    match function:
        case "add":
            return one + other
        case "subtract":
            return one - other
        case "multiply":
            return one * other
        case "minimum":
            return minimum(one, other)
        case "maximum":
            return maximum(one, other)
        case "remainder" if other is not constant(0):
            return one % other
        case _:
            return None


__all__ = ["as_index"]
