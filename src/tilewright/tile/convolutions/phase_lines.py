"""Right operands of convolutions with the channels first and few of them: lines that taps share.

A block of whole lines of results reads lines of data, each of which is copied once for each element
of the stride along it (its phases), with zeros where it lies outside. A tap reads the line of its
phase some elements later. So lines of results lie apart in the copy: by what taps reach beyond, and
up to where a line of the cache begins, so that each is copied to whole vectors; tiles have columns
of one line each. Copies for every tap (:mod:`channel_lines`) fill tiles where lines are short, and
take as many stores as there are taps, and as much cache. Start with :class:`PhaseLines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.listed_view import ListedView
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import LINE_BYTES, IndexValue, Literal, Loop, Store, TileBuffer, Value
from tilewright.ir.views import linear, unflatten
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, select, symbol
from tilewright.tile.convolutions.channel_lines import groups_of_lines, plane_elements
from tilewright.tile.products.block_sizes import MANY_TASKS, PACKED_COLUMNS, PACKED_DEPTH
from tilewright.tile.products.contraction import taken_statements
from tilewright.tile.products.frame import Frame
from tilewright.tile.products.program import Loaded
from tilewright.tile.values.taps import geometry, tap_position
from tilewright.tile.variants import THREADS

AGAIN = 16  # times the lines that a block copies again, it has of its own: little more work


def shares_lines(node: Node) -> bool:
    """Whether taps of a Convolve may share lines, of many, and its depth is one block."""
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    along, depth = weights.shape[-1], product(weights.shape[1:])
    known = depth.is_constant and primitive.low[-1].is_constant
    if not known or any(spread != 1 for spread in primitive.spread):
        return False
    stride = primitive.strides[-1]
    meets_all = stride <= along.value and gcd(stride, primitive.dilations[-1]) == 1
    return weights.rank > 3 and along.value > 1 and meets_all and depth.value <= PACKED_DEPTH


@dataclass(frozen=True)
class PhaseLines:
    """Copies of the lines that a block of ``lines`` lines of results reads.

    Of ``taps`` across lines, tap t reads group ``t % apart``, ``t // apart`` lines later; each of
    the ``groups`` of a channel has a ``plane`` of so many elements for every phase, in which lines
    begin ``pitch`` elements apart. Tap t along a line begins ``moved(t)`` elements later.
    """

    node: Node
    lines: Expr
    taps: int
    groups: int
    apart: int
    pitch: Expr
    plane: Expr

    @staticmethod
    def of(frame: Frame, node: Node) -> PhaseLines:
        """The lines of a Convolve for which :func:`shares_lines` holds."""
        primitive, weights = node.primitive, node.inputs[1]
        assert isinstance(primitive, Convolve)
        taps, groups, apart = groups_of_lines(node)
        beyond = (taps - 1) // apart
        line = LINE_BYTES // node.dtype.bytes
        reached = (weights.shape[-1].value - 1) * primitive.dilations[-1] // primitive.strides[-1]
        pitch = ceil_div(node.shape[-1] + reached + 1, line) * line
        copies = weights.shape[1] * (groups * primitive.strides[-1])
        lines = _lines(frame, node, copies * pitch, beyond)
        held = (lines + beyond) * pitch + frame.tile.columns  # which the last tile reads beyond
        plane = plane_elements(node, held)
        return PhaseLines(node, lines, taps, groups, apart, pitch, plane)

    @property
    def columns(self) -> Expr:
        """The columns of a block."""
        return maximum(self.lines * self.node.shape[-1], 1)

    @property
    def primitive(self) -> Convolve:
        """The convolution."""
        primitive = self.node.primitive
        assert isinstance(primitive, Convolve)
        return primitive

    def packed(self, frame: Frame) -> Loaded:
        """The operand, and the statements that copy its lines and fill its table."""
        lowering, weights = frame.lowering, self.node.inputs[1]
        copies = weights.shape[1] * (self.groups * self.primitive.strides[-1])
        target = lowering.scratch_buffer(self.node.dtype, copies * self.plane)
        table = lowering.scratch_buffer(DType.INT64, product(weights.shape[1:]))
        self._listed(frame, table)
        self._copied(frame, target)
        zero, one = constant(0), constant(1)
        line, pitch = self.node.shape[-1], self.pitch
        view = ListedView(target, zero, one, zero, shifts=table, line=line, pitch=pitch)
        return Loaded(view, taken_statements(lowering))

    def place(self, channel: Expr, group: Expr, phase: Expr) -> Expr:
        """Where a plane of the block begins."""
        number = (channel * self.groups + group) * self.primitive.strides[-1]
        return (number + phase) * self.plane

    def moved(self, tap: Expr) -> tuple[Expr, Expr]:
        """Which element of a line a tap reads first, in numbers of the stride, and its phase."""
        stride = self.primitive.strides[-1]
        shift = tap * self.primitive.dilations[-1] - self.primitive.low[-1]
        return shift // stride, shift % stride

    def _listed(self, frame: Frame, table: TileBuffer) -> None:
        """Fill the table: how far the columns of each step along k lie behind the first plane."""
        lowering, weights = frame.lowering, self.node.inputs[1]
        sizes = (weights.shape[1], constant(self.taps), weights.shape[-1])
        loops = list(zip(("_ch", "_t", "_s"), sizes, strict=True))
        channel, tap, beside = [lowering.opened(name) for name, _ in loops]
        moved, phase = self.moved(beside)
        place = self.place(channel, tap % self.apart, phase) + moved - self.moved(constant(0))[0]
        place = place + tap // self.apart * self.pitch
        entry = IndexValue(place * self.node.dtype.bytes)
        lowering.emit(Store(table, linear((channel, tap, beside), sizes), entry))
        for name, size in reversed(loops):
            lowering.emit(Loop(name, constant(0), size, lowering.close()))

    def _copied(self, frame: Frame, target: TileBuffer) -> None:
        """Fill the planes; groups take turns, so that the lines of a channel are read in order."""
        lowering, width = frame.lowering, maximum(self.node.shape[-1], 1)
        first, last = symbol("_n0") // width, symbol("_n1") // width
        last = last + (self.taps - 1) // self.apart
        loops = [
            ("_ch", constant(0), self.node.inputs[1].shape[1]),
            ("_q", first, last),
            ("_g", constant(0), constant(self.groups)),
        ]
        channel, line, group = [lowering.opened(name) for name, *_ in loops]
        _Line(frame, self, target, (channel, group, line), line - first).copy()
        for name, begin, end in reversed(loops):
            lowering.emit(Loop(name, begin, end, lowering.close()))


class _Line:
    """One line of data in the planes of a channel and a group, at line ``number`` of the block.

    Element i of phase p is element ``(i + moved) * stride + p`` of the data, where ``moved`` is
    what the first tap begins with.
    """

    def __init__(
        self, frame: Frame, lines: PhaseLines, target: TileBuffer,
        where: tuple[Expr, Expr, Expr], number: Expr,
    ) -> None:  # fmt: skip
        """``where`` are the channel, the group and the line of results."""
        self.lowering, self.lines, self.target = frame.lowering, lines, target
        channel, group, line = where
        node, primitive = lines.node, lines.primitive
        self.data, weights = node.inputs
        self.stride = primitive.strides[-1]
        self.lead = (symbol("_b0"), symbol("_b1") * weights.shape[1] + channel)
        outer = unflatten(line, [("", size) for size in node.shape[2:-1]])
        taps = unflatten(group, [("", size) for size in weights.shape[2:-1]])
        self.positions, self.inside = tap_position(
            geometry(primitive)[:-1], outer, taps, primitive.low[:-1],
            self.data.shape[2:-1], self.lowering.scope,
        )  # fmt: skip
        self.moved, _ = lines.moved(constant(0))
        reached, _ = lines.moved(weights.shape[-1] - 1)
        self.end = node.shape[-1] + reached  # of what taps read
        self.begin = [
            lines.place(channel, group, constant(phase)) + number * lines.pitch - self.moved
            for phase in range(self.stride)
        ]

    def copy(self) -> None:
        """Zeros, what all phases have side by side, the rest of each, zeros."""
        first, size = maximum(0, self.moved), self.data.shape[-1]
        whole = maximum(first, minimum(size // self.stride, self.end))
        whole = select(self.inside, whole, first)
        phases = range(self.stride)
        if self.moved is not first:
            self._fill("_xa", (self.moved, first), [(phase, None) for phase in phases])
        self._fill("_x", (first, whole), [(phase, phase) for phase in phases], side_by_side=True)
        for phase in phases:
            last = whole
            if self.stride > 1:
                last = maximum(first, minimum(ceil_div(size - phase, self.stride), self.end))
                last = select(self.inside, last, first)
                self._fill("_xb", (whole, last), [(phase, phase)])
            self._fill("_xc", (last, self.end), [(phase, None)])

    def _fill(
        self, name: str, bounds: tuple[Expr, Expr], stores: list[tuple[int, int | None]],
        *, side_by_side: bool = False,
    ) -> None:  # fmt: skip
        """Elements of phases, each of the data or zeros where there is none."""
        x = self.lowering.opened(name)
        made = [Store(self.target, self.begin[p] + x, self._value(x, of)) for p, of in stores]
        for store in made:
            self.lowering.emit(store)
        body = self.lowering.close()
        self.lowering.emit(Loop(name, *bounds, body, independent=side_by_side))

    def _value(self, x: Expr, phase: int | None) -> Value:
        if phase is None:
            return Literal(0.0, self.lines.node.dtype)
        place = x * self.stride + phase
        return self.lowering.value(self.data, (*self.lead, *self.positions, place))


def _lines(frame: Frame, node: Node, copied: Expr, beyond: int) -> Expr:
    """Lines of results of a block, of each of which so many elements are ``copied``.

    Several times the lines ``beyond`` its own, which each block copies again, and no more, so that
    tasks can be shared out evenly; half of the cache has its copies, and all threads have tasks.
    """
    room = frame.tile.room // (2 * frame.kernel.seed.dtype.bytes)
    count = product(node.shape[2:-1])
    every = count * product([size for _, size in frame.batch])
    shared = ceil_div(every, MANY_TASKS * symbol(THREADS))
    few = ceil_div(PACKED_COLUMNS, maximum(node.shape[-1], 1))
    most = minimum(room // maximum(copied, 1) - beyond, shared, maximum(AGAIN * beyond, few))
    most = maximum(most, few)
    return ceil_div(count, maximum(ceil_div(count, most), 1))
