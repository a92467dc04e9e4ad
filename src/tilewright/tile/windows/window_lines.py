"""Windows without weights, channels first: combined along the outer axes first, then along the row.

For every row of outputs, a line of columns is combined straight from the operand, in one pass where
all taps of the outer axes are inside, tap by tap at the borders. The lines of a task come first,
then the windows of them all. Windows that lie side by side, all
of them inside, share nothing: each is read straight from the operand. Start with
:class:`WindowLines`.
"""

from __future__ import annotations

from functools import partial
from itertools import product as combinations
from math import prod

from tilewright.ir.tile import (
    Load,
    Value,
)
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    equal,
    logical_and,
    maximum,
    minimum,
)
from tilewright.tile.windows.bands import UNROLLED_TAPS, Band, Taps

TOGETHER = 1024  # elements of outputs, about, that are made in one step: they stay in L1


class WindowLines(Band):
    """Pooling: a line of columns combined along the outer axes, and the windows of that."""

    def write(self) -> None:
        """All statements of the task."""
        if self._is_tiled():
            self.loop(constant(0), self.rows, self.most_rows, self._tiled_row)
            return
        self.lines = self.parts = self.fixed(self.most_rows * self.pitch)
        if self.phases > 1:
            self.parts = self.fixed(self.most_rows * self.pitch)
        self.sums = self.fixed(self.most_columns)
        together = maximum(TOGETHER // maximum(self.columns, 1), 1)
        together = self.lowering.scope.resolve(minimum(together, self.most_rows))
        groups = ceil_div(self.rows, together)
        self.loop(constant(0), groups, self.most_rows, lambda group: self._group(group, together))

    def _group(self, group: Expr, together: Expr) -> None:
        """A few rows, step by step: what is loaded across two stores waits for both of them."""
        first = group * together
        rows = minimum(together, self.rows - first)
        for step in (self._columns, *[self._separate] * (self.phases > 1), self._windows):
            self.loop(constant(0), rows, self.most_rows, partial(step, first=first))

    def _is_tiled(self) -> bool:
        """Whether windows share no columns, leave none out, and end inside along all axes."""
        geometry, scope = self.geometry, self.lowering.scope
        side_by_side = geometry.kernel[-1] == self.stride and geometry.dilations[-1] == 1
        if not (side_by_side and self.dense and prod(geometry.kernel) <= UNROLLED_TAPS):
            return False
        sizes = zip(
            self.seed.shape[geometry.lead :], geometry.operand.shape[geometry.lead :], strict=True
        )
        return all(low is constant(0) for low in geometry.low) and all(
            scope.is_less_equal(geometry.span(axis, outputs), size) is Truth.YES
            for axis, (outputs, size) in enumerate(sizes)
        )

    def _tiled_row(self, row: Expr) -> None:
        outputs = self.outputs(row)

        def body(x: Expr) -> None:
            value: Value | None = None
            for *outer, tap in combinations(*map(range, self.geometry.kernel)):
                places = [self.position(a, o, constant(t)) for a, (o, t) in
                          enumerate(zip(outputs, outer, strict=True))]  # fmt: skip
                value = self.step(value, self.operand(places, x * self.stride + tap))
            assert value is not None
            self.result(row, x, value)

        self.exactly(constant(0), self.columns, self.most_columns, body)

    def _windows(self, number: Expr, first: Expr) -> None:
        """The windows of a line, as the row of outputs."""
        row, start = first + number, number * self.pitch
        taps = self.geometry.kernel[-1]
        if taps <= UNROLLED_TAPS:
            self.exactly(constant(0), self.columns, self.most_columns,
                          lambda x: self.result(row, x, self._window(start, x)))  # fmt: skip
            return
        most = self.most_columns
        along = self.vectors if self.dense else partial(self.loop, constant(0))
        along(self.columns, most, lambda x: self.put(self.sums, x, self.neutral()))

        def add(tap: Expr) -> None:
            def body(x: Expr) -> None:
                place = start + self.along(x, tap)
                read = Load(self.parts, self.lowering.scope.resolve(place))
                self.put(self.sums, x, self.step(Load(self.sums, x), read))

            along(self.columns, most, body)

        self.loop(constant(0), constant(taps), taps, add)
        self.exactly(constant(0), self.columns, most,
                      lambda x: self.result(row, x, Load(self.sums, x)))  # fmt: skip

    def _separate(self, number: Expr, first: Expr) -> None:
        """A line in phases; all groups have theirs at the same place."""
        del first
        start = number * self.pitch
        self.separate(self.parts, start, self.lines, start)

    def _window(self, start: Expr, x: Expr) -> Value:
        value: Value | None = None
        for tap in range(self.geometry.kernel[-1]):
            place = start + self.along(x, constant(tap))
            value = self.step(value, Load(self.parts, self.lowering.scope.resolve(place)))
        assert value is not None
        return value

    def _columns(self, number: Expr, first: Expr) -> None:
        """The line: columns of the operand, combined along the outer axes."""
        row, start = first + number, number * self.pitch
        self.clear_line(self.lines, start)
        outputs, kernel = self.outputs(row), self.geometry.kernel[:-1]
        bounds = [self.inside(axis, output) for axis, output in enumerate(outputs)]
        whole = constant(int(prod(kernel) <= UNROLLED_TAPS))
        for (begin, end), taps in zip(bounds, kernel, strict=True):
            whole = logical_and(whole, equal(end - begin, taps))

        def read(taps: Taps, x: Expr) -> Value:
            places = [self.position(a, o, t) for (a, o), t in
                      zip(enumerate(outputs), taps, strict=True)]  # fmt: skip
            return self.operand(places, x)

        def every(_: Expr) -> None:
            def body(x: Expr) -> None:
                value: Value | None = None
                for taps in combinations(*map(range, kernel)):
                    value = self.step(value, read(tuple(map(constant, taps)), x))
                assert value is not None
                self.put(self.lines, start + x, value)

            self.exactly(self.begin, self.end, self.pitch, body)

        def some(_: Expr) -> None:
            def clear(x: Expr) -> None:
                self.put(self.lines, start + x, self.neutral())

            def add(taps: Taps) -> None:
                def body(x: Expr) -> None:
                    old = Load(self.lines, self.lowering.scope.resolve(start + x))
                    self.put(self.lines, start + x, self.step(old, read(taps, x)))

                self.loop(self.begin, self.end, self.pitch, body)

            self.loop(self.begin, self.end, self.pitch, clear)
            self.nested(bounds, (), add)

        if prod(kernel) <= UNROLLED_TAPS:
            self.loop(constant(0), whole, 1, every)
        if kernel:
            self.loop(whole, constant(1), 1, some)
