"""Convolutions with 3x3 and 5x5 kernels in Winograd's form, channels last.

Three steps: every tile of pixels is transformed, products are summed over the input channels by
as many contractions as a tile has elements, and each result is transformed back to size x size
pixels with the kernel's epilogue. A task does all three for a band of tiles (``winograd_bands``),
or they are steps of the kernel over all images, which read many weights once. Data may come and
results may leave with the channels first. Start with :func:`winograd_variants`.

Error against float64, of normal data and weights and 16 to 512 channels, relative to the error of
summing over taps and channels in order: tiles of 2 have 0.2 to 0.4 times its maximum and 0.6 to
0.75 times its root of the mean square, tiles of 4 have 1.1 to 2.3 and 1.7 to 2.25 times (with the
points 0, 1, 2 and their opposites it would be twice as much). Tiles of 2 of 5x5 kernels have 0.9
and 1.3 times, tiles of 4 with a stride of 2 have 1.1 times both. An output is off in proportion to
the largest inputs of its whole tile, and what is not finite spreads through it; pixels outside of
the map are zeros and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.cost import (
    Machine,
    contraction_time,
    contraction_work,
    pushed_out_time,
    taken_time,
    workers_for,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Local, Store, TileBuffer, View
from tilewright.shape import Expr, ceil_div, constant, maximum, product, symbol
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.convolutions.winograd_bands import (
    BandSizes,
    always_move_less,
    are_worth_it,
    band_variant,
)
from tilewright.tile.convolutions.winograd_data import data_step
from tilewright.tile.convolutions.winograd_results import result_step
from tilewright.tile.convolutions.winograd_tiles import Tiles
from tilewright.tile.convolutions.winograd_transforms import Form, TransformedWeights
from tilewright.tile.passes.masks import with_masks
from tilewright.tile.prices import shared_out, step_price
from tilewright.tile.products.block_sizes import (
    DEPTH_BLOCK,
    column_block,
    depth_block,
    row_block,
)
from tilewright.tile.products.contraction import packed_operand
from tilewright.tile.products.frame import Frame, RegisterTile
from tilewright.tile.products.program import BlockSizes, product_program
from tilewright.tile.products.tiles import as_wide
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    PackedConstant,
    Source,
    Variant,
    Workspace,
)

SMALL_WEIGHTS = 4 << 20  # bytes of the largest tiles up to which nothing speaks for others
MOST_WEIGHTS = 64 << 20  # bytes with a stride, where they take five or nine times their room
FORMS = {  # by taps and stride, with the largest tiles last
    (3, 1): (Form(2, 3, 1), Form(4, 3, 1)),
    (5, 1): (Form(2, 5, 1),),
    (3, 2): (Form(4, 3, 2),),
    (5, 2): (Form(4, 5, 2),),
}


def winograd_forms(node: Node) -> tuple[Form, ...]:
    """Winograd's forms in which a Convolve can be computed."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    weights, strides = node.inputs[1], primitive.strides
    plain = (
        primitive.channels_last
        and len(strides) == 2
        and all(s == 1 for s in primitive.dilations + primitive.spread)
        and isinstance(weights.primitive, Constant)
        and node.dtype is DType.FLOAT32
        and all(size.value > 0 for size in weights.shape[:2])
        and _fills_vectors(primitive.groups, weights)
    )
    taps = [size.value for size in weights.shape[2:]] if plain else []
    alike = plain and taps[0] == taps[1] and strides[0] == strides[1]
    return FORMS.get((taps[0], strides[0]), ()) if alike else ()


