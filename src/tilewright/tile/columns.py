"""Reductions that keep the last axis: rows are added to sums, a block of columns at a time.

Every pass over a block of columns adds several rows to sums in scratch, so that memory is walked in
order and vectors run along the columns; the epilogue is evaluated on the finished sums. A few rows
of known number are added in registers. Start with :func:`lower_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from itertools import product as combinations

from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Reduce, Shape
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Load, Loop, LoopProgram, Store, Value, neutral_element
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, constant, product
from tilewright.tile.loops import finish, target_buffers, task_columns
from tilewright.tile.lowering import Lowering

ROWS = 8  # rows per pass: their sum meets the sums in scratch once
WORK_SHIFT = 8  # elements per nanosecond of one thread, for the thread count


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


def lower_columns(kernel: Kernel, lowering: Lowering) -> LoopProgram:
    """The program of a Reduce that keeps the last axis, with its epilogue."""
    columns = _Columns(kernel, lowering)
    columns.write()
    body = [s for block in lowering.blocks for s in block.statements]
    program = finish(lowering, kernel, columns.grid, body, columns.targets)
    return replace(program, work=product(columns.space.shape) // WORK_SHIFT + 1)


class _Columns:
    """The body of one task: a block of columns of one index of the other axes that are kept."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.seed = kernel.seed
        self.operand = self.seed.inputs[0]
        self.targets = target_buffers(kernel)
        self.space = _space(kernel, lowering)
        self.grid: list[tuple[str, Expr]] = []
        self.index: list[Expr] = [constant(0)] * len(self.space.shape)
        for axis in self.space.kept[:-1]:
            self.index[axis] = self._task(self.space.shape[axis])
        lowering.open()
        own = task_columns(lowering, self.grid, self.space.shape[-1])
        self.first, self.count, self.block = own.first, own.count, own.most
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get
        lowering.open()

    def _task(self, size: Expr) -> Expr:
        self.lowering.open()
        variable = self.lowering.variable(size)
        self.grid.append((str(variable), size))
        return variable

    def write(self) -> None:
        """Sums in registers if there are few rows, else in scratch."""
        sizes = [self.space.shape[a] for a in self.space.rows]
        if all(size.is_constant for size in sizes) and 0 < product(sizes).value <= ROWS:
            every = [[constant(i) for i in range(size.value)] for size in sizes]
            places = [list(place) for place in combinations(*every)]
            self._along_columns(lambda column: self._results(column, self._sum(places, column)))
            return
        sums = self.lowering.scratch_buffer(self.seed.dtype, self.block)
        neutral = neutral_element(self._kind, self.seed.dtype)
        self._along_columns(lambda column: self.lowering.emit(Store(sums, column, neutral)))

        def add(places: list[list[Expr]]) -> None:
            def body(column: Expr) -> None:
                value = self._sum(places, column, Load(sums, column))
                self.lowering.emit(Store(sums, column, value))

            self._along_columns(body)

        self._rows(add, [])
        self._along_columns(lambda column: self._results(column, Load(sums, column)))

    # ------------------------------------------------------------ loops

    def _loop(self, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]) -> None:
        self.lowering.open()
        variable = self.lowering.variable(extent)
        body(variable)
        self.lowering.emit(Loop(str(variable), *bounds, self.lowering.close()))

    def _along_columns(self, body: Callable[[Expr], None]) -> None:
        self._loop((constant(0), self.count), self.block, body)

    def _rows(self, add: Callable[[list[list[Expr]]], None], outer: list[Expr]) -> None:
        """Loops over the reduced axes; the innermost takes several rows per pass, then the rest."""
        size = self.space.shape[self.space.rows[len(outer)]]
        if len(outer) < len(self.space.rows) - 1:
            self._loop((constant(0), size), size, lambda i: self._rows(add, [*outer, i]))
            return
        step = rows_per_pass(size)
        passes = size // step

        def several(number: Expr) -> None:
            add([[*outer, number * step + i] for i in range(step)])

        self._loop((constant(0), passes), size, several)
        self._loop((passes * step, size), size, lambda i: add([[*outer, i]]))

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
        value: Value | None = None
        for place in places:
            read = self._read(place, column)
            value = read if value is None else self._combined(value, read)
        assert value is not None
        return value if before is None else self._combined(before, value)

    def _combined(self, left: Value, right: Value) -> Value:
        return Apply(COMBINE[self._kind], (left, right), self.seed.dtype)

    def _read(self, place: Sequence[Expr], column: Expr) -> Value:
        index = list(self.index)
        index[-1] = self.first + column
        for axis, i in zip(self.space.rows, place, strict=True):
            index[axis] = i
        if not self.space.merged:
            return self.lowering.value(self.operand, index)
        offset = self.lowering.scope.resolve(linear(index, self.space.shape))
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


def rows_per_pass(size: Expr) -> int:
    """The most rows, up to ``ROWS``, that leave no rest; where that is few or unknown, ``ROWS``."""
    if not size.is_constant:
        return ROWS
    even = max((step for step in range(1, ROWS + 1) if size.value % step == 0), default=ROWS)
    return even if even > ROWS // 2 or size.value < ROWS else ROWS
