"""Convolution in many groups in register tiles: vectors are groups, a tile some outputs of a row.

A task is a block of neighbouring outputs for as many groups as a vector has. What their windows
reach is copied into scratch, where the vectors of a row lie side by side with zeros around them:
that turns images with the channels first, and brings pixels together that lie apart with the
channels last. A tile then reads every vector of a row once for all taps that meet it, and holds the
weights of as many taps as outputs share it: it loads far less than it multiplies, however many taps
there are. The groups of a depthwise convolution are its channels. Groups of several channels, the
*members*, have a copy for each of them, so that no lane of a vector is empty however few they are;
what is made for each is turned back on its way out. Start with :class:`ChannelTiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as product_of
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.scalar import MULTIPLY_ADD
from tilewright.ir.tile import (
    Apply,
    Load,
    TileBuffer,
    TransposeBlock,
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
    less_equal,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target import Target
from tilewright.tile.nests import grid_axis, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.group_geometry import (
    COLUMNS,
    OUTPUTS,
    blocks_of,
    channels_come_first,
    fits_body,
    group_vectors,
    is_free_of,
    made_beside,
    most_rows,
    tile_geometry,
)
from tilewright.tile.windows.lane_loops import LaneLoops

Lines = Callable[[Callable[[Expr], None]], None]  # the lines of taps, given what to do of each


class ChannelTiles(LaneLoops):
    """One task: a block of rows and columns of outputs for the channels of one vector."""

    adding = MULTIPLY_ADD

    def __init__(self, kernel: Kernel, lowering: Lowering, target: Target) -> None:
        self.kernel, self.lowering, self.seed = kernel, lowering, kernel.seed
        primitive = self.seed.primitive
        assert isinstance(primitive, Convolve)
        self.geometry = tile_geometry(self.seed)
        self.channels_last = primitive.channels_last
        self.members = self.seed.inputs[1].shape[1].value
        self.made = self.seed.inputs[1].shape[0].value // primitive.groups
        self.summed = self._summed()
        self.steps, self.output_step, self.tap_step = self._along_row()
        self.targets = target_buffers(kernel)
        self.lanes = target.vector_bytes // self.summed.bytes
        self.free = target.free_registers
        self.beside = made_beside(self.made, self.steps, self.free)
        self.near = target.levels[1].capacity
        self.weights = group_vectors(self._weights(), primitive.groups, self.lanes)
        self.last = len(self.geometry.kernel) - 1
        self.grid: list[tuple[str, Expr]] = []
        self.batch = grid_axis(self.lowering, self.grid, self.seed.shape[0])
        groups = constant(primitive.groups)
        self.block = grid_axis(self.lowering, self.grid, ceil_div(groups, self.lanes))
        self.group = self.block * self.lanes
        self.count = minimum(self.lanes, groups - self.group)
        self.pitch = self._vectors(constant(COLUMNS)).value
        line_bytes = self.members * self.pitch * target.vector_bytes
        self.most_rows = most_rows(self.geometry, target.levels[2].capacity // 2 // line_bytes)
        self.row, self.rows = constant(0), constant(1)
        if self.last:
            self.row, self.rows = self._outputs(0, self.most_rows, 1)
        self.column, self.columns = self._outputs(self.last, COLUMNS, OUTPUTS)
        lowering.open()
        self.height = self.geometry.span(0, self.most_rows).value if self.last else 1
        self.band_bytes = self.height * line_bytes
        self.band = self._scratch(self.members * self.height * self.pitch)
        self.sums = self._scratch(self.made * COLUMNS)
        # Results with the channels first before they are turned: narrow ones of all rows.
        made, room = kernel.outputs[0].dtype, self.made * self.most_rows * COLUMNS
        is_narrow = not self.channels_last and made.bytes < self.summed.bytes
        self.results = self._scratch(room, made) if is_narrow else self.sums
        self.reached = self._read(ceil_div(self.columns, OUTPUTS) * OUTPUTS)
        origin = self.column * self.geometry.strides[-1] - self.geometry.low[-1]
        size = self.geometry.operand.shape[self.geometry.lead + self.last]
        self.origin, self.begin = origin, minimum(self.reached, maximum(0, -origin))
        self.end = maximum(self.begin, minimum(self.reached, size - origin))
        self.finished: dict[Index, Value] = {}
        lowering.cached[self.seed] = self.finished.get

    def _summed(self) -> DType:
        """The type of sums, and of what they are made of."""
        return self.seed.dtype

    def _weights(self) -> Node:
        """Weights [channel, member, kernel…], of each step along a row."""
        return self.seed.inputs[1]

    def _along_row(self) -> tuple[int, int, int]:
        """Steps of a window along a row, and how many vectors outputs and steps lie apart."""
        geometry = self.geometry
        return geometry.kernel[-1], geometry.strides[-1], geometry.dilations[-1]

    def _vectors(self, outputs: Expr) -> Expr:
        """How many vectors of a row neighbouring outputs reach."""
        return (outputs - 1) * self.output_step + ((self.steps - 1) * self.tap_step + 1)

    def _read(self, outputs: Expr) -> Expr:
        """How many elements of a row neighbouring outputs reach."""
        return self._vectors(outputs)

    def _outputs(self, axis: int, most: int, unit: int) -> tuple[Expr, Expr]:
        """The first output of the task along an axis, and how many there are: alike in all."""
        size = self.seed.shape[self.geometry.lead + axis]
        blocks = maximum(ceil_div(size, most), 1)
        each = maximum(ceil_div(ceil_div(size, blocks), unit) * unit, 1)
        first = grid_axis(self.lowering, self.grid, ceil_div(size, each)) * each
        return first, minimum(minimum(each, most), size - first)

    def _scratch(self, vectors: int, dtype: DType | None = None) -> TileBuffer:
        return self.lowering.scratch_buffer(
            dtype or self.summed, constant(vectors * self.lanes), fixed=True
        )

    # ------------------------------------------------------------ vectors

    def put(self, buffer: TileBuffer, vector: Expr, lane: Expr, value: Value) -> None:
        self.lowering.store(buffer, vector * self.lanes + lane, value)

    def at(self, buffer: TileBuffer, vector: Expr, lane: Expr) -> Value:
        return Load(buffer, self.lowering.scope.resolve(vector * self.lanes + lane))

    def clear(self, buffer: TileBuffer, begin: Expr, end: Expr, most: int, base: Expr) -> None:
        """What stands for 0 in the vectors [begin, end) after ``base``."""
        self.loop(begin, end, most, lambda x: self.vector(
            lambda lane: self.put(buffer, base + x, lane, self.neutral())))  # fmt: skip

    def neutral(self) -> Value:
        """What stands for 0 in a row."""
        return neutral_element("sum", self.seed.dtype)

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
        self._copies(inside)
        self._prepare(inside)
        self.is_same = True
        self.loop(0, self.rows, self.most_rows, self._row)
        return self.is_same

    def _copies(self, inside: Expr) -> None:
        """So many rows of the operand in scratch."""
        if self.channels_last or self.members == 1:
            self.loop(0, inside, self.height, self._copied)
        else:  # rows of a member follow each other in memory
            self.each(self.members, lambda member: self.loop(
                0, inside, self.height, lambda row: self._turned(member, row)))  # fmt: skip

    def _copied(self, row: Expr) -> None:
        """A row of the operand in scratch, of each member of the groups."""
        if not self.channels_last:
            self._turned(constant(0), row)
            return
        self.each(self.members, lambda member: self._cleared(self._line(member, row)))
        rows = self._place_of(row)
        pixel = self._pixel if self.members == 1 else self._apart
        self.loop(self.begin, self.end, self.pitch, lambda x: pixel(x, row, rows))

    def _place_of(self, row: Expr) -> list[Expr]:
        """The row of the operand that lies in such a row of scratch."""
        return [self.top + row] if self.last else []

    def _prepare(self, inside: Expr) -> None:
        """What is left to do when so many rows have been copied."""

    def _line(self, member: Expr, row: Expr) -> Expr:
        """The first vector of a row of the scratch, which has the rows of one member in turn."""
        return (member * self.height + row) * self.pitch

    def _cleared(self, base: Expr) -> None:
        """Zeros around a row; all over it where lanes stay empty."""
        partly = less(self.count, self.lanes)
        cleared = select(partly, self.reached, self.begin)
        self.clear(self.band, constant(0), cleared, self.pitch, base)
        self.clear(
            self.band, select(partly, self.reached, self.end), self.reached, self.pitch, base
        )

    def _turned(self, member: Expr, row: Expr) -> None:
        """A row of data that has its channels first, of one member of the groups."""
        self._cleared(self._line(member, row))
        operand, shape = self.geometry.operand, self.geometry.operand.shape
        channel = self.group * self.members + member
        place = (self.batch, channel, *self._place_of(row), self.origin + self.begin)
        base = self._line(member, row) + self.begin
        self.lowering.emit(
            TransposeBlock(
                self.lowering.buffer(operand), self.lowering.scope.resolve(linear(place, shape)),
                self.members * product(shape[2:]), self.band, base * self.lanes,
                constant(self.lanes), self.count, self.end - self.begin,
            )
        )  # fmt: skip

    def _pixel(self, x: Expr, row: Expr, rows: list[Expr]) -> None:
        """A pixel of data that has its channels last, one in a group."""

        def copy(lane: Expr) -> None:
            index = (self.batch, *rows, self.origin + x, self.group + lane)
            value = self.lowering.value(self.geometry.operand, index)
            self.put(self.band, self._line(constant(0), row) + x, lane, value)

        self.channels(self.count, 1, copy)

    def _apart(self, x: Expr, row: Expr, rows: list[Expr]) -> None:
        """A pixel of data that has its channels last, with the members of its groups apart."""
        operand, shape = self.geometry.operand, self.geometry.operand.shape
        place = (self.batch, *rows, self.origin + x, self.group * self.members)
        self.lowering.emit(
            TransposeBlock(
                self.lowering.stored(operand), self.lowering.scope.resolve(linear(place, shape)),
                constant(self.members), self.band,
                (self._line(constant(0), row) + x) * self.lanes,
                constant(self.height * self.pitch * self.lanes), self.count,
                constant(self.members),
            )
        )  # fmt: skip

    def _row(self, row: Expr) -> None:
        """One row of outputs."""
        geometry = self.geometry
        begin, end, above = constant(0), constant(1), constant(0)
        if self.last:
            begin, end = geometry.inside(0, self.row + row)
            above = geometry.position(0, self.row + row, constant(0)) - self.top
        most = geometry.kernel[0] if self.last else 1
        apart = self.output_step, self.tap_step

        def cleared(start: Expr, outputs: int, made: Expr) -> None:
            for number, output in product_of(range(self.beside), range(outputs)):
                own = made + number
                self.vector(lambda lane, own=own, o=output: self.put(
                    self.sums, own * COLUMNS + start + o, lane,
                    self._start((begin, end), own, lane)))  # fmt: skip

        def summed(start: Expr, outputs: int, made: Expr, lines: Lines) -> None:
            def member(number: Expr) -> None:
                place = self._line(number, above)
                for taps in blocks_of(self.steps, outputs, apart, self.free, self.beside):
                    self._along(taps, lambda first, count: lines(lambda tap: self._tile(
                        (place, [tap]), (made, number), first, count, start, outputs)))  # fmt: skip

            self.each(self.members, member)

        def nested(start: Expr, outputs: int, made: Expr) -> None:
            """All taps of one tile after the other: its sums stay in registers."""

            def partly(_: Expr) -> None:
                cleared(start, outputs, made)
                summed(start, outputs, made, lambda body: self.loop(begin, end, most, body))

            def whole(_: Expr) -> None:
                lines = self._line(constant(0), above), [*map(constant, range(most))]
                self._tile(lines, (made, constant(0)), constant(0), self.steps, start, outputs,
                           (begin, end))  # fmt: skip

            of_tile = self.steps, outputs, apart, self.free, self.beside
            if self.members > 1 or not fits_body(most, *of_tile):
                partly(start)
                return
            is_whole = equal(end - begin, most)
            self.loop(0, is_whole, 1, whole)
            self.loop(is_whole, 1, 1, partly)

        if self._is_near():
            self._tiles(nested)
        else:
            self._tiles(cleared)
            self.loop(begin, end, most, lambda tap: self._tiles(
                lambda start, outputs, made: summed(
                    start, outputs, made, lambda body: body(tap))))  # fmt: skip
        self._results(row)

    def _start(self, lines: tuple[Expr, Expr], made: Expr, lane: Expr) -> Value:
        """What the sums of some lines of taps begin with."""
        return neutral_element("sum", self.summed)

    def _is_near(self) -> bool:
        """Whether the windows of a tile and all weights stay in the nearest cache.

        If not, all tiles of a row meet one line of taps before the next line.
        """
        window = self.geometry.span(-1, OUTPUTS).value * prod(self.geometry.kernel[:-1])
        touched = self.members * (window + prod(self.geometry.kernel))
        return touched * self.lanes * self.summed.bytes <= self.near

    def _tiles(self, body: Callable[[Expr, int, Expr], None]) -> None:
        """Tiles that cover a row, of each channel made; a small rest is one of half the outputs."""
        half, rest = OUTPUTS // 2, self.columns % OUTPUTS
        halves = less_equal(1, rest) * less_equal(rest, half)
        whole = ceil_div(self.columns, OUTPUTS) - halves

        def each(start: Expr, outputs: int) -> None:
            self.each(self.made // self.beside,
                      lambda number: body(start, outputs, number * self.beside))  # fmt: skip

        self.loop(0, whole, COLUMNS // OUTPUTS, lambda n: each(n * OUTPUTS, OUTPUTS))
        self.loop(0, halves, 1, lambda _: each(whole * OUTPUTS, half))

    def _along(self, blocks: tuple[int, int, int], body: Callable[[Expr, int], None]) -> None:
        """``body`` for the first tap of every block, and for how many it has."""
        first, number, count = blocks
        self.loop(0, number, number, lambda n: body(first + n * count, count))

    def _tile(
        self, lines: tuple[Expr, Sequence[Expr]], channel: tuple[Expr, Expr], first: Expr,
        count: int, start: Expr, outputs: int, begun: tuple[Expr, Expr] | None = None,
    ) -> None:  # fmt: skip
        """Some taps of lines, for neighbouring outputs.

        The ``lines`` are the first vector of the first one, and which ones they are, the
        ``channel`` which one is made of a group, and of which member. Sums go on from those in
        scratch, or begin as those of all lines that are ``begun``.
        """
        (above, taps), made = lines, channel[0]
        tile = [(m, o) for m in range(self.beside) for o in range(outputs)]
        at = [(made + m) * COLUMNS + start + o for m, o in tile]

        def body(lane: Expr) -> None:
            sums = {
                t: self._start(begun, made + t[0], lane) if begun else self.at(self.sums, a, lane)
                for t, a in zip(tile, at, strict=True)
            }
            for tap in taps:
                place = above + tap * (
                    (self.geometry.dilations[0] if self.last else 0) * self.pitch
                )
                base = place + start * self.output_step + first * self.tap_step
                self._add(sums, (base, tap), channel, (first, count), lane)
            for a, value in zip(at, sums.values(), strict=True):
                self.put(self.sums, a, lane, value)

        self.vector(body)

    def _add(
        self, sums: dict[tuple[int, int], Value], line: tuple[Expr, Expr],
        channel: tuple[Expr, Expr], block: tuple[Expr, int], lane: Expr,
    ) -> None:  # fmt: skip
        """Add a block of taps of a line, whose vectors begin there, to the sums of a tile."""
        (base, tap), (made, member), (first, count) = line, channel, block
        outer = [member, tap] if self.last else [member]
        places = {(o * self.output_step + t * self.tap_step, o, t)
                  for _, o in sums for t in range(count)}  # fmt: skip
        near = {place: self.at(self.band, base + place, lane) for place, _, _ in places}
        for place, o, t in sorted(places):
            for m in range(self.beside):
                index = (self.block, made + m, *outer, first + t, lane)
                weight = self.lowering.value(self.weights, index)
                sums[m, o] = self.lowering.let(
                    Apply(self.adding, (near[place], weight, sums[m, o]), self.summed)
                )

    # ------------------------------------------------------------ results

    def _results(self, row: Expr) -> None:
        """What the kernel makes of a row of sums."""
        rows = [self.row + row] if self.last else []
        if not self.channels_last:
            self.each(self.made, lambda made: self._turned_results(made, row, rows))
            return
        sums = self.sums if self.made == 1 else self._together()

        def pixel(x: Expr) -> None:
            def body(lane: Expr) -> None:
                channel = self.group * self.made + lane
                full = self._finish((self.batch, *rows, self.column + x, channel),
                                    Load(sums, x * (self.made * self.lanes) + lane))  # fmt: skip
                for output in self.kernel.outputs:
                    if output in turned:
                        made = self.lowering.value(output.inputs[0], full)
                        self.put(sums, x * self.made, lane, made)
                        continue
                    made = self.lowering.value(output, full)
                    self.lowering.store(self.targets[output], linear(full, self.seed.shape), made)

            self.channels(self.count * self.made, self.made, body)

        turned = [output for output in self.kernel.outputs if channels_come_first(output)]
        self.loop(0, self.columns, COLUMNS, pixel)
        channel, count = self.group * self.made, self.count * self.made
        for output in turned:
            self._leave((sums, constant(0)), self.made, output, (channel, *rows), (1, count))

    def _leave(
        self, sums: tuple[TileBuffer, Expr], vectors: int, output: Node, first: Sequence[Expr],
        channels: tuple[int, Expr], rows: Expr | int = 1,
    ) -> None:  # fmt: skip
        """Turn rows of sums, of ``vectors`` for each pixel, into results with the channels first.

        They begin at ``first``, with so many ``channels`` at a distance.
        """
        place, (distance, count) = (self.batch, *first, self.column), channels
        offset = self.lowering.scope.resolve(linear(place, output.shape))
        self.lowering.emit(
            TransposeBlock(
                *sums, constant(vectors * self.lanes), self.targets[output], offset,
                product(output.shape[2:]) * distance, self.columns * rows, count,
            )
        )  # fmt: skip

    def _finish(self, place: Index, value: Value) -> Index:
        """Note the sum that is finished at a place of the results."""
        full = tuple(self.lowering.scope.resolve(index) for index in place)
        self.note(full, value)
        return full

    def note(self, place: Index, value: Value) -> None:
        """Note the sum that is finished."""
        self.finished[place] = value

    def _together(self) -> TileBuffer:
        """The sums of a row with the channels of a pixel side by side, group after group."""
        together = self._scratch(self.made * COLUMNS)
        self.loop(0, self.columns, COLUMNS, lambda x: self.lowering.emit(TransposeBlock(
            self.sums, x * self.lanes, constant(COLUMNS * self.lanes),
            together, x * (self.made * self.lanes), constant(self.made),
            constant(self.made), self.count)))  # fmt: skip
        return together

    def _turned_results(self, made: Expr, row: Expr, rows: list[Expr]) -> None:
        """Results with the channels first: one channel of each group.

        Rows that follow each other in memory are turned together, unless as wide as their sums.
        """
        lowering, (output,) = self.lowering, self.kernel.outputs
        is_whole, most = constant(0), 1
        if self.results is not self.sums:
            is_whole, most = equal(self.columns, self.seed.shape[-1]), self.most_rows
        before = select(is_whole, row, 0)
        base = (made * most) * COLUMNS + before * self.columns

        def pixel(x: Expr) -> None:
            def body(lane: Expr) -> None:
                channel = (self.group + lane) * self.made + made
                place = (self.batch, channel, *rows, self.column + x)
                full = self._finish(place, self.at(self.sums, made * COLUMNS + x, lane))
                value = lowering.value(output, full)
                self.is_same &= is_free_of(value, (row, x), self.sums)
                self.put(self.results, base + x, lane, value)

            self.channels(self.count, 1, body)

        self.loop(0, self.columns, COLUMNS, pixel)
        first = self.group * self.made + made, *(index - before for index in rows)
        place = (made * most) * (COLUMNS * self.lanes)
        is_last = equal(row + 1, self.rows)
        self.loop(
            0, select(is_whole, is_last, 1), 1,
            lambda _: self._leave(
                (self.results, place), 1, output, first, (self.made, self.count), before + 1
            ),
        )  # fmt: skip


__all__ = ["ChannelTiles"]
