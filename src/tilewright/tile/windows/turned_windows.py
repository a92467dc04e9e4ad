"""Windows over many small images with the channels first: turned, so that lanes are images.

A row of a small image fills no vector, and neighbouring windows read vectors that lie across each
other. A task takes as many images as a cache line has elements instead, a band of rows of each,
which register squares turn on their way into scratch and on their way out. Every vector between is
one pixel of all these images. Start with :func:`turned_windows`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Window
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import (
    Apply,
    Load,
    Loop,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    neutral_element,
)
from tilewright.ir.views import Index
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target.core_model import WIDE_VECTOR_BYTES
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.nests import finish, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import Geometry

PIXELS = 256  # of every image in a task, about: with their windows they stay in the nearest caches
MOST_TAPS = 16  # along an axis, all in one loop body


class TurnedWindows:
    """One task: a band of rows of outputs of a few neighbouring images."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel, self.lowering, self.seed = kernel, lowering, kernel.seed
        self.geometry = geometry = Geometry.of(self.seed)
        self.targets = target_buffers(kernel)
        self.lanes = WIDE_VECTOR_BYTES // self.seed.dtype.bytes
        self.height, self.width = geometry.operand.shape[geometry.lead :]
        self.rows, self.columns = self.seed.shape[geometry.lead :]
        self.images = product(self.seed.shape[: geometry.lead])
        lowering.open()
        # No value may depend on which image it is of: a vector holds several.
        self.image = [lowering.variable(size) for size in self.seed.shape[: geometry.lead]]
        blocks, bands = ceil_div(self.images, self.lanes), ceil_div(self.rows, self.most)
        block, band = lowering.variable(blocks), lowering.variable(bands)
        self.grid = [(str(block), blocks), (str(band), bands)]
        self.first, self.row = block * self.lanes, band * self.most
        self.count = minimum(self.lanes, self.images - self.first)
        self.here = minimum(self.most, self.rows - self.row)
        top = self.row * geometry.strides[0] - geometry.low[0]
        self.top = maximum(0, minimum(top, self.height))
        bottom = minimum(self.height, top + geometry.span(0, self.here))
        self.read = maximum(0, bottom - self.top) * self.width
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get
        lowering.open()
        self.reached = geometry.span(1, self.columns)
        self.source = self._scratch(geometry.span(0, self.most) * self.width)
        self.line = self._scratch(maximum(self.reached, 0))
        self.result = self._scratch(self.most * self.columns)

    @property
    def most(self) -> Expr:
        """Rows of outputs in a task, about as many in all."""
        wide = maximum(self.width * self.geometry.strides[0], 1)
        bands = ceil_div(self.rows, maximum(PIXELS // wide, 1))
        return maximum(ceil_div(self.rows, maximum(bands, 1)), 1)

    def write(self) -> bool:
        """All statements of the task; False where images differ by more than their elements."""
        geometry, zero = self.geometry, constant(0)
        missing = select(less(self.count, self.lanes), self.read, 0)
        self._along(zero, missing, lambda place: self._put(self.source, place, self._neutral))
        self.lowering.emit(
            TransposeBlock(
                self.lowering.buffer(geometry.operand),
                (self.first * self.height + self.top) * self.width,
                self.height * self.width,
                self.source, zero, constant(self.lanes), self.count, self.read,
            )
        )  # fmt: skip
        begin = minimum(self.reached, maximum(0, geometry.low[1]))
        end = maximum(begin, minimum(self.reached, geometry.low[1] + self.width))
        for border in ((zero, begin), (end, self.reached)):
            self._along(*border, lambda x: self._put(self.line, x, self._neutral))
        self.lowering.open()
        row = self.lowering.variable(self.most)
        self._line(row, begin, end)
        is_same = self._windows(row)
        self.lowering.emit(Loop(str(row), zero, self.here, self.lowering.close()))
        target = self.targets[self.kernel.outputs[0]]
        image = self.rows * self.columns
        place = self.first * image + self.row * self.columns
        self.lowering.emit(
            TransposeBlock(
                self.result, zero, constant(self.lanes), target, place, image,
                self.here * self.columns, self.count,
            )
        )  # fmt: skip
        return is_same

    def _line(self, row: Expr, begin: Expr, end: Expr) -> None:
        """Columns of the operand, combined along the other axis."""
        geometry, output = self.geometry, self.row + row
        taps = geometry.kernel[0]
        first, last = geometry.inside(0, output)

        def place(x: Expr, tap: Expr) -> Expr:
            line = geometry.position(0, output, tap) - self.top
            return line * self.width + x - geometry.low[1]

        def every(x: Expr) -> None:
            places = [place(x, constant(tap)) for tap in range(taps)]
            self._put(self.line, x, lambda lane: self._sum(self.source, places, lane))

        whole = equal(last - first, taps)
        self._along(begin, select(whole, end, begin), every)
        partly = select(whole, begin, end)
        self._along(begin, partly, lambda x: self._put(self.line, x, self._neutral))

        def add(x: Expr, tap: Expr) -> None:
            def value(lane: Expr) -> Value:
                read = self._at(self.source, place(x, tap), lane)
                return self._combined(read, self._at(self.line, x, lane))

            self._put(self.line, x, value)

        self.lowering.open()
        tap = self.lowering.variable(constant(taps))
        self._along(begin, partly, lambda x: add(x, tap))
        self.lowering.emit(Loop(str(tap), first, last, self.lowering.close()))

    def _windows(self, row: Expr) -> bool:
        """The windows of the line, and what the kernel makes of them."""
        geometry, lowering = self.geometry, self.lowering
        names = {str(variable) for variable in self.image}
        is_same = True

        def body(x: Expr) -> None:
            places = [
                x * geometry.strides[1] + tap * geometry.dilations[1]
                for tap in range(geometry.kernel[1])
            ]

            def value(lane: Expr) -> Value:
                nonlocal is_same
                full = tuple(lowering.scope.resolve(i) for i in (*self.image, self.row + row, x))
                self.finished[full] = self._sum(self.line, places, lane)
                made = lowering.value(self.kernel.outputs[0], full)
                is_same = is_same and names.isdisjoint(lowering.symbols(made))
                return made

            self._put(self.result, row * self.columns + x, value)

        self._along(constant(0), self.columns, body)
        return is_same

    # ------------------------------------------------------------ pixels

    def _scratch(self, pixels: Expr) -> TileBuffer:
        return self.lowering.scratch_buffer(self.seed.dtype, pixels * self.lanes)

    def _along(self, begin: Expr, end: Expr, body: Callable[[Expr], None]) -> None:
        """``body`` for a variable in [begin, end)."""
        begin, end = (self.lowering.scope.resolve(bound) for bound in (begin, end))
        if end.is_constant and end.value <= 0:
            return
        self.lowering.open()
        variable = self.lowering.variable(end)
        body(variable)
        self.lowering.emit(Loop(str(variable), begin, end, self.lowering.close()))

    def _put(self, buffer: TileBuffer, pixel: Expr, value: Callable[[Expr], Value]) -> None:
        """A pixel of all images."""
        self.lowering.open()
        lane = self.lowering.variable(constant(self.lanes))
        self.lowering.store(buffer, pixel * self.lanes + lane, value(lane))
        inside = self.lowering.close()
        loop = Loop(str(lane), constant(0), constant(self.lanes), inside, independent=True)
        self.lowering.emit(loop)

    def _at(self, buffer: TileBuffer, pixel: Expr, lane: Expr) -> Value:
        return Load(buffer, self.lowering.scope.resolve(pixel * self.lanes + lane))

    def _neutral(self, _: Expr) -> Value:
        return neutral_element(self.geometry.kind, self.seed.dtype)

    def _combined(self, left: Value, right: Value) -> Value:
        return Apply(COMBINE[self.geometry.kind], (left, right), self.seed.dtype)

    def _sum(self, buffer: TileBuffer, pixels: list[Expr], lane: Expr) -> Value:
        value, *others = [self._at(buffer, pixel, lane) for pixel in pixels]
        for other in others:
            value = self._combined(value, other)
        return value


def turned_windows(kernel: Kernel, lowering: Lowering, plain: TileProgram) -> TileProgram | None:
    """The program beside ``plain``; None where images cannot be turned."""
    seed = kernel.seed
    if not isinstance(seed.primitive, Window) or seed.primitive.trailing:
        return None
    operand, kernel_sizes = seed.inputs[0], seed.primitive.kernel
    fits = len(kernel_sizes) == 2 and max(kernel_sizes) <= MOST_TAPS and seed.rank > 2
    one = len(kernel.outputs) == 1 and kernel.outputs[0].shape == seed.shape
    one = one and kernel.outputs[0].dtype.bytes == seed.dtype.bytes
    shares = bool(plain.scratch)  # windows that share nothing are read in place
    if not (shares and fits and one and operand in lowering.memory and seed.dtype.bytes in SIZES):
        return None
    task = TurnedWindows(kernel, lowering)
    if not task.write():
        return None
    body = lowering.opened_statements()
    return finish(lowering, kernel, task.grid, body, task.targets)
