"""Searches for the best of a row and its place, of which many run side by side, one in each lane.

A lane may have a row of its own, or a part of one. Start with :class:`Searching`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tilewright.ir.tile import (
    Apply,
    Let,
    Load,
    Local,
    Statement,
    Store,
    TileBuffer,
    Value,
    neutral_element,
)
from tilewright.shape import Expr
from tilewright.tile.values.best_position import Search, place_of
from tilewright.tile.values.lowering import Lowering

Found = tuple[Value, Value]  # an element and its place


@dataclass(frozen=True)
class Searching:
    """The best elements so far and their places, in a row of scratch each."""

    lowering: Lowering
    search: Search
    elements: TileBuffer
    places: TileBuffer

    def begun(self, lane: Expr, first: Expr) -> list[Statement]:
        """Nothing is found yet; the place is the ``first`` one, where all are as bad as nothing."""
        nothing = neutral_element(self.search.kind, self.elements.dtype)
        place = place_of(first, self.places.dtype)
        return [Store(self.elements, lane, nothing), Store(self.places, lane, place)]

    def step(self, lane: Expr, found: Sequence[Found]) -> list[Statement]:
        """One or some elements with places, in order, after those before."""
        made: list[Statement] = []
        best: Found = (Load(self.elements, lane), Load(self.places, lane))
        # Two at a time: what is loaded where the result is stored is no operand of the last choice,
        # of which LLVM would store the other operand alone, under a mask.
        for one, other in zip_longest(found[::2], found[1::2]):
            later = one if other is None else self._better(one, other, made)
            best = self._better(best, later, made)
        stores = zip((self.elements, self.places), best, strict=True)
        return [*made, *(Store(buffer, lane, value) for buffer, value in stores)]

    def _better(self, earlier: Found, later: Found, made: list[Statement]) -> Found:
        """The better one of two, as scalars that statements bind."""
        is_later = self.search.replaces(earlier[0], later[0])

        def chosen(old: Value, new: Value) -> Local:
            name = self.lowering.name("v")
            made.append(Let(name, Apply("select", (is_later, new, old), new.dtype)))
            return Local(name, new.dtype)

        return chosen(earlier[0], later[0]), chosen(earlier[1], later[1])
