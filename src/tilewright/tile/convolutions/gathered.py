"""Convolutions with the channels last: rows are output pixels, columns are output channels.

The channels of one tap of one pixel are contiguous, so k is a run of channels per tap and the left
operand is read in place: a table per block of pixels says where every run begins, or that it lies
outside and reads zeros. Nothing is copied, and neither rows of the image nor images of a batch end
a tile. A pointwise convolution needs no table. Where no tap lies outside, or lines are copied
between their padding because channels are few or come first in memory, all taps along a line are
one run: see ``lines``. Start with :func:`lower_channels_last`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from tilewright.cost import Machine, contraction_time, pieces_read_time
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import IndexValue, LetDistance, Literal, Loop, RunTable, Store, View
from tilewright.ir.views import linear, unflatten
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, select, symbol
from tilewright.target.core_model import LISTED
from tilewright.tile.convolutions.lines import (
    BlockLines,
    Runs,
    merges_taps,
    pixels_of_copies,
    stays_inside,
    windows_in_place,
    windows_of_copies,
)
from tilewright.tile.products.block_sizes import (
    DEPTH_BLOCK,
    PACKED_DEPTH,
    balanced,
    column_block,
    pack_row,
    shared_rows,
)
from tilewright.tile.products.contraction import (
    assemble,
    packed_block,
    packed_operand,
    taken_statements,
)
from tilewright.tile.products.frame import Blocking, Frame, RegisterTile, declare, elements_per_word
from tilewright.tile.products.program import Loaded
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import geometry, is_pointwise, tap_position
from tilewright.tile.variants import THREADS, LoweredStep, PackedConstant, Source

MOST_PIXELS = 1024  # of a block
TASKS = 24  # to make at least where blocks have more than …
LEAST_PIXELS = 96  # … so many pixels
SHORT_RUN = 32  # elements to which no run is cut, however long it is otherwise
FEW_CHANNELS = 16  # up to which lines are copied to make runs of all taps along them
LINE_COLUMNS = 256  # of a block that reads whole lines: its first panel waits for them

PLACE_BYTES = 8  # of an entry of a table
OUTSIDE = "_outside"  # how many bytes after the data the zeros begin


def gathered_time(nest: ProductNest, node: Node, machine: Machine, after: Expr | int = 0) -> Expr:
    """Picoseconds of the product of :func:`lower_channels_last` for a Convolve.

    Its data is read as a left operand that lies in rows would be. One thread takes ``after``
    picoseconds for what else the tasks do.
    """
    machine = machine.limited(lambda unit: unit.m == 1)  # rows lie apart, where tables say
    if isinstance(nest.left, RunTable) and nest.left.zeros is not None:
        met = replace(nest.depth, extent=_met_depth(nest, node))
        nest = replace(nest, steps=replace(nest.steps, axes=(met, *nest.steps.axes[1:])))
    read = _read_time(nest, node, machine) if isinstance(nest.left, RunTable) else constant(0)
    return contraction_time(nest, machine, symbol(THREADS), after=read + after)


def _read_time(nest: ProductNest, node: Node, machine: Machine) -> Expr:
    """Picoseconds to read the data once; each of several groups reads its piece of every pixel."""
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    elements, size = product(data.shape), nest.dtype.bytes
    if primitive.groups == 1:
        shown = machine.core.streams.left_shown
        return elements // 64 * machine.reading(elements, size, 2) * shown // 8
    pieces = primitive.groups * product(data.shape[:-1])
    return pieces_read_time(pieces, node.inputs[1].shape[1] * size, elements * size, machine)


def _met_depth(nest: ProductNest, node: Node) -> Expr:
    """The depth that tiles go through: runs are left out that lie outside for all their pixels.

    A tile has some neighbouring outputs along the last axis, on one line or on several.
    """
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    axes = zip(
        geometry(primitive), primitive.low, weights.shape[2:], node.inputs[0].shape[1:-1],
        node.shape[1:-1], strict=True,
    )  # fmt: skip
    depth, beside = nest.k, constant(nest.registers.rows)
    for tap, low, taps, size, outputs in reversed(list(axes)):
        some = maximum(outputs, 1)
        met = constant(0)
        for number in range(taps.value if tap.spread == 1 else 0):
            first = low - number * tap.dilation
            begin = maximum(ceil_div(first, tap.stride), 0)
            end = minimum(ceil_div(size + first, tap.stride), outputs)
            inside = maximum(end - begin, 0)
            met = met + minimum(inside, 1) * minimum(inside + beside - 1, outputs)
        if tap.spread == 1:
            depth = depth // taps * met // some
        beside = ceil_div(beside, some)
    return maximum(depth, 1)


class Reading(Enum):
    """How a convolution of several taps reads its data."""

    TABLE = "table"  # a run for every tap
    IN_PLACE = "in place"  # no tap lies outside: all taps along a line are one run
    COPIES = "copies"  # the same of lines that are copied between their padding


def lower_channels_last(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    blocking: Blocking | None = None,
    sizes: tuple[Expr, Expr] | None = None,
) -> LoweredStep:
    """The tile program of a Convolve with its epilogue.

    Its data is in memory, or is the transposition of data with the channels first that is. Without
    a ``blocking`` it has blocks that suit most sizes. If ``sizes`` are given, they have exactly so
    many pixels, which are whole lines, and channels.
    """
    node = kernel.seed
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    per_group = weights.shape[0] // primitive.groups
    batch = (("_b1", constant(primitive.groups)),)
    rows = tuple((f"_p{axis}", size) for axis, size in enumerate(node.shape[:-1]))
    columns = (("_c0", per_group),)
    word = elements_per_word(node)
    depth = product(weights.shape[1:]) // word
    reading = _reading(node, lowering)
    whole = reading is not Reading.TABLE
    if blocking is None:
        blocking = Blocking(columns=LINE_COLUMNS) if whole else Blocking()
    size = tile.for_product(node)
    if not is_pointwise(node):
        size = replace(size, rows=min(size.rows, LISTED))
    frame = Frame(kernel, lowering, size, batch, rows, columns, depth, blocking)
    (group,) = declare(lowering, batch)
    place = declare(lowering, rows)
    (channel,) = declare(lowering, columns)
    index = (*place, group * per_group + channel)
    sources: list[Source] = []
    runs = _runs(node, whole and merges_taps(node))
    deepest = DEPTH_BLOCK if isinstance(weights.primitive, Constant) else PACKED_DEPTH
    blocks = maximum(ceil_div(depth, deepest), 1)
    block = maximum(ceil_div(depth // runs.length, blocks), 1) * runs.length
    right = _weights(frame, weights, block, sources)
    base = symbol("_b1") * (weights.shape[1] // word)
    channels = primitive.groups * weights.shape[1] // word
    if is_pointwise(node):
        operand = View(lowering.stored(data), base, channels, constant(1))
        return assemble(frame, index, operand, right, sources, None, *(sizes or ()))
    pixels = sizes[0] if sizes else _block_pixels(frame, runs, reading, block)
    if reading is Reading.COPIES:
        left = windows_of_copies(frame, node, runs, pixels)
    else:
        gathered = windows_in_place if whole else _gather
        left = gathered(frame, node, base, runs, pixels)
    channels_of_block = sizes[1] if sizes else None
    return assemble(frame, index, left, right, sources, block, pixels, channels_of_block)


def _block_pixels(frame: Frame, runs: Runs, reading: Reading, block: Expr) -> Expr:
    """How many pixels a block has that reads so many ``runs`` of each, for a ``block`` of k."""
    node = frame.kernel.seed
    table = product(runs.axes) if reading is Reading.TABLE else constant(1)
    most, data_bytes = _resident_pixels(frame, table, block)
    if reading is Reading.COPIES:
        return pixels_of_copies(frame, node, most * data_bytes // node.dtype.bytes, most)
    height = frame.tile.rows
    rows = balanced(frame.m, maximum(most // height, 1) * height, height)
    return shared_rows(frame, rows)


def _reading(node: Node, lowering: Lowering) -> Reading:
    """How a Convolve reads its data; if that has its channels first in memory, it is copied."""
    if not lowering.is_stored(node.inputs[0]):
        return Reading.COPIES
    if not is_pointwise(node) and stays_inside(node, lowering):
        return Reading.IN_PLACE
    return Reading.COPIES if _copies_lines(node) else Reading.TABLE


def _copies_lines(node: Node) -> bool:
    """Whether all taps along a line of few channels can be one run."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    weights = node.inputs[1]
    plain = all(spread == 1 for spread in primitive.spread) and primitive.sums is None
    plain = plain and merges_taps(node)
    return plain and weights.shape[-1].value > 1 and weights.shape[1].value <= FEW_CHANNELS


