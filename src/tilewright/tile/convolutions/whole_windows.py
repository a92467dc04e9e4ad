"""Convolutions with the channels last whose windows lie apart: a product by copied windows.

Where a window ends before the next one begins, as those of patch embeddings do, every element of
the data belongs to one row at the most. To copy the windows of a block into rows of a matrix moves
as much as to copy their lines; tiles then read rows of the whole depth, without a table of runs,
each of which they would enter anew. Start with :func:`windows_way`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import Load, Loop, Statement, Store, View
from tilewright.ir.views import linear, unflatten
from tilewright.shape import Expr, constant, product, symbol
from tilewright.target.core_model import spread_row
from tilewright.tile.convolutions.lines import BlockLines, stays_inside
from tilewright.tile.products.block_sizes import row_block
from tilewright.tile.products.contraction import assemble, packed_operand
from tilewright.tile.products.frame import (
    Blocking,
    Frame,
    RegisterTile,
    declare,
)
from tilewright.tile.products.program import Loaded
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import Way
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, PackedConstant, Source


def windows_way(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> Way | None:
    """The way of a Convolve with the channels last by constant weights, or None if it has none.

    Its windows lie apart and inside of the data.
    """
    if not _lie_apart(kernel.seed, fresh()):
        return None
    shape = kernel_tiles(
        tile, lambda size: lower_windows(kernel, fresh(), size), fresh().scope, machine
    )

    def lower(blocking: Blocking) -> tuple[LoweredStep, ...]:
        return (lower_windows(kernel, fresh(), shape, blocking),)

    return Way(", windows copied", lower)


def _lie_apart(node: Node, lowering: Lowering) -> bool:
    """Whether no element of the data of a Convolve is in two windows, and none outside of it."""
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    plain = primitive.sums is None and max(primitive.groups, *primitive.dilations) == 1
    if not plain or not isinstance(weights.primitive, Constant):
        return False
    taps = [size.value for size in weights.shape[2:]]
    apart = all(each <= stride for each, stride in zip(taps, primitive.strides, strict=True))
    return taps[-1] > 1 and apart and stays_inside(node, lowering)


def lower_windows(
    kernel: Kernel, lowering: Lowering, tile: RegisterTile, blocking: Blocking | None = None
) -> LoweredStep:
    """The tile program of a Convolve as of :func:`windows_way` with its epilogue.

    Its data is in memory, or is the transposition of data with the channels first that is.
    """
    node = kernel.seed
    data, weights = node.inputs
    rows = tuple((f"_p{axis}", size) for axis, size in enumerate(node.shape[:-1]))
    columns = (("_c0", weights.shape[0]),)
    depth, shape = product(weights.shape[1:]), tile.for_product(node)
    frame = Frame(kernel, lowering, shape, (), rows, columns, depth, blocking or Blocking())
    index = (*declare(lowering, rows), *declare(lowering, columns))
    sources: list[Source] = []
    # Elements that lie side by side in memory do so in a window, and in its weights.
    taps = range(2, weights.rank)
    order = (0, *taps, 1) if lowering.is_stored(data) else (0, 1, *taps)
    packed = PackedConstant(weights, order, 0, weights.rank - 1, shape.columns)
    right = packed_operand(frame, packed, frame.n, sources)
    block = row_block(frame, False)
    left = _copied_windows(frame, node, block)
    return assemble(frame, index, left, right, sources, None, block)


def _copied_windows(frame: Frame, node: Node, row: Expr) -> Loaded:
    """The left operand, with the loops that fill one block of ``row`` pixels."""
    lowering, (data, weights) = frame.lowering, node.inputs
    pitch = spread_row(product(weights.shape[1:]).value, node.dtype.bytes)
    copy = lowering.scratch_buffer(node.dtype, row * pitch)
    channels, *taps, last = weights.shape[1:]
    around, run = [(f"_t{axis}", size) for axis, size in enumerate(taps)], last
    sample, *position = _first_of_window(node, [symbol(name) for name, _ in around])
    if lowering.is_stored(data):
        run = last * channels
        source, begin = lowering.stored(data), linear((sample, *position, constant(0)), data.shape)
    else:
        (first,), around = data.inputs, [("_c", channels), *around]
        source = lowering.buffer(first)
        begin = linear((sample, symbol("_c"), *position), first.shape)
    number = linear([symbol(name) for name, _ in around], tuple(size for _, size in around))
    block = BlockLines.of(node)
    place = (block.first + symbol("_x")) * pitch + number * run + symbol("_z")
    element = Store(copy, place, Load(source, begin + symbol("_z")))
    filled: Statement = Loop("_z", constant(0), run, (element,))
    filled = Loop("_x", *block.pixels, (filled,))
    for name, size in reversed(around):
        filled = Loop(name, constant(0), size, (filled,))
    view = View(copy, symbol("_k0"), constant(pitch), constant(1))
    return Loaded(view, (Loop("_q", *block.lines, (filled,)),))


def _first_of_window(node: Node, taps: Sequence[Expr]) -> list[Expr]:
    """The image and the position of the first element that ``taps`` of a window meet.

    The window is that of pixel "_x" of line "_q" of results; its last axis has no tap of its own.
    """
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    sample, *outer = unflatten(symbol("_q"), [("", size) for size in node.shape[:-2]])
    met = [*zip(outer, taps, strict=True), (symbol("_x"), constant(0))]
    each = zip(met, primitive.strides, strict=True)
    return [sample, *(output * stride + tap for (output, tap), stride in each)]


__all__ = ["lower_windows", "windows_way"]
