"""The transform of pixels into the products of Winograd's tiles. Start with :func:`data_step`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    Apply,
    IndexValue,
    Let,
    Literal,
    Local,
    TileBuffer,
    TransposeBlock,
    Value,
)
from tilewright.ir.views import linear
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
from tilewright.tile.convolutions.winograd_tiles import (
    CHANNEL_BLOCK,
    Part,
    Planes,
    Tiles,
    Transform,
    TransformGrid,
)
from tilewright.tile.convolutions.winograd_transforms import apply_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace

TURNED_CHANNELS = 16  # at a time, so that their lines come from memory one after the other


def data_step(
    kernel: Kernel, lowering: Lowering, tiles: Tiles, room: int, space: Workspace
) -> LoweredStep:
    """The step that fills ``space`` with the products of all tiles.

    What a task reads, as many lines of scratch, and the products of each step along them are in
    cache together, in ``room`` bytes.
    """
    form = tiles.form
    line = form.products * min(CHANNEL_BLOCK, tiles.channels) * tiles.node.dtype.bytes
    shared = form.products - form.step
    pixels = room * form.step // (line * (2 * form.step + form.products))
    most = max(pixels - shared, form.step) // form.step
    grid = TransformGrid(lowering, tiles)
    part = grid.part(most, tiles.channels)
    target = TileBuffer("o0", tiles.node.dtype)
    transform = DataTransform(kernel, lowering, tiles, part)
    transform.emit(Planes.of_all(target, tiles, tiles.channels, part))
    return LoweredStep(grid.program((target,), ()), tuple(lowering.buffers), (space,))


class DataTransform(Transform):
    """Bt d B of every tile.

    Down the columns of a part's pixels first, which neighbouring tiles share, into a line of
    scratch for every product with zeros at the sides; what lies above or below counts as 0 by a
    choice that is the same along a line. Lines of data that has its channels first are transposed
    into scratch before.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering, tiles: Tiles, part: Part) -> None:
        super().__init__(kernel, lowering, tiles, part)
        self.shared = tiles.products - tiles.form.step
        self.pixels = part.across * tiles.form.step + self.shared
        elements = self.pixels * part.width * tiles.products
        self.lines = lowering.scratch_buffer(self.dtype, elements)
        self.turned: TileBuffer | None = None
        if not lowering.is_stored(self.node.inputs[0]):
            self.turned = lowering.scratch_buffer(self.dtype, elements)

    def emit(self, planes: Planes) -> None:
        """Statements that leave the products of the part."""
        self._down_columns()
        self._along_rows(planes)

    def _line(self, line: Expr | int, pixel: Expr, channel: Expr) -> Expr:
        """Where a pixel is in scratch."""
        return (line * self.pixels + pixel) * self.part.width + channel

    def _down_columns(self) -> None:
        primitive = self.node.primitive
        assert isinstance(primitive, Convolve)
        data, tiles = self.node.inputs[0], self.tiles
        height, width = data.shape[1], data.shape[2]
        left = self.part.first * tiles.form.step - primitive.low[1]
        used = self.part.here * tiles.form.step + self.shared
        begin = minimum(maximum(-left, 0), used)
        end = minimum(maximum(width - left, begin), used)
        end = select(less(0, height), end, begin)
        rows: list[tuple[Expr, Value | None]] = []
        for tap in range(tiles.products):
            place = self.part.row * tiles.form.step - primitive.low[0] + tap
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
            size = minimum(self.part.channels - first, TURNED_CHANNELS), end - begin
            for tap, y in enumerate(lines):
                index = (self.part.batch, self.part.channel + first, y, begin + left)
                place = target, self._line(tap, begin, first), constant(self.part.width)
                origin = source, linear(index, stored.shape), distance
                self.lowering.emit(TransposeBlock(*origin, *place, *size))

        bands = ceil_div(self.part.channels, TURNED_CHANNELS)
        self.loop((0, bands), ceil_div(self.part.width, TURNED_CHANNELS), band)

    def _pixel(self, tap: int, place: tuple[Expr, Expr, Expr, Expr], inside: Value | None) -> Value:
        """An element of the line that a tap reads: pixel x, channel c of the task's."""
        y, x, left, c = place
        if self.turned is not None:
            read = self.load(self.turned, self._line(tap, x, c))
        else:
            index = (self.part.batch, y, x + left, self.part.channel + c)
            read = self.lowering.value(self.node.inputs[0], index)
        if inside is None:
            return read
        return Apply("select", (inside, read, Literal(0.0, self.dtype)), self.dtype)

    def _along_rows(self, planes: Planes) -> None:
        tiles = self.tiles

        def line(i: Expr) -> None:
            def tile(t: Expr) -> None:
                def channel(c: Expr) -> None:
                    values = [
                        self.load(self.lines, self._line(i, t * tiles.form.step + tap, c))
                        for tap in range(tiles.products)
                    ]
                    made = apply_rows(self.matrices.data, values, self.dtype)
                    for j, value in enumerate(made):
                        product = i * tiles.products + j
                        where = planes.place(product, t, self.part.channel + c)
                        self.lowering.store(planes.buffer, where, value)

                self.along_channels(channel)

            self.loop((0, self.part.here), self.part.across, tile)

        self.loop((0, tiles.products), tiles.products, line)