def _runs(node: Node, merged: bool) -> Runs:
    """The runs of a pixel; cut, where they can be, so that they fit a block of k."""
    weights = node.inputs[1]
    channels = weights.shape[1].value // elements_per_word(node)
    *outer, last = weights.shape[2:]
    length = last.value * channels if merged else channels
    axes = (*outer, *(() if merged else (last,)))
    run = longest_run(length, PACKED_DEPTH)
    return Runs((*axes, constant(max(length // max(run, 1), 1))), run, merged)


def longest_run(length: int, most: int) -> int:
    """The longest that ``length`` is cut into equally, none longer than ``most`` nor short.

    Where there is none, it is not cut.
    """
    parts = range(max(1, -(-length // most)), max(1, length // SHORT_RUN) + 1)
    return length // next((d for d in parts if length % d == 0), 1)


def data_bytes(node: Node) -> int:
    """Bytes of data for each result of a Convolve: those between it and the next ones as well."""
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    data = weights.shape[1].value * node.dtype.bytes // elements_per_word(node)
    for stride, taps in zip(primitive.strides, weights.shape[2:], strict=True):
        data *= min(stride, taps.value)
    return data


def _resident_pixels(frame: Frame, runs: Expr, depth: Expr) -> tuple[Expr, int]:
    """The most pixels of a block, and the bytes of data for each of them.

    In cache are together: their data, which all taps and panels of weights read; the places of so
    many ``runs`` of each; their results, which may be staged; and a panel of weights of ``depth``
    steps, which all tiles of rows read. There are fewer where there would be too few tasks.
    """
    node = frame.kernel.seed
    element, data = node.dtype.bytes, data_bytes(node)
    results = column_block(frame, packing=False) * element
    panel = depth * (frame.tile.columns * element)
    most = (frame.tile.room - panel) // (data + PLACE_BYTES * runs + results)
    most = minimum(maximum(most, 1), MOST_PIXELS)
    return minimum(most, maximum(frame.m // TASKS, LEAST_PIXELS)), data


def _weights(frame: Frame, weights: Node, block: Expr, sources: list[Source]) -> View | Loaded:
    """The right operand: k runs over taps, then channels."""
    primitive = frame.kernel.seed.primitive
    assert isinstance(primitive, Convolve)
    groups = primitive.groups
    order = (0, *range(2, weights.rank), 1)
    per_group = weights.shape[0] // groups
    if isinstance(weights.primitive, Constant):
        panel = frame.tile.columns
        word = elements_per_word(frame.kernel.seed)
        packed = PackedConstant(weights, order, -groups, weights.rank - 1, panel, word)
        operand = packed_operand(frame, packed, per_group, sources)
        size = ceil_div(per_group, panel) * panel * frame.depth
        base = symbol("_b1") * size
        return replace(operand, offset=base)
    return _pack_weights(frame, weights, per_group, block)


def _pack_weights(frame: Frame, weights: Node, per_group: Expr, block: Expr) -> Loaded:
    """Weights that are known at run time only, packed block by block."""
    lowering = frame.lowering
    row, word = pack_row(frame), elements_per_word(frame.kernel.seed)
    target = lowering.scratch_buffer(weights.dtype, row * block * word)
    k, n = lowering.opened("_k", frame.depth), lowering.opened("_n", frame.n)
    channels = weights.shape[1] // word
    *taps, channel = unflatten(k, [("", s) for s in (*weights.shape[2:], channels)])
    place = (k - symbol("_k0")) * row + (n - symbol("_n0"))
    for part in range(word):
        at = (symbol("_b1") * per_group + n, channel * word + part, *taps)
        lowering.emit(Store(target, place * word + part, lowering.value(weights, at)))
    lowering.emit(Loop("_n", symbol("_n0"), symbol("_n1"), lowering.close()))
    lowering.emit(Loop("_k", symbol("_k0"), symbol("_k1"), lowering.close()))
    return packed_block(target, row, taken_statements(lowering))


def _gather(frame: Frame, node: Node, base: Expr, runs: Runs, row: Expr) -> Loaded:
    """The left operand, with the loops that fill the table of one block of ``row`` pixels."""
    lowering, primitive = frame.lowering, node.primitive
    assert isinstance(primitive, Convolve)
    data = node.inputs[0]
    channels = data.shape[-1] // elements_per_word(node)
    table = lowering.scratch_buffer(DType.INT64, product(runs.axes) * row)
    zeros = lowering.scratch_buffer(node.dtype, constant(runs.length))
    stored = lowering.stored(data)
    lowering.emit(LetDistance(OUTSIDE, stored, base, node.dtype, zeros))
    store = Store(zeros, symbol("_z"), Literal(0.0, node.dtype))
    lowering.emit(Loop("_z", constant(0), constant(runs.length), (store,)))
    line, *taps, part = [lowering.opened(name) for name in ("_q", *runs.names)]
    x, block = lowering.opened("_x"), BlockLines.of(node)
    sample, *outer = unflatten(line, [("", size) for size in node.shape[:-2]])
    sizes = data.shape[1:-1]
    positions, inside = tap_position(
        geometry(primitive), (*outer, x), taps, primitive.low, sizes, lowering.scope
    )
    place = linear((sample, *positions, part * runs.length), (*data.shape[:-1], channels))
    begin = lowering.scope.resolve(place * node.dtype.bytes)
    number = linear((*taps, part), runs.axes)
    entry = IndexValue(select(inside, begin, symbol(OUTSIDE)))
    lowering.emit(Store(table, number * row + block.first + x, entry))
    lowering.emit(Loop("_x", *block.pixels, lowering.close()))
    for name, size in reversed(list(zip(runs.names, runs.axes, strict=True))):
        lowering.emit(Loop(name, constant(0), size, lowering.close()))
    lowering.emit(Loop("_q", *block.lines, lowering.close()))
    run = constant(runs.length)
    rows = RunTable(stored, base, run, table, row, constant(1), zeros=zeros)
    return Loaded(rows, taken_statements(lowering))
