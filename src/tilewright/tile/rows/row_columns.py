"""Rows that lie side by side: statistics of a block of neighbouring rows, along vectors.

The last axes of such a space are kept (``beside``), perhaps with a few elements of each row after
them (``within``: the channels of a group, where channels are last). A task has a block of them: its
*columns*, one behind the other in memory. Sums over the other reduced axes (``strided``) run side
by side, one for each column; those of a row's columns are combined at the end. What there is one of
for each row is spread over its columns, so that the next sweep reads it as it reads elements. Start
with :class:`RowColumns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as combinations

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Broadcast, Shape
from tilewright.ir.tile import (
    Accumulator,
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    Value,
    neutral_element,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.loops.side_by_side import combined
from tilewright.tile.nests import block_number, collapse, grid_axis
from tilewright.tile.rows.columns import FEW_ROWS, ROWS, rows_in_order, rows_per_pass
from tilewright.tile.rows.row_layouts import Layout
from tilewright.tile.rows.stages import (
    NotOneLoopError,
    RowStages,
    Sweep,
    kind_of,
    part_of,
    reciprocal,
)
from tilewright.tile.work import MOST_COLUMNS, PARTS


@dataclass(frozen=True)
class RowRange:
    """The rows of a task that is made elsewhere, from ``begin`` to ``end`` along the axes beside.

    ``fixed`` is where they lie along the axes of the grid.
    """

    fixed: Mapping[int, Expr]
    begin: Expr
    end: Expr


@dataclass(frozen=True)
class Recorded:
    """What is done for every element, as a loop without bounds: stores, and what is reduced.

    ``columns`` is the variable along columns (or rows); those of the block start at ``begin``.
    """

    strided: list[tuple[str, Expr]]
    columns: str
    begin: Expr
    work: Loop


class RowColumns:
    """The body of one task: a block of columns at one place of the grid's axes.

    With a range of rows, the body of a loop over blocks of these.
    """

    has_read = False  # whether a sweep has brought what the next one reads nearer
    folds = False  # whether loops over columns go on to those of the places after theirs

    def __init__(
        self, stages: RowStages, layout: Layout, in_parts: bool, given: RowRange | None = None
    ) -> None:
        if in_parts and not layout.strided:
            raise NotOneLoopError  # there is nothing to cut into parts
        self.stages = stages
        self.lowering = stages.lowering
        self.space = stages.space
        self.layout = layout
        self.fixed: dict[int, Expr] = {}
        self.grid: list[tuple[str, Expr]] = []
        if given is not None:
            self.fixed.update(given.fixed)
        for axis in layout.grid if given is None else ():
            self.fixed[axis] = grid_axis(self.lowering, self.grid, self.space.shape[axis])
        self.width = product(self._sizes(layout.within))  # columns of one row
        rows = product(self._sizes(layout.beside))
        self.most = self.lowering.scope.resolve(self._block(rows))
        begin, end = (constant(0), rows) if given is None else (given.begin, given.end)
        self.lowering.open()
        self.in_parts = in_parts
        self.part = constant(0)
        if in_parts:
            self.part = grid_axis(self.lowering, self.grid, constant(PARTS))
        blocks, most = ceil_div(end - begin, self.most), ceil_div(rows, self.most)
        number = block_number(self.lowering, self.grid, blocks, most)
        self.first = begin + number * self.most
        self.count = self.lowering.scope.resolve(minimum(self.most, end - self.first))
        self.lowering.open()

    def _sizes(self, axes: Sequence[int]) -> Shape:
        return tuple(self.space.shape[a] for a in axes)

    def _block(self, rows: Expr) -> Expr:
        """Rows of one task: blocks of about the same number of columns."""
        blocks = maximum(ceil_div(rows * self.width, MOST_COLUMNS), 1)
        share = maximum(ceil_div(rows, blocks), 1)
        return share if self.layout.within else ceil_div(share, WIDE_LANES) * WIDE_LANES

    # ------------------------------------------------------------ what tasks do

    @property
    def is_even(self) -> tuple[str, ...]:
        """See :class:`~tilewright.tile.rows.parts.RowTask`, also for what has no comment."""
        return tuple(name for name, _ in self.grid[len(self.layout.grid) :])

    @property
    def sums(self) -> Expr:
        """One for each column of every block."""
        axes = (*self.layout.grid, *self.layout.beside, *self.layout.within)
        return product(self._sizes(axes))

    def sweep(self, sweep: Sweep) -> None:
        """Reduce whole rows."""
        self._finish_sums(sweep, self._sweep(sweep))

    def gather(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """What the columns of all parts were reduced to is combined."""
        sums = [self._column_scratch(r) for r in sweep.reductions]

        def body(column: Expr) -> list[Statement]:
            made: list[Statement] = []
            for reduction, buffer, space in zip(sweep.reductions, sums, spaces, strict=True):
                parts = [Load(space, self._in_space(constant(p), column)) for p in range(PARTS)]
                made.append(Store(buffer, column, combined(kind_of(reduction), parts)))
            return made

        self.lowering.emit(self._columns(body))
        self._finish_sums(sweep, sums)

    def leave(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """The columns of the part are reduced, and copied to the part's place."""
        sums = self._sweep(sweep)
        pairs = list(zip(spaces, sums, strict=True))
        self.lowering.emit(
            self._columns(
                lambda c: [Store(to, self._in_space(self.part, c), Load(b, c)) for to, b in pairs]
            )
        )

    def _in_space(self, part: Expr, column: Expr) -> Expr:
        """Where a column's sum of a part lies, of all blocks' sums of all parts."""
        lead = linear([self.fixed[a] for a in self.layout.grid], self._sizes(self.layout.grid))
        row = product(self._sizes((*self.layout.beside, *self.layout.within)))
        return part * self.sums + lead * row + self.first * self.width + column

    def write(self, sweep: Sweep) -> None:
        """Loops over the strided axes around one over columns."""
        self._spread(sweep)

        def body(index: list[Expr]) -> list[Accumulator]:
            for output in sweep.outputs:
                self.stages.write(output, index)
            return []

        recorded = self._record(self.layout.strided, self.layout.within, body)
        *outer, (variable, size) = recorded.strided or [("", constant(1))]
        columns = product(self._sizes((*self.layout.beside, *self.layout.within)))
        # Rows of whole vectors share none.
        step = 1 if columns % WIDE_LANES is constant(0) else rows_per_pass(size, ROWS)
        self._nest(outer, size, step, partial(self._written, recorded, variable))

    def _written(self, recorded: Recorded, variable: str, places: Sequence[Expr]) -> Loop:
        """Results at several places of the innermost strided axis, all read before one is written.

        Where results replace what is read, and rows are no whole vectors, the next one is read from
        where a vector of this one was just written to, and waits until that has left the core.
        """

        def body(column: Expr) -> list[Statement]:
            works = self._at_places(recorded, column, variable, places)
            stores = [s for work in works for s in work.body if isinstance(s, Store)]
            if len(places) == 1:
                return [*stores]
            names = [self.lowering.name("v") for _ in stores]
            values = [Let(name, s.value) for name, s in zip(names, stores, strict=True)]
            return [
                *values,
                *(
                    Store(s.buffer, s.offset, Local(name, s.value.dtype))
                    for name, s in zip(names, stores, strict=True)
                ),
            ]

        return self._columns(body)

    def write_rows(self) -> None:
        """A loop over the rows of the block."""
        stages = self.stages

        def body(index: list[Expr]) -> list[Accumulator]:
            place = dict(enumerate(index))
            for output in stages.results:
                own = stages.row_index(output.shape, place)
                value = self.lowering.value(output, own)
                self.lowering.store(stages.targets[output], linear(own, output.shape), value)
            return []

        if not stages.results:
            return
        recorded = self._record((), (), body)
        self.lowering.emit(self._rows(lambda row: [*self._at(recorded, row).body]))

    # ------------------------------------------------------------ reductions

    def _sweep(self, sweep: Sweep) -> list[TileBuffer]:
        """Sums of every column."""
        self._spread(sweep)
        places = {node: self._place(node) for node in sweep.keep}

        def body(index: list[Expr]) -> list[Accumulator]:
            resolve = self.lowering.scope.resolve
            for node, (buffer, offset) in places.items():
                value = self.lowering.value(node, index)
                self.lowering.emit(Store(buffer, resolve(offset(index)), value))
            return [
                Accumulator("", kind_of(r), self.lowering.value(r.inputs[0], index))
                for r in sweep.reductions
            ]

        recorded = self._record(self.layout.strided, self.layout.within, body)
        for node, (buffer, offset) in places.items():
            self.lowering.cached[node] = self.stages.reader(buffer, offset, self.fixed)
        sums = [self._column_scratch(r) for r in sweep.reductions]
        self._sum_columns(recorded, sums, [kind_of(r) for r in sweep.reductions])
        self.has_read = True
        return sums

    @property
    def _most_rows(self) -> int:
        """Rows of a pass; the first sweep reads memory, in one stream where blocks are whole."""
        columns = product(self._sizes((*self.layout.beside, *self.layout.within)))
        if self.has_read or not columns.is_constant or columns.value > MOST_COLUMNS:
            return ROWS
        return rows_in_order(columns, self.stages.kernel.reads)

    def _finish_sums(self, sweep: Sweep, sums: Sequence[TileBuffer]) -> None:
        """Sums of every row."""
        for reduction, buffer in zip(sweep.reductions, sums, strict=True):
            result = self._sum_rows(buffer, kind_of(reduction)) if self.layout.within else buffer
            self.lowering.cached[reduction] = self._result(result)

    def _place(self, node: Node) -> tuple[TileBuffer, Callable[[Sequence[Expr]], Expr]]:
        elements = product(self._sizes(self.layout.strided)) * self.most * self.width
        return self.stages.place(node, elements, self._in_scratch)

    def _in_scratch(self, index: Sequence[Expr]) -> Expr:
        """Where an element of the block lies: columns side by side."""
        strided = self.layout.strided
        line = linear([index[a] for a in strided], self._sizes(strided))
        return line * self.most * self.width + self._column(index)

    def _column_scratch(self, node: Node) -> TileBuffer:
        return self.lowering.scratch_buffer(node.dtype, self.most * self.width)

    def _sum_columns(
        self, recorded: Recorded, sums: Sequence[TileBuffer], kinds: Sequence[str]
    ) -> None:
        """Several places of the innermost strided axis at a time, so that sums move less often."""
        *outer, (variable, size) = recorded.strided or [("", constant(1))]
        once = not (outer or self.in_parts) and size.is_constant and 0 < size.value <= FEW_ROWS

        def add(places: Sequence[Expr], first: bool) -> Statement:
            def body(column: Expr) -> list[Statement]:
                works = self._at_places(recorded, column, variable, places)
                made: list[Statement] = [s for work in works for s in work.body]
                for number, (buffer, kind) in enumerate(zip(sums, kinds, strict=True)):
                    values = [work.accumulators[number].value for work in works]
                    value = combined(kind, values)
                    if not first:
                        value = combined(kind, [value, Load(buffer, column)])
                    made.append(Store(buffer, column, value))
                return made

            return self._columns(body)

        if once:
            self.lowering.emit(add([constant(i) for i in range(size.value)], True))
            return
        self.lowering.emit(self._columns(lambda column: [
            Store(b, column, neutral_element(k, b.dtype))
            for b, k in zip(sums, kinds, strict=True)
        ]))  # fmt: skip
        self._nest(outer, size, rows_per_pass(size, self._most_rows), partial(add, first=False))

    def _nest(
        self, outer: Sequence[tuple[str, Expr]], size: Expr, step: int,
        at: Callable[[Sequence[Expr]], Statement],
    ) -> None:  # fmt: skip
        """``at`` so many places of the innermost strided axis, in loops over the others."""
        made: list[Statement] = []
        if size is constant(step) and not self.in_parts:
            made.append(at([constant(i) for i in range(step)]))
        else:
            begin, end = self._bounds(size)
            passes = maximum(end - begin, 0) // step if self.in_parts else size // step
            several, single = self._variable(passes), self._variable(size)
            together = at([begin + several * step + i for i in range(step)])
            made.append(Loop(str(several), constant(0), passes, (together,)))
            if step > 1:
                made.append(Loop(str(single), begin + passes * step, end, (at([single]),)))
        for name, extent in reversed(outer):
            made = [Loop(name, constant(0), extent, tuple(made))]
        for statement in made:
            self.lowering.emit(statement)

    def _sum_rows(self, columns: TileBuffer, kind: str) -> TileBuffer:
        """The sums of the columns of every row, combined."""
        rows = self.lowering.scratch_buffer(columns.dtype, self.most)
        width = self.width.value

        def body(row: Expr) -> list[Statement]:
            values = [Load(columns, row * width + i) for i in range(width)]
            return [Store(rows, row, combined(kind, values))]

        self.lowering.emit(self._rows(body))
        return rows

    def _result(self, buffer: TileBuffer) -> Callable[[Index], Value | None]:
        """Reads a result of the task's rows."""
        resolve = self.lowering.scope.resolve
        kept = [a for a in range(len(self.space.shape)) if a not in self.space.axes]

        def read(index: Index) -> Value | None:
            place = dict(zip(kept, index, strict=True))
            if any(place[axis] is not resolve(own) for axis, own in self.fixed.items()):
                return None
            return Load(buffer, resolve(self._row(place)))

        return read

    # ------------------------------------------------------------ what all columns of a row share

    def _spread(self, sweep: Sweep) -> None:
        """What is the same all along the strided axes, once for every column."""
        cached = {n for n in self.lowering.cached if n not in self.stages.seeds}
        needed = self.stages.needed(sweep.roots, cached)
        quotients = dict(self.stages.divided(sweep))
        read_as_is = {d for n in needed if n not in quotients for d in n.inputs}
        for node in self.stages.kernel.body:
            if node in needed and node in read_as_is and self._is_spread(node):
                read = self._spread_node(node, partial(self.lowering.value, node))
                self.lowering.cached[node] = read
        for node, divisor in quotients.items():
            value = partial(self._reciprocal, divisor)
            self.lowering.cached[node] = self.stages.quotient(
                node, self._spread_node(divisor, value)
            )

    def _reciprocal(self, divisor: Node, index: list[Expr]) -> Value:
        return reciprocal(self.lowering.value(divisor, index))

    def _is_spread(self, node: Node) -> bool:
        """Whether a Broadcast is no contiguous read along the columns, or is of a result."""
        if not isinstance(node.primitive, Broadcast) or node.shape != self.space.shape:
            return False
        operand, columns = node.inputs[0], {*self.layout.beside, *self.layout.within}
        pairs = zip(node.primitive.axes, operand.shape, strict=True)
        axes = {axis for axis, size in pairs if not (size.is_constant and size.value == 1)}
        if not axes.isdisjoint(self.layout.strided) or axes.isdisjoint(columns):
            return False
        return self.folds or self.stages.stage_of(operand) > 0 or not columns <= axes

    def _spread_node(
        self, node: Node, value: Callable[[list[Expr]], Value]
    ) -> Callable[[Index], Value | None]:
        """What reads a value of which there is one for each row, from one for each column."""
        buffer = self._column_scratch(node)
        within = [[constant(i) for i in range(n.value)] for n in self._sizes(self.layout.within)]

        def body(index: list[Expr]) -> list[Accumulator]:
            for places in combinations(*within):
                for axis, place in zip(self.layout.within, places, strict=True):
                    index[axis] = place
                column = self.lowering.scope.resolve(self._column(index))
                self.lowering.emit(Store(buffer, column, value(index)))
            return []

        recorded = self._record((), (), body)
        self.lowering.emit(self._rows(lambda row: [*self._at(recorded, row).body]))
        return self.stages.reader(buffer, self._column, self.fixed)

    # ------------------------------------------------------------ loops

    def _row(self, place: Mapping[int, Expr]) -> Expr:
        """The number in the block of the row at a place of the space."""
        beside = self.layout.beside
        return linear([place[a] for a in beside], self._sizes(beside)) - self.first

    def _column(self, index: Sequence[Expr]) -> Expr:
        """The number in the block of the column at an index of the space."""
        within = self.layout.within
        own = linear([index[a] for a in within], self._sizes(within))
        return self._row(dict(enumerate(index))) * self.width + own

    def _record(
        self,
        strided: Sequence[int],
        within: Sequence[int],
        body: Callable[[list[Expr]], list[Accumulator]],
    ) -> Recorded:
        """What ``body`` emits for one element, with the axes of its loops merged."""
        lowering = self.lowering
        index = [self.fixed.get(a, constant(0)) for a in range(len(self.space.shape))]
        inner = (*self.layout.beside, *within)
        axes: dict[int, tuple[str, Expr]] = {}
        for axis in (*strided, *inner):
            lowering.open()
            index[axis] = lowering.variable(self.space.shape[axis])
            axes[axis] = (str(index[axis]), self.space.shape[axis])
        accumulators = tuple(body(index))
        levels = [lowering.close() for _ in axes]
        if any(levels[1:]) or not all(isinstance(part, Store) for part in levels[0]):
            raise NotOneLoopError
        parts: Sequence[Statement] = [Loop("", constant(0), constant(0), levels[0], accumulators)]
        lowering.open()
        columns, parts = collapse(lowering, [axes[a] for a in inner], parts)
        outer, parts = collapse(lowering, [axes[a] for a in strided], parts)
        lowering.close()
        (work,) = parts
        split = len(outer) == 1 or not (self.in_parts and strided)
        if len(columns) != 1 or not split or not isinstance(work, Loop):
            raise NotOneLoopError
        begin = self.first * self.width if within else self.first
        return Recorded(outer, columns[0][0], begin, work)

    def _at(
        self, recorded: Recorded, number: Expr, places: Mapping[str, Expr] | None = None
    ) -> Loop:
        """What was recorded, at a column or row of the block, and at places of strided axes."""
        mapping = {recorded.columns: recorded.begin + number, **(places or {})}
        made = ExpressionMap.substitution(mapping).statement(recorded.work)
        assert isinstance(made, Loop)
        return made

    def _at_places(
        self, recorded: Recorded, number: Expr, variable: str, places: Sequence[Expr]
    ) -> list[Loop]:
        """What was recorded, at several places of one strided axis, if there is one."""
        return [self._at(recorded, number, {variable: p} if variable else {}) for p in places]

    def _columns(self, body: Callable[[Expr], list[Statement]]) -> Loop:
        return self._loop(self.count * self.width, self.most * self.width, body)

    def _bounds(self, size: Expr) -> tuple[Expr, Expr]:
        """The task's part of the strided axes, which are one loop if there are parts."""
        return part_of(size, self.part) if self.in_parts else (constant(0), size)

    def _rows(self, body: Callable[[Expr], list[Statement]]) -> Loop:
        return self._loop(self.count, self.most, body)

    def _loop(self, end: Expr, most: Expr, body: Callable[[Expr], list[Statement]]) -> Loop:
        variable = self._variable(most)
        inside = tuple(body(variable))
        return Loop(str(variable), constant(0), end, inside, independent=True, masked=True)

    def _variable(self, extent: Expr) -> Expr:
        """A loop variable; of a loop that is open nowhere, so that nothing moves out of it."""
        self.lowering.open()
        variable = self.lowering.variable(extent)
        self.lowering.close()
        return variable
