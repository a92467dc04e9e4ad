"""Windows without weights, channels first: combined along the outer axes first, then along the row.

For every row of outputs, a line of columns is combined straight from the operand, in one pass where
all taps of the outer axes are inside, tap by tap at the borders. Windows that lie side by side, all
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
    constant,
    equal,
    logical_and,
)
from tilewright.tile.bands import UNROLLED_TAPS, Band, Taps


class WindowLines(Band):
    """Pooling: a line of columns combined along the outer axes, and the windows of that."""

    def write(self) -> None:
        """All statements of the task."""
        if self._is_tiled():
            self.loop(constant(0), self.rows, self.most_rows, self._tiled_row)
            return
        self.parts = self.line
        if self.phases > 1:
            self.parts = self.fixed(self.pitch)
        self.sums = self.fixed(self.most_columns)
        self.clear_line()
        self.loop(constant(0), self.rows, self.most_rows, self._row)

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

    def _row(self, row: Expr) -> None:
        self._columns(row)
        if self.phases > 1:
            self.separate(self.parts, constant(0))
        taps = self.geometry.kernel[-1]
        if taps <= UNROLLED_TAPS:
            self.exactly(constant(0), self.columns, self.most_columns,
                          lambda x: self.result(row, x, self._window(x)))  # fmt: skip
            return
        most = self.most_columns
        along = self.vectors if self.dense else partial(self.loop, constant(0))
        along(self.columns, most, lambda x: self.put(self.sums, x, self.neutral()))

        def add(tap: Expr) -> None:
            def body(x: Expr) -> None:
                read = Load(self.parts, self.lowering.scope.resolve(self.along(x, tap)))
                self.put(self.sums, x, self.step(Load(self.sums, x), read))

            along(self.columns, most, body)

        self.loop(constant(0), constant(taps), taps, add)
        self.exactly(constant(0), self.columns, most,
                      lambda x: self.result(row, x, Load(self.sums, x)))  # fmt: skip

    def _window(self, x: Expr) -> Value:
        value: Value | None = None
        for tap in range(self.geometry.kernel[-1]):
            place = self.lowering.scope.resolve(self.along(x, constant(tap)))
            value = self.step(value, Load(self.parts, place))
        assert value is not None
        return value

    def _columns(self, row: Expr) -> None:
        """The line: columns of the operand, combined along the outer axes."""
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
                self.put(self.line, x, value)

            self.exactly(self.begin, self.end, self.pitch, body)

        def some(_: Expr) -> None:
            def clear(x: Expr) -> None:
                self.put(self.line, x, self.neutral())

            def add(taps: Taps) -> None:
                def body(x: Expr) -> None:
                    self.put(self.line, x, self.step(Load(self.line, x), read(taps, x)))

                self.loop(self.begin, self.end, self.pitch, body)

            self.loop(self.begin, self.end, self.pitch, clear)
            self.nested(bounds, (), add)

        if prod(kernel) <= UNROLLED_TAPS:
            self.loop(constant(0), whole, 1, every)
        if kernel:
            self.loop(whole, constant(1), 1, some)
