"""Pooling and depthwise convolution with the channels last: vectors run along the channels.

A task is one row of outputs for one block of channels. Outputs whose window lies inside along the
row are made several at a time, the others one by one; either way the loop over channels holds every
tap of the windows, without a test, so that data and weights are read once per pass and the sums
stay in registers. How many taps lie inside is told apart before that loop, one copy of it for each
number. Kernels with many taps walk the outer ones in loops around it, with sums in scratch.
Start with :func:`lower_channel_windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve, Window
from tilewright.ir.scalar import COMBINE, MULTIPLY_ADD
from tilewright.ir.tile import (
    Apply,
    Load,
    Loop,
    Statement,
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
    logical_or,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.nests import finish, grid_axis, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.shared_parts import combined_in_pairs

CHANNEL_BLOCK = 256  # channels per task at most: nine taps of weights stay in the first-level cache
UNROLLED_TAPS = 9  # windows up to this many taps are one loop body, with all sums in registers
UNROLLED_ROW = 8  # taps along a row that are unrolled where the outer ones are loops
PIXELS = 4  # outputs per pass: as many sums, and each weight is used as often
WORK_SHIFT = 32  # taps per nanosecond of one thread, for the thread count


@dataclass(frozen=True)
class _Geometry:
    """What pooling and depthwise convolution share; ``first`` is the first windowed axis.

    Output channel c * ``multiplier`` + r reads channel c. ``weights`` have the axes
    (kernel…, channel) if ``turned``, else (channel, 1, kernel…).
    """

    kind: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    operand: Node
    first: int
    multiplier: int = 1
    weights: Node | None = None
    turned: bool = False

    def taps_inside(self, axis: int, output: Expr) -> tuple[Expr, Expr]:
        """The taps [begin, end) along windowed axis ``axis`` that lie inside for an output."""
        size = self.operand.shape[self.first + axis]
        before = self.low[axis] - output * self.strides[axis]
        begin = maximum(0, ceil_div(before, self.dilations[axis]))
        end = minimum(self.kernel[axis], ceil_div(before + size, self.dilations[axis]))
        return begin, maximum(begin, end)

    def interior(self, axis: int, outputs: Expr) -> tuple[Expr, Expr]:
        """The outputs [begin, end) along ``axis`` whose taps are all inside."""
        size = self.operand.shape[self.first + axis]
        low, stride = self.low[axis], self.strides[axis]
        reach = (self.kernel[axis] - 1) * self.dilations[axis]
        begin = minimum(outputs, maximum(0, ceil_div(low, stride)))
        end = minimum(outputs, ceil_div(size + low - reach, stride))
        return begin, maximum(begin, end)

    def position(self, axis: int, output: Expr, tap: Expr) -> Expr:
        """Where an output's tap lies along ``axis``."""
        return output * self.strides[axis] + tap * self.dilations[axis] - self.low[axis]


def _geometry(seed: Node) -> _Geometry:
    match seed.primitive:
        case Window() as w:
            first = w.windowed(seed.rank).start
            return _Geometry(w.kind, w.kernel, w.strides, w.dilations, w.low, seed.inputs[0], first)
        case Convolve() as c:
            data, weights = seed.inputs
            kernel = tuple(size.value for size in weights.shape[2:])
            multiplier = weights.shape[0].value // c.groups
            turned = isinstance(weights.primitive, Constant)
            return _Geometry(
                "sum", kernel, c.strides, c.dilations, c.low, data, c.spatial.start, multiplier,
                _turned(weights) if turned else weights, turned,
            )  # fmt: skip
        case _:
            raise AssertionError(seed)


def _turned(weights: Node) -> Node:
    """Constant weights [channel, 1, kernel…] as the constant [kernel…, channel]."""
    primitive = weights.primitive
    assert isinstance(primitive, Constant)
    order = (*range(1, weights.rank - 1), 0)
    return node(Constant.of(primitive.array[:, 0].transpose(order), weights.dtype))


