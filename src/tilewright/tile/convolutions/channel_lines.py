"""Right operands of convolutions with the channels first: columns are pixels, as results lie.

The lines of a channel that a block of pixels reads are copied once for each tap along a line, moved
by that tap, picked by the stride and with zeros where it lies outside. So the pixels of a line of
results lie side by side, and lines follow each other without a gap: what a tap of another line
reads begins a whole number of lines later, and a table says where. Taps share lines where those of
neighbouring results do; in more than two dimensions, or with a dilation, each tap has lines of its
own. Start with :class:`PackedLines`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.listed_view import ListedView
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import IndexValue, Literal, Loop, Store, TileBuffer, Value
from tilewright.ir.views import linear, unflatten
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
from tilewright.target.core_model import spread_elements
from tilewright.tile.products.block_sizes import MANY_TASKS, PACKED_COLUMNS, balanced, column_block
from tilewright.tile.products.contraction import packed_block, taken_statements
from tilewright.tile.products.frame import Frame
from tilewright.tile.products.program import Loaded
from tilewright.tile.values.taps import geometry, has_one_tap, is_inside, tap_position
from tilewright.tile.variants import THREADS

# Taps that share what is read of a line, in one loop: half of the general registers hold where they
# are stored. With twelve of 11x11 taps, convolutions take 1.05 to 1.09 times as long (Zen 4).
TOGETHER = 8


def groups_of_lines(node: Node) -> tuple[int, int, int]:
    """Taps across the lines of a Convolve, groups of lines, and how many taps lie between two.

    Tap t reads group ``t % apart``, ``t // apart`` lines later.
    """
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    outer = [size.value for size in node.inputs[1].shape[2:-1]]
    taps = prod(outer)
    if len(outer) == 1 and primitive.dilations[0] == primitive.spread[0] == 1:
        return taps, min(primitive.strides[0], taps), primitive.strides[0]
    return taps, taps, taps


def plane_elements(node: Node, held: Expr) -> Expr:
    """The elements of a plane that has so many: planes begin in different sets of a cache."""
    line = spread_elements(node.dtype.bytes)
    return ceil_div(held, 2 * line) * (2 * line) + line


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
        taps, groups, stride = groups_of_lines(node)
        beyond = constant(max(taps - 1, 0) // max(stride, 1)) * node.shape[-1]
        columns = column_block(frame, packing=True)
        if beyond is not constant(0) and frame.blocking.columns is None:
            copies = ceil_div(depth, max(taps, 1)) * groups
            columns = _columns(frame, depth, copies, beyond)
        plane = plane_elements(node, columns + beyond)
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
        if self.taps == self.along.value == 1:  # channels are equally far apart
            self._copied(frame, target)
            return packed_block(target, self.plane, taken_statements(lowering))
        table = lowering.scratch_buffer(DType.INT64, self.depth)
        self._listed(frame, table)
        self._copied(frame, target)
        view = ListedView(target, constant(0), constant(1), constant(0), shifts=table)
        return Loaded(view, taken_statements(lowering))

    def place(self, channel: Expr, group: Expr, tap: Expr) -> Expr:
        """Where a plane of the block begins."""
        number = (channel - self.channels[0]) * self.groups + group
        return (number * self.along + tap) * self.plane

    def _listed(self, frame: Frame, table: TileBuffer) -> None:
        """Fill the table: how far the pixels of each step along k lie behind the first plane."""
        lowering, weights = frame.lowering, self.node.inputs[1]
        loops = [("_ch", self.channels), ("_t", (constant(0), constant(self.taps)))]
        loops.append(("_s", (constant(0), self.along)))
        channel, tap, beside = [lowering.opened(name) for name, _ in loops]
        place = self.place(channel, tap % self.stride, beside)
        place = place + tap // self.stride * self.node.shape[-1]
        k = linear((channel, tap, beside), (weights.shape[1], constant(self.taps), self.along))
        entry = IndexValue(place * self.node.dtype.bytes)
        lowering.emit(Store(table, k - symbol("_k0"), entry))
        _close(frame, loops)

    def _copied(self, frame: Frame, target: TileBuffer) -> None:
        """Fill the planes, where lines are met again channel by channel."""
        lowering, width = frame.lowering, self.node.shape[-1]
        some, beyond = maximum(width, 1), (self.taps - 1) // self.stride
        last = end = symbol("_n1")
        loops, group = [("_ch", self.channels)], constant(0)
        if self.groups > 1:
            group = symbol("_g")
        if beyond:
            last = end + beyond * width
            end = end + (self.taps - 1 - group) // self.stride * width
        lines = ("_q", (symbol("_n0") // some, ceil_div(last, some)))
        loops = [*loops, lines] if beyond else [lines, *loops]
        # Groups take turns, so that the lines of a channel are read as they lie.
        loops += [("_g", (constant(0), constant(self.groups)))] if self.groups > 1 else []
        for name, _ in loops:
            lowering.opened(name)
        where = symbol("_ch"), group, symbol("_q")
        _Line(frame, self, target, where, end).copy()
        _close(frame, loops)


class _Line:
    """One line of data, and the part of each plane that it is copied to.

    Along it, tap t of the x-th result reads element ``x * stride + t * dilation - low``: one of the
    j-th ``stride`` elements, where j is ``x + _moved(t)``.
    """

    def __init__(
        self, frame: Frame, lines: PackedLines, target: TileBuffer,
        where: tuple[Expr, Expr, Expr], end: Expr,
    ) -> None:  # fmt: skip
        """``where`` are the channel, the group and the line; ``end`` is the last pixel's next."""
        self.lowering, self.lines, self.target = frame.lowering, lines, target
        self.channel, self.group, self.line = where
        self.node, width = lines.node, lines.node.shape[-1]
        primitive = self.node.primitive
        assert isinstance(primitive, Convolve)
        self.primitive, (self.data, self.weights) = primitive, self.node.inputs
        before = self.line * width
        self.first = maximum(0, symbol("_n0") - before)
        self.last = minimum(width, end - before)
        self.outer = unflatten(self.line, [("", size) for size in self.node.shape[2:-1]])
        self.taps = unflatten(self.group, [("", size) for size in self.weights.shape[2:-1]])
        self.lead = (symbol("_b0"), symbol("_b1") * self.weights.shape[1] + self.channel)
        self.zero = Literal(0.0, self.node.dtype)

    def copy(self) -> None:
        """All statements for the line."""
        if any(spread != 1 for spread in self.primitive.spread):
            self._each_tap(self._spread)
            return
        self.positions, self.inside = tap_position(
            geometry(self.primitive)[:-1], self.outer, self.taps, self.primitive.low[:-1],
            self.data.shape[2:-1], self.lowering.scope,
        )  # fmt: skip
        count = self.lines.along.value
        if count == 1:
            self._alone(constant(0))
            return
        for tap in range(0, count, TOGETHER):
            several = tap, min(count, tap + TOGETHER) - 1
            self._together(*several)
            self._each_tap(lambda one, ends=several: self._apart(one, ends), *several)

    def _each_tap(
        self, body: Callable[[Expr], None], first: int = 0, last: int | None = None
    ) -> None:
        """``body`` for the taps from one to another along a line."""
        end = self.lines.along if last is None else constant(last + 1)
        body(self.lowering.opened("_s"))
        self.lowering.emit(Loop("_s", constant(first), end, self.lowering.close()))

    def _base(self, tap: Expr) -> Expr:
        """The place of the line's first result in the plane of a tap."""
        place = self.lines.place(self.channel, self.group, tap)
        return place + self.line * self.node.shape[-1] - symbol("_n0")

    def _spread(self, tap: Expr) -> None:
        """A tap of data that has zeros between its elements."""
        x = self.lowering.opened("_x")
        positions, inside = tap_position(
            geometry(self.primitive), (*self.outer, x), (*self.taps, tap), self.primitive.low,
            self.data.shape[2:], self.lowering.scope,
        )  # fmt: skip
        value = self.lowering.guarded(inside, self.data, (*self.lead, *positions), self.zero)
        self._fill("_x", self._base(tap), (self.first, self.last), value)

    def _shift(self, tap: Expr | int) -> Expr:
        return constant(0) + tap * self.primitive.dilations[-1] - self.primitive.low[-1]

    def _moved(self, tap: Expr | int) -> Expr:
        return self._shift(tap) // self.primitive.strides[-1]

    def _value(self, number: Expr, tap: Expr | int) -> Value:
        """What a tap reads among so many times as many elements as the stride."""
        stride = self.primitive.strides[-1]
        place = number * stride + self._shift(tap) - self._moved(tap) * stride
        return self.lowering.value(self.data, (*self.lead, *self.positions, place))

    def _shared(self, first: int, last: int) -> tuple[Expr, Expr]:
        """The elements that all of some taps read, in numbers of as many as the stride."""
        begin = maximum(0, self.first + self._moved(last))
        whole = self.data.shape[-1] // self.primitive.strides[-1]
        end = maximum(begin, minimum(whole, self.last + self._moved(first)))
        return begin, select(self.inside, end, begin)

    def _together(self, first: int, last: int) -> None:
        """What all of some taps read, which is read once."""
        number, stores = self.lowering.opened("_x"), list[Store]()
        for tap in range(first, last + 1):
            place = self._base(constant(tap)) + number - self._moved(tap)
            stores.append(Store(self.target, place, self._value(number, tap)))
        for store in stores:
            self.lowering.emit(store)
        body = self.lowering.close()
        self.lowering.emit(Loop("_x", *self._shared(first, last), body, independent=True))

    def _read(self, tap: Expr) -> tuple[Expr, Expr]:
        """The results of the line that a tap reads an element for; the others get zeros."""
        shift, stride = self._shift(tap), self.primitive.strides[-1]
        begin = minimum(maximum(self.first, ceil_div(-shift, stride)), self.last)
        end = maximum(begin, minimum(self.last, ceil_div(self.data.shape[-1] - shift, stride)))
        return select(self.inside, begin, self.last), select(self.inside, end, self.last)

    def _alone(self, tap: Expr) -> None:
        """The only tap: zeros, elements, zeros, or elements alone where none lies outside.

        Short lines would spend most of their time on loops that never run.
        """
        base = self._base(tap)
        if has_one_tap(self.node) and is_inside(self.node, self.lowering.scope):
            x = self.lowering.opened("_xb")
            value = self._value(x + self._moved(tap), tap)
            self._fill("_xb", base, (self.first, self.last), value)
            return
        begin, end = self._read(tap)
        self._zeros("_xa", base, (self.first, begin))
        x = self.lowering.opened("_xb")
        self._fill("_xb", base, (begin, end), self._value(x + self._moved(tap), tap))
        self._zeros("_xc", base, (end, self.last))

    def _zeros(self, name: str, base: Expr, bounds: tuple[Expr, Expr]) -> None:
        self.lowering.opened(name)
        self._fill(name, base, bounds, self.zero)

    def _apart(self, tap: Expr, several: tuple[int, int]) -> None:
        """What one of ``several`` taps has beside what all of them read: zeros and elements."""
        begin, end = self._read(tap)
        shared = [bound - self._moved(tap) for bound in self._shared(*several)]
        base = self._base(tap)
        self._zeros("_xa", base, (self.first, begin))
        for name, bounds in (
            ("_xb", (begin, minimum(end, shared[0]))),
            ("_xc", (maximum(begin, shared[1]), end)),
        ):
            x = self.lowering.opened(name)
            self._fill(name, base, bounds, self._value(x + self._moved(tap), tap))
        self._zeros("_xd", base, (end, self.last))

    def _fill(self, name: str, base: Expr, bounds: tuple[Expr, Expr], value: Value) -> None:
        """Store ``value`` along the loop ``name``, and close it."""
        self.lowering.emit(Store(self.target, base + symbol(name), value))
        self.lowering.emit(Loop(name, *bounds, self.lowering.close()))


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
