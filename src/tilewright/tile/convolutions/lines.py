"""Left operands of convolutions whose runs lie alike in all rows: all taps along a line are one.

Where no tap lies outside, data is read in place. Otherwise the lines that a block of pixels reads
are copied between their padding first, every line once, however many taps meet it, and transposed
if their channels come first in memory. Either way a table says where rows begin, and a short one
how far their runs are from there. Start with :func:`windows_in_place` and
:func:`windows_of_copies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    IndexValue,
    Literal,
    Load,
    Loop,
    RunTable,
    Statement,
    Store,
    TileBuffer,
    TransposeBlock,
)
from tilewright.ir.views import Index, declare_index, linear, unflatten
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    maximum,
    minimum,
    product,
    select,
    symbol,
)
from tilewright.tile.products.block_sizes import balanced
from tilewright.tile.products.contraction import taken_statements
from tilewright.tile.products.frame import Frame, elements_per_word
from tilewright.tile.products.program import Loaded
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import Tap, geometry, tap_position

SQUARE = 8  # channels that are transposed through registers; fewer go element by element


@dataclass(frozen=True)
class Runs:
    """Runs of ``length`` elements along ``axes``, the outermost first.

    Those are the axes of the window, the last of which is inside the runs if ``merged``, and as the
    last one the parts that a run is cut into.
    """

    axes: tuple[Expr, ...]
    length: int
    merged: bool

    @property
    def names(self) -> list[str]:
        """Loop variables."""
        return [f"_t{number}" for number in range(len(self.axes))]


@dataclass(frozen=True)
class BlockLines:
    """The lines of results that a block of pixels meets.

    They are those with ``_q`` inside ``lines``; the pixels of one that are in the block have ``_x``
    inside ``pixels``, and are ``first + _x`` rows after the block's beginning.
    """

    lines: tuple[Expr, Expr]
    pixels: tuple[Expr, Expr]
    first: Expr

    @staticmethod
    def of(node: Node) -> BlockLines:
        """Of the block of a Convolve with the channels last that "_m0" and "_m1" bound."""
        return BlockLines.along(_across(node))

    @staticmethod
    def along(width: Expr) -> BlockLines:
        """Of a block of lines of ``width`` results, at least one."""
        begin, end = symbol("_m0"), symbol("_m1")
        start = symbol("_q") * width
        return BlockLines(
            (begin // width, ceil_div(end, width)),
            (maximum(0, begin - start), minimum(width, end - start)),
            start - begin,
        )


@dataclass(frozen=True)
class _LineRows:
    """Where rows of a block and their runs begin, in elements of ``buffer``.

    A line ``_q`` of results begins at ``line``, one of its pixels ``pixel`` elements after the one
    before; run ``_t0``, ``_t1``, … is ``shift`` after the row's beginning.
    """

    buffer: TileBuffer
    line: Expr
    pixel: Expr
    shift: Expr


def merges_taps(node: Node) -> bool:
    """Whether all taps along a line of a Convolve can be one run."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    return primitive.groups == primitive.dilations[-1] == 1


def stays_inside(node: Node, lowering: Lowering) -> bool:
    """Whether no tap of a Convolve ever lies outside its data, nor between its elements."""
    primitive, (data, weights) = node.primitive, node.inputs
    assert isinstance(primitive, Convolve)
    if any(spread != 1 for spread in primitive.spread):
        return False
    spatial, scope = range(1, node.rank - 1), lowering.scope
    outputs = [declare_index(scope, f"_o{axis}", node.shape[axis]) for axis in spatial]
    taps = [declare_index(scope, f"_w{axis}", weights.shape[axis + 1]) for axis in spatial]
    sizes = data.shape[1:-1]
    _, inside = tap_position(geometry(primitive), outputs, taps, primitive.low, sizes, scope)
    return inside is constant(1)


