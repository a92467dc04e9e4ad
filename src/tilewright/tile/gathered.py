"""Convolutions with the channels last: rows are output pixels, columns are output channels.

The channels of one tap of one pixel are contiguous, so k is a run of channels per tap and the left
operand is read in place: a table per block of pixels says where every run begins, or that it lies
outside and reads zeros. Nothing is copied, and neither rows of the image nor images of a batch end
a tile. A pointwise convolution needs no table. Of few channels, as in the first layer, runs would
be short: the lines that a block of pixels reads are copied between their padding, where all taps
along a line are one run. Start with :func:`lower_channels_last`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import (
    Gathering,
    IndexValue,
    Literal,
    Load,
    Loop,
    Operand,
    Packing,
    Statement,
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
    assemble,
    pack_row,
    packed_operand,
    taken_statements,
    unflatten,
)
from tilewright.tile.frame import Blocking, Frame, RegisterTile, declare, elements_per_word
from tilewright.tile.lowering import Lowering
from tilewright.tile.taps import geometry, is_pointwise, tap_position
from tilewright.tile.ways import LoweredStep, PackedConstant, Source

TABLE_BYTES = 64 << 10  # of one block's table: it must leave room in a second-level cache
PIXEL_BYTES = 192 << 10  # of the pixels that a block's centre taps read
FEW_CHANNELS = 16  # up to which lines are copied to make runs of all taps along them
LINE_COLUMNS = 256  # of a block that copies lines: each block of columns copies them again


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
    word = elements_per_word(node)
    depth = taps * weights.shape[1] // word
    lines = _copies_lines(node)
    blocking = Blocking(columns=LINE_COLUMNS) if lines else Blocking()
    shape = tile.for_product(node)
    frame = Frame(kernel, lowering, shape, batch, rows, columns, depth, blocking)
    (group,) = declare(lowering, batch)
    pixel = declare(lowering, rows)
    (channel,) = declare(lowering, columns)
    index = (*pixel, group * per_group + channel)
    sources: list[Source] = []
    is_constant = isinstance(weights.primitive, Constant)
    channels = weights.shape[1].value // word
    run = channels * weights.shape[-1].value if lines else channels // _parts(channels)
    blocks = maximum(ceil_div(depth, DEPTH_BLOCK if is_constant else PACKED_DEPTH), 1)
    block = maximum(ceil_div(depth // run, blocks), 1) * run
    right = _weights(frame, weights, block, sources)
    base = symbol("_b1") * channels
    if is_pointwise(node):
        left = Operand(lowering.buffer(data), base, data.shape[-1] // word, constant(1))
        return assemble(frame, index, left, right, sources)
    if lines:
        pixels = _balanced(frame, weights.shape[2:-1], channels * primitive.strides[-1])
        left = _copied_lines(frame, node, run, pixels)
    else:
        pixels = _balanced(frame, (*weights.shape[2:], constant(_parts(channels))), channels)
        left = _gather(frame, node, base, run, pixels)
    return assemble(frame, index, left, right, sources, block, pixels)


def _copies_lines(node: Node) -> bool:
    """Whether all taps along a line of few channels can be one run."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    weights = node.inputs[1]
    whole = primitive.groups == primitive.dilations[-1] == primitive.spread[-1] == 1
    whole = whole and primitive.sums is None
    return whole and weights.shape[-1].value > 1 and weights.shape[1].value <= FEW_CHANNELS


