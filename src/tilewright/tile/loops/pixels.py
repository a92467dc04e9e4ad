"""Pixels made of planes: the last axis is short, and what is read has it farther outside.

One turn of the loop over pixels makes all elements of a pixel, each out of its own plane. LLVM then
reads every plane in whole vectors and stores vectors of whole pixels; elements one after the other
it would read with a stride. Start with :func:`as_pixels`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.tile import Guarded, Load, Statement, Store, Value
from tilewright.ir.tile_walk import ExpressionMap, slope, value_loads
from tilewright.shape import Expr, constant

MOST_PLANES = 4  # elements of a pixel: as many as LLVM stores as one group of vectors


def as_pixels(
    outer: str, inner: tuple[str, Expr], body: Sequence[Statement]
) -> tuple[Statement, ...] | None:
    """The stores of one pixel instead of a loop over ``inner``, or None where it has no planes."""
    name, size = inner
    if not size.is_constant or not 1 < size.value <= MOST_PLANES:
        return None
    planes = False
    for statement in body:
        if not isinstance(statement, Store) or slope(statement.offset, name) != 1:
            return None
        loads = value_loads(statement.value)
        planes |= any(slope(x.offset, outer) == 1 and _is_far(x, name) for x in loads)
    if not planes:
        return None
    elements = (_Element(name, number) for number in range(size.value))
    return tuple(made for element in elements for made in element.statements(body))


def _is_far(load: Load, name: str) -> bool:
    """Whether the next element along an axis is not beside a load's, nor the same."""
    step = slope(load.offset, name)
    return step is None or step not in (0, 1)


class _Element(ExpressionMap):
    """Statements at one position of the last axis: what its number decides is decided."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(lambda e: e.substitute({name: constant(number)}))

    def _value(self, value: Value) -> Value:
        made = super()._value(value)
        if isinstance(made, Guarded) and made.predicate.is_constant:
            return made.inside if made.predicate.value else made.outside
        return made


__all__ = ["as_pixels"]
