"""Short rows whose elements lie side by side: turned, so that vectors run across many rows.

A vector along a row of a few elements is mostly empty, and ends in sums of its own lanes. A task
takes a block of rows instead, which register squares turn on their way into scratch and on their
way out; all between is that of rows which lie side by side (``row_columns``). Start with
:func:`turned_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, RowSpace
from tilewright.ir.tile import (
    Accumulator,
    Let,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
)
from tilewright.ir.tile_walk import expressions, slope, value_loads
from tilewright.ir.views import linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.rows.parts import lower_whole
from tilewright.tile.rows.row_columns import Recorded, RowColumns, RowRange
from tilewright.tile.rows.row_layouts import Layout
from tilewright.tile.rows.stages import NotOneLoopError, RowStages
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.work import MOST_COLUMNS

ZERO, ONE = constant(0), constant(1)
BLOCK = 4096  # elements of the rows of a task: with what is kept of them they stay in L1
LONGEST = 512  # elements of a row that is always longer: turning takes longer than its ends do


class TurnedRows(RowColumns):
    """A block of neighbouring rows, each of which is a column of scratch memory."""

    def __init__(self, stages: RowStages, layout: Layout, given: RowRange | None = None) -> None:
        super().__init__(stages, layout, in_parts=False, given=given)
        self.length = product(self._sizes(layout.strided))
        lead = linear([self.fixed[a] for a in layout.grid], self._sizes(layout.grid))
        beside = product(self._sizes(layout.beside))
        self.rows = product(self._sizes(layout.grid)) * beside
        number = lead * beside + self.first
        self.origin = self.lowering.scope.resolve(number * self.length)
        self.turned = read_elements(stages)
        for node in self.turned:
            buffer = self._scratch(node)
            self._turn_in(node, buffer)
            stages.lowering.cached[node] = stages.reader(buffer, self._in_scratch, self.fixed)
        for output in stages.elements:
            stages.written[output] = self._scratch(output)
        stages.offset = self._in_scratch

    def _block(self, rows: Expr) -> Expr:
        """Rows of one task: whole vectors, as many as stay in the nearest cache."""
        length = maximum(product(self._sizes(self.layout.strided)), 1)
        most = maximum(minimum(BLOCK // length, MOST_COLUMNS) // WIDE_LANES, 1)
        return minimum(most, maximum(ceil_div(rows, WIDE_LANES), 1)) * WIDE_LANES

    def _scratch(self, node: Node) -> TileBuffer:
        return self.lowering.scratch_buffer(node.dtype, self.length * self.most)

    def source(self, node: Node) -> tuple[TileBuffer, Expr, Expr]:
        """Where the first row of the block lies, and how far it is to the next one."""
        return self.lowering.buffer(node), self.origin, self.length

    def _turn_in(self, node: Node, target: TileBuffer) -> None:
        self.lowering.emit(
            TransposeBlock(*self.source(node), target, ZERO, self.most, self.count, self.length)
        )

    def write_rows(self) -> None:
        """What there is one of for each row, and the elements, turned back."""
        super().write_rows()
        for output in self.stages.elements:
            source, target = self.stages.written[output], self.stages.targets[output]
            self.lowering.emit(
                TransposeBlock(
                    source, ZERO, self.most, target, self.origin, self.length, self.length,
                    self.count,
                )
            )  # fmt: skip

    def _record(
        self,
        strided: Sequence[int],
        within: Sequence[int],
        body: Callable[[list[Expr]], list[Accumulator]],
    ) -> Recorded:
        """Raises NotOneLoopError where neighbouring rows read neither neighbours nor the same."""
        recorded = super()._record(strided, within, body)
        for expression in expressions([recorded.work]):
            affine = expression.affine((recorded.columns,))
            if affine is None or affine[0][recorded.columns] not in (ZERO, ONE):
                raise NotOneLoopError
        return recorded


def read_elements(stages: RowStages) -> list[Node]:
    """What is read of which there is one for every element. Raises NotOneLoopError."""
    found = [n for n in stages.kernel.reads if stages.space.holds_elements(n.shape)]
    is_plain = all(n.shape == stages.space.shape for n in found)
    if not is_plain or any(n.dtype.bytes not in SIZES for n in (*found, *stages.elements)):
        raise NotOneLoopError
    return found


def turned_rows(
    kernel: Kernel, fresh: Callable[[], Lowering], plain: TileProgram
) -> tuple[TurnedRows, TileProgram] | None:
    """A task that turns its rows, and its program; None where that is impossible or no gain.

    ``plain`` goes along the rows one by one.
    """
    stages = RowStages(kernel, fresh())
    space = stages.space
    shortest = stages.lowering.scope.bounds(product([space.shape[a] for a in space.axes])).low
    if shortest is not None and shortest > LONGEST and _reads_along(plain.body):
        return None
    for layout in _layouts(space):
        try:
            task = TurnedRows(RowStages(kernel, fresh()), layout)
            return task, lower_whole(task)
        except NotOneLoopError:
            continue
    return None


def _reads_along(body: Iterable[Statement]) -> bool:
    """Whether no loop reads memory with a stride."""
    loops = [statement for statement in body if isinstance(statement, Loop)]
    return all(_reads_along(loop.body) and _is_along(loop) for loop in loops)


def _is_along(loop: Loop) -> bool:
    parts = [part for part in loop.body if isinstance(part, Let | Store)]
    loads = (load for part in (*parts, *loop.accumulators) for load in value_loads(part.value))
    return all(slope(load.offset, loop.variable) is not None for load in loads)


def _layouts(space: RowSpace) -> list[Layout]:
    """Layouts to try, the best first; none where the elements of a row do not lie side by side."""
    kept, reduced = space.kept, [a for a in space.wide if a in space.axes]
    if not kept or not reduced or kept[-1] > reduced[0]:
        return []
    return [
        Layout(kept[:first], tuple(reduced), kept[first:], ())
        for first in dict.fromkeys((0, len(kept) - 1))
    ]
