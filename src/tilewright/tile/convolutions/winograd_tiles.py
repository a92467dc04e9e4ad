"""The transforms at both ends of Winograd's convolution as loop programs.

Tiles of pixels lie in a workspace product by product, [products^2, tiles, channels]. Both
transforms are separable: down the columns, then along the rows, with scratch between; the innermost
loops run along the channels. Start with :class:`Tiles`, then :class:`DataTransform`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    Apply,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)
from tilewright.ir.views import declare_index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    select,
)
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.convolutions.winograd_transforms import (
    Form,
    apply_columns,
    apply_rows,
    transforms,
)
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.nests import grid_axis
from tilewright.tile.products.contraction import shown
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace

CHANNEL_BLOCK = 128  # channels per task of a transform at most
TURNED_CHANNELS = 16  # at a time, so that their lines come from memory one after the other
PLANE_UNIT = 1024  # elements: planes begin at multiples of it, and …
PLANE_SHIFT = 48  # … this many later each, so that they do not meet in the same cache sets


@dataclass(frozen=True)
class Tiles:
    """How the outputs of ``node`` are cut into tiles; ``rows`` x ``columns`` of them per map.

    ``channels`` and ``outputs`` are those of all ``groups``.
    """

    node: Node
    form: Form
    groups: int
    channels: int
    outputs: int
    rows: Expr
    columns: Expr

    @staticmethod
    def of(node: Node, form: Form) -> Tiles:
        """The tiles of a Convolve."""
        primitive, weights = node.primitive, node.inputs[1]
        assert isinstance(primitive, Convolve)
        rows, columns = (ceil_div(node.shape[axis], form.size) for axis in (1, 2))
        outputs, channels = (extent.value for extent in weights.shape[:2])
        groups = primitive.groups
        return Tiles(node, form, groups, groups * channels, outputs, rows, columns)

    @property
    def depth(self) -> int:
        """Channels that one output sums over."""
        return self.channels // self.groups

    @property
    def size(self) -> int:
        """Outputs per axis of a tile."""
        return self.form.size

    @property
    def products(self) -> int:
        """Products per axis of a tile."""
        return self.form.products

    @property
    def count(self) -> Expr:
        """Tiles in all."""
        return self.node.shape[0] * self.rows * self.columns

    def plane(self, width: int) -> Expr:
        """Elements from one product of all tiles to the next, ``width`` to a tile."""
        return ceil_div(self.count * width, PLANE_UNIT) * PLANE_UNIT + PLANE_SHIFT

    def planes(self, width: int) -> Expr:
        """Elements of all products."""
        return self.plane(width) * self.products**2

    def number(self, batch: Expr, row: Expr, column: Expr) -> Expr:
        """The number of a tile among all."""
        return (batch * self.rows + row) * self.columns + column


class _Transform:
    """A loop program over a grid of batch, tile rows, blocks of tile columns and of channels."""

    def __init__(
        self, kernel: Kernel, lowering: Lowering, tiles: Tiles, width: int, most: int
    ) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.tiles = tiles
        self.node = tiles.node
        self.dtype = tiles.node.dtype
        self.matrices = transforms(tiles.form)
        self.grid: list[tuple[str, Expr]] = []
        self.width = _channel_block(width)
        count = maximum(ceil_div(tiles.columns, most), 1)
        self.across = ceil_div(tiles.columns, count)
        self.batch = grid_axis(self.lowering, self.grid, self.node.shape[0])
        self.row = grid_axis(self.lowering, self.grid, tiles.rows)
        self.first = grid_axis(self.lowering, self.grid, count) * self.across
        self.channel, self.channels = constant(0), constant(width)
        if self.width < width:
            blocks = constant(-(-width // self.width))
            self.channel = grid_axis(self.lowering, self.grid, blocks) * self.width
            self.channels = minimum(self.width, width - self.channel)
        self.here = maximum(minimum(self.across, tiles.columns - self.first), 0)
        lowering.open()

    def loop(
        self,
        bounds: tuple[Expr | int, Expr | int],
        extent: Expr | int,
        body: Callable[[Expr], None],
    ) -> None:
        """``body`` for a variable in ``bounds``, which lie within [0, extent)."""
        begin, end, most = (constant(e) if isinstance(e, int) else e for e in (*bounds, extent))
        self.lowering.open()
        variable = self.lowering.variable(most)
        body(variable)
        inner = self.lowering.close()
        self.lowering.emit(Loop(str(variable), begin, end, inner))

    def along_channels(self, body: Callable[[Expr], None]) -> None:
        """The innermost loop; the variable counts from 0."""
        self.loop((0, self.channels), self.width, body)

    def load(self, buffer: TileBuffer, offset: Expr) -> Value:
        return Load(buffer, self.lowering.scope.resolve(offset))

    def program(self, results: Sequence[TileBuffer], others: Sequence[TileBuffer]) -> TileProgram:
        body = self.lowering.opened_statements()
        reads = (*others, *self.lowering.buffers.values())
        return TileProgram(
            (*reads, *results),
            len(results),
            tuple(self.grid),
            tuple(body),
            tuple(self.lowering.scratch),
            tuple(self.lowering.checks),
            constant(1),  # the work is known once the step has a price
        )


def _channel_block(width: int) -> int:
    """Balanced blocks of channels, whole cache lines unless there is one block only."""
    blocks = -(-width // CHANNEL_BLOCK)
    whole = -(-width // (blocks * LINE_ELEMENTS)) * LINE_ELEMENTS
    return min(width, whole)


class DataTransform(_Transform):
    """Bt d B of every tile.

    Down the columns of a task's pixels first, which neighbouring tiles share, into a line of
    scratch for every product with zeros at the sides; what lies above or below counts as 0 by a
    choice that is the same along a line. Lines of data that has its channels first are transposed
    into scratch before. What is read, as many lines of scratch, and the products of each step along
    them are in cache together, in ``room`` bytes.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering, tiles: Tiles, room: int) -> None:
        width, form = min(CHANNEL_BLOCK, tiles.channels), tiles.form
        line = tiles.products * width * tiles.node.dtype.bytes
        self.shared = form.products - form.step
        pixels = room * form.step // (line * (2 * form.step + tiles.products))
        most = max(pixels - self.shared, form.step) // form.step
        super().__init__(kernel, lowering, tiles, tiles.channels, most)
        self.pixels = self.across * form.step + self.shared
        elements = self.pixels * self.width * tiles.products
        self.lines = lowering.scratch_buffer(self.dtype, elements)
        self.turned: TileBuffer | None = None
        if not lowering.is_stored(self.node.inputs[0]):
            self.turned = lowering.scratch_buffer(self.dtype, elements)

    def step(self, space: Workspace) -> LoweredStep:
        """The step that fills ``space``."""
        target = TileBuffer("o0", self.dtype)
        self._down_columns()
        self._along_rows(target)
        program = self.program((target,), ())
        return LoweredStep(program, tuple(self.lowering.buffers), (space,))

    def _line(self, line: Expr | int, pixel: Expr, channel: Expr) -> Expr:
        """Where a pixel is in scratch."""
        return (line * self.pixels + pixel) * self.width + channel

    def _down_columns(self) -> None:
        primitive = self.node.primitive
        assert isinstance(primitive, Convolve)
        data, tiles = self.node.inputs[0], self.tiles
        height, width = data.shape[1], data.shape[2]
        left = self.first * tiles.form.step - primitive.low[1]
        used = self.here * tiles.form.step + self.shared
        begin = minimum(maximum(-left, 0), used)
        end = minimum(maximum(width - left, begin), used)
        end = select(less(0, height), end, begin)
        rows: list[tuple[Expr, Value | None]] = []
        for tap in range(tiles.products):
            place = self.row * tiles.form.step - primitive.low[0] + tap
            inside = logical_and(less_equal(0, place), less(place, height))
            nearest = maximum(minimum(place, height - 1), 0)
            rows.append((nearest, self._truth(inside)))
        if self.turned is not None:
            self._turn(self.turned, [y for y, _ in rows], left, (begin, end))

        def pixel(x: Expr) -> None:
            def channel(c: Expr) -> None:
                values = [self._pixel(tap, (y, x, left, c), inside)
                          for tap, (y, inside) in enumerate(rows)]  # fmt: skip
                for line, made in enumerate(apply_rows(self.matrices.data, values, self.dtype)):
                    self.lowering.store(self.lines, self._line(line, x, c), made)

            self.along_channels(channel)

        def outside(x: Expr) -> None:
            def channel(c: Expr) -> None:
                for line in range(tiles.products):
                    zero = Literal(0.0, self.dtype)
                    self.lowering.store(self.lines, self._line(line, x, c), zero)

            self.along_channels(channel)

        self.loop((0, begin), self.pixels, outside)
        self.loop((begin, end), self.pixels, pixel)
        self.loop((end, used), self.pixels, outside)

    def _truth(self, predicate: Expr) -> Value | None:
        """A predicate as a bool bound here, or None where it is known to hold."""
        resolved = self.lowering.scope.resolve(predicate)
        if resolved.is_constant and resolved.value:
            return None
        outside = IndexValue(equal(resolved, 0))
        made = Apply("equal", (outside, Literal(0, DType.INT64)), DType.BOOL)
        name = self.lowering.name("inside")
        self.lowering.emit(Let(name, made))
        self.lowering.depth[name] = len(self.lowering.blocks) - 1
        return Local(name, DType.BOOL)

    def _turn(
        self, target: TileBuffer, lines: Sequence[Expr], left: Expr, bounds: tuple[Expr, Expr]
    ) -> None:
        """Lines of the data with their channels side by side, of few channels at a time."""
        (stored,) = self.node.inputs[0].inputs
        source, distance = self.lowering.buffer(stored), stored.shape[2] * stored.shape[3]
        begin, end = bounds

        def band(number: Expr) -> None:
            first = number * TURNED_CHANNELS
            size = minimum(self.channels - first, TURNED_CHANNELS), end - begin
            for tap, y in enumerate(lines):
                index = (self.batch, self.channel + first, y, begin + left)
                place = target, self._line(tap, begin, first), constant(self.width)
                origin = source, linear(index, stored.shape), distance
                self.lowering.emit(TransposeBlock(*origin, *place, *size))

        bands = ceil_div(self.channels, TURNED_CHANNELS)
        self.loop((0, bands), ceil_div(self.width, TURNED_CHANNELS), band)

    def _pixel(self, tap: int, place: tuple[Expr, Expr, Expr, Expr], inside: Value | None) -> Value:
        """An element of the line that a tap reads: pixel x, channel c of the task's."""
        y, x, left, c = place
        if self.turned is not None:
            read = self.load(self.turned, self._line(tap, x, c))
        else:
            index = (self.batch, y, x + left, self.channel + c)
            read = self.lowering.value(self.node.inputs[0], index)
        if inside is None:
            return read
        return Apply("select", (inside, read, Literal(0.0, self.dtype)), self.dtype)

    def _along_rows(self, target: TileBuffer) -> None:
        tiles = self.tiles
        plane = tiles.plane(tiles.channels)

        def line(i: Expr) -> None:
            def tile(t: Expr) -> None:
                number = tiles.number(self.batch, self.row, self.first + t)
                place = i * tiles.products * plane + number * tiles.channels + self.channel

                def channel(c: Expr) -> None:
                    values = [
                        self.load(self.lines, self._line(i, t * tiles.form.step + tap, c))
                        for tap in range(tiles.products)
                    ]
                    made = apply_rows(self.matrices.data, values, self.dtype)
                    for j, value in enumerate(made):
                        self.lowering.store(target, place + j * plane + c, value)

                self.along_channels(channel)

            self.loop((0, self.here), self.across, tile)

        self.loop((0, tiles.products), tiles.products, line)


