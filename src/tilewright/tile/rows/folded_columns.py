"""Few columns of many places: vectors run over places and columns alike, as over one long row.

Elements of few neighbouring rows fill no vector, but those of several places lie behind each other
in memory. A task has all columns; its loops take ``FOLD`` places of them at a time, whose elements
are whole vectors whatever the number of columns, and which have sums of their own until a sweep
ends. What there is one of for each row is spread over as many places. Start with
:class:`FoldedColumns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.tile import Accumulator, Load, Loop, Statement, Store, TileBuffer, Value
from tilewright.ir.tile_walk import expressions, value_loads
from tilewright.ir.views import Index
from tilewright.shape import Expr, constant, product
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.loops.side_by_side import combined
from tilewright.tile.nests import grid_axis
from tilewright.tile.rows.row_columns import Recorded, RowColumns
from tilewright.tile.rows.row_layouts import Layout
from tilewright.tile.rows.stages import NotOneLoopError, RowStages, Sweep, kind_of

FOLD = WIDE_LANES  # places: times any number of columns, whole vectors
PLACES = 4  # of which sums are met once: with as many vectors of each, registers are enough
ZERO, ONE = constant(0), constant(1)


class FoldedColumns(RowColumns):
    """All columns of one place of the grid's axes, so many places of the others at a time.

    Raises NotOneLoopError where an access does not walk places and columns as one row, and where
    there are known to be fewer than ``FOLD`` places.
    """

    folds = True

    def __init__(self, stages: RowStages, layout: Layout) -> None:
        self.stages, self.layout = stages, layout
        self.lowering, self.space = stages.lowering, stages.space
        reduced = layout.strided[-1:]
        if layout.within or not reduced or layout.beside[0] != self._after(reduced[0]):
            raise NotOneLoopError
        places = self.lowering.scope.resolve(self.space.shape[reduced[0]])
        if places.is_constant and places.value < FOLD:
            raise NotOneLoopError
        self.fixed: dict[int, Expr] = {}
        self.grid: list[tuple[str, Expr]] = []
        for axis in layout.grid:
            self.fixed[axis] = grid_axis(self.lowering, self.grid, self.space.shape[axis])
        self.width, self.first, self.part, self.in_parts = ONE, ZERO, ZERO, False
        self.most = self.count = self.lowering.scope.resolve(product(self._sizes(layout.beside)))
        self.spread: set[TileBuffer] = set()
        self.end = self.most * FOLD
        self.lowering.open()
        self.lowering.open()

    def _after(self, axis: int) -> int:
        """The next axis with more than one element."""
        wide = self.space.wide
        return wide[wide.index(axis) + 1]

    # ------------------------------------------------------------ columns of several places

    def _column_scratch(self, node: Node) -> TileBuffer:
        return self.lowering.scratch_buffer(node.dtype, self.most * FOLD)

    def _finish_sums(self, sweep: Sweep, sums: Sequence[TileBuffer]) -> None:
        """Sums of every row, of those of all places."""

        def body(row: Expr) -> list[Statement]:
            made: list[Statement] = []
            for reduction, buffer in zip(sweep.reductions, sums, strict=True):
                values = [Load(buffer, row + i * self.most) for i in range(FOLD)]
                made.append(Store(buffer, row, combined(kind_of(reduction), values)))
            return made

        self.lowering.emit(self._rows(body))
        for reduction, buffer in zip(sweep.reductions, sums, strict=True):
            self.lowering.cached[reduction] = self._result(buffer)

    def _spread_node(
        self, node: Node, value: Callable[[list[Expr]], Value]
    ) -> Callable[[Index], Value | None]:
        """One value for each column, and copies of them, twice as many with each loop."""
        made = len(self.lowering.scratch)
        read = super()._spread_node(node, value)
        buffer = self.lowering.scratch[made]
        self.spread.add(buffer)
        places = 1
        while places < FOLD:
            there = self.most * places

            def body(column: Expr, there: Expr = there) -> list[Statement]:
                return [Store(buffer, there + column, Load(buffer, column))]

            self.lowering.emit(self._loop(there, there, body))
            places *= 2
        return read

    def _nest(
        self, outer: Sequence[tuple[str, Expr]], size: Expr, step: int,
        at: Callable[[Sequence[Expr]], Statement],
    ) -> None:  # fmt: skip
        """``at`` several times ``FOLD`` places, then at as many once, and at what is left."""
        folds = size // FOLD
        passes = folds // PLACES
        if folds is ZERO:  # all of it would be what is left
            raise NotOneLoopError
        several, single = self._variable(passes), self._variable(folds)
        together = at([(several * PLACES + i) * FOLD for i in range(PLACES)])
        alone = at([single * FOLD])
        whole, self.end = self.end, size % FOLD * self.most
        loops = [
            (passes, Loop(str(several), ZERO, passes, (together,))),
            (folds - passes * PLACES, Loop(str(single), passes * PLACES, folds, (alone,))),
        ]
        made: list[Statement] = [loop for turns, loop in loops if turns is not ZERO]
        made.append(at([folds * FOLD]))
        self.end = whole
        for name, extent in reversed(outer):
            made = [Loop(name, ZERO, extent, tuple(made))]
        for statement in made:
            self.lowering.emit(statement)

    def _columns(self, body: Callable[[Expr], list[Statement]]) -> Loop:
        return self._loop(self.end, self.most * FOLD, body)

    def _record(
        self,
        strided: Sequence[int],
        within: Sequence[int],
        body: Callable[[list[Expr]], list[Accumulator]],
    ) -> Recorded:
        """Raises NotOneLoopError where an element is not the next one of its place or of all."""
        recorded = super()._record(strided, within, body)
        if not recorded.strided:
            return recorded
        names = recorded.columns, recorded.strided[-1][0]
        stores = [part for part in recorded.work.body if isinstance(part, Store)]
        values = [*(s.value for s in stores), *(a.value for a in recorded.work.accumulators)]
        accesses = [load for value in values for load in value_loads(value)]
        repeated = {load.offset for load in accesses if load.buffer in self.spread}
        for expression in expressions([recorded.work]):
            affine = expression.affine(names)
            slopes = affine and tuple(affine[0].get(name, ZERO) for name in names)
            if slopes not in ((ZERO, ZERO), (ONE, self.most)) and not (
                slopes == (ONE, ZERO) and expression in repeated
            ):
                raise NotOneLoopError
        plain = {a.offset for a in (*accesses, *stores) if a.buffer not in self.spread}
        if any(o in repeated and not {*names}.isdisjoint(o.free_symbols) for o in plain):
            raise NotOneLoopError
        return recorded