def windows_in_place(frame: Frame, node: Node, base: Expr, runs: Runs, row: Expr) -> Loaded:
    """The left operand of a Convolve that stays inside, in blocks of ``row`` pixels."""
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    channels = data.shape[-1] // elements_per_word(node)
    shape = (*data.shape[:-1], channels)
    sample, *outer = unflatten(symbol("_q"), [("", size) for size in node.shape[:-2]])
    first = [o * stride for o, stride in zip(outer, primitive.strides, strict=False)]
    *taps, part = map(symbol, runs.names)
    reach = [tap * dilation for tap, dilation in zip(taps, primitive.dilations, strict=False)]
    reach += [constant(0)] if runs.merged else []
    rows = _LineRows(
        frame.lowering.stored(data),
        linear((sample, *first, constant(0), constant(0)), shape),
        channels * primitive.strides[-1],
        linear((constant(0), *reach, part * runs.length), shape),
    )
    return _windows(frame, node, rows, base, runs, row)


def windows_of_copies(frame: Frame, node: Node, runs: Runs, row: Expr) -> Loaded:
    """The left operand of a Convolve whose taps along a line merge, in blocks of ``row`` pixels.

    Data that is not in memory is the transposition of data with the channels first that is.
    """
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    copies = _Copies.of(frame, node, row)
    frame.lowering.emit(copies.filled(frame))
    *taps, part = map(symbol, runs.names)
    pixel = weights.shape[1] * primitive.strides[-1]
    rows = _LineRows(
        copies.buffer,
        copies.of_line(symbol("_q")) * copies.size - copies.pixels[0] * pixel,
        pixel,
        copies.of_taps(taps) * copies.size + part * runs.length,
    )
    return _windows(frame, node, rows, constant(0), runs, row)


