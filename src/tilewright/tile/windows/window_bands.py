"""Windows with weights, channels first: several rows of outputs at a time from a band of rows.

The band holds all rows that the windows of a task reach. Rows of outputs that are made together
share what they read, and their sums stay in registers. Start with :class:`WindowBands`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product as combinations
from math import prod

from tilewright.ir.kernel import Kernel
from tilewright.ir.scalar import MULTIPLY_ADD
from tilewright.ir.tile import (
    Apply,
    Load,
    TileBuffer,
    Value,
)
from tilewright.ir.views import linear
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import SHARING_ROWS, UNROLLED_TAPS, Band, Geometry, Taps


class WindowBands(Band):
    """Depthwise convolution: a band of rows, and several rows of outputs at a time from it."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        geometry = Geometry.of(kernel.seed)
        self.steps = self._steps(geometry)
        if len(self.steps) > 1:
            steps = max(prod(self.steps), 1)
            self.together = max(1, min(SHARING_ROWS, 2 * UNROLLED_TAPS // steps))
        super().__init__(kernel, lowering)
        self.width = self._row_width()
        self.height = geometry.span(-2, self.most_rows).value if self.last else 1
        self.shape = tuple(map(constant, (*geometry.kernel[: max(self.last - 1, 0)],
                                          self.height, self.width)))  # fmt: skip
        self.band = self.fixed(product(self.shape).value)
        self.sums = self.fixed(self.together * self.most_columns)

    def _read_columns(self) -> Expr:
        # Sums in scratch are whole vectors.
        is_whole = self.dense and prod(self.steps) > UNROLLED_TAPS
        return self._whole(self.columns) if is_whole else super()._read_columns()

    def _steps(self, geometry: Geometry) -> tuple[int, ...]:
        """How many multiply-adds a window takes along each axis: its taps."""
        return geometry.kernel

    def _row_width(self) -> int:
        """How far the rows of the band lie apart."""
        return self.pitch

    def write(self) -> None:
        """All statements of the task."""
        outer = [(constant(0), constant(k)) for k in self.geometry.kernel[: max(self.last - 1, 0)]]
        self.nested(outer, (), self._copies)
        self.shared_rows(constant(0), self.rows, self.most_rows, self._windows)

    def _at(self, place: Sequence[Expr]) -> Expr:
        return self.lowering.scope.resolve(linear(place, self.shape))

    def _copies(self, taps: Taps) -> None:
        """The rows of the band of some taps of the outer axes."""
        outputs = self.index[self.geometry.lead :]
        places = [self.position(a, o, t) for (a, o), t in
                  zip(enumerate(outputs), taps, strict=True)]  # fmt: skip
        inside = constant(1)
        for axis, tap in enumerate(taps):
            begin, end = self.inside(axis, outputs[axis])
            inside = logical_and(inside, logical_and(less_equal(begin, tap), less(tap, end)))
        needed, begin, end, origin = constant(1), constant(0), constant(1), constant(0)
        if self.last:
            needed = self.geometry.span(-2, self.rows)
            origin = self.row * self.geometry.strides[-2] - self.geometry.low[-2]
            size = self.geometry.operand.shape[-2]
            begin = minimum(needed, maximum(0, -origin))
            end = select(inside, maximum(begin, minimum(needed, size - origin)), begin)

        def clear(row: Expr) -> None:
            self.clear(self.band, self._at((*taps, row, constant(0))))

        def base(row: Expr) -> Expr:
            return self._at((*taps, row, constant(0)))

        def copy(rows: Sequence[Expr]) -> None:
            where = [[*places, origin + row] if self.last else [] for row in rows]
            self._copy_rows(where, rows, [base(row) for row in rows])

        self.loop(constant(0), begin, self.height, clear)
        self.shared_rows(begin, end, self.height, copy)
        self._copied((begin, end), base)
        self.loop(end, needed, self.height, clear)

    def _copy_rows(
        self, where: Sequence[Sequence[Expr]], rows: Sequence[Expr], bases: Sequence[Expr]
    ) -> None:
        """Some rows of the operand, which begin at ``bases`` of the band."""
        self.clear_ends(self.band, bases)
        self._copy(where, self.band, bases)

    def _copy(
        self, where: Sequence[Sequence[Expr]], buffer: TileBuffer, starts: Sequence[Expr]
    ) -> None:
        """What lies inside of some rows of the operand."""

        def body(columns: Sequence[tuple[Expr, Expr]]) -> None:
            for places, start in zip(where, starts, strict=True):
                for x, place in columns:
                    self.put(buffer, start + place, self.operand(places, x))

        self.inside_columns(body)

    def _copied(self, rows: tuple[Expr, Expr], base: Callable[[Expr], Expr]) -> None:
        """What is left to do when some rows of the band have been copied."""

    def _windows(self, rows: Sequence[Expr]) -> None:
        """A few rows of outputs: in registers where a loop has all taps and rows fill vectors."""
        kernel, zero = self.steps, constant(0)
        loops = next(n for n in range(len(kernel) + 1) if prod(kernel[n:]) <= UNROLLED_TAPS)
        if loops:
            self._in_scratch(rows, loops)
            return

        def finish(x: Expr) -> None:
            for row, total in zip(rows, self._totals(rows, self._taps((), 0), x), strict=True):
                self.result(row, x, total)

        if not self.dense:
            self.loop(zero, self.columns, self.most_columns, finish)
            return
        fits = less_equal(self.unit, self.columns)
        passes = select(fits, ceil_div(self.columns, self.unit), 0)
        self.loop(
            zero, passes, self.most_columns // self.unit,
            partial(self._overlapping, first=zero, inside=(zero, self.columns - self.unit),
                    unit=self.unit, body=finish),
        )  # fmt: skip
        self.loop(fits, constant(1), 1, lambda _: self._in_scratch(rows, 0))

    def _in_scratch(self, rows: Sequence[Expr], loops: int) -> None:
        """Sums of a few rows in scratch, in loops over the taps of some axes, and then results."""
        most = self.most_columns
        places = [r * most for r in range(len(rows))]
        along = self.vectors if self.dense else partial(self.loop, constant(0))

        def clear(x: Expr) -> None:
            for place in places:
                self.put(self.sums, place + x, self.start())

        def add(outer: Taps) -> None:
            def body(x: Expr) -> None:
                old = [Load(self.sums, place + x) for place in places] if loops else None
                totals = self._totals(rows, self._taps(outer, loops), x, old)
                for place, total in zip(places, totals, strict=True):
                    self.put(self.sums, place + x, total)

            along(self.columns, most, body)

        def finish(x: Expr) -> None:
            for row, place in zip(rows, places, strict=True):
                self.result(row, x, Load(self.sums, place + x))

        if loops:
            along(self.columns, most, clear)
        bounds = [(constant(0), constant(k)) for k in self.steps[:loops]]
        self.nested(bounds, (), add)
        self.exactly(constant(0), self.columns, most, finish)

    def _taps(self, outer: Taps, loops: int) -> list[Taps]:
        """All taps, but for those of the first axes, which are given."""
        inner = combinations(*map(range, self.steps[loops:]))
        return [(*outer, *map(constant, taps)) for taps in inner]

    def _totals(
        self, rows: Sequence[Expr], every: Sequence[Taps], x: Expr,
        old: Sequence[Value] | None = None,
    ) -> list[Value]:  # fmt: skip
        """The sums of some taps of one column, on top of what there is.

        Taps along the row come one after another: the weights above each other are in registers
        while every row of the band is read once.
        """
        strides, dilations = self.geometry.strides, self.geometry.dilations
        totals: list[Value | None] = [None] * len(rows) if old is None else list(old)

        def order(pair: tuple[int, Taps]) -> tuple[int, ...]:
            known = [tap.value if tap.is_constant else 0 for tap in pair[1]]
            if not self.last:
                return tuple(known)
            return (*known[:-2], known[-1], pair[0] * strides[-2] + known[-2] * dilations[-2])

        for r, taps in sorted(combinations(range(len(rows)), every), key=order):
            place = self._row_start(rows[r], taps) + self.along(x, taps[-1])
            pair = (Load(self.band, self.lowering.scope.resolve(place)), self._weight(taps))
            totals[r] = self.lowering.let(self._step(pair, totals[r]))
        return [self.start() if total is None else total for total in totals]

    def start(self) -> Value:
        """What a sum of nothing is."""
        return self.neutral()

    def _step(self, pair: tuple[Value, Value], before: Value | None) -> Value:
        """A product on top of what there is."""
        if before is None:
            return Apply("multiply", pair, self.seed.dtype)
        return Apply(MULTIPLY_ADD, (*pair, before), self.seed.dtype)

    def _weight(self, taps: Taps) -> Value:
        weights = self.seed.inputs[1]
        return self.lowering.value(weights, (self.index[1], constant(0), *taps))

    def _row_start(self, row: Expr, taps: Taps) -> Expr:
        """Where the row of the band begins that a tap of an output row reads."""
        place = row
        if self.last:
            place = row * self.geometry.strides[-2] + taps[-2] * self.geometry.dilations[-2]
        outer = taps[: max(self.last - 1, 0)]
        return self._at((*outer, place, constant(0)))
