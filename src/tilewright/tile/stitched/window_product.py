"""A convolution whose tasks go over bands of an image, and windows over these.

A task makes what the windows of a few rows of results reach, for a block of channels, in scratch
that stays in cache, and goes over its windows there. What neighbouring bands share is made in both.
Bands reach equally many rows of the image, so that they are a batch of equal products: those at its
ends begin where that many rows lie inside.

    stage parallel _m, parallel _n          all pixels that a band reaches are one block
      stage reduction _k
        product … finished by the epilogue  what windows read, into scratch
      store
        for each row of results: windows    results of the block of channels

Start with :func:`lower_window_product`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve, Window
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import Load, Loop, Product, Stage, Statement, Store, TileBuffer, Value
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.ir.views import Index, declare_index, linear
from tilewright.ir.window_product import WindowProduct
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    less,
    maximum,
    minimum,
    product,
    select,
    symbol,
)
from tilewright.target.core_model import spread_elements
from tilewright.tile.convolutions.gathered import PLACE_BYTES, data_bytes, lower_channels_last
from tilewright.tile.products.block_sizes import MANY_TASKS
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import is_pointwise
from tilewright.tile.variants import THREADS, LoweredStep
from tilewright.tile.windows.channel_windows import ChannelRow

IMAGE, BAND, BEGIN, FIRST, LAST = (symbol(name) for name in ("_b2", "_b3", "_m0", "_n0", "_n1"))


@dataclass(frozen=True)
class Bands:
    """How an image is cut: ``count`` bands of ``outputs`` rows of results, which reach ``rows``.

    ``shape`` is that of the pixels of all images, of which a row has ``width``.
    """

    count: Expr
    outputs: Expr
    rows: Expr
    shape: tuple[Expr, ...]
    stride: int
    low: Expr

    @property
    def width(self) -> Expr:
        """Pixels of a row of the image, which is a plane of it in three dimensions."""
        return product(self.shape[2:])

    def top(self, number: Expr) -> Expr:
        """The first row of the image that is made for a band."""
        wanted = number * self.outputs * self.stride - self.low
        return maximum(0, minimum(wanted, self.shape[1] - self.rows))

    @property
    def begin(self) -> Expr:
        """How many pixels there are before those of a task, of all images."""
        return (IMAGE * self.shape[1] + self.top(BAND)) * self.width


def lower_window_product(
    parts: WindowProduct, scope: Scope, tile: RegisterTile, panels: int
) -> LoweredStep:
    """The step of both parts, in blocks of as many ``panels`` of channels as a tile is wide."""
    lowering = Lowering(parts.first, scope)
    seed = parts.first.seed
    width = tile.for_product(seed).columns
    columns = minimum(panels * width, ceil_div(seed.shape[-1], width) * width)
    bands = _bands(parts, tile, columns)
    sizes = maximum(bands.rows * bands.width, 1), columns
    step = lower_channels_last(parts.first, lowering, tile, Blocking(), sizes)
    given = len(lowering.buffers)
    following = lowering.continued(parts.last, scope)
    nest = _banded(step, bands)
    wide = nest.columns.block + spread_elements(nest.dtype.bytes)
    shown = following.scratch_buffer(parts.shown.dtype, nest.m * wide)
    row = _BandRow(parts, following, bands, (shown, wide), nest.columns.block)
    statements = row.statements()
    (store,) = nest.finish.stores
    assert not nest.blocks.store, f"{parts.first.label}: its channels do not lie side by side"
    place = (symbol("_m") - BEGIN) * wide + (symbol("_n") - FIRST)
    finish = replace(nest.finish, stores=(Store(shown, place, store.value),), streamed=NEVER)
    steps = replace(nest.steps, body=(replace(nest.product, target=finish),))
    program = nest.with_blocks(replace(nest.blocks, body=(steps,), store=statements))
    results = tuple(row.targets[output] for output in parts.last.outputs)
    program = replace(
        program,
        buffers=(*following.buffers.values(), *program.buffers[given:-1], *results),
        results=len(results),
        scratch=(*program.scratch, *following.scratch[following.scratch.index(shown) :]),
        checks=tuple(following.checks),
    )
    reads = (*following.buffers, *step.reads[given:])
    return LoweredStep(program, reads, parts.last.outputs)


def _bands(parts: WindowProduct, tile: RegisterTile, columns: Expr) -> Bands:
    """As few bands as have room in cache with their data, for tasks enough for all threads."""
    seed, windowed = parts.first.seed, parts.last.seed
    primitive = windowed.primitive
    assert isinstance(primitive, Convolve | Window)
    taps = primitive.kernel if isinstance(primitive, Window) else windowed.inputs[1].shape[2:]
    reach = (constant(0) + taps[0] - 1) * primitive.dilations[0] + 1
    stride, outputs = primitive.strides[0], windowed.shape[1]
    weights, size = seed.inputs[1], seed.dtype.bytes
    each = product(seed.shape[2:-1]) * (columns * size + _read_bytes(seed))
    panel = columns * product(weights.shape[1:]) * size
    fitting = (tile.room - panel) // maximum(each, 1)
    most = maximum((fitting - reach) // stride + 1, 1)
    others = maximum(seed.shape[0] * ceil_div(seed.shape[-1], maximum(columns, 1)), 1)
    count, threads = maximum(ceil_div(outputs, most), 1), symbol(THREADS)
    tasks = count * others
    shared = ceil_div(ceil_div(tasks, threads) * threads, others)
    count = select(less(tasks, MANY_TASKS * threads), shared, count)
    own = maximum(ceil_div(outputs, count), 1)
    rows = minimum(seed.shape[1], (own - 1) * stride + reach)
    shape = seed.shape[:-1]
    return Bands(ceil_div(outputs, own), own, rows, shape, stride, primitive.low[0])


def _read_bytes(seed: Node) -> int:
    """Bytes for each pixel of what a convolution reads, and of the table that says where."""
    taps = prod(size.value for size in seed.inputs[1].shape[2:])
    return data_bytes(seed) + (0 if is_pointwise(seed) else PLACE_BYTES * taps)


def _banded(step: LoweredStep, bands: Bands) -> ProductNest:
    """The product of all pixels as one for each band, whose first row is 0.

    What says where a pixel lies counts from the first one of all images.
    """
    nest = ProductNest.of(step.program)
    pixels = bands.rows * bands.width
    rows = StageAxis(nest.rows.stem, pixels, maximum(pixels, 1), Role.PARALLEL)
    places = {name: symbol(name) + bands.begin for name in ("_m", "_m0", "_m1")}
    (blocks,) = ExpressionMap.substitution(places).statements((nest.blocks,))
    assert isinstance(blocks, Stage)
    (steps,) = blocks.body
    assert isinstance(steps, Stage)
    (product_of_band,) = steps.body
    assert isinstance(product_of_band, Product)
    steps = replace(steps, body=(replace(product_of_band, rows=rows.bounds),))
    blocks = replace(blocks, axes=(rows, nest.columns), body=(steps,))
    others = [name for name, _ in nest.rows.counters if name != rows.number]
    sizes = dict(step.program.grid) | {rows.number: rows.count}
    grid = [(name, sizes[name]) for name, _ in step.program.grid if name not in others]
    around = ((str(IMAGE), bands.shape[0]), (str(BAND), bands.count))
    return ProductNest.of(replace(step.program, grid=(*around, *grid), body=(blocks,)))


class _BandRow(ChannelRow):
    """Rows of results of one band and one block of channels, of what is in ``shown``.

    A pixel of it lies ``wide`` elements behind the one before. A block has up to ``most`` channels.
    """

    def __init__(
        self, parts: WindowProduct, lowering: Lowering, bands: Bands,
        shown: tuple[TileBuffer, Expr], most: Expr,
    ) -> None:  # fmt: skip
        self.parts = parts
        self.bands = bands
        self.shown, self.wide = shown
        self.most = most
        lowering.cached[parts.shown] = self._element
        super().__init__(parts.last, lowering)

    def _open_tasks(self) -> None:
        """Loops over the rows of results of the band, and over planes of them."""
        lowering, bands, shape = self.lowering, self.bands, self.seed.shape
        for name, size in ((IMAGE, shape[0]), (BAND, bands.count)):
            declare_index(lowering.scope, str(name), size)
        for end in (FIRST, LAST):
            lowering.scope.declare(str(end), 0)
        channels = self.geometry.operand.shape[-1]
        is_even = channels % self.most is constant(0)
        self.channel, self.block = FIRST, self.most
        self.count = self.most if is_even else LAST - FIRST
        if ceil_div(channels, self.most) is constant(1):
            self.channel, self.count = constant(0), channels
        self.index[0] = IMAGE
        lowering.open()
        self.first = lowering.variable(shape[1])
        self.index[1] = self.first
        self.inner: list[tuple[Expr, Expr]] = []
        for axis in range(2, self.row_axis):
            lowering.open()
            place = lowering.variable(shape[axis])
            self.inner.append((place, shape[axis]))
            self.index[axis] = place

    def statements(self) -> tuple[Statement, ...]:
        """The loops, with what is the same for all rows before them."""
        self.write()
        lowering = self.lowering
        body = lowering.close()
        for place, size in reversed(self.inner):
            loop = Loop(str(place), constant(0), size, body)
            body = (*lowering.close(), loop)
        begin = BAND * self.bands.outputs
        end = minimum(begin + self.bands.outputs, self.seed.shape[1])
        loop = Loop(str(self.first), begin, end, body)
        return (*lowering.blocks[0].statements, loop)

    def _element(self, index: Index) -> Value | None:
        """An element of what the windows read."""
        image, row, *pixel, channel = index
        if image is not self.lowering.scope.resolve(IMAGE):
            return None
        shape = (self.bands.rows, *self.bands.shape[2:])
        place = linear((row - self.bands.top(BAND), *pixel), shape)
        return Load(
            self.shown, self.lowering.scope.resolve(place * self.wide + (channel - self.channel))
        )


__all__ = ["Bands", "lower_window_product"]
