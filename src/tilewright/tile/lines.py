"""Left operands of convolutions whose runs lie alike in all rows: all taps along a line are one.

Where no tap lies outside, data is read in place. Otherwise the lines that a block of pixels reads
are copied between their padding first, every line once, however many taps meet it. Either way a
table says where rows begin, and a short one how far their runs are from there. Start with
:func:`windows_in_place` and :func:`windows_of_copies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    Gathering,
    IndexValue,
    Literal,
    Load,
    Loop,
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
from tilewright.tile.contraction import taken_statements, unflatten
from tilewright.tile.frame import Frame, elements_per_word
from tilewright.tile.lowering import Lowering
from tilewright.tile.taps import Tap, geometry, tap_position


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
        """Of the block of a Convolve that "_m0" and "_m1" bound."""
        width, begin, end = maximum(node.shape[-2], 1), symbol("_m0"), symbol("_m1")
        start = symbol("_q") * width
        return BlockLines(
            (begin // width, ceil_div(end, width)),
            (maximum(0, begin - start), minimum(width, end - start)),
            start - begin,
        )


@dataclass(frozen=True)
class _Rows:
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


def windows_in_place(frame: Frame, node: Node, base: Expr, runs: Runs, row: Expr) -> Gathering:
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
    rows = _Rows(
        frame.lowering.buffer(data),
        linear((sample, *first, constant(0), constant(0)), shape),
        channels * primitive.strides[-1],
        linear((constant(0), *reach, part * runs.length), shape),
    )
    return _windows(frame, node, rows, base, runs, row)


def windows_of_copies(frame: Frame, node: Node, runs: Runs, row: Expr) -> Gathering:
    """The left operand of a Convolve whose taps along a line merge, in blocks of ``row`` pixels.

    Lines are counted as if those of all images followed each other with their padding.
    """
    primitive, (data, weights) = node.primitive, node.inputs
    assert isinstance(primitive, Convolve)
    channels, stride, across = data.shape[-1], primitive.strides[-1], maximum(node.shape[-2], 1)
    length = ((across - 1) * stride + weights.shape[-1]) * channels
    padded = _PaddedLines.of(node)
    count = padded.most(ceil_div(row, across) + 1)
    copies = frame.lowering.scratch_buffer(node.dtype, count * length)
    outer = [("", size) for size in node.shape[:-2]]
    begin = padded.of_result(unflatten(symbol("_m0") // across, outer))
    last = padded.of_result(unflatten((symbol("_m1") - 1) // across, outer))
    bounds = begin, last + padded.of_taps([size - 1 for size in padded.taps]) + 1
    place = (frame.lowering.scope.declare("_v", 0) - begin) * length
    lines = _copied_line(frame, node, padded, copies, place, length)
    frame.lowering.emit(Loop("_v", *bounds, lines))
    *taps, part = map(symbol, runs.names)
    rows = _Rows(
        copies,
        (padded.of_result(unflatten(symbol("_q"), outer)) - begin) * length,
        channels * stride,
        padded.of_taps(taps) * length + part * runs.length,
    )
    return _windows(frame, node, rows, constant(0), runs, row)


@dataclass(frozen=True)
class _PaddedLines:
    """Numbers of lines of data with their padding, one image after the other.

    For every axis but the last: how many results an image has, the taps, and where they meet.
    """

    sizes: tuple[Expr, ...]
    taps: tuple[Expr, ...]
    axes: tuple[Tap, ...]

    @staticmethod
    def of(node: Node) -> _PaddedLines:
        primitive = node.primitive
        assert isinstance(primitive, Convolve)
        sizes = tuple(maximum(size, 1) for size in node.shape[1:-2])
        return _PaddedLines(sizes, node.inputs[1].shape[2:-1], tuple(geometry(primitive)[:-1]))

    @property
    def reached(self) -> list[Expr]:
        """Over how many positions the results of an image reach along each axis."""
        rows = zip(self.sizes, self.taps, self.axes, strict=True)
        return [(n - 1) * axis.stride + (taps - 1) * axis.dilation + 1 for n, taps, axis in rows]

    def of_result(self, position: Sequence[Expr]) -> Expr:
        """The first line that the results at an image and outer positions read."""
        line, *outer = position
        for at, axis, reached in zip(outer, self.axes, self.reached, strict=True):
            line = line * reached + at * axis.stride
        return line

    def of_taps(self, taps: Sequence[Expr]) -> Expr:
        """How many lines later a tap reads."""
        line = constant(0)
        for tap, axis, reached in zip(taps, self.axes, self.reached, strict=True):
            line = line * reached + tap * axis.dilation
        return line

    def position(self, line: Expr) -> list[Expr]:
        """An image, and positions from the beginning of its padding."""
        return unflatten(line, [("", constant(0)), *(("", size) for size in self.reached)])

    def most(self, results: Expr) -> Expr:
        """As many lines as so many neighbouring lines of results read, or a few more."""
        if not self.axes:
            return results
        for size in reversed(self.sizes[1:]):
            results = results // size + 2
        axis, reach = self.axes[0], (self.taps[0] - 1) * self.axes[0].dilation + 1
        # From one image to the next, lines are skipped or met again.
        again = maximum(reach - axis.stride, 0) * (results // self.sizes[0] + 2)
        return (results * axis.stride + again + reach) * product(self.reached[1:])


def _copied_line(
    frame: Frame, node: Node, padded: _PaddedLines, copies: TileBuffer, place: Expr, length: Expr
) -> tuple[Statement, ...]:
    """Line ``_v`` of the data: zeros, elements, zeros. Of one outside nothing is read."""
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    sample, *positions = padded.position(symbol("_v"))
    count = len(positions)
    plain, zeros = [Tap(1, 1, 1)] * count, [constant(0)] * count
    sizes, scope = data.shape[1:-2], frame.lowering.scope
    at, inside = tap_position(plain, positions, zeros, primitive.low[:count], sizes, scope)
    low, channels = primitive.low[-1], data.shape[-1]
    before = minimum(maximum(low * channels, 0), length)
    after = minimum(maximum((low + data.shape[-2]) * channels, before), length)
    origin = linear((sample, *at, -low, constant(0)), data.shape)
    source = Load(frame.lowering.buffer(data), origin + symbol("_z"))
    zero = Literal(0.0, node.dtype)
    # Of a line outside the middle is empty, and zeros begin where it would.
    pieces = (
        (constant(0), before, zero),
        (before, select(inside, after, before), source),
        (select(inside, after, before), length, zero),
    )
    return tuple(
        Loop("_z", begin, end, (Store(copies, place + symbol("_z"), value),))
        for begin, end, value in pieces
    )


def _windows(frame: Frame, node: Node, rows: _Rows, base: Expr, runs: Runs, row: Expr) -> Gathering:
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
    body = taken_statements(lowering)
    return Gathering(rows.buffer, base, constant(runs.length), table, row, body, shifts=shifts)