def pixels_of_copies(frame: Frame, node: Node, elements: Expr, most: Expr) -> Expr:
    """At most ``most`` pixels for a block that copies so many ``elements``.

    They are whole lines, or else a part of one.
    """
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    height, channels = frame.tile.rows, maximum(weights.shape[1], 1)
    across, padded = _across(node), _PaddedLines.of(node)
    lines = padded.results(elements // (_reach(node, across) * channels))
    lines = minimum(lines, most // across)
    part = elements // (padded.around * primitive.strides[-1] * channels)
    part = minimum(minimum(part, most), across - 1)
    part = maximum(part // height, 1) * height
    whole = balanced(product(node.shape[:-2]), maximum(lines, 1), 1) * across
    return select(less(0, lines), whole, balanced(frame.m, part, height))


@dataclass(frozen=True)
class _Copies:
    """The lines of its data that a block of pixels meets, copied between their padding.

    For each tap of the planes that lines lie in there are copies of their own. Of a block of a
    line or more they are all lines from ``begin`` on, ``most`` at the most. One of less than a line
    (``parts``) meets no line twice: it has of every line of data the part for its own pixels, in
    the order of the lines of results and of the taps. Copies are ``size`` elements apart.
    """

    node: Node
    padded: _PaddedLines
    parts: Expr
    begin: Expr
    most: Expr
    buffer: TileBuffer
    size: Expr

    @staticmethod
    def of(frame: Frame, node: Node, row: Expr) -> _Copies:
        """The copies for blocks of ``row`` pixels."""
        across, padded = _across(node), _PaddedLines.of(node)
        parts = less(row, across)
        begin = padded.of_result(symbol("_m0") // across)
        size = _reach(node, select(parts, row, across)) * node.inputs[1].shape[1]
        most = padded.most(ceil_div(row, across) + 1)
        count = select(parts, 2 * padded.around, product(padded.planes) * most)
        buffer = frame.lowering.scratch_buffer(node.dtype, count * size)
        return _Copies(node, padded, parts, begin, most, buffer, size)

    @property
    def pixels(self) -> tuple[Expr, Expr]:
        """The pixels of line "_q" of results that copies are for."""
        begin, end = BlockLines.of(self.node).pixels
        return select(self.parts, begin, 0), select(self.parts, end, _across(self.node))

    def of_line(self, line: Expr) -> Expr:
        """The number of the copy that a line of results begins with."""
        own = (line - BlockLines.of(self.node).lines[0]) * self.padded.around
        return select(self.parts, own, self.padded.of_result(line) - self.begin)

    def of_taps(self, taps: Sequence[Expr]) -> Expr:
        """How many copies later a tap reads."""
        if not taps:
            return constant(0)
        *planes, tap = taps
        plane = linear(planes, self.padded.planes)
        whole = plane * self.most + tap * self.padded.axis.dilation
        return select(self.parts, plane * self.padded.taps + tap, whole)

    def filled(self, frame: Frame) -> Statement:
        """The loops over all copies: planes of results, taps of planes, lines."""
        scope, padded, primitive = frame.lowering.scope, self.padded, self.node.primitive
        assert isinstance(primitive, Convolve)
        first, last = BlockLines.of(self.node).lines
        plane, number = scope.declare("_s", 0), scope.declare("_v", 0)
        planes = (first // padded.size, ceil_div(last, padded.size))
        outer = self.node.shape[: len(padded.planes) + 1]
        sample, *outputs = unflatten(plane, [("", size) for size in outer])
        names = [f"_u{axis}" for axis in range(len(padded.planes))]
        taps = [declare_index(scope, *tap) for tap in zip(names, padded.planes, strict=True)]
        before = plane * padded.size
        begin, end = maximum(first - before, 0), minimum(last - before, padded.size)
        tap = number % padded.taps
        result = select(self.parts, begin + number // padded.taps, begin)
        reached = select(self.parts, tap * padded.axis.dilation, number)
        line = result * padded.axis.stride + reached
        outside = linear(taps, padded.planes)
        own = (before + result - first) * padded.around + outside * padded.taps + tap
        whole = plane * padded.met(padded.size) + line - self.begin + outside * self.most
        copy = select(self.parts, own, whole)
        positions, inside = tap_position(
            [*geometry(primitive)[: len(taps)], Tap(1, 1, 1)], [*outputs, line],
            [*taps, constant(0)], primitive.low[:-1] or (constant(0),),
            self.node.inputs[0].shape[1:-2] or (constant(1),), scope,
        )  # fmt: skip
        pixels = [bound.substitute({"_q": before + result}) for bound in self.pixels]
        index = (sample, *positions[: len(primitive.low) - 1])
        made: Statement = Loop(
            "_v",
            constant(0),
            select(self.parts, (end - begin) * padded.taps, padded.met(end - begin)),
            _copied_line(frame, self, copy, (index, inside), (pixels[0], pixels[1])),
        )
        for name, count in reversed(list(zip(names, padded.planes, strict=True))):
            made = Loop(name, constant(0), count, (made,))
        return Loop("_s", *planes, (made,))


def _across(node: Node) -> Expr:
    """How many results a line has, at least one."""
    return maximum(node.shape[-2], 1)


def _reach(node: Node, pixels: Expr) -> Expr:
    """Over how many positions of a line so many neighbouring pixels reach."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    return (pixels - 1) * primitive.strides[-1] + node.inputs[1].shape[-1]


@dataclass(frozen=True)
class _PaddedLines:
    """Numbers of lines of data with their padding, one plane of results after the other.

    A plane has ``size`` lines of results; ``taps`` lines of data meet in one along ``axis``.
    ``planes`` are the taps of the axes that planes follow each other along. The lines of data in
    one dimension are planes of one line.
    """

    size: Expr
    taps: Expr
    axis: Tap
    planes: tuple[Expr, ...]

    @staticmethod
    def of(node: Node) -> _PaddedLines:
        primitive = node.primitive
        assert isinstance(primitive, Convolve)
        *axes, _ = geometry(primitive)
        if not axes:
            return _PaddedLines(constant(1), constant(1), Tap(1, 1, 1), ())
        *planes, taps = node.inputs[1].shape[2:-1]
        return _PaddedLines(maximum(node.shape[-3], 1), taps, axes[-1], tuple(planes))

    @property
    def around(self) -> Expr:
        """How many lines of data meet in one of results."""
        return product(self.planes) * self.taps

    def met(self, results: Expr) -> Expr:
        """Over how many lines of data so many neighbouring results of a plane reach."""
        return (results - 1) * self.axis.stride + (self.taps - 1) * self.axis.dilation + 1

    def of_result(self, line: Expr) -> Expr:
        """The first line of a plane of data that a line of results reads."""
        plane = line // self.size
        return plane * self.met(self.size) + (line - plane * self.size) * self.axis.stride

    def results(self, copies: Expr) -> Expr:
        """For how many lines of results so many copies are enough."""
        lines = copies // maximum(product(self.planes), 1) - self.met(constant(1))
        return maximum(lines + self.axis.stride, 0) // self.axis.stride

    def most(self, results: Expr) -> Expr:
        """As many lines as so many neighbouring lines of results read, or a few more."""
        reach = self.met(constant(1))
        # From one plane to the next, lines are skipped or met again.
        again = maximum(reach - self.axis.stride, 0) * (results // self.size + 2)
        return results * self.axis.stride + again + reach


def _copied_line(
    frame: Frame,
    copies: _Copies,
    number: Expr,
    line: tuple[Index, Expr],
    pixels: tuple[Expr, Expr],
) -> tuple[Statement, ...]:
    """Copy ``number``: zeros, elements, zeros. Of a line that is not inside none is read."""
    node = copies.node
    primitive, (data, weights) = node.primitive, node.inputs
    assert isinstance(primitive, Convolve)
    at, inside = line
    begin = pixels[0] * primitive.strides[-1] - primitive.low[-1]
    length = _reach(node, pixels[1] - pixels[0])
    before = minimum(maximum(-begin, 0), length)
    after = minimum(maximum(data.shape[-2] - begin, before), length)
    # Of a line outside the middle is empty, and zeros begin where it would.
    after = select(inside, after, before)
    place, channels = number * copies.size, weights.shape[1]

    def cleared(first: Expr, last: Expr) -> Statement:
        zero = Store(copies.buffer, place + symbol("_z"), Literal(0.0, node.dtype))
        return Loop("_z", first * channels, last * channels, (zero,))

    index = (*at, begin + before, constant(0))
    target = place + before * channels
    middle = _copied(frame, data, index, (copies.buffer, target), after - before)
    return cleared(constant(0), before), middle, cleared(after, length)


def _copied(
    frame: Frame, data: Node, index: Index, target: tuple[TileBuffer, Expr], pixels: Expr
) -> Statement:
    """So many pixels of ``data`` from ``index``, with their channels side by side."""
    lowering, channels = frame.lowering, data.shape[-1]
    if lowering.is_stored(data):
        source = Load(lowering.stored(data), linear(index, data.shape) + symbol("_z"))
        copied = Store(target[0], target[1] + symbol("_z"), source)
        return Loop("_z", constant(0), pixels * channels, (copied,))
    (first,) = data.inputs
    sample, *position, channel = index
    origin = linear((sample, channel, *position), first.shape)
    distance = product(first.shape[2:])
    source = lowering.buffer(first)
    if channels.value >= SQUARE:
        return TransposeBlock(source, origin, distance, *target, channels, channels, pixels)
    pixel = symbol("_z")
    stores = tuple(
        Store(
            target[0], target[1] + pixel * channels + c, Load(source, origin + distance * c + pixel)
        )
        for c in range(channels.value)
    )
    return Loop("_z", constant(0), pixels, stores, independent=True)


def _windows(
    frame: Frame, node: Node, rows: _LineRows, base: Expr, runs: Runs, row: Expr
) -> Loaded:
    """Fill the tables of rows and of runs."""
    lowering, size = frame.lowering, node.dtype.bytes
    table = lowering.scratch_buffer(DType.INT64, row)
    shifts = lowering.scratch_buffer(DType.INT64, product(runs.axes))
    entry = Store(shifts, linear([symbol(n) for n in runs.names], runs.axes),
                  IndexValue(rows.shift * size))  # fmt: skip
    filled: Statement = entry
    for name, count in reversed(list(zip(runs.names, runs.axes, strict=True))):
        filled = Loop(name, constant(0), count, (filled,))
    block = BlockLines.of(node)
    begin = IndexValue((rows.line + symbol("_x") * rows.pixel) * size)
    fill = Loop("_x", *block.pixels, (Store(table, block.first + symbol("_x"), begin),))
    lowering.emit(filled)
    lowering.emit(Loop("_q", *block.lines, (fill,)))
    run = constant(runs.length)
    left = RunTable(rows.buffer, base, run, table, row, constant(1), shifts=shifts)
    return Loaded(left, taken_statements(lowering))
