"""Reductions that keep the last axis: rows are added to sums, a block of columns at a time.

Every pass over a block of columns adds a few rows to sums in scratch, and vectors run along the
columns; the epilogue is evaluated on the finished sums. A few rows of known number are added in
registers. Several short rows in memory are one row of whole vectors, whose sums are combined at the
end. Blocks are pieces of rows, which make many tasks. Where the axes before make tasks enough, one
variant takes whole rows, several at a time, and another one row by row, as memory is read fastest.
Where they do not, there is one that cuts the rows into parts, which threads share. Start with
:func:`lower_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from itertools import product as combinations
from math import gcd

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Reduce, Shape
from tilewright.ir.tile import (
    Load,
    Store,
    TileBuffer,
    TileProgram,
    Value,
    neutral_element,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    maximum,
    product,
    select,
)
from tilewright.target.core_model import PAIRED_ROW_BYTES, WIDE_LANES, WORD_BYTES
from tilewright.tile.loops.side_by_side import combined
from tilewright.tile.nests import (
    column_block,
    even_block,
    filled,
    grid_axis,
    target_buffers,
    task_columns,
)
from tilewright.tile.prices import priced
from tilewright.tile.rows.parts import LONG
from tilewright.tile.rows.stages import part_of
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Variant, Workspace
from tilewright.tile.work import PARTS

ROWS = 8  # rows per pass over what lies near: their sum meets the sums in scratch once
FEW_ROWS = ROWS  # known number of rows that are added in registers
WIDEST = 4096  # columns of a block where the rows are cut instead; their sums stay in L1
ELEMENTS = 16  # per nanosecond of one thread, for the thread count


@dataclass(frozen=True)
class _Space:
    """The operand's axes, neighbours merged where that changes nothing, and which are reduced."""

    shape: Shape
    reduced: tuple[bool, ...]
    merged: bool

    @property
    def rows(self) -> list[int]:
        """The reduced axes."""
        return [a for a, reduced in enumerate(self.reduced) if reduced]

    @property
    def kept(self) -> list[int]:
        """The axes of the result, the last one being the columns."""
        return [a for a, reduced in enumerate(self.reduced) if not reduced]


def _space(kernel: Kernel, lowering: Lowering) -> _Space:
    """Merged if the operand is in memory and the result is all that is wanted."""
    primitive, operand = kernel.seed.primitive, kernel.seed.inputs[0]
    assert isinstance(primitive, Reduce)
    reduced = [a in primitive.axes for a in range(operand.rank)]
    alone = kernel.outputs == (kernel.seed,)
    if operand not in lowering.memory or not alone:
        return _Space(operand.shape, tuple(reduced), False)
    runs = [(r, [a for a, _ in run]) for r, run in groupby(enumerate(reduced), lambda e: e[1])]
    sizes = tuple(product([operand.shape[a] for a in axes]) for _, axes in runs)
    return _Space(sizes, tuple(r for r, _ in runs), True)


def lower_columns(
    kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
) -> tuple[Variant, ...]:
    """The variants of a Reduce that keeps the last axis, with its epilogue."""
    pieces = _Columns(kernel, fresh())
    size, scope = product(pieces.operand.shape), pieces.lowering.scope
    longest = scope.bounds(size).high
    own = Variant("loops", (pieces.whole_step(),), constant(0))
    if longest is not None and longest < LONG:
        return priced((own,), machine)
    made = [own]
    if pieces.is_cut:
        rows = _Columns(kernel, fresh(), whole_rows=True)
        made.append(Variant("rows", (rows.whole_step(),), constant(0)))
        if rows_in_order(pieces.width, kernel.reads) < ROWS:
            rows = _Columns(kernel, fresh(), whole_rows=True, in_order=True)
            made.append(Variant("in order", (rows.whole_step(),), constant(0)))
    if not pieces.has_few_rows:
        made.append(Variant("parts", _in_parts(kernel, fresh)[1], constant(0)))
    return priced(made, machine)


