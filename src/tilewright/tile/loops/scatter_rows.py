"""Scatter of whole rows: a table says which update each row of the result is.

Where updates replace rows, only the last one for a row counts. A first step writes its number into
a table, one update after the other. In the second one every task copies some rows and replaces
those that have an update while they are in the nearest caches; so the result is written to memory
once, and tasks run side by side. Start with :func:`scatter_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import ScatterND
from tilewright.ir.tile import (
    LINE_BYTES,
    IndexValue,
    LetIndex,
    Load,
    Loop,
    TileBuffer,
    TileProgram,
)
from tilewright.ir.views import declare_index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.tile.loops.loops import CHUNK
from tilewright.tile.nests import finish, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace
from tilewright.tile.work import estimate


def replaces_rows(kernel: Kernel, lowering: Lowering) -> bool:
    """Whether updates, which are in memory, take the place of rows that are more than elements."""
    (output,) = kernel.outputs
    primitive = output.primitive
    if not isinstance(primitive, ScatterND) or primitive.reduction != "none":
        return False
    depth = output.inputs[1].shape[-1].value
    return 0 < depth < output.rank and lowering.is_stored(output.inputs[2])


def scatter_rows(kernel: Kernel, fresh: Callable[[], Lowering]) -> tuple[LoweredStep, ...]:
    """The steps of a scatter that :func:`replaces_rows`."""
    first, second = _Rows(kernel, fresh()), _Rows(kernel, fresh())
    filling, writing = first.filling(), second.writing()
    table = Workspace("last update of a row", first.table.dtype, first.rows)
    fill = LoweredStep(filling, tuple(first.lowering.buffers), (table,))
    write = LoweredStep(writing, (*second.lowering.buffers, table), kernel.outputs)
    return fill, write


class _Rows:
    """``rows`` of the data and ``count`` updates, of ``width`` elements each."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        (self.output,) = kernel.outputs
        self.data, self.indices, self.updates = self.output.inputs
        self.depth = self.indices.shape[-1].value
        shape = self.output.shape
        self.leading = shape[: self.depth]
        self.rows, self.width = product(self.leading), product(shape[self.depth :])
        self.count = product(self.indices.shape[:-1])
        self.table = TileBuffer("t0", DType.INT64)

    # ------------------------------------------------------------ the table

    def filling(self) -> TileProgram:
        """``count`` for every row, then the number of each update for the row that it changes."""
        lowering = self.lowering
        lowering.open()
        row = lowering.variable(self.rows)
        lowering.store(self.table, row, IndexValue(self.count))
        none = Loop(str(row), constant(0), self.rows, lowering.close())
        lowering.open()
        # Updates without elements change nothing, wherever they point to.
        some = lowering.variable(less(0, self.width))
        index: list[Expr] = []
        for size in self.indices.shape[:-1]:
            lowering.open()
            index.append(lowering.variable(size))
        number = lowering.scope.resolve(linear(index, self.indices.shape[:-1]))
        found = [
            lowering.position(self.output, (*index, constant(d)), size)
            for d, size in enumerate(self.leading)
        ]
        place = lowering.scope.resolve(linear(found, self.leading))
        lowering.store(self.table, place, IndexValue(number))
        for variable, size in reversed(list(zip(index, self.indices.shape, strict=False))):
            lowering.emit(Loop(str(variable), constant(0), size, lowering.close()))
        last = Loop(str(some), constant(0), less(0, self.width), lowering.close())
        body = (*lowering.blocks[0].statements, none, last)
        reads = tuple(lowering.buffers.values())
        work = estimate((), body)
        return TileProgram((*reads, self.table), 1, (), body, (), tuple(lowering.checks), work)

    # ------------------------------------------------------------ the result

    def writing(self) -> TileProgram:
        """Some rows for every task, which begin with a cache line, or a part of a long one."""
        lowering, width = self.lowering, self.width
        line = LINE_BYTES // self.output.dtype.bytes
        together = ceil_div(CHUNK // maximum(width, 1), line) * line
        rows = select(less_equal(width, CHUNK), maximum(together, line), 1)
        lowering.open()
        block = lowering.variable(ceil_div(self.rows, rows))
        part = lowering.variable(ceil_div(width, CHUNK))
        grid = [(str(block), ceil_div(self.rows, rows)), (str(part), ceil_div(width, CHUNK))]
        end = minimum(block * rows + rows, self.rows)
        begin = block * rows * width + part * CHUNK
        length = select(less_equal(width, CHUNK), rows * width, CHUNK)
        self._copy(begin, minimum(begin + length, end * width))
        self._replace((block * rows, end), (part * CHUNK, minimum(part * CHUNK + CHUNK, width)))
        targets = target_buffers(self.kernel)
        program = finish(lowering, self.kernel, grid, lowering.close(), targets)
        return replace(program, buffers=(*program.buffers[:-1], self.table, program.buffers[-1]))

    def _copy(self, begin: Expr, end: Expr) -> None:
        lowering = self.lowering
        lowering.open()
        place = lowering.variable(self.rows * self.width)
        lowering.store(self._target, place, Load(lowering.buffer(self.data), place))
        lowering.emit(Loop(str(place), begin, end, lowering.close(), independent=True))

    def _replace(self, rows: tuple[Expr, Expr], columns: tuple[Expr, Expr]) -> None:
        lowering = self.lowering
        lowering.open()
        row = lowering.variable(self.rows)
        name = lowering.name("g")
        last = declare_index(lowering.scope, name, self.count + 1)
        lowering.emit(LetIndex(name, Load(self.table, row), self.count + 1, None))
        changes = less(last, self.count)
        lowering.open()
        some = lowering.variable(changes)
        lowering.open()
        column = lowering.variable(self.width)
        update = Load(lowering.stored(self.updates), last * self.width + column)
        lowering.store(self._target, row * self.width + column, update)
        lowering.emit(Loop(str(column), *columns, lowering.close(), independent=True))
        lowering.emit(Loop(str(some), constant(0), changes, lowering.close()))
        lowering.emit(Loop(str(row), *rows, lowering.close()))

    @property
    def _target(self) -> TileBuffer:
        return target_buffers(self.kernel)[self.output]
