"""Convolutions with the channels last: rows are output pixels, columns are output channels.

The channels of one tap of one pixel are contiguous, so k is a run of channels per tap and the left
operand is read in place: a table per block of pixels says where every run begins, or that it lies
outside and reads zeros. Nothing is copied, and neither rows of the image nor images of a batch end
a tile. A pointwise convolution needs no table. Start with :func:`lower_channels_last`.
"""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import (
    Gathering,
    IndexValue,
    Literal,
    Loop,
    Operand,
    Packing,
    Store,
    TileBuffer,
)
from tilewright.ir.views import declare_index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    maximum,
    minimum,
    product,
    select,
    symbol,
)
from tilewright.tile.contraction import (
    DEPTH_BLOCK,
    PACKED_DEPTH,
    Frame,
    RegisterTile,
    assemble,
    declare,
    pack_row,
    packed_operand,
    taken_statements,
    unflatten,
)
from tilewright.tile.lowering import Lowering
from tilewright.tile.taps import Tap, tap_position
from tilewright.tile.ways import LoweredStep, PackedConstant, Source

TABLE_BYTES = 64 << 10  # of one block's table: it must leave room in a second-level cache
PIXEL_BYTES = 192 << 10  # of the pixels that a block's centre taps read


def lower_channels_last(kernel: Kernel, lowering: Lowering, tile: RegisterTile) -> LoweredStep:
    """The tile program of a Convolve with its epilogue, its data being in memory."""
    node = kernel.backbone
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    lowering.materialised -= set(kernel.group) | set(kernel.outputs)
    per_group = weights.shape[0] // primitive.groups
    batch = (("_b1", constant(primitive.groups)),)
    rows = tuple((f"_p{axis}", size) for axis, size in enumerate(node.shape[:-1]))
    columns = (("_c0", per_group),)
    taps = product(weights.shape[2:])
    depth = taps * weights.shape[1]
    frame = Frame(kernel, lowering, tile.for_type(node.dtype), batch, rows, columns, depth)
    (group,) = declare(lowering, batch)
    pixel = declare(lowering, rows)
    (channel,) = declare(lowering, columns)
    index = (*pixel, group * per_group + channel)
    sources: list[Source] = []
    is_constant = isinstance(weights.primitive, Constant)
    run = weights.shape[1].value // _parts(weights.shape[1].value)
    blocks = maximum(ceil_div(depth, DEPTH_BLOCK if is_constant else PACKED_DEPTH), 1)
    block = maximum(ceil_div(depth // run, blocks), 1) * run
    right = _weights(frame, weights, block, sources)
    base = symbol("_b1") * weights.shape[1]
    if _is_pointwise(node):
        left = Operand(lowering.buffer(data), base, data.shape[-1], constant(1))
        return assemble(frame, index, left, right, sources)
    left = _gather(frame, node, base, run)
    return assemble(frame, index, left, right, sources, block, _rows(frame, node))


def _parts(channels: int) -> int:
    """Into how many runs the channels of a tap are cut, so that a run fits a block of k."""
    least = -(-channels // PACKED_DEPTH)
    return next((d for d in range(least, channels + 1) if channels % d == 0), 1)


def _rows(frame: Frame, node: Node) -> Expr:
    """Balanced blocks of pixels, multiples of the register tile."""
    weights, height = node.inputs[1], frame.tile.rows
    entries = product(weights.shape[2:]).value * _parts(weights.shape[1].value)
    pixel = max(1, weights.shape[1].value * node.dtype.bytes)
    most = max(1, min(TABLE_BYTES // (8 * entries), PIXEL_BYTES // pixel) // height) * height
    blocks = maximum(ceil_div(frame.m, most), 1)
    return maximum(ceil_div(ceil_div(frame.m, blocks), height) * height, height)


def _is_pointwise(node: Node) -> bool:
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    return (
        all(size.value == 1 for size in weights.shape[2:])
        and all(s == 1 for s in primitive.strides + primitive.spread)
        and all(e.is_constant and e.value == 0 for e in primitive.low)
        and primitive.sizes == data.shape[1:-1]
    )


def _weights(frame: Frame, weights: Node, block: Expr, sources: list[Source]) -> Operand | Packing:
    """The right operand: k runs over taps, then channels."""
    primitive = frame.kernel.backbone.primitive
    assert isinstance(primitive, Convolve)
    groups = primitive.groups
    order = (0, *range(2, weights.rank), 1)
    per_group = weights.shape[0] // groups
    if isinstance(weights.primitive, Constant):
        panel = frame.tile.columns
        packed = PackedConstant(weights, order, -groups, weights.rank - 1, panel)
        operand = packed_operand(frame, packed, per_group, sources)
        size = ceil_div(per_group, panel) * panel * frame.depth
        base = symbol("_b1") * size
        return Operand(operand.buffer, base, operand.row, operand.depth, operand.panel)
    return _pack_weights(frame, weights, per_group, block)


def _pack_weights(frame: Frame, weights: Node, per_group: Expr, block: Expr) -> Packing:
    """Weights that are known at run time only, packed block by block."""
    lowering = frame.lowering
    row = pack_row(frame)
    target = lowering.scratch_buffer(weights.dtype, row * block)
    k, n = (declare_index(lowering.scope, name, size)
            for name, size in (("_k", frame.depth), ("_n", frame.n)))  # fmt: skip
    for variable in (k, n):
        lowering.open()
        lowering.depth[str(variable)] = len(lowering.blocks) - 1
    *taps, channel = unflatten(k, [("", s) for s in (*weights.shape[2:], weights.shape[1])])
    value = lowering.value(weights, (symbol("_b1") * per_group + n, channel, *taps))
    place = (k - symbol("_k0")) * row + (n - symbol("_n0"))
    lowering.emit(Store(target, place, value))
    lowering.emit(Loop("_n", symbol("_n0"), symbol("_n1"), lowering.close()))
    lowering.emit(Loop("_k", symbol("_k0"), symbol("_k1"), lowering.close()))
    return Packing(target, row, taken_statements(lowering))


def _gather(frame: Frame, node: Node, base: Expr, run: int) -> Gathering:
    """The left operand, with the loops that fill the table of one block of pixels."""
    lowering = frame.lowering
    data, weights = node.inputs
    parts = weights.shape[1].value // run
    runs = product(weights.shape[2:]) * parts
    row = _rows(frame, node)
    table = lowering.scratch_buffer(DType.INT64, runs * row)
    zeros = lowering.scratch_buffer(node.dtype, constant(run))
    z = _opened(lowering, "_z")
    lowering.emit(Store(zeros, z, Literal(0.0, node.dtype)))
    lowering.emit(Loop("_z", constant(0), constant(run), lowering.close()))
    width = node.shape[-2]
    lines = (symbol("_m0") // maximum(width, 1), ceil_div(symbol("_m1"), maximum(width, 1)))
    loops = [("_q", lines)]
    loops += [(f"_t{axis}", (constant(0), size)) for axis, size in enumerate(weights.shape[2:])]
    loops += [("_part", (constant(0), constant(parts)))]
    line, *taps, part = [_opened(lowering, name) for name, _ in loops]
    _entries(frame, node, (table, row), (line, taps, part, run))
    for name, bounds in reversed(loops):
        lowering.emit(Loop(name, *bounds, lowering.close()))
    source = lowering.buffer(data)
    return Gathering(source, base, constant(run), table, row, zeros, taken_statements(lowering))


def _opened(lowering: Lowering, name: str) -> Expr:
    """Open the body of a loop over ``name``, of which nothing but its sign is assumed."""
    lowering.open()
    lowering.depth[name] = len(lowering.blocks) - 1
    return lowering.scope.declare(name, 0)


def _entries(
    frame: Frame,
    node: Node,
    target: tuple[TileBuffer, Expr],
    where: tuple[Expr, list[Expr], Expr, int],
) -> None:
    """The entries of one line of pixels for one tap."""
    lowering = frame.lowering
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    table, row = target
    line, taps, part, run = where
    parts = weights.shape[1].value // run
    width = node.shape[-2]
    start = line * width
    first, last = maximum(0, symbol("_m0") - start), minimum(width, symbol("_m1") - start)
    sample, *outer = unflatten(line, [("", size) for size in node.shape[:-2]])
    x = _opened(lowering, "_x")
    geometry = [
        Tap(s, d, p)
        for s, d, p in zip(primitive.strides, primitive.dilations, primitive.spread, strict=True)
    ]
    positions, inside = tap_position(
        geometry, [*outer, x], taps, primitive.low, data.shape[1:-1], lowering.scope
    )
    offset = linear((sample, *positions, part * run), data.shape)
    entry = lowering.scope.resolve(select(inside, offset, -1))
    number = linear((*taps, part), (*weights.shape[2:], constant(parts)))
    place = number * row + start + x - symbol("_m0")
    lowering.emit(Store(table, place, IndexValue(entry)))
    lowering.emit(Loop("_x", first, last, lowering.close()))
