"""What windows with the channels first share: vectors run along the last axis.

A task is a block of neighbouring rows and columns of outputs. Rows of the operand are put into
scratch with neutral elements wherever a window lies outside, so that no loop after that has a test,
and elements that neighbouring outputs read one stride apart are put beside each other. All loops
take whole vectors: rows in scratch are that long, and in tensors the last vector overlaps the one
before. ``window_lines`` and ``window_bands`` build on it.
Start with :class:`Band`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as combinations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve, Window
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Loop, Store, TileBuffer, Value, neutral_element
from tilewright.ir.views import Index, linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    select,
)
from tilewright.target.core_model import WIDE_VECTOR_BYTES
from tilewright.tile.nests import grid_axis, target_buffers
from tilewright.tile.values.lowering import Lowering

SHORTER = 4  # rows that are shorter than a vector are made in vectors of so much less
BAND_ROWS, BAND_COLUMNS = 16, 512  # of the operand, about: the band stays in the nearest caches
LEAST_ROWS = 4  # of outputs in a band: few rows of the operand are copied twice
WIDEST_STRIDE = 4  # further apart, neighbouring outputs do not lie in few vectors
UNROLLED_TAPS = 64  # in one loop body; windows with more go tap by tap, with sums in scratch
SHARING_ROWS = 4  # of outputs in one pass: what they share is read once, and loops are fewer

Taps = tuple[Expr, ...]


@dataclass(frozen=True)
class Geometry:
    """What pooling and depthwise convolution share, per spatial axis; ``lead`` is the first one."""

    kind: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    operand: Node
    lead: int

    @staticmethod
    def of(node: Node) -> Geometry:
        """That of a windowed node with the channels first; axes behind are spanned by one tap."""
        match node.primitive:
            case Window() as w:
                rest = (1,) * w.trailing
                return Geometry(
                    w.kind, w.kernel + rest, w.strides + rest, w.dilations + rest,
                    (*w.low, *map(constant, (0,) * w.trailing)), node.inputs[0],
                    w.windowed(node.rank).start,
                )  # fmt: skip
            case Convolve() as c:
                kernel = tuple(size.value for size in node.inputs[1].shape[2:])
                return Geometry("sum", kernel, c.strides, c.dilations, c.low, node.inputs[0], 2)
            case _:
                raise AssertionError(node)

    def reach(self, axis: int) -> int:
        """How far the last tap of a window lies after the first."""
        return (self.kernel[axis] - 1) * self.dilations[axis]

    def span(self, axis: int, outputs: Expr | int) -> Expr:
        """How many elements neighbouring outputs reach."""
        return (constant(0) + outputs - 1) * self.strides[axis] + (self.reach(axis) + 1)

    def inside(self, axis: int, output: Expr) -> tuple[Expr, Expr]:
        """The taps [begin, end) along an axis that lie inside."""
        size = self.operand.shape[self.lead + axis]
        before = self.low[axis] - output * self.strides[axis]
        dilation, taps = self.dilations[axis], self.kernel[axis]
        begin = minimum(taps, maximum(0, ceil_div(before, dilation)))
        end = minimum(taps, ceil_div(before + size, dilation))
        return begin, maximum(begin, end)

    def whole(self, axis: int) -> tuple[Expr, Expr]:
        """The outputs [begin, end) along an axis, begin perhaps above end, with all taps inside."""
        size, stride = self.operand.shape[self.lead + axis], self.strides[axis]
        end = ceil_div(size + self.low[axis] - self.reach(axis), stride)
        return ceil_div(self.low[axis], stride), end

    def position(self, axis: int, output: Expr, tap: Expr) -> Expr:
        """Where in the operand a tap of an output lies."""
        return output * self.strides[axis] - self.low[axis] + tap * self.dilations[axis]


class Band:
    """One task: what windows with and without weights share.

    Spatial axes are the outer ones, of which a task has one output, then that of the rows, if
    there are two, then that of the columns. A row in scratch has ``phases`` parts at the distance
    ``part``: elements whose places in the operand leave the same rest.
    """

    together = SHARING_ROWS  # rows of outputs in one pass

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.seed = seed = kernel.seed
        self.summed = self._summed()
        self.geometry = geometry = Geometry.of(seed)
        self.targets = target_buffers(kernel)
        self.unit = WIDE_VECTOR_BYTES // seed.dtype.bytes
        self.last = len(geometry.kernel) - 1
        self.stride = geometry.strides[-1]
        self.dense = self.stride <= WIDEST_STRIDE
        self.phases = self._parts()
        self.grid: list[tuple[str, Expr]] = []
        self.index: list[Expr] = []
        for size in seed.shape[: geometry.lead + max(self.last - 1, 0)]:
            self.index.append(grid_axis(self.lowering, self.grid, size))
        self.most_rows, self.most_columns = self._most_rows(), self._most_columns()
        self.row, self.rows = constant(0), constant(1)
        if self.last:
            self.row, self.rows = self._block(-2, self.most_rows)
        self.column, self.columns = self._block(-1, self.most_columns)
        lowering.open()
        self.reached = self._reach(self._read_columns())
        # One vector more than needed: rows at a distance of a power of two share few cache sets.
        reached = self._reach(constant(self.most_columns)).value
        self.part = self._whole(constant(-(-reached // self.phases))).value + self.unit
        self.pitch = self.part * self.phases
        origin = self.column * self.stride - geometry.low[-1]
        size = geometry.operand.shape[-1]
        self.origin, self.begin = origin, minimum(self.reached, maximum(0, -origin))
        self.end = maximum(self.begin, minimum(self.reached, size - origin))
        self.finished: dict[Index, Value] = {}
        lowering.cached[seed] = self.finished.get

    def _summed(self) -> DType:
        """The type of sums, and of what they are made of."""
        return self.seed.dtype

    def _read_columns(self) -> Expr:
        """Columns of outputs whose windows are read: whole vectors if there are not as many."""
        return maximum(self.columns, self.unit) if self.dense else self.columns

    def _parts(self) -> int:
        """The parts that a row in scratch has."""
        return self.stride if self.dense else 1

    def _reach(self, columns: Expr) -> Expr:
        """How many elements of a line are read for neighbouring outputs."""
        return self.geometry.span(-1, columns)

    def _most_rows(self) -> int:
        """Rows of outputs in a task at most; whole passes."""
        if not self.last:
            return 1
        rows = max(BAND_ROWS // self.geometry.strides[-2], LEAST_ROWS)
        return -(-rows // self.together) * self.together

    def _most_columns(self) -> int:
        """Columns of outputs in a task at most; whole vectors."""
        columns = BAND_COLUMNS // self.stride
        return -(-max(columns, 1) // self.unit) * self.unit

    def _block(self, axis: int, most: int) -> tuple[Expr, Expr]:
        """The first output of the task along an axis, and how many there are."""
        size = self.seed.shape[axis]
        first = grid_axis(self.lowering, self.grid, ceil_div(size, most)) * most
        return first, minimum(most, size - first)

    def fixed(self, elements: int, dtype: DType | None = None) -> TileBuffer:
        """Scratch of one layout for all sizes, of sums unless their type is given."""
        kind = dtype or self.summed
        return self.lowering.scratch_buffer(kind, constant(elements), fixed=True)

    def _whole(self, size: Expr) -> Expr:
        return ceil_div(size, self.unit) * self.unit

    # ------------------------------------------------------------ loops

    def loop(self, begin: Expr, end: Expr, extent: int, body: Callable[[Expr], None]) -> None:
        """``body`` for a variable in [begin, end), which lies within [0, extent)."""
        self.lowering.open()
        variable = self.lowering.variable(constant(extent))
        body(variable)
        self.lowering.emit(Loop(str(variable), begin, end, self.lowering.close()))

    def lanes(self, start: Expr, unit: int, body: Callable[[Expr], None]) -> None:
        """``body`` for one vector of places after ``start``."""
        self.lowering.open()
        lane = self.lowering.variable(constant(unit))
        body(start + lane)
        inside = self.lowering.close()
        loop = Loop(str(lane), constant(0), constant(unit), inside, independent=True)
        self.lowering.emit(loop)

    def vectors(self, length: Expr, most: int, body: Callable[[Expr], None]) -> None:
        """``body`` for places in [0, length) and as many more as make whole vectors."""
        self.loop(
            constant(0), ceil_div(length, self.unit), -(-most // self.unit),
            lambda number: self.lanes(number * self.unit, self.unit, body),
        )  # fmt: skip

    def exactly(self, begin: Expr, end: Expr, most: int, body: Callable[[Expr], None]) -> None:
        """``body`` for places in [begin, end) alone, for some of them twice.

        Vectors but the first and the last one begin at whole vectors from place 0.
        """
        length, limit = end - begin, constant(1)
        earlier = 0 if begin is constant(0) else 1  # vectors more where the first begins before
        for unit in (self.unit, self.unit // SHORTER):
            first = begin // unit * unit
            fits = logical_and(limit, less_equal(unit, length))
            passes = select(fits, ceil_div(end - first, unit), 0)
            self.loop(
                constant(0), passes, -(-most // unit) + earlier,
                partial(self._overlapping, first=first, inside=(begin, end - unit), unit=unit,
                        body=body),
            )  # fmt: skip
            limit = less(length, unit)
        self.loop(begin, select(limit, end, begin), most, body)

    def shared_rows(
        self, begin: Expr, end: Expr, most: int, body: Callable[[Sequence[Expr]], None]
    ) -> None:
        """``body`` for rows in [begin, end), a few at a time, for some of them twice."""
        length, few = end - begin, self.together
        passes = select(less_equal(few, length), ceil_div(length, few), 0)

        def several(number: Expr) -> None:
            first = minimum(begin + number * few, end - few)
            body([first + i for i in range(few)])

        self.loop(constant(0), passes, ceil_div(constant(most), few).value, several)
        left = select(less(length, few), end, begin)
        self.loop(begin, left, most, lambda row: body([row]))

    def _overlapping(
        self, number: Expr, first: Expr, inside: tuple[Expr, Expr], unit: int,
        body: Callable[[Expr], None],
    ) -> None:  # fmt: skip
        start = minimum(first + number * unit, inside[1])
        # From 0 on no vector begins before the first place.
        start = start if inside[0] is constant(0) else maximum(inside[0], start)
        self.lanes(start, unit, body)

    def nested(
        self, bounds: Sequence[tuple[Expr, Expr]], outer: Taps, body: Callable[[Taps], None]
    ) -> None:
        """``body`` in loops over the taps of the first axes, within their bounds."""
        if len(outer) == len(bounds):
            body(outer)
            return
        begin, end = bounds[len(outer)]
        self.loop(begin, end, self.geometry.kernel[len(outer)],
                   lambda tap: self.nested(bounds, (*outer, tap), body))  # fmt: skip

    # ------------------------------------------------------------ rows in scratch

    def put(self, buffer: TileBuffer, place: Expr, value: Value) -> None:
        self.lowering.emit(Store(buffer, self.lowering.scope.resolve(place), value))

    def neutral(self) -> Value:
        return neutral_element(self.geometry.kind, self.seed.dtype)

    def clear(self, buffer: TileBuffer, base: Expr) -> None:
        """Neutral elements in every place of a row that windows read."""

        def body(x: Expr) -> None:
            for phase in range(self.phases):
                self.put(buffer, base + phase * self.part + x, self.neutral())

        self.vectors(ceil_div(self.reached, self.phases), self.part, body)

    def clear_ends(self, buffer: TileBuffer, starts: Sequence[Expr]) -> None:
        """Neutral elements at both ends of some rows.

        They may reach up to a vector into the columns inside, which are to be written afterwards.
        """
        length = self._whole(ceil_div(self.reached, self.phases))
        for begin, end in (
            (constant(0), ceil_div(self.begin, self.phases)), (self.end // self.phases, length)
        ):  # fmt: skip
            rows = [start + begin for start in starts]
            self.loop(
                constant(0), ceil_div(end - begin, self.unit), self.part // self.unit,
                partial(self._cleared, buffer=buffer, starts=rows),
            )  # fmt: skip

    def _cleared(self, number: Expr, buffer: TileBuffer, starts: Sequence[Expr]) -> None:
        def body(x: Expr) -> None:
            for start, phase in combinations(starts, range(self.phases)):
                self.put(buffer, start + phase * self.part + x, self.neutral())

        self.lanes(number * self.unit, self.unit, body)

    def inside_columns(self, body: Callable[[Sequence[tuple[Expr, Expr]]], None]) -> None:
        """``body`` for all columns of a line that lie inside, for some of them twice.

        It is given columns, as many as there are phases in one step, each with its place in a row:
        vectors of all phases are whole vectors of the operand, which it picks its own out of.
        """
        phases = self.phases
        begin, end = ceil_div(self.begin, phases), self.end // phases

        def step(x: Expr) -> None:
            body([(x * phases + phase, phase * self.part + x) for phase in range(phases)])

        self.exactly(begin, end, self.part, step)
        if phases > 1:  # what is left at both ends has not all phases
            last = maximum(begin, end)
            self._some_phases(begin - 1, (self.begin - (begin - 1) * phases, phases), body)
            self._some_phases(last, (constant(0), self.end - last * phases), body)

    def _some_phases(
        self, x: Expr, bounds: tuple[Expr, Expr | int],
        body: Callable[[Sequence[tuple[Expr, Expr]]], None],
    ) -> None:  # fmt: skip
        """``body`` for the columns of some phases at place ``x`` of a row."""
        begin, end = bounds
        end = minimum(end, self.end - x * self.phases)
        self.loop(
            begin, end, self.phases,
            lambda phase: body([(x * self.phases + phase, phase * self.part + x)]),
        )  # fmt: skip

    def along(self, x: Expr, tap: Expr) -> Expr:
        """Where a tap of output ``x`` lies in a row."""
        place = tap * self.geometry.dilations[-1]
        if self.phases == 1:
            return x * self.stride + place
        return (place % self.phases) * self.part + place // self.phases + x

    def operand(self, places: Sequence[Expr], x: Expr) -> Value:
        """The operand's element in column ``x`` of the line."""
        lead = list(self.index[: self.geometry.lead])
        if isinstance(self.seed.primitive, Convolve):
            per_group = self.seed.inputs[1].shape[0] // self.seed.primitive.groups
            lead[1] = self.lowering.scope.resolve(lead[1] // per_group)
        return self.lowering.value(self.geometry.operand, (*lead, *places, self.origin + x))

    def outputs(self, row: Expr) -> list[Expr]:
        """The index of an output row, without the channels."""
        outer = self.index[self.geometry.lead :]
        return [*outer, self.row + row] if self.last else [*outer]

    def inside(self, axis: int, output: Expr) -> tuple[Expr, Expr]:
        """The taps [begin, end) along an axis that lie inside."""
        return self.geometry.inside(axis, output)

    def position(self, axis: int, output: Expr, tap: Expr) -> Expr:
        return self.geometry.position(axis, output, tap)

    def result(self, row: Expr, x: Expr, value: Value) -> None:
        """Store what the kernel makes of a finished window."""
        lead = self.index[: self.geometry.lead]
        place = (*lead, *self.outputs(row), self.column + x)
        full = tuple(self.lowering.scope.resolve(i) for i in place)
        self.note(full, value)
        for output in self.kernel.outputs:
            made = self.lowering.value(output, full)
            self.lowering.store(self.targets[output], linear(full, self.seed.shape), made)

    def note(self, place: Index, value: Value) -> None:
        """Note the sum of a finished window."""
        self.finished[place] = value

    def step(self, old: Value | None, value: Value) -> Value:
        if old is None:
            return value
        return Apply(COMBINE[self.geometry.kind], (value, old), self.seed.dtype)
