"""Loops that store each of their values several times side by side, as along a repeated axis.

Iteration x stores a value as the elements ``times * x`` to ``times * x + times - 1``. A vector of
values becomes as many vectors of memory by permutations. Who writes the code, who prices it and who
takes rows together ask here. Start with :func:`repeats`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.tile import Let, Loop, Store, TileBuffer, Value
from tilewright.ir.tile_walk import (
    is_beside,
    is_innermost,
    may_fault,
    slope,
    stride,
    value_loads,
    value_parts,
    value_symbols,
)
from tilewright.shape import constant

MOST_REPEATED = 4  # as often as one value is stored side by side


@dataclass(frozen=True)
class Repeats:
    """A loop that binds ``lets`` and makes each of ``stores`` at ``times`` neighbouring places.

    They say where the first one of an iteration is; that of the next one is ``times`` after it.
    """

    loop: Loop
    times: int
    lets: tuple[Let, ...]
    stores: tuple[Store, ...]


def repeats(loop: Loop) -> Repeats | None:
    """What a loop repeats, if it does nothing else; None where it does.

    What it reads lies side by side, or is the same for all iterations, in other memory than what it
    stores: iterations may be run again.
    """
    lets = tuple(part for part in loop.body if isinstance(part, Let))
    match loop.body[len(lets) :]:
        case (Loop() as inner,) if not loop.accumulators and _is_short(inner):
            pass
        case _:
            return None
    times, stores = inner.end.value, tuple(s for s in inner.body if isinstance(s, Store))
    written = {store.buffer for store in stores}
    if not stores or len(stores) < len(inner.body):
        return None
    is_known = all(_is_known(part.value, loop, inner, written) for part in (*lets, *stores))
    if not is_known or not all(_is_beside(store, loop, inner) for store in stores):
        return None
    first = {inner.variable: constant(0)}
    places = (Store(s.buffer, s.offset.substitute(first), s.value) for s in stores)
    return Repeats(loop, times, lets, tuple(places))


def _is_short(loop: Loop) -> bool:
    few = loop.end.is_constant and 1 < loop.end.value <= MOST_REPEATED
    return few and loop.begin is constant(0) and is_innermost(loop) and not loop.accumulators


def _is_beside(store: Store, loop: Loop, inner: Loop) -> bool:
    """Whether the places of an iteration lie side by side, and those of the next one after them."""
    is_near = slope(store.offset, inner.variable) == 1
    return is_near and stride(store.offset, loop.variable) == inner.end.value


def _is_known(value: Value, loop: Loop, inner: Loop, written: set[TileBuffer]) -> bool:
    """Whether a value is the same at all places, and vectors of it are vectors of memory."""
    return (
        inner.variable not in value_symbols(value, {})
        and is_beside(value, loop.variable)
        and written.isdisjoint(load.buffer for load in value_loads(value))
        and not any(map(may_fault, value_parts(value)))
    )


__all__ = ["MOST_REPEATED", "Repeats", "repeats"]