def _fills_vectors(groups: int, weights: Node) -> bool:
    """Whether the channels of each group, where there are several, are as many as a line holds."""
    outputs, channels = (size.value for size in weights.shape[:2])
    return groups == 1 or min(outputs // groups, channels) >= LINE_ELEMENTS


def winograd_variants(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> tuple[Variant, ...]:
    """The variants in Winograd's form, if any; of few weights, large tiles are always better."""
    node = kernel.seed
    forms = winograd_forms(node)
    if len(forms) > 1 and _weight_bytes(node, forms[-1]) <= SMALL_WEIGHTS:
        forms = forms[-1:]
    made: list[Variant] = []
    for number, form in enumerate(forms, 1):
        if form.stride == 1 or _weight_bytes(node, form) <= MOST_WEIGHTS:
            own = product(node.inputs[1].shape).value * node.dtype.bytes
            weights = _weight_bytes(node, form)
            constants = max(machine.constants + weights - own, 0)
            with_these = replace(machine, constants=constants)
            # Smaller tiles are for so few of them that all are one band.
            in_bands = number == len(forms) and are_worth_it(weights, machine)
            if in_bands:
                made.append(winograd_band(kernel, fresh, tile, form, with_these))
            if not (in_bands and always_move_less(weights, tile)):
                steps = winograd_steps(kernel, fresh, tile, form, machine)
                images = (product(node.inputs[0].shape) + product(node.shape)) * node.dtype.bytes
                time = winograd_time(steps, images, with_these)
                made.append(Variant(f"winograd{form.size}", steps, time))
    return tuple(made)


def _weight_bytes(node: Node, form: Form) -> int:
    """Of transformed weights."""
    outputs, channels = (size.value for size in node.inputs[1].shape[:2])
    return form.products**2 * channels * outputs * node.dtype.bytes


def winograd_spaces(tiles: Tiles) -> tuple[Workspace, Workspace]:
    """The products of all tiles between the steps, before and after they are summed."""
    size, dtype = tiles.size, tiles.node.dtype
    return (
        Workspace(f"data{size}", dtype, tiles.planes(tiles.channels)),
        Workspace(f"sums{size}", dtype, tiles.planes(tiles.outputs)),
    )


def winograd_band(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, form: Form, machine: Machine
) -> Variant:
    """The variant of a Convolve in one of its forms whose tasks do all three steps."""
    tiles = Tiles.of(kernel.seed, form)
    sizes = BandSizes.of(tiles, tile)
    bands = maximum(tiles.node.shape[0] * sizes.tall * sizes.wide, 1)
    usual = ceil_div(tiles.count, bands)
    spaces = winograd_spaces(tiles)
    products = _products(kernel, fresh, tile, tiles, spaces, usual, machine)
    return band_variant(kernel, fresh(), tiles, sizes, products, machine)


def winograd_steps(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, form: Form, machine: Machine
) -> tuple[LoweredStep, ...]:
    """The steps of a Convolve in one of its forms, which get threads as their prices expect."""
    tiles = Tiles.of(kernel.seed, form)
    data, sums = winograd_spaces(tiles)
    first = data_step(kernel, fresh(), tiles, tile.room, data)
    products = _products(kernel, fresh, tile, tiles, (data, sums), tiles.count, machine)
    last = result_step(kernel, fresh(), tiles, tile.room, sums)
    first, last = with_masks((first, last), machine)
    before, after = (step_price(step, machine).alone // 1000 + 1 for step in (first, last))
    work = contraction_work(ProductNest.of(products.program), machine)
    return shared_out(first, before), shared_out(products, work), shared_out(last, after)


def winograd_time(steps: tuple[LoweredStep, ...], images_bytes: Expr, machine: Machine) -> Expr:
    """Picoseconds of the three steps, with as many threads as there are.

    Data and results have ``images_bytes``.

    Between them a thread takes over from others what these have made, and writes in the next call
    what they have read.
    """
    threads = symbol(THREADS)
    data, products, results = steps
    first, last = (step_price(step, machine) for step in (data, results))
    nest = ProductNest.of(products.program)
    size, images = nest.dtype.bytes, product([extent for _, extent in nest.batch])
    before, after = (workers_for(price.alone, threads) for price in (first, last))
    workers = workers_for(1000 * contraction_work(nest, machine), threads)
    weights, made = images * nest.n * nest.k * size, images * nest.m * nest.n * size
    read = images * nest.m * nest.k * size
    taken = taken_time(read, machine, before, workers, weights + made)
    taken = taken + taken_time(made, machine, workers, after)
    times = first.time(machine, threads) + last.time(machine, threads)
    times = times + contraction_time(nest, machine, threads)
    between = read + made
    pushed = pushed_out_time(between, between + weights + images_bytes, machine)
    return times + taken + pushed // workers


# ---------------------------------------------------------------- contractions


def _products(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, tiles: Tiles,
    spaces: tuple[Workspace, Workspace], count: Expr, machine: Machine,
) -> LoweredStep:  # fmt: skip
    """One contraction per product and group, whose panels are no wider than the channels made."""

    def of(size: RegisterTile) -> LoweredStep:
        return _products_of(kernel, fresh(), size, tiles, spaces, count)

    usual = of(tile)
    narrow = as_wide(tile, ProductNest.of(usual.program), machine)
    return usual if narrow is tile else of(narrow)


def _products_of(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    tiles: Tiles,
    spaces: tuple[Workspace, Workspace],
    count: Expr,
) -> LoweredStep:
    """One contraction per product and group: ``count`` tiles x channels by channels x outputs."""
    node, batch, group = tiles.node, symbol("_b0"), symbol("_b1")
    axes = (("_b0", constant(tiles.products**2)), ("_b1", constant(tiles.groups)))
    outputs = tiles.outputs // tiles.groups
    rows, columns = (("_m0", count),), (("_n0", constant(outputs)),)
    shape = tile.for_type(node.dtype)
    frame = Frame(kernel, lowering, shape, axes, rows, columns, constant(tiles.depth))
    data, sums = TileBuffer("b0", node.dtype), TileBuffer("o0", node.dtype)
    sources: list[Source] = [spaces[0]]
    transform = TransformedWeights(tiles.form, tiles.groups)
    order = (0, 2, 3, 1)
    packed = PackedConstant(node.inputs[1], order, 2, 1, shape.columns, transform=transform)
    right = packed_operand(frame, packed, frame.n, sources)
    first = batch * tiles.plane(tiles.channels) + group * tiles.depth
    left = View(data, first, constant(tiles.channels), constant(1))
    place = batch * tiles.plane(tiles.outputs) + group * outputs
    place = place + symbol("_m") * tiles.outputs + symbol("_n")
    program = product_program(
        frame,
        BlockSizes(
            row_block(frame, False),
            column_block(frame, packing=False),
            depth_block(frame.depth, constant(DEPTH_BLOCK)),
        ),
        (left, right),
        (Store(sums, place, Local("accumulator", node.dtype)),),
        ((data, right.buffer), (sums,)),
        constant(1),  # the work is known once the step has a price
    )
    return LoweredStep(program, tuple(sources), (spaces[1],))
