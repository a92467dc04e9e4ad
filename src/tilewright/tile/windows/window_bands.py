"""Windows with weights, channels first: several rows of outputs at a time from a band of rows.

The band holds all rows that the windows of a task reach. Rows of outputs that are made together
share what they read, and their sums stay in registers. Start with :class:`WindowBands`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product as combinations
from math import prod

from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import (
    MULTIPLY_ADD,
    Apply,
    Load,
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
from tilewright.tile.windows.bands import UNROLLED_TAPS, Band, Geometry, Taps

SHARING_ROWS = 4  # of outputs in one pass: as many sums, and what they share is read once


class WindowBands(Band):
    """Depthwise convolution: a band of rows, and several rows of outputs at a time from it."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        geometry = Geometry.of(kernel.seed)
        if len(geometry.kernel) > 1:
            taps = max(prod(geometry.kernel), 1)
            self.together = max(1, min(SHARING_ROWS, 2 * UNROLLED_TAPS // taps))
        super().__init__(kernel, lowering)
        self.height = geometry.span(-2, self.most_rows).value if self.last else 1
        self.shape = tuple(map(constant, (*geometry.kernel[: max(self.last - 1, 0)],
                                          self.height, self.pitch)))  # fmt: skip
        self.band = self.fixed(product(self.shape).value)
        self.sums = self.fixed(self.most_rows * self.most_columns)

    def write(self) -> None:
        """All statements of the task."""
        if self.phases > 1:
            self.clear_line(self.line, constant(0))
        outer = [(constant(0), constant(k)) for k in self.geometry.kernel[: max(self.last - 1, 0)]]
        self.nested(outer, (), self._copies)
        passes = ceil_div(self.rows, self.together)
        self.loop(constant(0), passes, self.most_rows // self.together, self._windows)
        self.loop(constant(0), self.rows, self.most_rows, self._results)

    def _results(self, row: Expr) -> None:
        def body(x: Expr) -> None:
            self.result(row, x, Load(self.sums, row * self.most_columns + x))

        self.exactly(constant(0), self.columns, self.most_columns, body)

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
            rows = ceil_div(self.rows, self.together) * self.together
            needed = self.geometry.span(-2, rows)
            origin = self.row * self.geometry.strides[-2] - self.geometry.low[-2]
            size = self.geometry.operand.shape[-2]
            begin = minimum(needed, maximum(0, -origin))
            end = select(inside, maximum(begin, minimum(needed, size - origin)), begin)

        def clear(row: Expr) -> None:
            self.clear(self.band, self._at((*taps, row, constant(0))))

        def copy(row: Expr) -> None:
            base = self._at((*taps, row, constant(0)))
            target, start = (self.line, constant(0)) if self.phases > 1 else (self.band, base)
            if self.phases == 1:
                self.clear(self.band, base)
            where = [*places, origin + row] if self.last else []
            self.exactly(self.begin, self.end, self.pitch,
                          lambda x: self.put(target, start + x, self.operand(where, x)),
            )  # fmt: skip
            if self.phases > 1:
                self.separate(self.band, base, self.line, constant(0))

        self.loop(constant(0), begin, self.height, clear)
        self.loop(begin, end, self.height, copy)
        self.loop(end, needed, self.height, clear)

    def _windows(self, number: Expr) -> None:
        """Sums of a few rows of outputs."""
        rows = [number * self.together + r for r in range(self.together)]
        kernel, most = self.geometry.kernel, self.most_columns
        along = self.vectors if self.dense else partial(self.loop, constant(0))
        loops = next(n for n in range(len(kernel) + 1) if prod(kernel[n:]) <= UNROLLED_TAPS)

        def clear(x: Expr) -> None:
            for row in rows:
                self.put(self.sums, row * most + x, self.neutral())

        def add(outer: Taps) -> None:
            inner = combinations(*map(range, kernel[loops:]))
            every = [(*outer, *map(constant, taps)) for taps in inner]
            self._all_columns(rows, every, loops > 0)

        if loops:
            along(self.columns, most, clear)
        bounds = [(constant(0), constant(k)) for k in kernel[:loops]]
        self.nested(bounds, (), add)

    def _all_columns(self, rows: Sequence[Expr], every: Sequence[Taps], more: bool) -> None:
        """Some taps of a few rows, on top of what is in scratch if ``more``.

        Vectors are counted from the start of the band, not of its row, so that all places of a
        loop body differ by numbers known when compiling, which instructions add by themselves.
        """
        if not self.dense:
            self.loop(constant(0), self.columns, self.most_columns,
                       lambda x: self._add(rows, every, (x, self.stride * x), more))  # fmt: skip
            return
        first = self._row_start(rows[0], every[0])
        size, passes = product(self.shape).value, ceil_div(self.columns, self.unit)
        start = self.lowering.scope.resolve(first // self.unit)

        def vector(number: Expr) -> None:
            self.lanes(number * self.unit, self.unit,
                        lambda x: self._add(rows, every, (x - first, x - first), more))  # fmt: skip

        self.loop(start, start + passes, size // self.unit, vector)

    def _add(
        self, rows: Sequence[Expr], every: Sequence[Taps], where: tuple[Expr, Expr], more: bool
    ) -> None:
        """One column: ``where`` it is among the results, and in a row of the band.

        Taps along the row come one after another: the weights above each other are in registers
        while every row of the band is read once.
        """
        x, column = where
        strides, dilations = self.geometry.strides, self.geometry.dilations
        places = [row * self.most_columns + x for row in rows]
        sums: list[Value | None] = [Load(self.sums, p) if more else None for p in places]

        def order(pair: tuple[int, Taps]) -> tuple[int, ...]:
            known = [tap.value if tap.is_constant else 0 for tap in pair[1]]
            if not self.last:
                return tuple(known)
            return (*known[:-2], known[-1], pair[0] * strides[-2] + known[-2] * dilations[-2])

        for r, taps in sorted(combinations(range(len(rows)), every), key=order):
            place = self._row_start(rows[r], taps) + column + self.along(constant(0), taps[-1])
            read = Load(self.band, self.lowering.scope.resolve(place))
            weight = self._weight(taps)
            old = sums[r]
            pair = (read, weight)
            made = Apply("multiply", pair, self.seed.dtype)
            if old is not None:
                made = Apply(MULTIPLY_ADD, (*pair, old), self.seed.dtype)
            sums[r] = self.lowering.let(made)
        for place, total in zip(places, sums, strict=True):
            self.put(self.sums, place, self.neutral() if total is None else total)

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
