"""Winograd's convolution in bands: a task transforms, multiplies and transforms back in scratch.

A band is some tiles of a few rows of a map. In three steps over all images what lies between them,
2.25 times the data and as much of the results for 3x3, comes from memory where no cache holds it;
that of a band stays in the second-level cache. In return every band reads all weights (see
:func:`always_move_less`).

    for each row of tiles:               for each block of channels: pixels to products
    for each product, for each group:    sums over the channels
    for each row of tiles:               for each block of outputs: sums to pixels, the epilogue

Start with :func:`band_variant`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.cost import LoopPrice, Machine, task_time
from tilewright.ir.kernel import Kernel
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import Loop, Product, Statement, Sums, View
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.convolutions.winograd_data import DataTransform
from tilewright.tile.convolutions.winograd_results import ResultTransform, result_buffers
from tilewright.tile.convolutions.winograd_tiles import (
    PLANE_SHIFT,
    Part,
    Planes,
    Tiles,
    TransformGrid,
    channel_block,
    emit_loop,
)
from tilewright.tile.passes.masks import with_masks
from tilewright.tile.prices import shared_out, step_price
from tilewright.tile.products.block_sizes import MANY_TASKS
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, PackedConstant, Source, Variant

CACHE_USERS = 4  # of the last cache: weights, images, results, and whatever else there is


@dataclass(frozen=True)
class BandSizes:
    """The sizes of bands: up to ``down`` rows of up to ``across`` tiles, all about alike.

    A map has ``tall`` x ``wide`` of them.
    """

    down: Expr
    across: Expr
    tall: Expr
    wide: Expr

    @staticmethod
    def of(tiles: Tiles, tile: RegisterTile) -> BandSizes:
        """Bands whose products are in ``tile.room`` bytes, but no lower than a register tile.

        There are several for every thread where that leaves them as high as a register tile, and
        one where it does not.
        """
        each = tiles.products**2 * (tiles.channels + row_elements(tiles)) * tiles.node.dtype.bytes
        threads = symbol(THREADS)
        several, one = (ceil_div(tiles.count, n * threads) for n in (MANY_TASKS, 1))
        most = minimum(max(tile.room // each, tile.rows), several)
        most = maximum(maximum(most, minimum(tile.rows, one)), 1)
        wide = maximum(ceil_div(tiles.columns, most), 1)
        across = ceil_div(tiles.columns, wide)
        lines = maximum(most // maximum(across, 1), 1)
        tall = maximum(ceil_div(tiles.rows, lines), 1)
        return BandSizes(ceil_div(tiles.rows, tall), across, tall, wide)

    @property
    def tiles(self) -> Expr:
        """How many tiles a band has at most."""
        return self.down * self.across


def are_worth_it(weights: int, machine: Machine) -> bool:
    """Whether bands may be faster than three steps: the last cache has the ``weights`` for each.

    It has what others read as well, and images.
    """
    return weights <= machine.target.levels[-2].room // CACHE_USERS


def always_move_less(weights: int, tile: RegisterTile) -> bool:
    """Whether bands of so many bytes of weights move less than three steps at every shape.

    Of the e bytes of a tile's products, steps write and read every one beyond the second-level
    cache. Bands of room / e tiles read all weights there: e * weights / room bytes for each tile.
    """
    return weights < 2 * tile.room


def row_elements(tiles: Tiles) -> int:
    """Elements from the sums of a tile to those of the next: products write whole cache lines."""
    outputs = tiles.outputs // tiles.groups
    whole = -(-outputs // LINE_ELEMENTS) * LINE_ELEMENTS
    return tiles.outputs - outputs + whole


def band_variant(
    kernel: Kernel,
    lowering: Lowering,
    tiles: Tiles,
    sizes: BandSizes,
    products: LoweredStep,
    machine: Machine,
) -> Variant:
    """The variant of one step; ``products`` would compute those of a usual band."""
    nest = ProductNest.of(products.program)
    (weights,) = (source for source in products.reads if isinstance(source, PackedConstant))
    band = _Band(kernel, lowering, tiles, sizes, nest)
    (step,) = with_masks((band.step(weights),), machine)
    near = task_time(nest, replace(machine, constants=0))
    price = _band_price(step, near, machine)
    step = shared_out(step, price.alone // 1000 + 1)
    # Whoever reads weights first has them from farther away.
    first = maximum(task_time(nest, machine) - near, 0)
    time = price.time(machine, symbol(THREADS)) + first
    return Variant(f"winograd{tiles.size}, in bands", (step,), time)


def _band_price(step: LoweredStep, products: Expr, machine: Machine) -> LoopPrice:
    """The price of the loops around the products, which take so many picoseconds in each task."""
    loops = tuple(part for part in step.program.body if not _multiplies(part))
    price = step_price(replace(step, program=replace(step.program, body=loops)), machine)
    tasks = product([size for _, size in step.program.grid])
    multiplied = tasks * products
    return replace(price, alone=price.alone + multiplied, computed=price.computed + multiplied)


def _multiplies(part: Statement) -> bool:
    return isinstance(part, Product) or (
        isinstance(part, Loop) and any(_multiplies(inner) for inner in part.body)
    )


class _Band:
    """The step of a convolution in bands."""

    def __init__(
        self, kernel: Kernel, lowering: Lowering, tiles: Tiles, sizes: BandSizes, nest: ProductNest
    ) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.tiles = tiles
        self.sizes = sizes
        self.nest = nest
        self.grid = TransformGrid(lowering, tiles)
        self.batch = self.grid.axis(tiles.node.shape[0])
        self.row = self.grid.axis(sizes.tall) * sizes.down
        self.first = self.grid.axis(sizes.wide) * sizes.across
        lowering.open()
        self.rows = maximum(minimum(sizes.down, tiles.rows - self.row), 0)
        self.here = maximum(minimum(sizes.across, tiles.columns - self.first), 0)
        self.data = self._planes(tiles.channels)
        self.sums = self._planes(row_elements(tiles))

    def _planes(self, width: int) -> Planes:
        plane = self.sizes.tiles * width + PLANE_SHIFT
        elements = plane * self.tiles.products**2
        buffer = self.lowering.scratch_buffer(self.tiles.node.dtype, elements)
        return Planes(buffer, plane, width, constant(0))

    def step(self, weights: Source) -> LoweredStep:
        """The step that writes the kernel's outputs."""
        lowering, tiles = self.lowering, self.tiles
        targets = result_buffers(self.kernel)

        def data(part: Part, planes: Planes) -> None:
            DataTransform(self.kernel, lowering, tiles, part).emit(planes)

        def results(part: Part, planes: Planes) -> None:
            ResultTransform(self.kernel, lowering, tiles, part).emit(planes, targets)

        self._parts(tiles.channels, self.data, data)
        self._products()
        self._parts(tiles.outputs, self.sums, results)
        program = self.grid.program(tuple(targets.values()), (self.nest.right.buffer,))
        return LoweredStep(program, (weights, *lowering.buffers), tuple(self.kernel.outputs))

    def _parts(self, width: int, planes: Planes, body: Callable[[Part, Planes], None]) -> None:
        """``body`` for each row of tiles and each block of ``width`` channels."""
        block = channel_block(width)

        def row(number: Expr) -> None:
            here = replace(planes, first=number * self.here)
            part = Part(
                self.batch, self.row + number, self.first, self.here, self.sizes.across,
                constant(0), constant(width), block,
            )  # fmt: skip

            def channels(number: Expr) -> None:
                first = number * block
                length = minimum(block, width - first)
                body(replace(part, channel=first, channels=length), here)

            if block == width:
                body(part, here)
            else:
                blocks = -(-width // block)
                emit_loop(self.lowering, (0, blocks), blocks, channels)

        emit_loop(self.lowering, (0, self.rows), self.sizes.down, row)

    def _products(self) -> None:
        """One product for each of a tile's, and group.

        The sums of a group go on over the first ones of the next, which are written after them.
        """
        groups, count = self.tiles.groups, self.tiles.products**2

        def each(number: Expr) -> None:
            if groups == 1:
                self._product(number, constant(0))
            else:
                emit_loop(self.lowering, (0, groups), groups, lambda g: self._product(number, g))

        emit_loop(self.lowering, (0, count), count, each)

    def _product(self, number: Expr, group: Expr) -> None:
        tiles, nest, zero = self.tiles, self.nest, constant(0)
        outputs = tiles.outputs // tiles.groups
        names = [name for name, _ in nest.batch]
        places = dict(zip(names, (number, group), strict=True))
        places |= {str(axis.begin): zero for axis in (nest.columns, nest.depth)}
        left = self.data.place(number, zero, group * tiles.depth)
        target = self.sums.place(number, zero, group * outputs)
        self.lowering.emit(
            Product(
                nest.dtype,
                View(self.data.buffer, left, constant(tiles.channels), constant(1)),
                replace(nest.right, offset=nest.right.offset.substitute(places)),
                (zero, self.rows * self.here),
                (zero, constant(outputs)),
                (zero, constant(tiles.depth)),
                Sums(self.sums.buffer, target, constant(self.sums.width), NEVER),
            )
        )
