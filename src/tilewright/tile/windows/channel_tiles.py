"""Depthwise convolution in register tiles: vectors are channels, a tile several outputs of a row.

A task is a block of neighbouring outputs for as many channels as a vector has. What their windows
reach is copied into scratch, where the vectors of a row lie side by side with zeros around them:
that turns images with the channels first, and brings pixels together that lie apart with the
channels last. A tile then reads every vector of a row once for all taps that meet it, and holds the
weights of as many taps as outputs share it: it loads far less than it multiplies, however many taps
there are. Start with :func:`channel_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import (
    MULTIPLY_ADD,
    Apply,
    Load,
    Loop,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    neutral_element,
)
from tilewright.ir.tile_walk import value_loads
from tilewright.ir.views import Index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target import Target
from tilewright.tile.loops.loops import finish, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import Geometry
from tilewright.tile.windows.channel_windows import UNROLLED_TAPS

TOGETHER = 64  # multiply-adds of one loop body; of more, LLVM moves loads ahead and sums to memory
IN_FLIGHT = 2  # registers for what is read, one of them ahead
OUTPUTS = 8  # of a tile: as many sums are in flight
LEAST_VECTOR = 32  # bytes; with shorter ones there are too few registers for sums and weights
PIECE = 4  # channels that are moved together where fewer are left than a vector has
COLUMNS = 64  # of outputs in a task at most
ROWS = 16  # of outputs in a task at most; as many as windows reach beyond them, if these are more


class ChannelTiles:
    """One task: a block of rows and columns of outputs for the channels of one vector."""

    def __init__(self, kernel: Kernel, lowering: Lowering, target: Target) -> None:
        self.kernel, self.lowering, self.seed = kernel, lowering, kernel.seed
        primitive = self.seed.primitive
        assert isinstance(primitive, Convolve)
        self.geometry = _geometry(self.seed)
        self.channels_last = primitive.channels_last
        self.targets = target_buffers(kernel)
        self.lanes = target.vector_bytes // self.seed.dtype.bytes
        self.free = target.free_registers
        self.near = target.levels[1].capacity
        self.weights = _vectors(self.seed.inputs[1], self.lanes)
        self.last = len(self.geometry.kernel) - 1
        self.grid: list[tuple[str, Expr]] = []
        channel_axis = self.seed.rank - 1 if self.channels_last else 1
        self.batch = self._task(self.seed.shape[0])
        channels = self.seed.shape[channel_axis]
        self.block = self._task(ceil_div(channels, self.lanes))
        self.channel = self.block * self.lanes
        self.count = minimum(self.lanes, channels - self.channel)
        self.most_rows = _most_rows(self.geometry)
        self.row, self.rows = constant(0), constant(1)
        if self.last:
            self.row, self.rows = self._outputs(0, self.most_rows, 1)
        self.column, self.columns = self._outputs(self.last, COLUMNS, OUTPUTS)
        lowering.open()
        stride = self.geometry.strides[-1]
        self.pitch = self.geometry.span(-1, COLUMNS).value
        self.height = self.geometry.span(0, self.most_rows).value if self.last else 1
        self.band_bytes = self.height * self.pitch * target.vector_bytes
        self.band = self._scratch(self.height * self.pitch)
        self.sums = self._scratch(COLUMNS)
        self.reached = self.geometry.span(-1, ceil_div(self.columns, OUTPUTS) * OUTPUTS)
        origin = self.column * stride - self.geometry.low[-1]
        size = self.geometry.operand.shape[self.geometry.lead + self.last]
        self.origin, self.begin = origin, minimum(self.reached, maximum(0, -origin))
        self.end = maximum(self.begin, minimum(self.reached, size - origin))
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get

    def _task(self, size: Expr) -> Expr:
        self.lowering.open()
        variable = self.lowering.variable(size)
        self.grid.append((str(variable), size))
        return variable

    def _outputs(self, axis: int, most: int, unit: int) -> tuple[Expr, Expr]:
        """The first output of the task along an axis, and how many there are: alike in all."""
        size = self.seed.shape[self.geometry.lead + axis]
        blocks = maximum(ceil_div(size, most), 1)
        each = maximum(ceil_div(ceil_div(size, blocks), unit) * unit, 1)
        first = self._task(ceil_div(size, each)) * each
        return first, minimum(minimum(each, most), size - first)

    def _scratch(self, vectors: int) -> TileBuffer:
        return self.lowering.scratch_buffer(
            self.seed.dtype, constant(vectors * self.lanes), fixed=True
        )

    # ------------------------------------------------------------ loops

    def loop(
        self, begin: Expr | int, end: Expr | int, extent: int, body: Callable[[Expr], None]
    ) -> None:
        """``body`` for a variable in [begin, end), which lies within [0, extent)."""
        resolve = self.lowering.scope.resolve
        first, last = resolve(constant(0) + begin), resolve(constant(0) + end)
        if first.is_constant and last.is_constant and last.value <= first.value:
            return
        self.lowering.open()
        variable = self.lowering.variable(constant(extent))
        body(variable)
        self.lowering.emit(Loop(str(variable), first, last, self.lowering.close()))

    def vector(self, body: Callable[[Expr], None], lanes: int | None = None) -> None:
        """``body`` for every lane of one vector."""
        lanes = lanes or self.lanes
        self.lowering.open()
        lane = self.lowering.variable(constant(lanes))
        body(lane)
        inside = self.lowering.close()
        self.lowering.emit(Loop(str(lane), constant(0), constant(lanes), inside, independent=True))

    def channels(self, body: Callable[[Expr], None]) -> None:
        """``body`` for the lanes that are channels, in vectors as long as they fill."""
        whole = equal(self.count, self.lanes)
        self.loop(0, whole, 1, lambda _: self.vector(body))
        pieces = select(whole, 0, self.count // PIECE)
        self.loop(
            0, pieces, self.lanes // PIECE,
            lambda number: self.vector(lambda lane: body(number * PIECE + lane), PIECE),
        )  # fmt: skip
        self.loop(select(whole, self.count, pieces * PIECE), self.count, self.lanes, body)

    def put(self, buffer: TileBuffer, vector: Expr, lane: Expr, value: Value) -> None:
        self.lowering.store(buffer, vector * self.lanes + lane, value)

    def at(self, buffer: TileBuffer, vector: Expr, lane: Expr) -> Value:
        return Load(buffer, self.lowering.scope.resolve(vector * self.lanes + lane))

    def clear(self, buffer: TileBuffer, begin: Expr, end: Expr, most: int, base: Expr) -> None:
        """Zeros in the vectors [begin, end) after ``base``."""
        zero = neutral_element("sum", self.seed.dtype)
        self.loop(begin, end, most, lambda x: self.vector(
            lambda lane: self.put(buffer, base + x, lane, zero)))  # fmt: skip

    # ------------------------------------------------------------ the task

    def write(self) -> bool:
        """All statements of the task; False where they cannot be written."""
        geometry, zero = self.geometry, constant(0)
        self.top, inside = zero, constant(1)
        if self.last:
            top = self.row * geometry.strides[0] - geometry.low[0]
            height = geometry.operand.shape[geometry.lead]
            self.top = maximum(0, minimum(top, height))
            bottom = minimum(height, top + geometry.span(0, self.rows))
            inside = maximum(0, bottom - self.top)
        self.loop(0, inside, self.height, self._copied)
        self.is_same = True
        self.loop(0, self.rows, self.most_rows, self._row)
        return self.is_same

    def _copied(self, row: Expr) -> None:
        """A row of the operand in scratch."""
        base, zero = row * self.pitch, constant(0)
        partly = less(self.count, self.lanes)
        cleared = select(partly, self.reached, self.begin)
        self.clear(self.band, zero, cleared, self.pitch, base)
        self.clear(
            self.band, select(partly, self.reached, self.end), self.reached, self.pitch, base
        )
        operand, shape = self.geometry.operand, self.geometry.operand.shape
        rows = [self.top + row] if self.last else []
        if not self.channels_last:
            place = (self.batch, self.channel, *rows, self.origin + self.begin)
            offset = self.lowering.scope.resolve(linear(place, shape))
            self.lowering.emit(
                TransposeBlock(
                    self.lowering.buffer(operand), offset, product(shape[2:]),
                    self.band, (base + self.begin) * self.lanes, constant(self.lanes),
                    self.count, self.end - self.begin,
                )
            )  # fmt: skip
            return

        def pixel(x: Expr) -> None:
            def copy(lane: Expr) -> None:
                index = (self.batch, *rows, self.origin + x, self.channel + lane)
                self.put(self.band, base + x, lane, self.lowering.value(operand, index))

            self.channels(copy)

        self.loop(self.begin, self.end, self.pitch, pixel)

    def _row(self, row: Expr) -> None:
        """One row of outputs."""
        geometry = self.geometry
        begin, end, above = constant(0), constant(1), constant(0)
        if self.last:
            begin, end = geometry.inside(0, self.row + row)
            above = geometry.position(0, self.row + row, constant(0)) - self.top
        most = geometry.kernel[0] if self.last else 1

        zero = neutral_element("sum", self.seed.dtype)

        def cleared(start: Expr, outputs: int) -> None:
            for output in range(outputs):
                self.vector(lambda lane, o=output: self.put(self.sums, start + o, lane, zero))

        def nested(start: Expr, outputs: int) -> None:
            """All taps of one tile after the other: its sums stay in registers."""
            cleared(start, outputs)
            for taps in self._blocks(outputs):
                self._along(taps, lambda first, count: self.loop(begin, end, most, lambda tap:
                    self._tile((above, tap), first, count, start, outputs)))  # fmt: skip

        def added(start: Expr, outputs: int, tap: Expr) -> None:
            for taps in self._blocks(outputs):
                self._along(taps, lambda first, count:
                    self._tile((above, tap), first, count, start, outputs))  # fmt: skip

        if self._is_near():
            self._tiles(nested)
        else:
            self._tiles(cleared)
            self.loop(begin, end, most, lambda tap: self._tiles(
                lambda start, outputs: added(start, outputs, tap)))  # fmt: skip
        self._results(row)

    def _is_near(self) -> bool:
        """Whether the windows of a tile and all weights stay in the nearest cache.

        If not, all tiles of a row meet one line of taps before the next line.
        """
        window = self.geometry.span(-1, OUTPUTS).value * prod(self.geometry.kernel[:-1])
        touched = window + prod(self.geometry.kernel)
        return touched * self.lanes * self.seed.dtype.bytes <= self.near

    def _tiles(self, body: Callable[[Expr, int], None]) -> None:
        """Tiles that cover a row; a small rest is a tile of half as many outputs."""
        half, rest = OUTPUTS // 2, self.columns % OUTPUTS
        halves = less_equal(1, rest) * less_equal(rest, half)
        whole = ceil_div(self.columns, OUTPUTS) - halves
        self.loop(0, whole, COLUMNS // OUTPUTS, lambda n: body(n * OUTPUTS, OUTPUTS))
        self.loop(0, halves, 1, lambda _: body(whole * OUTPUTS, half))

    def _blocks(self, outputs: int) -> list[tuple[int, int, int]]:
        """The taps along a row in blocks of which registers hold the weights.

        That is for some blocks of equal length (the first tap, how many blocks, and their taps).
        """
        geometry = self.geometry
        taps, stride, dilation = geometry.kernel[-1], geometry.strides[-1], geometry.dilations[-1]
        most = max(1, TOGETHER // outputs)
        room = max(1, self.free - outputs - IN_FLIGHT)
        if (outputs - 1) * stride // dilation + 1 > room:  # taps that meet outputs at a time
            most = min(most, room)
        blocks = -(-taps // most)
        longer, least = taps % blocks, taps // blocks
        found = [(0, longer, least + 1), (longer * (least + 1), blocks - longer, least)]
        return [block for block in found if block[1]]

    def _along(self, blocks: tuple[int, int, int], body: Callable[[Expr, int], None]) -> None:
        """``body`` for the first tap of every block, and for how many it has."""
        first, number, count = blocks
        self.loop(0, number, number, lambda n: body(first + n * count, count))

    def _tile(
        self, line: tuple[Expr, Expr], first: Expr, count: int, start: Expr, outputs: int
    ) -> None:
        """Some taps of a line, for neighbouring outputs.

        The ``line`` are the row of the band of the first line, and which one it is.
        """
        geometry, (above, tap) = self.geometry, line
        stride, dilation = geometry.strides[-1], geometry.dilations[-1]
        place = (above + tap * (geometry.dilations[0] if self.last else 0)) * self.pitch
        base = place + start * stride + first * dilation
        outer = [tap] if self.last else []

        def body(lane: Expr) -> None:
            sums = [self.at(self.sums, start + o, lane) for o in range(outputs)]
            pairs = [
                (o * stride + t * dilation, o, t) for o in range(outputs) for t in range(count)
            ]
            near = {place: self.at(self.band, base + place, lane) for place, _, _ in pairs}
            for place, o, t in sorted(pairs):
                read = near[place]
                index = (self.block, *outer, first + t, lane)
                weight = self.lowering.value(self.weights, index)
                sums[o] = self.lowering.let(
                    Apply(MULTIPLY_ADD, (read, weight, sums[o]), self.seed.dtype)
                )
            for o, value in enumerate(sums):
                self.put(self.sums, start + o, lane, value)

        self.vector(body)

    # ------------------------------------------------------------ results

    def _results(self, row: Expr) -> None:
        """What the kernel makes of a row of sums."""
        lowering, seed = self.lowering, self.seed
        rows = [self.row + row] if self.last else []

        def pixel(x: Expr) -> None:
            def body(lane: Expr) -> None:
                outputs, channel = [*rows, self.column + x], self.channel + lane
                place = [self.batch, *outputs, channel]
                if not self.channels_last:
                    place = [self.batch, channel, *outputs]
                full = tuple(lowering.scope.resolve(i) for i in place)
                self.finished[full] = self.at(self.sums, x, lane)
                for output in self.kernel.outputs:
                    made = lowering.value(output, full)
                    if self.channels_last:
                        lowering.store(self.targets[output], linear(full, seed.shape), made)
                    else:
                        self.is_same &= self._is_of_channel(made, (row, x))
                        self.put(self.sums, x, lane, made)

            self.channels(body)

        self.loop(0, self.columns, COLUMNS, pixel)
        if not self.channels_last:
            place = (self.batch, self.channel, *rows, self.column)
            offset = lowering.scope.resolve(linear(place, seed.shape))
            self.lowering.emit(
                TransposeBlock(
                    self.sums, constant(0), constant(self.lanes),
                    self.targets[self.kernel.outputs[0]], offset, product(seed.shape[2:]),
                    self.columns, self.count,
                )
            )  # fmt: skip

    def _is_of_channel(self, value: Value, pixel: tuple[Expr, Expr]) -> bool:
        """Whether what is read beside the sums is of the channel alone."""
        names = {str(variable) for variable in pixel}
        return all(
            load.buffer is self.sums or names.isdisjoint(load.offset.free_symbols)
            for load in value_loads(value)
        )


def _most_rows(geometry: Geometry) -> int:
    """Rows of outputs in a task: what windows reach beyond them is copied twice at most."""
    return max(ROWS, geometry.reach(0)) if len(geometry.kernel) > 1 else 1


def _most_copied(geometry: Geometry) -> Fraction:
    """Elements of the operand that a large task copies for each output."""
    rows = _most_rows(geometry)
    copied = geometry.span(-1, COLUMNS).value
    if len(geometry.kernel) > 1:
        copied *= geometry.span(0, rows).value
    return Fraction(copied, rows * COLUMNS)


def _geometry(seed: Node) -> Geometry:
    primitive = seed.primitive
    assert isinstance(primitive, Convolve)
    data, weights = seed.inputs
    kernel = tuple(size.value for size in weights.shape[2:])
    strides, dilations = primitive.strides, primitive.dilations
    return Geometry("sum", kernel, strides, dilations, primitive.low, data, primitive.spatial.start)


def _vectors(weights: Node, lanes: int) -> Node:
    """Constant weights [channel, 1, kernel…] as [block, kernel…, lane], with zeros at the end."""
    primitive = weights.primitive
    assert isinstance(primitive, Constant)
    taps = primitive.array[:, 0]
    blocks = -(-taps.shape[0] // lanes)
    padded = np.zeros((blocks * lanes, *taps.shape[1:]), taps.dtype)
    padded[: taps.shape[0]] = taps
    split = padded.reshape(blocks, lanes, *taps.shape[1:])
    return node(Constant.of(np.moveaxis(split, 1, -1), weights.dtype))


def channel_tiles(kernel: Kernel, lowering: Lowering, target: Target) -> TileProgram | None:
    """The program of a depthwise convolution; None of another kernel, and where there are none."""
    if not _is_fit(kernel, lowering, target):
        return None
    task = ChannelTiles(kernel, lowering, target)
    if task.band_bytes > target.levels[2].capacity // 2 or not task.write():
        return None
    body = [s for block in lowering.blocks for s in block.statements]
    return finish(lowering, kernel, task.grid, body, task.targets)


def _is_fit(kernel: Kernel, lowering: Lowering, target: Target) -> bool:
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or seed.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return False
    data, weights = seed.inputs
    if not isinstance(weights.primitive, Constant) or weights.primitive.codes is not None:
        return False
    channels, _, *taps = (size.value for size in weights.shape)
    if channels != primitive.groups or len(taps) > 2 or min(channels, *taps) < 1:
        return False
    if target.vector_bytes < LEAST_VECTOR:
        return False
    if primitive.channels_last:
        return True
    one = len(kernel.outputs) == 1 and kernel.outputs[0].shape == seed.shape
    return one and kernel.outputs[0].dtype is seed.dtype and data in lowering.memory


def is_surely_best(kernel: Kernel, target: Target) -> bool:
    """Whether tiles, if there are any, need no comparison with sums in scratch.

    With the channels last, other loops over many taps load and store every sum once for each line
    of taps, beside multiply-adds; tiles copy the operand once, before them, which may take twice as
    long. Channels are whole vectors, or there would be more work.
    """
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or not primitive.channels_last:
        return False
    geometry = _geometry(seed)
    channels = seed.shape[-1]
    if not channels.is_constant or channels.value % (target.vector_bytes // seed.dtype.bytes):
        return False
    lines = prod(geometry.kernel[:-1])
    return prod(geometry.kernel) > UNROLLED_TAPS and 2 * _most_copied(geometry) <= lines
