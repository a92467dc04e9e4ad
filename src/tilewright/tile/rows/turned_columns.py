"""Rows whose elements lie a few columns apart: turned, so that vectors run along each of them.

Where few rows lie side by side, vectors along them are mostly empty, or hold several places of each
row whose sums are combined in the end. A task takes all such rows of one place instead: register
squares pick the columns apart on their way into scratch, rows are gone along there one by one, and
what is made of their elements goes back in the same way. Start with :class:`TurnedColumns`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node
from tilewright.ir.tile import Loop, TileBuffer, TransposeBlock
from tilewright.ir.views import linear, unflatten
from tilewright.shape import Expr, constant, product
from tilewright.tile.nests import grid_axis
from tilewright.tile.rows.rows_along import Rows
from tilewright.tile.rows.stages import NotOneLoopError, RowStages
from tilewright.tile.rows.turned_rows import read_elements

ZERO = constant(0)


class TurnedColumns(Rows):
    """The rows beside each other at one place of the axes before them.

    Raises NotOneLoopError where the axes that are reduced do not lie between two kept ones.
    """

    def __init__(self, stages: RowStages) -> None:
        space, lowering = stages.space, stages.lowering
        reduced = [axis for axis in space.wide if axis in space.axes]
        beside = [axis for axis in space.kept if reduced and axis > reduced[-1]]
        lead = [axis for axis in space.kept if axis not in beside]
        if not beside or any(axis > reduced[0] for axis in lead):
            raise NotOneLoopError
        fixed: dict[int, Expr] = {}
        grid: list[tuple[str, Expr]] = []
        for axis in lead:
            fixed[axis] = grid_axis(lowering, grid, space.shape[axis])
        self.length = product([space.shape[axis] for axis in reduced])
        self.columns = product([space.shape[axis] for axis in beside])
        sizes = tuple(space.shape[axis] for axis in lead)
        place = linear([fixed[axis] for axis in lead], sizes)
        self.origin = lowering.scope.resolve(place * self.length * self.columns)
        scratch = {node: self._turned_in(stages, node) for node in read_elements(stages)}
        for output in stages.elements:
            stages.written[output] = self._scratch(stages, output)
        lowering.open()
        self.column = lowering.variable(self.columns)
        axes = [("", space.shape[axis]) for axis in beside]
        resolve = lowering.scope.resolve
        own = dict(zip(beside, map(resolve, unflatten(self.column, axes)), strict=True))
        super().__init__(stages, False, fixed | own)
        self.grid = grid
        stages.offset = self._in_scratch
        for node, buffer in scratch.items():
            lowering.cached[node] = stages.reader(buffer, self._in_scratch, self.place)

    def _scratch(self, stages: RowStages, node: Node) -> TileBuffer:
        return stages.lowering.scratch_buffer(node.dtype, self.length * self.columns)

    def _turned_in(self, stages: RowStages, node: Node) -> TileBuffer:
        source, buffer = stages.lowering.buffer(node), self._scratch(stages, node)
        stages.lowering.emit(
            TransposeBlock(
                source, self.origin, self.columns, buffer, ZERO, self.length, self.length,
                self.columns,
            )
        )  # fmt: skip
        return buffer

    def _in_scratch(self, index: Sequence[Expr]) -> Expr:
        sizes = tuple(self.space.shape[axis] for axis in self.reduced)
        return self.column * self.length + linear([index[axis] for axis in self.reduced], sizes)

    def write_rows(self) -> None:
        """What there is one of for each row, the loop over the rows, and the elements."""
        super().write_rows()
        lowering = self.lowering
        inner = lowering.close()
        outer = lowering.close()
        lowering.emit(Loop(str(self.column), ZERO, self.columns, (*outer, *inner)))
        for output in self.stages.elements:
            lowering.emit(
                TransposeBlock(
                    self.stages.written[output], ZERO, self.length,
                    self.stages.targets[output], self.origin, self.columns, self.columns,
                    self.length,
                )
            )  # fmt: skip
