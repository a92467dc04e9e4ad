"""Loops over the lanes of vectors, and over channels some of which fill vectors.

Start with :class:`LaneLoops`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.tile import Loop
from tilewright.shape import Expr, constant
from tilewright.tile.values.lowering import Lowering

PIECE = 4  # channels that are moved together where fewer are left than a vector has


class LaneLoops:
    """Writes loops with vectors of so many ``lanes``."""

    lowering: Lowering
    lanes: int

    def loop(
        self, begin: Expr | int, end: Expr | int, extent: int, body: Callable[[Expr], None]
    ) -> None:
        """``body`` for a variable in [begin, end), which lies within [0, extent).

        Ends of images are left as they are written: proving what cannot be simpler takes longer
        than all else.
        """
        first, last = constant(0) + begin, constant(0) + end
        if first.is_constant and last.is_constant and last.value <= first.value:
            return
        self.lowering.open()
        variable = self.lowering.variable(constant(extent))
        body(variable)
        self.lowering.emit(Loop(str(variable), first, last, self.lowering.close()))

    def each(self, count: int, body: Callable[[Expr], None]) -> None:
        """``body`` for every number below ``count``."""
        if count == 1:
            body(constant(0))
        else:
            self.loop(0, count, count, body)

    def vector(self, body: Callable[[Expr], None], lanes: int | None = None) -> None:
        """``body`` for every lane of one vector."""
        lanes = lanes or self.lanes
        self.lowering.open()
        lane = self.lowering.variable(constant(lanes))
        body(lane)
        inside = self.lowering.close()
        self.lowering.emit(Loop(str(lane), constant(0), constant(lanes), inside, independent=True))

    def channels(self, count: Expr, most: int, body: Callable[[Expr], None]) -> None:
        """``body`` for ``count`` channels, ``most`` vectors or less, as far as they fill any."""
        resolve = self.lowering.scope.resolve
        whole = resolve(count // self.lanes)
        self.loop(
            0, whole, most,
            lambda number: self.vector(
                lambda lane: body(lane if most == 1 else number * self.lanes + lane)
            ),
        )  # fmt: skip
        done = whole * self.lanes
        pieces = resolve((count - done) // PIECE)
        self.loop(
            0, pieces, self.lanes // PIECE,
            lambda number: self.vector(lambda lane: body(done + number * PIECE + lane), PIECE),
        )  # fmt: skip
        self.loop(resolve(done + pieces * PIECE), resolve(count), most * self.lanes, body)


__all__ = ["LaneLoops"]