class ResultTransform(_Transform):
    """At m A of every tile into lines of pixels, and the epilogue on those that are outputs.

    Results that have their channels first are staged line by line. The products of a tile, its
    pixels and what is stored of them are in cache together, in ``room`` bytes.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering, tiles: Tiles, room: int) -> None:
        width = min(CHANNEL_BLOCK, tiles.outputs)
        block = (tiles.products**2 + 2 * tiles.size**2) * width * tiles.node.dtype.bytes
        super().__init__(kernel, lowering, tiles, tiles.outputs, max(room // block, 1))
        self.pixels = self.across * tiles.size
        elements = tiles.size * tiles.products * self.width
        self.sums = lowering.scratch_buffer(self.dtype, constant(elements))
        self.lines = lowering.scratch_buffer(self.dtype, self.pixels * self.width * tiles.size)

    def step(self, space: Workspace) -> LoweredStep:
        """The step that reads ``space`` and writes the kernel's outputs."""
        source = TileBuffer("w0", self.dtype)
        self.loop((0, self.here), self.across, lambda t: self._tile(source, t))
        targets = {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(self.kernel.outputs)}
        self._epilogue(targets)
        program = self.program(tuple(targets.values()), (source,))
        reads = (space, *self.lowering.buffers)
        return LoweredStep(program, reads, tuple(self.kernel.outputs))

    def _tile(self, source: TileBuffer, t: Expr) -> None:
        tiles = self.tiles
        plane = tiles.plane(tiles.outputs)
        number = tiles.number(self.batch, self.row, self.first + t)
        place = number * tiles.outputs + self.channel

        def down(j: Expr) -> None:
            def channel(c: Expr) -> None:
                values = [
                    self.load(source, (i * tiles.products + j) * plane + place + c)
                    for i in range(tiles.products)
                ]
                made = apply_columns(self.matrices.result, values, self.dtype)
                for i, value in enumerate(made):
                    where = (i * tiles.products + j) * self.width + c
                    self.lowering.store(self.sums, where, value)

            self.along_channels(channel)

        def along(i: Expr) -> None:
            def channel(c: Expr) -> None:
                values = [
                    self.load(self.sums, (i * tiles.products + j) * self.width + c)
                    for j in range(tiles.products)
                ]
                made = apply_columns(self.matrices.result, values, self.dtype)
                for j, value in enumerate(made):
                    where = self._pixel(i, t * tiles.size + j, c)
                    self.lowering.store(self.lines, where, value)

            self.along_channels(channel)

        self.loop((0, tiles.products), tiles.products, down)
        self.loop((0, tiles.size), tiles.size, along)

    def _pixel(self, line: Expr, pixel: Expr, channel: Expr) -> Expr:
        """Where an output is in scratch."""
        return (line * self.pixels + pixel) * self.width + channel

    def _epilogue(self, targets: dict[Node, TileBuffer]) -> None:
        tiles, shape, lowering = self.tiles, self.node.shape, self.lowering
        top, left = self.row * tiles.size, self.first * tiles.size
        bottom = minimum(top + tiles.size, shape[1])
        right = minimum(left + self.here * tiles.size, shape[2])
        stages = {
            output: lowering.scratch_buffer(output.dtype, self.pixels * self.width)
            for output in targets
            if self._is_turned(output)
        }

        def row(y: Expr) -> None:
            def column(x: Expr) -> None:
                def channel(o: Expr) -> None:
                    where = self._pixel(y - top, x - left, o - self.channel)
                    index = tuple(lowering.scope.resolve(i) for i in (self.batch, y, x, o))
                    lowering.cached[self.node] = {index: self.load(self.lines, where)}.get
                    staged = self._pixel(constant(0), x - left, o - self.channel)
                    for output, buffer in targets.items():
                        base, place = shown(output, index, lowering.scope)
                        target, offset = buffer, linear(place, output.shape)
                        if output in stages:
                            target, offset = stages[output], staged
                        lowering.store(target, offset, lowering.value(base, index))

                bounds = (self.channel, self.channel + self.channels)
                self.loop(bounds, shape[3], channel)

            self.loop((left, right), shape[2], column)
            for output, stage in stages.items():
                self._leave(stage, output, targets[output], (y, left, right))

        self.loop((top, bottom), shape[1], row)

    def _leave(
        self, stage: TileBuffer, output: Node, target: TileBuffer, line: tuple[Expr, Expr, Expr]
    ) -> None:
        """Part of a line of results, from the stage to its place with the channels first."""
        y, left, right = line
        corner = (self.batch, y, left, self.channel)
        _, place = shown(output, corner, self.lowering.scope)
        source = stage, constant(0), constant(self.width)
        result = target, linear(place, output.shape), self.node.shape[1] * self.node.shape[2]
        self.lowering.emit(TransposeBlock(*source, *result, right - left, self.channels))

    def _is_turned(self, output: Node) -> bool:
        """Whether a result has its channels first."""
        scope, shape = self.lowering.scope.copy(), self.node.shape
        index = tuple(declare_index(scope, f"_o{axis}", size) for axis, size in enumerate(shape))
        _, place = shown(output, index, scope)
        affine = scope.resolve(linear(place, output.shape)).affine([str(index[-1])])
        if affine is None or output.dtype.bytes not in SIZES:
            return False
        return affine[0].get(str(index[-1]), constant(0)) is not constant(1)
