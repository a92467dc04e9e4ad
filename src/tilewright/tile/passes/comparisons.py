"""Loops cut where a comparison of positions changes: each part takes one answer for granted.

What a triangle or a band of a matrix keeps is decided by a comparison of two positions, one of
which the loop counts. Below some place the answer is one, beyond it the other, so that one part is
a plain copy, and the other neither compares nor reads what it does not take. Start with
:func:`cut_at_comparisons`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Let, Literal, Loop, Store, Value
from tilewright.ir.tile_walk import ExpressionMap, value_parts
from tilewright.shape import Expr, Scope, ceil_div, maximum, minimum
from tilewright.tile.passes.positions import as_index

MOST = 2  # comparisons at which a loop is cut: every one makes its code longer by half or more


@dataclass(frozen=True)
class _Change:
    """A comparison holds from ``place`` on, or, unless it ``begins``, before it."""

    function: str
    margin: Expr
    place: Expr
    begins: bool


def cut_at_comparisons(loop: Loop, scope: Scope, most: int = MOST) -> Sequence[Loop]:
    """The loop as several that follow each other and cover the same range; or as it was."""
    change = _change(loop) if most else None
    if change is None:
        return [loop]
    place = scope.resolve(maximum(loop.begin, minimum(change.place, loop.end)))
    parts = (
        replace(loop, end=place, body=_body(loop, change, not change.begins)),
        replace(loop, begin=place, body=_body(loop, change, change.begins)),
    )
    return [part for half in parts for part in cut_at_comparisons(half, scope, most - 1)]


def _change(loop: Loop) -> _Change | None:
    """The first comparison that changes along a loop that does nothing but store elements."""
    if loop.accumulators or not all(isinstance(part, Let | Store) for part in loop.body):
        return None
    values = (part.value for part in loop.body if isinstance(part, Let | Store))
    for part in (inner for value in values for inner in value_parts(value)):
        margin = _margin(part)
        affine = None if margin is None else margin.affine((loop.variable,))
        if margin is None or affine is None or not affine[0][loop.variable].is_constant:
            continue
        assert isinstance(part, Apply)
        slope, rest = affine[0][loop.variable].value, affine[1]
        if slope:
            place = ceil_div(-rest, slope) if slope > 0 else rest // -slope + 1
            return _Change(part.function, margin, place, slope > 0)
    return None


def _margin(value: Value) -> Expr | None:
    """What is 0 or more where a comparison of positions holds; None for all other values."""
    if not isinstance(value, Apply) or value.function not in ("less", "less_equal"):
        return None
    one, other = map(as_index, value.operands)
    if one is None or other is None:
        return None
    return other - one - int(value.function == "less")


def _body(loop: Loop, change: _Change, holds: bool) -> tuple[Let | Store, ...]:
    known = _Known(change, holds)
    body = (known.statement(part) for part in loop.body)
    return tuple(part for part in body if isinstance(part, Let | Store))


class _Known(ExpressionMap):
    """Values where a comparison is known to hold, or not to."""

    def __init__(self, change: _Change, holds: bool) -> None:
        super().__init__(lambda expression: expression)
        self._change, self._holds = change, holds

    def _value(self, value: Value) -> Value:
        made = super()._value(value)
        if not isinstance(made, Apply):
            return made
        if made.function == self._change.function and _margin(made) == self._change.margin:
            return Literal(self._holds, DType.BOOL)
        if made.function == "select" and isinstance(made.operands[0], Literal):
            return made.operands[1 if made.operands[0].value else 2]
        return made


__all__ = ["cut_at_comparisons"]
