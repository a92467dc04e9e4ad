"""Whole numbers that are positions. Start with :func:`as_index` and :func:`with_pieces`."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, IndexValue, Literal, Value
from tilewright.shape import Expr, constant, maximum, minimum
from tilewright.shape.expr import Atom, rebuild
from tilewright.shape.table import Operation


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


def with_pieces(expression: Expr, piece: Callable[[Atom], Expr]) -> Expr:
    """The expression with ``piece`` of each of its operations in the place of that."""
    atoms = dict.fromkeys(a for monomial, _ in expression.terms for a in monomial.atoms)
    pieces = {a: piece(a) for a in atoms if a.operation is not Operation.SYMBOL}
    return rebuild(expression, pieces) if pieces else expression


__all__ = ["as_index", "with_pieces"]
