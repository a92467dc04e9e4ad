"""Convolutions with 3x3 kernels in Winograd's form, channels last.

Three steps: every tile of (size + 2)^2 pixels is transformed, products are summed over the input
channels by (size + 2)^2 contractions, and each result is transformed back to size x size pixels
with the kernel's epilogue. Both transforms are separable: down the columns into scratch, then
along the rows; the innermost loops run along the channels. Start with :func:`winograd_steps`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import (
    Contraction,
    Local,
    Operand,
    Store,
    TileBuffer,
)
from tilewright.shape import (
    Expr,
    constant,
    less_equal,
    maximum,
    product,
    select,
    symbol,
)
from tilewright.tile.contraction import (
    COLUMN_BLOCK,
    DEPTH_BLOCK,
    Frame,
    RegisterTile,
    column_block,
    depth_block,
    packed_operand,
    row_block,
)
from tilewright.tile.lowering import Lowering
from tilewright.tile.ways import (
    Accuracy,
    LoweredStep,
    PackedConstant,
    Source,
    Way,
    Workspace,
)
from tilewright.tile.winograd_tiles import DataTransform, ResultTransform, Tiles
from tilewright.tile.winograd_transforms import (
    TAPS,
    transformed_weights,
)

SMALL_WEIGHTS = 4 << 20  # bytes of tiles of four up to which nothing speaks for tiles of two


def is_winograd(node: Node) -> bool:
    """Whether a Convolve can be computed in Winograd's form."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    weights = node.inputs[1]
    return (
        primitive.channels_last
        and primitive.groups == 1
        and len(primitive.strides) == 2
        and all(s == 1 for s in primitive.strides + primitive.dilations + primitive.spread)
        and all(size.is_constant and size.value == TAPS for size in weights.shape[2:])
        and isinstance(weights.primitive, Constant)
        and node.dtype is DType.FLOAT32
        and all(size.value > 0 for size in weights.shape[:2])
    )


def winograd_ways(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, accuracy: Accuracy
) -> tuple[Way, ...]:
    """The ways in Winograd's form, if any; where weights are few, large tiles are always better."""
    node = kernel.backbone
    if accuracy is Accuracy.STRICT or not is_winograd(node):
        return ()
    largest = Tiles.of(node, 4)
    weights = largest.products**2 * largest.channels * largest.outputs * node.dtype.bytes
    return tuple(
        Way(
            f"winograd{size}",
            winograd_steps(kernel, fresh, tile, size),
            winograd_cost(Tiles.of(node, size)),
        )
        for size in ((4,) if weights <= SMALL_WEIGHTS else (2, 4))
    )


def winograd_steps(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, size: int
) -> tuple[LoweredStep, ...]:
    """The steps for tiles of ``size`` x ``size`` outputs (2 or 4) of a Convolve."""
    tiles = Tiles.of(kernel.backbone, size)
    data = Workspace(f"data{size}", kernel.backbone.dtype, tiles.planes(tiles.channels))
    sums = Workspace(f"sums{size}", kernel.backbone.dtype, tiles.planes(tiles.outputs))
    return (
        DataTransform(kernel, fresh(), tiles).step(data),
        _products(kernel, fresh(), tile, tiles, (data, sums)),
        ResultTransform(kernel, fresh(), tiles).step(sums),
    )


# ---------------------------------------------------------------- costs

# Picoseconds of one thread. The number of threads is left out, so that results do not depend on it.
PRODUCT_COST = 21  # of a multiply-add
ENDS = 8  # multiply-adds that the beginning and the end of a sum take
BYTE_COST = 40  # of a byte of weights, which other layers have driven out of the caches
ELEMENT_COST = 150  # of an element of a transformed tile
FAR_ELEMENT_COST = 400  # the same where all of them do not fit the last-level cache's half
NEAR_BYTES = 16 << 20
STEPS_COST = 300_000  # of starting two steps more


def direct_cost(node: Node) -> Expr:
    """The modelled time of a Convolve that sums over taps and channels, in picoseconds."""
    weights = node.inputs[1]
    depth = product(weights.shape[1:])
    streamed = weights.shape[0] * depth * (node.dtype.bytes * BYTE_COST)
    return maximum(product(node.shape) * (depth + ENDS) * PRODUCT_COST, streamed)


def winograd_cost(tiles: Tiles) -> Expr:
    """The modelled time of the three steps, in picoseconds."""
    products, size = tiles.products**2, tiles.node.dtype.bytes
    sums = tiles.count * (products * tiles.outputs * (tiles.channels + ENDS) * PRODUCT_COST)
    streamed = products * tiles.channels * tiles.outputs * size * BYTE_COST
    elements = tiles.count * (products * (tiles.channels + tiles.outputs))
    near = less_equal(elements * size, NEAR_BYTES)
    moved = elements * select(near, ELEMENT_COST, FAR_ELEMENT_COST)
    return maximum(sums, streamed) + moved + STEPS_COST


# ---------------------------------------------------------------- contractions


def _products(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    tiles: Tiles,
    spaces: tuple[Workspace, Workspace],
) -> LoweredStep:
    """One contraction per product: tiles x channels by channels x outputs."""
    node, batch = tiles.node, symbol("_b0")
    axes = (("_b0", constant(tiles.products**2)),)
    rows, columns = (("_m0", tiles.count),), (("_n0", constant(tiles.outputs)),)
    shape = tile.for_type(node.dtype)
    frame = Frame(kernel, lowering, shape, axes, rows, columns, constant(tiles.channels))
    data, sums = TileBuffer("b0", node.dtype), TileBuffer("o0", node.dtype)
    sources: list[Source] = [spaces[0]]
    weights = transformed_weights(node.inputs[1], tiles.size)
    packed = PackedConstant(weights, (0, 2, 1), 1, 1, shape.columns)
    right = packed_operand(frame, packed, frame.n, sources)
    left = Operand(data, batch * tiles.plane(tiles.channels), frame.depth, constant(1))
    place = batch * tiles.plane(tiles.outputs) + symbol("_m") * tiles.outputs + symbol("_n")
    program = Contraction(
        buffers=(data, right.buffer, sums),
        results=1,
        batch=axes,
        m=frame.m,
        n=frame.n,
        k=frame.depth,
        left=left,
        right=right,
        dtype=node.dtype,
        block_m=row_block(frame, False),
        block_n=column_block(frame, COLUMN_BLOCK),
        block_k=depth_block(frame.depth, constant(DEPTH_BLOCK)),
        tile_rows=shape.rows,
        tile_columns=shape.columns,
        tail=tiles.outputs % shape.columns,
        stores=(Store(sums, place, Local("accumulator", node.dtype)),),
        checks=(),
        work=tiles.count * (tiles.products**2 * tiles.outputs * (tiles.channels + 8) // 48) + 1,
    )
    return LoweredStep(program, tuple(sources), (spaces[1],))
