"""Convolutions of one tap of channels-first data whose pixels are rows of tiles.

An image of few pixels leaves most of a tile's last panel empty where pixels run along the lanes,
and with a stride little of what a line holds is read. As rows, every number of pixels of a whole
batch is covered. They are read from a copy with the channels last, which a first step transposes
into a workspace, or where they lie, as a table lists them. Results are staged in cache and leave
channels first. Start with :func:`lower_turned` and :func:`lower_listed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tilewright.cost import (
    Machine,
    apart_lines_time,
    contraction_time,
    contraction_work,
    lone_lines_time,
    taken_time,
    workers_for,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import (
    LINE_BYTES,
    IndexValue,
    Load,
    Loop,
    RunTable,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    View,
)
from tilewright.ir.views import Index, linear, unflatten
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.target.core_model import LISTED, spread_row
from tilewright.tile.convolutions.gathered import longest_run
from tilewright.tile.convolutions.lines import BlockLines
from tilewright.tile.moves.transposes import SIZES, STRIP
from tilewright.tile.prices import shared_out, step_price
from tilewright.tile.products.block_sizes import DEPTH_BLOCK, row_block
from tilewright.tile.products.contraction import assemble, packed_operand
from tilewright.tile.products.frame import Blocking, Frame, RegisterTile, declare
from tilewright.tile.products.program import Loaded
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import Way
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import has_one_tap, is_inside, is_pointwise
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    PackedConstant,
    Source,
    Variant,
    Workspace,
)
from tilewright.tile.work import estimate

TASKS = 16  # to make at least


def turned_way(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> Way | None:
    """The way of a Convolve of one tap without padding, or None where it does not fit."""
    if lower_turned(kernel, fresh, tile) is None:
        return None

    def product_of(size: RegisterTile) -> LoweredStep:
        steps = lower_turned(kernel, fresh, size)
        assert steps is not None, f"{kernel.label}: it could be turned before"
        return steps[1]

    tile = kernel_tiles(tile, product_of, fresh().scope, machine)
    steps = lower_turned(kernel, fresh, tile)
    assert steps is not None, f"{kernel.label}: it could be turned before"
    before = _before(steps, machine)

    def lower(blocking: Blocking) -> tuple[LoweredStep, ...]:
        steps = lower_turned(kernel, fresh, tile, blocking)
        assert steps is not None, f"{kernel.label}: it could be turned before"
        return steps

    return Way(", channels last", lower, priced=lambda price: price + before)


def _before(steps: tuple[LoweredStep, LoweredStep], machine: Machine) -> Expr:
    """Picoseconds of the first step, until all threads may begin with the second one."""
    threads, (first, second) = symbol(THREADS), steps
    price, nest = step_price(first, machine), ProductNest.of(second.program)
    moved = nest.m * nest.k * nest.dtype.bytes
    writers = workers_for(price.alone, threads)
    readers = workers_for(1000 * contraction_work(nest, machine), threads)
    return price.time(machine, threads) + taken_time(moved, machine, writers, readers)


def lower_turned(
    kernel: Kernel,
    fresh: Callable[[], Lowering],
    tile: RegisterTile,
    blocking: Blocking | None = None,
) -> tuple[LoweredStep, LoweredStep] | None:
    """The steps of a Convolve of one tap by constant weights that nothing else is combined with.

    None for one in groups or with padding, and for an epilogue with operands of the result's shape,
    which would be read element by element.
    """
    data, lowering = kernel.seed.inputs[0], fresh()
    if not _fits(kernel.seed, lowering) or data.dtype.bytes not in SIZES:
        return None
    pixels = data.shape[0] * product(kernel.seed.shape[2:])
    space = Workspace("pixels", data.dtype, pixels * _pitch(data))
    computed = _product(kernel, lowering, tile, space, blocking or Blocking())
    if not _reads_constants(computed, ()):
        return None
    if is_pointwise(kernel.seed):
        return _transposed(kernel.seed, space), computed
    return _picked(kernel.seed, space, tile.room), computed


def _pitch(data: Node) -> int:
    """Elements from pixel to pixel of the copy that has the channels last."""
    return spread_row(data.shape[1].value, data.dtype.bytes)


def _fits(node: Node, lowering: Lowering) -> bool:
    """Whether a Convolve has one tap, no padding, no groups, and constant weights."""
    primitive, (data, weights) = node.primitive, node.inputs
    assert isinstance(primitive, Convolve)
    alone = primitive.groups == 1 and has_one_tap(node) and is_inside(node, lowering.scope)
    return alone and data in lowering.memory and isinstance(weights.primitive, Constant)


def _reads_constants(step: LoweredStep, own: Sequence[Node]) -> bool:
    """Whether a step reads nothing from memory but constants and its ``own`` operands."""
    inputs = [s for s in step.reads if isinstance(s, Node) and s not in own]
    return all(isinstance(source.primitive, Constant) for source in inputs)


def listed_variant(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> Variant | None:
    """The same Convolves by a list of where pixels are, or None where that does not fit."""
    tile = replace(tile, rows=min(tile.rows, LISTED), others=())
    step = lower_listed(kernel, fresh, tile)
    if step is None:
        return None
    data, primitive = kernel.seed.inputs[0], kernel.seed.primitive
    assert isinstance(primitive, Convolve)
    nest, threads = ProductNest.of(step.program), symbol(THREADS)
    (*outer, last), size = primitive.strides, data.dtype.bytes
    lines = product(data.shape) * size // (LINE_BYTES * prod(outer))
    touched = product(data.shape) + nest.k * nest.n + nest.m * nest.n
    waited = lone_lines_time(lines, touched * size, machine)
    more = (waited + apart_lines_time(nest, machine, last)) // threads
    step = shared_out(step, contraction_work(nest, machine))
    return Variant("pixels listed", (step,), contraction_time(nest, machine, threads) + more)


def lower_listed(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> LoweredStep | None:
    """The step of a Convolve as of :func:`lower_turned` that reads its data where they lie.

    Rows are the pixels of all images, and a table says where each of a block begins. The channels
    of one are as far apart as an image has pixels.
    """
    data, lowering = kernel.seed.inputs[0], fresh()
    if not _fits(kernel.seed, lowering):
        return None
    frame, index = _frame(kernel, lowering, tile, Blocking())
    channels = data.shape[1].value
    run = max(longest_run(channels, DEPTH_BLOCK), 1)
    block = constant(min(max(1, DEPTH_BLOCK // run) * run, channels))
    rows = row_block(frame, False)
    left = _pixel_table(frame, lowering.buffer(data), run, rows)
    sources: list[Source] = []
    step = assemble(frame, index, left, _weights(frame, sources), sources, block, rows)
    return step if _reads_constants(step, (data,)) else None


def _pixel_table(frame: Frame, source: TileBuffer, run: int, row: Expr) -> Loaded:
    """The left operand, with the loops that fill the table of a block of ``row`` pixels."""
    node, size = frame.kernel.seed, source.dtype.bytes
    data, primitive = node.inputs[0], node.primitive
    assert isinstance(primitive, Convolve)
    pixels, parts = product(data.shape[2:]), max(data.shape[1].value // run, 1)
    table = frame.lowering.scratch_buffer(DType.INT64, row * parts)
    line, part, x = symbol("_q"), symbol("_r"), symbol("_x")
    block = BlockLines.along(maximum(node.shape[-1], 1))
    image, *outer = unflatten(line, [("", s) for s in (node.shape[0], *node.shape[2:-1])])
    position = [at * s for at, s in zip((*outer, x), primitive.strides, strict=True)]
    place = linear((image, part * run, *position), data.shape)
    entry = Store(table, part * row + block.first + x, IndexValue(place * size))
    fill = Loop("_r", constant(0), constant(parts), (Loop("_x", *block.pixels, (entry,)),))
    lines = Loop("_q", *block.lines, (fill,))
    left = RunTable(source, constant(0), constant(run), table, row, pixels)
    return Loaded(left, (lines,))


def _transposed(node: Node, space: Workspace) -> LoweredStep:
    """[N, C, pixels] to [N, pixels, C], strips of pixels at a time."""
    data = node.inputs[0]
    batch, channels, pixels = data.shape[0], data.shape[1], product(data.shape[2:])
    source, target = (TileBuffer(name, data.dtype) for name in ("b0", "o0"))
    image, strip = symbol("_b"), symbol("_t")
    first = strip * STRIP
    block = TransposeBlock(
        source,
        image * channels * pixels + first,
        pixels,
        target,
        (image * pixels + first) * _pitch(data),
        constant(_pitch(data)),
        channels,
        minimum(pixels - first, STRIP),
    )
    grid: tuple[tuple[str, Expr], ...] = (("_b", batch), ("_t", ceil_div(pixels, STRIP)))
    work = estimate(grid, (block,))
    program = TileProgram((source, target), 1, grid, (block,), (), (), work)
    return LoweredStep(program, (data,), (space,))


def _picked(node: Node, space: Workspace, room: int) -> LoweredStep:
    """The pixels that results read, some lines at a time: gathered in scratch, then transposed.

    So many lines at a time that they are in cache, of ``room`` bytes, with what they become.

    Neighbouring lines of a channel are read one after the other, as a stream that the hardware
    follows; single lines of all channels would be as many pieces, each from another page.
    """
    data, primitive = node.inputs[0], node.primitive
    assert isinstance(primitive, Convolve)
    channels, width = data.shape[1], node.shape[-1]
    lines, most = product(node.shape[2:-1]), room // 2 // data.dtype.bytes
    share = ceil_div(data.shape[0] * lines, TASKS)
    block = maximum(minimum(most // maximum(channels * width, 1), share), 1)
    source, target = (TileBuffer(name, data.dtype) for name in ("b0", "o0"))
    picked = TileBuffer("s0", data.dtype, True, channels * block * width)
    image, part, channel, row, x = (symbol(name) for name in ("_b", "_t", "_c", "_y", "_x"))
    first = part * block
    count = minimum(lines - first, block)
    outer = unflatten(first + row, [("", size) for size in node.shape[2:-1]])
    position = [at * s for at, s in zip((*outer, x), primitive.strides, strict=True)]
    pixel = Load(source, linear((image, channel, *position), data.shape))
    place = (channel * count + row) * width + x
    line = Loop("_x", constant(0), width, (Store(picked, place, pixel),))
    pick = Loop("_c", constant(0), channels, (Loop("_y", constant(0), count, (line,)),))
    turn = TransposeBlock(
        picked, constant(0), count * width, target, (image * lines + first) * width * _pitch(data),
        constant(_pitch(data)), channels, count * width,
    )  # fmt: skip
    body, grid = (pick, turn), (("_b", data.shape[0]), ("_t", ceil_div(lines, block)))
    work = estimate(grid, body).substitute({"_t": constant(0)})
    program = TileProgram((source, target), 1, grid, body, (picked,), (), work)
    return LoweredStep(program, (data,), (space,))


def _product(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    space: Workspace,
    blocking: Blocking,
) -> LoweredStep:
    """Pixels of the workspace by the weights."""
    frame, index = _frame(kernel, lowering, tile, blocking)
    sources: list[Source] = []
    pixels = TileBuffer("pixels", kernel.seed.dtype)
    left = View(pixels, constant(0), constant(_pitch(kernel.seed.inputs[0])), constant(1))
    step = assemble(frame, index, left, _weights(frame, sources), sources)
    program = replace(step.program, buffers=(pixels, *step.program.buffers))
    return LoweredStep(program, (space, *step.reads), step.writes)


def _frame(
    kernel: Kernel, lowering: Lowering, tile: RegisterTile, blocking: Blocking
) -> tuple[Frame, Index]:
    """Pixels of all images by the channels of results, and where an element of these is."""
    node, weights = kernel.seed, kernel.seed.inputs[1]
    images = ("_b0", node.shape[0])
    rows = (images, *((f"_p{i}", size) for i, size in enumerate(node.shape[2:])))
    columns = (("_c0", weights.shape[0]),)
    shape = tile.for_type(node.dtype)
    frame = Frame(kernel, lowering, shape, (), rows, columns, weights.shape[1], blocking)
    image, *pixel = declare(lowering, rows)
    (channel,) = declare(lowering, columns)
    return frame, (image, channel, *pixel)


def _weights(frame: Frame, sources: list[Source]) -> View:
    """The right operand, packed when compiling."""
    weights = frame.kernel.seed.inputs[1]
    order = tuple(range(weights.rank))
    packed = PackedConstant(weights, order, 0, weights.rank - 1, frame.tile.columns)
    return packed_operand(frame, packed, frame.n, sources)


__all__ = ["listed_variant", "lower_listed", "lower_turned", "turned_way"]
