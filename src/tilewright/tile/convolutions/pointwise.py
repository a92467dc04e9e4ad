"""Convolutions of one tap of channels-first data through a copy with the channels last.

An image of few pixels leaves most of a tile's last panel empty where pixels run along the lanes,
and with a stride little of what a line holds is read. With the channels last the pixels of a whole
batch are rows, of which every number is covered. A first step transposes what is read into a
workspace; results are staged in cache and leave channels first. Start with :func:`lower_turned`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import (
    Load,
    Loop,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    View,
)
from tilewright.ir.views import linear, unflatten
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    maximum,
    minimum,
    product,
    symbol,
)
from tilewright.tile.moves.transposes import SIZES, STRIP
from tilewright.tile.prices import step_price
from tilewright.tile.products.contraction import assemble, packed_operand
from tilewright.tile.products.frame import Blocking, Frame, RegisterTile, declare
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import Way
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import has_one_tap, is_inside, is_pointwise
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    PackedConstant,
    Source,
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
    before = step_price(steps[0], machine).time(machine, symbol(THREADS))

    def lower(blocking: Blocking) -> tuple[LoweredStep, ...]:
        steps = lower_turned(kernel, fresh, tile, blocking)
        assert steps is not None, f"{kernel.label}: it could be turned before"
        return steps

    return Way(", channels last", lower, priced=lambda price: price + before)


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
    data, weights = kernel.seed.inputs
    primitive = kernel.seed.primitive
    assert isinstance(primitive, Convolve)
    lowering = fresh()
    if not has_one_tap(kernel.seed) or not is_inside(kernel.seed, lowering.scope):
        return None
    movable = data.dtype.bytes in SIZES and data in lowering.memory
    if primitive.groups != 1 or not movable or not isinstance(weights.primitive, Constant):
        return None
    pixels = data.shape[0] * product(kernel.seed.shape[2:])
    space = Workspace("pixels", data.dtype, pixels * data.shape[1])
    computed = _product(kernel, lowering, tile, space, blocking or Blocking())
    inputs = [source for source in computed.reads if isinstance(source, Node)]
    if not all(isinstance(source.primitive, Constant) for source in inputs):
        return None
    if is_pointwise(kernel.seed):
        return _transposed(kernel.seed, space), computed
    return _picked(kernel.seed, space, tile.room), computed


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
        (image * pixels + first) * channels,
        channels,
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
        picked, constant(0), count * width, target, (image * lines + first) * width * channels,
        channels, channels, count * width,
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
    node = kernel.seed
    data, weights = node.inputs
    rows = (("_b0", data.shape[0]), *((f"_p{i}", size) for i, size in enumerate(node.shape[2:])))
    columns = (("_c0", weights.shape[0]),)
    shape = tile.for_type(node.dtype)
    frame = Frame(kernel, lowering, shape, (), rows, columns, weights.shape[1], blocking)
    image, *pixel = declare(lowering, rows)
    (channel,) = declare(lowering, columns)
    sources: list[Source] = []
    order = tuple(range(weights.rank))
    packed = PackedConstant(weights, order, 0, weights.rank - 1, shape.columns)
    right = packed_operand(frame, packed, frame.n, sources)
    pixels = TileBuffer("pixels", node.dtype)
    left = View(pixels, constant(0), frame.depth, constant(1))
    step = assemble(frame, (image, channel, *pixel), left, right, sources)
    program = replace(step.program, buffers=(pixels, *step.program.buffers))
    return LoweredStep(program, (space, *step.reads), step.writes)


__all__ = ["lower_turned", "turned_way"]