def lower_channel_windows(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """The program of a windowed kernel with channels last, and its epilogue."""
    row = ChannelRow(kernel, lowering)
    row.write()
    return channel_program(row, lowering.opened_statements())


def channel_program(row: ChannelRow, body: Sequence[Statement]) -> TileProgram:
    """The program whose tasks have these statements of a row."""
    program = finish(row.lowering, row.kernel, row.grid, body, row.targets)
    taps = prod(row.geometry.kernel)
    return replace(program, work=product(row.seed.shape) * (taps + 8) // WORK_SHIFT + 1)


class ChannelRow:
    """The body of one task: a row of outputs for a block of channels.

    ``index`` is the task's output index; its row and channel places are filled in as they are
    named. The task has the outputs from ``start`` to ``stop`` of the row.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.seed = kernel.seed
        self.geometry = _geometry(self.seed)
        self.targets = target_buffers(kernel)
        self.last = len(self.geometry.kernel) - 1
        self.row_axis = self.geometry.first + self.last
        self.width = self.seed.shape[self.row_axis]
        single = len(kernel.outputs) == 1 and self.geometry.multiplier == 1
        self.pixels = PIXELS if single else PIXELS // 2
        self.index: list[Expr] = [constant(0)] * self.seed.rank
        self.grid: list[tuple[str, Expr]] = []
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get
        self.start, self.stop = constant(0), self.width
        self._open_tasks()
        begin, end = self._interior()
        self.begin, self.passes = begin, (end - begin) // self.pixels
        self.done = self.passes * self.pixels

    def write(self) -> None:
        """All statements of the row."""
        if len(self.geometry.kernel) <= 2 and prod(self.geometry.kernel) <= UNROLLED_TAPS:
            self.in_registers()
        else:
            self.in_scratch()

    def _open_tasks(self) -> None:
        """One task per block of channels and index of every axis but the row's."""
        spatial = range(self.geometry.first, self.row_axis)
        others = [a for a in range(self.seed.rank - 1) if a != self.row_axis]
        for axis in [a for a in others if a not in spatial]:
            self.index[axis] = grid_axis(self.lowering, self.grid, self.seed.shape[axis])
        self._open_block(self.geometry.operand.shape[-1])
        for axis in spatial:
            self.index[axis] = grid_axis(self.lowering, self.grid, self.seed.shape[axis])
        self.lowering.open()

    def _open_block(self, channels: Expr) -> None:
        """One task per block of so many channels."""
        blocks = maximum(ceil_div(channels, CHANNEL_BLOCK), 1)
        self.block = ceil_div(ceil_div(channels, blocks), LINE_ELEMENTS) * LINE_ELEMENTS
        blocks = ceil_div(channels, maximum(self.block, 1))
        number = grid_axis(self.lowering, self.grid, blocks)
        self.channel = number * self.block
        self.count = minimum(self.block, channels - self.channel)

    def _interior(self) -> tuple[Expr, Expr]:
        """The outputs of the task [begin, end) along the row whose taps are all inside."""
        return self.geometry.interior(self.last, self.width)

    # ------------------------------------------------------------ loops

    def loop(
        self, bounds: tuple[Expr, Expr], extent: Expr | int, body: Callable[[Expr], None]
    ) -> None:
        """``body`` for a variable in ``bounds``, which lie within [0, extent)."""
        self.lowering.open()
        variable = self.lowering.variable(constant(extent) if isinstance(extent, int) else extent)
        body(variable)
        self.lowering.emit(Loop(str(variable), *bounds, self.lowering.close()))

    def once(
        self, place: Expr, condition: Expr, extent: Expr | int, body: Callable[[Expr], None]
    ) -> None:
        """``body`` with ``place`` under a name, if ``condition`` is 1 and not 0."""
        self.loop((place, place + condition), extent, body)

    def along_channels(self, condition: Expr, body: Callable[[Expr], None]) -> None:
        """The innermost loop, if ``condition`` is not 0; the variable counts from 0."""
        self.loop((constant(0), select(condition, self.count, 0)), self.block, body)

    def along_row(self, several: Callable[[list[Expr]], None], one: Callable[[Expr], None]) -> None:
        """``several`` for neighbouring outputs with all taps inside, ``one`` for all the others."""

        def block(number: Expr) -> None:
            start = self.begin + number * self.pixels
            several([start + p for p in range(self.pixels)])

        def rest(number: Expr) -> None:
            place = number + select(less(number, self.begin), 0, self.done)
            self.once(place, constant(1), self.width, one)

        self.loop((constant(0), self.passes), self.width, block)
        self.loop((self.start, self.stop - self.done), self.width, rest)

    # ------------------------------------------------------------ all taps in one body

    def in_registers(self) -> None:
        """One copy of the loop over channels for every number of taps inside along each axis."""
        if self.last == 0:
            self._row_in_registers([])
        else:
            begin, end = self._taps(0)
            for count in range(1, self.geometry.kernel[0] + 1):
                self.once(
                    begin, equal(end - begin, count), self.geometry.kernel[0],
                    _with(self._row_in_registers, count),
                )  # fmt: skip
        self.loop((self.start, self.stop), self.width, self._outside)

    def _taps(self, axis: int) -> tuple[Expr, Expr]:
        return self.geometry.taps_inside(axis, self.index[self.geometry.first + axis])

    def _row_in_registers(self, outer: list[Expr]) -> None:
        taps = self.geometry.kernel[self.last]

        def several(pixels: list[Expr]) -> None:
            self._finish(constant(1), pixels, outer, [constant(t) for t in range(taps)])

        def one(pixel: Expr) -> None:
            begin, end = self.geometry.taps_inside(self.last, pixel)
            for count in range(1, taps + 1):
                self.once(
                    begin, equal(end - begin, count), taps,
                    _with(lambda inner: self._finish(constant(1), [pixel], outer, inner), count),
                )  # fmt: skip

        self.along_row(several, one)

    def _outside(self, pixel: Expr) -> None:
        """Outputs that no tap reaches."""
        pairs = [self.geometry.taps_inside(self.last, pixel)]
        if self.last:
            pairs.append(self._taps(0))
        nothing = constant(0)
        for begin, end in pairs:
            nothing = logical_or(nothing, equal(begin, end))
        self._finish(nothing, [pixel], [], [])

    def _finish(
        self, condition: Expr, pixels: list[Expr], outer: list[Expr], inner: list[Expr]
    ) -> None:
        """The results of neighbouring outputs from the taps ``outer`` x ``inner``."""
        rows = [(t,) for t in outer] if self.last else [()]

        def body(channel: Expr) -> None:
            for r in self._copies():
                values = self._sums([None] * len(pixels), pixels, rows, inner, (channel, r))
                for pixel, value in zip(pixels, values, strict=True):
                    self._results(pixel, channel, r, value)

        self.along_channels(condition, body)

    # ------------------------------------------------------------ outer taps in loops

    def in_scratch(self) -> None:
        """Sums of a few outputs in scratch, to which one row of taps at a time is added."""
        elements = self.block
        sums = [
            [self.lowering.scratch_buffer(self.seed.dtype, elements) for _ in self._copies()]
            for _ in range(self.pixels)
        ]
        taps = self.geometry.kernel[self.last]
        unrolled = taps <= UNROLLED_ROW

        def several(pixels: list[Expr]) -> None:
            def row(outer: list[Expr]) -> None:
                if unrolled:
                    self._add(pixels, sums, outer, [constant(t) for t in range(taps)])
                else:
                    self.loop((constant(0), constant(taps)), taps,
                              lambda tap: self._add(pixels, sums, outer, [tap]))  # fmt: skip

            self._through_scratch(pixels, sums, row)

        def one(pixel: Expr) -> None:
            begin, end = self.geometry.taps_inside(self.last, pixel)

            def row(outer: list[Expr]) -> None:
                def add(inner: list[Expr]) -> None:
                    self._add([pixel], sums, outer, inner)

                if not unrolled:
                    self.loop((begin, end), taps, _with(add, 1))
                    return
                for count in range(1, taps + 1):
                    self.once(begin, equal(end - begin, count), taps, _with(add, count))

            self._through_scratch([pixel], sums, row)

        self.along_row(several, one)

    def _copies(self) -> range:
        return range(self.geometry.multiplier)

    def _through_scratch(
        self,
        pixels: list[Expr],
        sums: list[list[TileBuffer]],
        row: Callable[[list[Expr]], None],
    ) -> None:
        used = list(zip(pixels, sums, strict=False))

        def fill(channel: Expr) -> None:
            for _, buffers in used:
                for buffer in buffers:
                    neutral = neutral_element(self.geometry.kind, buffer.dtype)
                    self.lowering.emit(Store(buffer, channel, neutral))

        def results(channel: Expr) -> None:
            for pixel, buffers in used:
                for r, buffer in enumerate(buffers):
                    self._results(pixel, channel, r, Load(buffer, channel))

        self.along_channels(constant(1), fill)
        self._outer_loops(row, [])
        self.along_channels(constant(1), results)

    def _outer_loops(self, row: Callable[[list[Expr]], None], outer: list[Expr]) -> None:
        """Loops over the taps inside of all axes but the row's."""
        axis = len(outer)
        if axis == self.last:
            row(outer)
            return
        self.loop(self._taps(axis), self.geometry.kernel[axis],
                  lambda tap: self._outer_loops(row, [*outer, tap]))  # fmt: skip

    def _add(
        self,
        pixels: list[Expr],
        sums: list[list[TileBuffer]],
        outer: list[Expr],
        inner: list[Expr],
    ) -> None:
        def body(channel: Expr) -> None:
            for r in self._copies():
                buffers = [copies[r] for _, copies in zip(pixels, sums, strict=False)]
                before = [Load(buffer, channel) for buffer in buffers]
                values = self._sums(before, pixels, [tuple(outer)], inner, (channel, r))
                for buffer, value in zip(buffers, values, strict=True):
                    self.lowering.emit(Store(buffer, channel, value))

        self.along_channels(constant(1), body)

    # ------------------------------------------------------------ values

    def _sums(
        self,
        before: Sequence[Value | None],
        pixels: list[Expr],
        rows: Sequence[tuple[Expr, ...]],
        inner: list[Expr],
        channel: tuple[Expr, int],
    ) -> list[Value]:
        """Neighbouring outputs' sums over the taps ``rows`` x ``inner``, on top of ``before``.

        In the order of the data that is read, row by row: an element is in a register only while
        the few outputs that it belongs to use it, and weights only for a row.
        """
        if self.geometry.weights is None:
            return self._combined(before, pixels, rows, inner, channel)
        stride, dilation = self.geometry.strides[self.last], self.geometry.dilations[self.last]
        order = sorted(
            combinations(range(len(pixels)), range(len(inner))),
            key=lambda pair: (pair[0] * stride + pair[1] * dilation, pair[1]),
        )
        values = list(before)
        for row, (p, t) in combinations(rows, order):
            made = self._step(values[p], pixels[p], (*row, inner[t]), channel)
            values[p] = self.lowering.let(made)
        neutral = neutral_element(self.geometry.kind, self.seed.dtype)
        return [neutral if value is None else value for value in values]

    def _combined(
        self,
        before: Sequence[Value | None],
        pixels: list[Expr],
        rows: Sequence[tuple[Expr, ...]],
        inner: list[Expr],
        channel: tuple[Expr, int],
    ) -> list[Value]:
        """The same without weights: what outputs share is combined once.

        The elements above each other come first, then those columns along the row.
        """
        stride, dilation = self.geometry.strides[self.last], self.geometry.dilations[self.last]
        windows = [
            [p * stride + t * dilation for t in range(len(inner))] for p in range(len(pixels))
        ]
        columns: dict[int, Value] = {}
        for p, t in sorted(
            combinations(range(len(pixels)), range(len(inner))),
            key=lambda pair: windows[pair[0]][pair[1]],
        ):
            if windows[p][t] in columns:
                continue
            column: Value | None = None
            for row in rows:
                column = self._step(column, pixels[p], (*row, inner[t]), channel)
            if column is not None:
                columns[windows[p][t]] = self.lowering.let(column)

        def added(value: Value | None, places: Sequence[int]) -> Value | None:
            for place in places:
                value = self._joined(value, columns[place])
            return value

        inside = [[place for place in window if place in columns] for window in windows]
        neutral = neutral_element(self.geometry.kind, self.seed.dtype)
        made = combined_in_pairs(inside, added, self.lowering.let)
        return [
            neutral if own is None else self._joined(old, own)
            for old, own in zip(before, made, strict=True)
        ]

    def _joined(self, value: Value | None, other: Value) -> Value:
        if value is None:
            return other
        return Apply(COMBINE[self.geometry.kind], (value, other), self.seed.dtype)

    def _step(
        self, value: Value | None, pixel: Expr, taps: Sequence[Expr], channel: tuple[Expr, int]
    ) -> Value:
        """``value`` combined with one tap of one output."""
        geometry, lowering = self.geometry, self.lowering
        place = list(self.index)
        place[self.row_axis] = pixel
        for axis, tap in enumerate(taps):
            where = geometry.first + axis
            place[where] = geometry.position(axis, place[where], tap)
        place[-1] = self.channel + channel[0]
        read = lowering.value(geometry.operand, place)
        if geometry.weights is not None:
            output = place[-1] * geometry.multiplier + channel[1]
            order = (*taps, output) if geometry.turned else (output, constant(0), *taps)
            weight = lowering.value(geometry.weights, order)
            if value is not None:
                return Apply(MULTIPLY_ADD, (read, weight, value), self.seed.dtype)
            return Apply("multiply", (read, weight), self.seed.dtype)
        return self._joined(value, read)

    def _results(self, pixel: Expr, channel: Expr, copy: int, value: Value) -> None:
        """Store what the kernel makes of a finished sum."""
        full = list(self.index)
        full[self.row_axis] = pixel
        full[-1] = (self.channel + channel) * self.geometry.multiplier + copy
        where = tuple(self.lowering.scope.resolve(i) for i in full)
        self.finished[where] = value
        for output in self.kernel.outputs:
            made = self.lowering.value(output, where)
            self.lowering.store(self.targets[output], linear(where, self.seed.shape), made)


def _with(body: Callable[[list[Expr]], None], count: int) -> Callable[[Expr], None]:
    """``body`` of ``count`` neighbouring taps, given the first."""

    def called(first: Expr) -> None:
        body([first + t for t in range(count)])

    return called
