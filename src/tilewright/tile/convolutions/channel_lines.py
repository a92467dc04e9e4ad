"""Right operands of convolutions with the channels first: columns are pixels, as results lie.

The lines of a channel that a block of pixels reads are copied once for each tap along a line, moved
by that tap, picked by the stride and with zeros where it lies outside. So the pixels of a line of
results lie side by side, and lines follow each other without a gap: what a tap of another line
reads begins a whole number of lines later, and a table says where. Taps share lines where those of
neighbouring results do; in more than two dimensions, or with a dilation, each tap has lines of its
own. Start with :class:`PackedLines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    IndexValue,
    ListedView,
    Literal,
    Loop,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.views import linear
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
from tilewright.tile.products.contraction import (
    MANY_TASKS,
    PACKED_COLUMNS,
    balanced,
    column_block,
    taken_statements,
    unflatten,
)
from tilewright.tile.products.frame import Frame
from tilewright.tile.products.program import Loaded
from tilewright.tile.values.taps import geometry, tap_position
from tilewright.tile.variants import THREADS

SPREAD = 16  # elements, an odd number of which is between planes: they spread over a cache's sets


@dataclass(frozen=True)
class PackedLines:
    """The lines of a block of ``columns`` pixels and of ``depth``, which are whole channels.

    ``taps`` are those across lines, of all axes but the last. A channel has ``groups`` of lines,
    each in a ``plane`` of so many elements for every tap along a line. Tap t across lines reads
    group ``t % stride``, ``t // stride`` lines later.
    """

    node: Node
    depth: Expr
    columns: Expr
    taps: int
    groups: int
    stride: int
    plane: Expr

    @staticmethod
    def of(frame: Frame, node: Node, depth: Expr) -> PackedLines:
        """The lines of a Convolve in blocks of so much depth."""
        primitive, weights = node.primitive, node.inputs[1]
        assert isinstance(primitive, Convolve)
        outer = [size.value for size in weights.shape[2:-1]]
        taps = groups = stride = prod(outer)
        if len(outer) == 1 and primitive.dilations[0] == primitive.spread[0] == 1:
            stride = primitive.strides[0]
            groups = min(stride, taps)
        beyond = constant(max(taps - 1, 0) // max(stride, 1)) * node.shape[-1]
        columns = column_block(frame, PACKED_COLUMNS)
        if beyond is not constant(0) and frame.blocking.columns is None:
            copies = ceil_div(depth, max(taps, 1)) * groups
            columns = _columns(frame, depth, copies, beyond)
        plane = ceil_div(columns + beyond, 2 * SPREAD) * (2 * SPREAD) + SPREAD
        return PackedLines(node, depth, columns, taps, groups, max(stride, 1), plane)

    @property
    def along(self) -> Expr:
        """How many taps there are along a line."""
        return self.node.inputs[1].shape[-1]

    @property
    def channels(self) -> tuple[Expr, Expr]:
        """The channels of a block of the depth."""
        taps = maximum(self.along * self.taps, 1)
        return symbol("_k0") // taps, ceil_div(symbol("_k1"), taps)

    def packed(self, frame: Frame) -> Loaded:
        """The operand, and the statements that copy its lines and fill its table."""
        lowering = frame.lowering
        copies = ceil_div(self.depth, max(self.taps, 1)) * self.groups
        target = lowering.scratch_buffer(self.node.dtype, copies * self.plane)
        table = lowering.scratch_buffer(DType.INT64, self.depth)
        self._listed(frame, table)
        self._copied(frame, target)
        view = ListedView(target, constant(0), constant(1), constant(0), shifts=table)
        return Loaded(view, taken_statements(lowering))

    def _place(self, channel: Expr, group: Expr, tap: Expr) -> Expr:
        """Where a plane of the block begins."""
        number = (channel - self.channels[0]) * self.groups + group
        return (number * self.along + tap) * self.plane

    def _listed(self, frame: Frame, table: TileBuffer) -> None:
        """Fill the table: how far the pixels of each step along k lie behind the first plane."""
        lowering, weights = frame.lowering, self.node.inputs[1]
        loops = [("_ch", self.channels), ("_t", (constant(0), constant(self.taps)))]
        loops.append(("_s", (constant(0), self.along)))
        channel, tap, beside = [lowering.opened(name) for name, _ in loops]
        place = self._place(channel, tap % self.stride, beside)
        place = place + tap // self.stride * self.node.shape[-1]
        k = linear((channel, tap, beside), (weights.shape[1], constant(self.taps), self.along))
        entry = IndexValue(place * self.node.dtype.bytes)
        lowering.emit(Store(table, k - symbol("_k0"), entry))
        _close(frame, loops)

    def _copied(self, frame: Frame, target: TileBuffer) -> None:
        """Fill the planes, every line of data for all taps along it one after the other."""
        lowering, width = frame.lowering, self.node.shape[-1]
        loops = [("_ch", self.channels), ("_g", (constant(0), constant(self.groups)))]
        channel, group = [lowering.opened(name) for name, _ in loops]
        end = symbol("_n1") + (self.taps - 1 - group) // self.stride * width
        some = maximum(width, 1)
        loops.append(("_q", (symbol("_n0") // some, ceil_div(end, some))))
        loops.append(("_s", (constant(0), self.along)))
        line, tap = [lowering.opened(name) for name, _ in loops[2:]]
        self._segment(frame, target, (channel, group, line, tap), end)
        _close(frame, loops)

    def _segment(
        self, frame: Frame, target: TileBuffer, where: tuple[Expr, Expr, Expr, Expr], end: Expr
    ) -> None:
        """Zeros, pixels, zeros: what a block has of a line for one tap along it."""
        lowering, node = frame.lowering, self.node
        primitive = node.primitive
        assert isinstance(primitive, Convolve)
        (data, weights), (channel, group, line, tap) = node.inputs, where
        first = maximum(0, symbol("_n0") - line * node.shape[-1])
        last = minimum(node.shape[-1], end - line * node.shape[-1])
        base = self._place(channel, group, tap) + line * node.shape[-1] - symbol("_n0")
        outer = unflatten(line, [("", size) for size in node.shape[2:-1]])
        index = unflatten(group, [("", size) for size in weights.shape[2:-1]])
        taps = geometry(primitive)
        lead = (symbol("_b0"), symbol("_b1") * weights.shape[1] + channel)
        zero = Literal(0.0, node.dtype)
        if any(axis.spread != 1 for axis in taps):
            x = lowering.opened("_x")
            positions, inside = tap_position(
                taps, (*outer, x), (*index, tap), primitive.low, data.shape[2:], lowering.scope
            )
            value = lowering.guarded(inside, data, (*lead, *positions), zero)
            _fill(frame, (target, base), "_x", (first, last), value)
            return
        positions, inside = tap_position(
            taps[:-1], outer, index, primitive.low[:-1], data.shape[2:-1], lowering.scope
        )
        stride = primitive.strides[-1]
        shift = tap * primitive.dilations[-1] - primitive.low[-1]
        begin = minimum(maximum(first, ceil_div(-shift, stride)), last)
        after = maximum(begin, minimum(last, ceil_div(data.shape[-1] - shift, stride)))
        begin, after = select(inside, begin, last), select(inside, after, last)
        for name, bounds in (
            ("_xa", (first, begin)),
            ("_xb", (begin, after)),
            ("_xc", (after, last)),
        ):
            x = lowering.opened(name)
            value: Value = zero
            if name == "_xb":
                value = lowering.value(data, (*lead, *positions, x * stride + shift))
            _fill(frame, (target, base), name, bounds, value)


def _columns(frame: Frame, depth: Expr, copies: Expr, beyond: Expr) -> Expr:
    """Pixels of a block: many, since each copies the lines ``beyond`` its own again.

    Half of the cache has its copies, and there are tasks for all threads. Sums that leave the
    registers between blocks of the depth are to stay near.
    """
    pixels = frame.tile.room // (2 * frame.kernel.seed.dtype.bytes)
    most = pixels // maximum(copies, 1) - beyond
    every = frame.n * product([size for _, size in frame.batch])
    most = minimum(most, ceil_div(every, MANY_TASKS * symbol(THREADS)))
    most = select(less(depth, frame.depth), 0, most)
    return balanced(frame.n, maximum(most, PACKED_COLUMNS), frame.tile.columns)


def _close(frame: Frame, loops: Sequence[tuple[str, tuple[Expr, Expr]]]) -> None:
    """Close loops, the innermost one first."""
    for name, bounds in reversed(loops):
        frame.lowering.emit(Loop(name, *bounds, frame.lowering.close()))


def _fill(
    frame: Frame, target: tuple[TileBuffer, Expr], name: str, bounds: tuple[Expr, Expr],
    value: Value,
) -> None:  # fmt: skip
    """Store ``value`` along the loop ``name``, and close it."""
    frame.lowering.emit(Store(target[0], target[1] + symbol(name), value))
    frame.lowering.emit(Loop(name, *bounds, frame.lowering.close()))