def _parts(channels: int) -> int:
    """Into how many runs the channels of a tap are cut, so that a run fits a block of k."""
    least = -(-channels // PACKED_DEPTH)
    return next((d for d in range(least, channels + 1) if channels % d == 0), 1)


def _balanced(frame: Frame, runs: Sequence[Expr], elements: int) -> Expr:
    """Balanced blocks of pixels, multiples of the register tile.

    ``runs`` are the axes of a pixel's runs, ``elements`` what it reads at one tap.
    """
    height = frame.tile.rows
    pixel = max(1, elements * frame.kernel.backbone.dtype.bytes)
    entries = 8 * product(runs).value
    most = max(1, min(TABLE_BYTES // entries, PIXEL_BYTES // pixel) // height) * height
    blocks = maximum(ceil_div(frame.m, most), 1)
    return maximum(ceil_div(ceil_div(frame.m, blocks), height) * height, height)


def _weights(frame: Frame, weights: Node, block: Expr, sources: list[Source]) -> Operand | Packing:
    """The right operand: k runs over taps, then channels."""
    primitive = frame.kernel.backbone.primitive
    assert isinstance(primitive, Convolve)
    groups = primitive.groups
    order = (0, *range(2, weights.rank), 1)
    per_group = weights.shape[0] // groups
    if isinstance(weights.primitive, Constant):
        panel = frame.tile.columns
        word = elements_per_word(frame.kernel.backbone)
        packed = PackedConstant(weights, order, -groups, weights.rank - 1, panel, word)
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


def _gather(frame: Frame, node: Node, base: Expr, run: int, row: Expr) -> Gathering:
    """The left operand, with the loops that fill the table of one block of ``row`` pixels."""
    lowering = frame.lowering
    data, weights = node.inputs
    word = elements_per_word(node)
    parts = constant(weights.shape[1].value // word // run)
    words = (*data.shape[:-1], data.shape[-1] // word)
    table = lowering.scratch_buffer(DType.INT64, product(weights.shape[2:]) * parts * row)
    zeros = _zeros(frame, run)
    line, *taps, part = _opened_runs(frame, (*weights.shape[2:], parts))
    sample, *outer = unflatten(line, [("", size) for size in node.shape[:-2]])
    x, begin, end = _opened_line(frame, node, line)
    positions, inside = _tap_position(frame, node, (*outer, x), taps)
    entry = select(inside, linear((sample, *positions, part * run), words), -1)
    number = linear((*taps, part), (*weights.shape[2:], parts))
    place = number * row + line * node.shape[-2] + x - symbol("_m0")
    lowering.emit(Store(table, place, IndexValue(lowering.scope.resolve(entry))))
    lowering.emit(Loop("_x", begin, end, lowering.close()))
    body = _closed_runs(frame, node, (*weights.shape[2:], parts))
    source = lowering.buffer(data)
    return Gathering(source, base, constant(run), table, row, zeros, body)


def _copied_lines(frame: Frame, node: Node, run: int, row: Expr) -> Gathering:
    """The same where a run has all taps along a line, of lines copied with their padding."""
    lowering = frame.lowering
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    outer_taps = weights.shape[2:-1]
    channels, stride, width = weights.shape[1], primitive.strides[-1], node.shape[-2]
    length = maximum((width - 1) * stride + weights.shape[-1], 0) * channels
    table = lowering.scratch_buffer(DType.INT64, product(outer_taps) * row)
    count = (row // maximum(width, 1) + 2) * product(outer_taps)
    copies = lowering.scratch_buffer(node.dtype, count * length)
    zeros = _zeros(frame, run)
    line, *taps = _opened_runs(frame, outer_taps)
    sample, *outer = unflatten(line, [("", size) for size in node.shape[:-2]])
    positions, inside = _tap_position(frame, node, outer, taps)
    number = linear(taps, outer_taps) if taps else constant(0)
    start = ((line - symbol("_m0") // maximum(width, 1)) * product(outer_taps) + number) * length
    # Zeros, elements, zeros; of a line that lies outside nothing is read.
    before = minimum(maximum(primitive.low[-1] * channels, 0), length)
    after = minimum(maximum((primitive.low[-1] + data.shape[-2]) * channels, before), length)
    origin = linear((sample, *positions, -primitive.low[-1], constant(0)), data.shape)
    source = Load(lowering.buffer(data), origin + symbol("_z"))
    zero = Literal(0.0, node.dtype)
    pieces = ((constant(0), before, zero), (before, after, source), (after, length, zero))
    for begin, end, value in pieces:
        store = Store(copies, start + symbol("_z"), value)
        bounds = select(inside, begin, 0), select(inside, end, 0)
        lowering.emit(Loop("_z", *bounds, (store,)))
    x, begin, end = _opened_line(frame, node, line)
    entry = select(inside, start + x * stride * channels, -1)
    place = number * row + line * width + x - symbol("_m0")
    lowering.emit(Store(table, place, IndexValue(entry)))
    lowering.emit(Loop("_x", begin, end, lowering.close()))
    body = _closed_runs(frame, node, outer_taps)
    return Gathering(copies, constant(0), constant(run), table, row, zeros, body)


def _zeros(frame: Frame, run: int) -> TileBuffer:
    """Scratch that is filled with a run of zeros."""
    lowering, dtype = frame.lowering, frame.kernel.backbone.dtype
    zeros = lowering.scratch_buffer(dtype, constant(run))
    store = Store(zeros, symbol("_z"), Literal(0.0, dtype))
    lowering.emit(Loop("_z", constant(0), constant(run), (store,)))
    return zeros


def _opened_runs(frame: Frame, runs: Sequence[Expr]) -> list[Expr]:
    """Open loops over the lines of a block of pixels and over the ``runs`` of each pixel."""
    return [frame.lowering.opened(name) for name in ("_q", *_run_names(runs))]


def _closed_runs(frame: Frame, node: Node, runs: Sequence[Expr]) -> tuple[Statement, ...]:
    """Close them again: all statements so far."""
    lowering, width = frame.lowering, maximum(node.shape[-2], 1)
    for name, size in reversed(list(zip(_run_names(runs), runs, strict=True))):
        lowering.emit(Loop(name, constant(0), size, lowering.close()))
    first, last = symbol("_m0") // width, ceil_div(symbol("_m1"), width)
    lowering.emit(Loop("_q", first, last, lowering.close()))
    return taken_statements(lowering)


def _run_names(runs: Sequence[Expr]) -> list[str]:
    return [f"_t{axis}" for axis in range(len(runs))]


def _opened_line(frame: Frame, node: Node, line: Expr) -> tuple[Expr, Expr, Expr]:
    """Open a loop along the part of a line that is in the block: x, and its bounds."""
    width = node.shape[-2]
    start = line * width
    first, last = maximum(0, symbol("_m0") - start), minimum(width, symbol("_m1") - start)
    return frame.lowering.opened("_x"), first, last


def _tap_position(
    frame: Frame, node: Node, outputs: Sequence[Expr], taps: Sequence[Expr]
) -> tuple[list[Expr], Expr]:
    """Where the first axes of the data are read, and whether that is inside."""
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    count = len(taps)
    axes, sizes = geometry(primitive)[:count], data.shape[1 : 1 + count]
    return tap_position(axes, outputs, taps, primitive.low[:count], sizes, frame.lowering.scope)