def _in_parts(
    kernel: Kernel, fresh: Callable[[], Lowering]
) -> tuple[_Columns, tuple[LoweredStep, ...]]:
    """The task of a part, and two steps: every part reduces its rows, then they are combined."""
    part = _Columns(kernel, fresh(), in_parts=True)
    sums = Workspace("parts", kernel.seed.dtype, part.sums * PARTS)
    left = TileBuffer("q0", sums.dtype)
    part.leave(left)
    last = _Columns(kernel, fresh())
    found = TileBuffer("p0", sums.dtype)
    last.gather(found)
    return part, (
        LoweredStep(part.program((), left), tuple(part.lowering.buffers), (sums,)),
        LoweredStep(last.program((found,)), (*last.lowering.buffers, sums), kernel.outputs),
    )


class _Columns:
    """The body of one task: a block of columns of one index of the other axes that are kept."""

    def __init__(
        self,
        kernel: Kernel,
        lowering: Lowering,
        in_parts: bool = False,
        whole_rows: bool = False,
        in_order: bool = False,
    ) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.whole_rows = whole_rows
        self.in_order = in_order or in_parts
        self.seed = kernel.seed
        self.operand = self.seed.inputs[0]
        self.targets = target_buffers(kernel)
        self.space = _space(kernel, lowering)
        self.grid: list[tuple[str, Expr]] = []
        self.index: list[Expr] = [constant(0)] * len(self.space.shape)
        for axis in self.space.kept[:-1]:
            self.index[axis] = grid_axis(self.lowering, self.grid, self.space.shape[axis])
        self.folded = self._rows_in_one()
        self.width = self.space.shape[-1] * self.folded
        self.part = grid_axis(self.lowering, self.grid, constant(PARTS)) if in_parts else None
        lowering.open()
        if self.folded > 1:
            self.first, self.count, self.block = constant(0), self.width, self.width
        else:
            wide = even_block(self.width, WIDEST)
            most = wide if in_parts or whole_rows else column_block(self.width)
            own = task_columns(lowering, self.grid, self.width, most=most)
            self.first, self.count, self.block = own.first, own.count, own.most
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get
        lowering.open()

    @property
    def has_few_rows(self) -> bool:
        """Whether all rows are added in registers."""
        sizes = [self.space.shape[a] for a in self.space.rows]
        return all(size.is_constant for size in sizes) and product(sizes).value <= FEW_ROWS

    def _rows_in_one(self) -> int:
        """Rows that make one of whole vectors: several where they are short, and in memory."""
        columns, row = self.space.shape[-1], self.space.rows[-1]
        short = columns.is_constant and 0 < columns.value < WIDE_LANES
        beside = row == len(self.space.shape) - 2
        if not short or not beside or self.has_few_rows or self.operand not in self.lowering.memory:
            return 1
        return WIDE_LANES // gcd(WIDE_LANES, columns.value)

    @property
    def sums(self) -> Expr:
        """How many values one part of the rows is reduced to."""
        return product([self.space.shape[a] for a in self.space.kept]) * self.folded

    @property
    def _elements(self) -> Expr:
        """What is read, with the lanes of vectors that short rows leave empty."""
        rows = product([*self.space.shape[:-1]]) // self.folded
        return rows * ceil_div(self.width, WIDE_LANES) * WIDE_LANES

    def whole_step(self) -> LoweredStep:
        """All of the kernel as one step."""
        self.write()
        return LoweredStep(self.program(()), tuple(self.lowering.buffers), self.kernel.outputs)

    def program(
        self, spaces: tuple[TileBuffer, ...], left: TileBuffer | None = None
    ) -> TileProgram:
        """The statements so far; results are those of the kernel, or ``left``."""
        lowering = self.lowering
        body = tuple(lowering.opened_statements())
        outputs = [self.targets[o] for o in self.kernel.outputs]
        results = outputs if left is None else [left]
        size = self._elements if not spaces else self.sums * PARTS
        return TileProgram(
            (*lowering.buffers.values(), *spaces, *results),
            len(results),
            tuple(self.grid),
            body,
            tuple(lowering.scratch),
            tuple(lowering.checks),
            size // ELEMENTS + 1,
        )

    def write(self) -> None:
        """Sums in registers if there are few rows, else in scratch."""
        sizes = [self.space.shape[a] for a in self.space.rows]
        if self.has_few_rows and product(sizes).value > 0:
            every = [[constant(i) for i in range(size.value)] for size in sizes]
            places = [list(place) for place in combinations(*every)]
            self._along_columns(lambda column: self._results(column, self._sum(places, column)))
            return
        self._finish(self._reduce())

    def leave(self, target: TileBuffer) -> None:
        """The sums of a part, to their own place."""
        sums = self._reduce()

        def body(column: Expr) -> None:
            assert self.part is not None
            place = self._in_space(self.part, column)
            self.lowering.store(target, place, Load(sums, column))

        self._along_columns(body)

    def gather(self, source: TileBuffer) -> None:
        """The results, from the sums of all parts, in this order."""
        sums = self.lowering.scratch_buffer(self.seed.dtype, self.block)

        def body(column: Expr) -> None:
            places = [self._in_space(constant(p), column) for p in range(PARTS)]
            value = combined(self._kind, [Load(source, place) for place in places])
            self.lowering.emit(Store(sums, column, value))

        self._along_columns(body)
        self._finish(sums)

    def _in_space(self, part: Expr, column: Expr) -> Expr:
        """Where the sum of a column of the block lies, of all sums of all parts."""
        kept = self.space.kept[:-1]
        index = [*(self.index[a] for a in kept), self.first + column]
        shape = (*(self.space.shape[a] for a in kept), self.width)
        return self.lowering.scope.resolve(part * self.sums + linear(index, shape))

    def _reduce(self) -> TileBuffer:
        """All rows of the task, added to sums in scratch."""
        sums = self.lowering.scratch_buffer(self.seed.dtype, self.block)
        neutral = neutral_element(self._kind, self.seed.dtype)
        self._along_columns(lambda column: self.lowering.emit(Store(sums, column, neutral)))

        def add(places: list[list[Expr]], count: Expr) -> None:
            def body(column: Expr) -> None:
                value = self._sum(places, column, Load(sums, column))
                self.lowering.emit(Store(sums, column, value))

            self._loop((constant(0), count), self.block, body)

        self._rows(add, [])
        return sums

    def _finish(self, sums: TileBuffer) -> None:
        """The results of finished sums; those of rows that were taken together are combined."""
        if self.folded == 1:
            self._along_columns(lambda column: self._results(column, Load(sums, column)))
            return
        columns = self.space.shape[-1]

        def body(column: Expr) -> None:
            rows = [Load(sums, column + row * columns) for row in range(self.folded)]
            self._results(column, combined(self._kind, rows))

        self._loop((constant(0), columns), columns, body)

    # ------------------------------------------------------------ loops

    def _loop(self, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]) -> None:
        loop = filled(self.lowering, bounds, extent, body)
        masked = all(isinstance(part, Store) for part in loop.body)
        self.lowering.emit(replace(loop, masked=masked))

    def _along_columns(self, body: Callable[[Expr], None]) -> None:
        self._loop((constant(0), self.count), self.block, body)

    def _rows(self, add: Callable[[list[list[Expr]], Expr], None], outer: list[Expr]) -> None:
        """Loops over the reduced axes; the innermost takes several rows per pass, then the rest."""
        size = self.space.shape[self.space.rows[len(outer)]]
        is_cut = self.part is not None and not outer
        if len(outer) < len(self.space.rows) - 1:
            bounds = self._bounds(size) if is_cut else (constant(0), size)
            self._loop(bounds, size, lambda i: self._rows(add, [*outer, i]))
            return
        rows = size // self.folded
        begin, end = self._bounds(rows) if is_cut else (constant(0), rows)
        step = rows_per_pass(rows, self._most_rows)
        passes = maximum(end - begin, 0) // step if step > 1 else constant(0)
        rest = begin + passes * step

        def several(number: Expr) -> None:
            add([[*outer, begin + number * step + i] for i in range(step)], self.count)

        if step > 1:
            self._loop((constant(0), passes), rows, several)
        self._loop((rest, end), rows, lambda i: add([[*outer, i]], self.count))
        if self.folded > 1:
            beyond = (size - rows * self.folded) * self.space.shape[-1]
            if is_cut and self.part is not None:
                beyond = select(equal(self.part, PARTS - 1), beyond, 0)
            add([[*outer, rows]], beyond)

    @property
    def is_cut(self) -> bool:
        """Whether tasks may have pieces of rows."""
        return self.lowering.scope.resolve(less(self.block, self.width)) is not constant(0)

    @property
    def _most_rows(self) -> int:
        """Rows of a pass, of which several read and write the sums less often.

        Where they come from memory, one stream is fastest: rows are taken together that are read
        in pieces anyway, or are so short that hardware takes them for one stream.
        """
        if self.in_order or (self.width.is_constant and not self.is_cut and not self.whole_rows):
            return rows_in_order(self.width, self.kernel.reads)
        return ROWS

    def _bounds(self, size: Expr) -> tuple[Expr, Expr]:
        """The task's part of an axis."""
        assert self.part is not None
        return part_of(size, self.part)

    # ------------------------------------------------------------ values

    @property
    def _kind(self) -> str:
        primitive = self.seed.primitive
        assert isinstance(primitive, Reduce)
        return primitive.kind

    def _sum(
        self, places: Sequence[Sequence[Expr]], column: Expr, before: Value | None = None
    ) -> Value:
        """The elements of a column at ``places`` of the reduced axes, combined."""
        value = combined(self._kind, [self._read(place, column) for place in places])
        return value if before is None else combined(self._kind, [value, before])

    def _read(self, place: Sequence[Expr], column: Expr) -> Value:
        index = list(self.index)
        for axis, i in zip(self.space.rows, place, strict=True):
            index[axis] = i
        shape = self.space.shape
        if self.folded > 1:
            row = index[-2] * self.width + column
            lead = linear([*index[:-2], constant(0), constant(0)], shape)
            where = self.lowering.scope.resolve(lead + row)
            return Load(self.lowering.buffer(self.operand), where)
        index[-1] = self.first + column
        if not self.space.merged:
            return self.lowering.value(self.operand, index)
        offset = self.lowering.scope.resolve(linear(index, shape))
        return Load(self.lowering.buffer(self.operand), offset)

    def _results(self, column: Expr, value: Value) -> None:
        """Store what the kernel makes of a finished sum."""
        lowering, kept = self.lowering, self.space.kept
        index = [self.index[a] for a in kept[:-1]] + [self.first + column]
        where = tuple(lowering.scope.resolve(i) for i in index)
        shape = tuple(self.space.shape[a] for a in kept)
        self.finished[where] = value
        for output in self.kernel.outputs:
            made = value if self.space.merged else lowering.value(output, where)
            lowering.store(self.targets[output], linear(where, shape), made)


def rows_in_order(columns: Expr, reads: Sequence[Node]) -> int:
    """Rows of a pass over rows of so many columns of ``reads`` that come from memory.

    Two rows read and write the sums less often, where hardware follows both as one stream. Of
    several that are read in pieces it follows one while another begins.
    """
    if not columns.is_constant:
        return 1
    widest = max((node.dtype.bytes for node in reads), default=WORD_BYTES)
    if columns.value > WIDEST:
        return ROWS
    return 2 if columns.value * widest <= PAIRED_ROW_BYTES else 1


def rows_per_pass(size: Expr, most: int) -> int:
    """The most rows, up to ``most``, that leave no rest; where that is few or unknown, ``most``."""
    if not size.is_constant:
        return most
    even = max((step for step in range(1, most + 1) if size.value % step == 0), default=most)
    return even if even > most // 2 or size.value < most else most
