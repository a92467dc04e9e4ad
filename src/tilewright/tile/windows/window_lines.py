"""Windows without weights, channels first: combined along the outer axes first, then along the row.

For every row of outputs, a line of columns is combined straight from the operand: several rows at
a time where all taps of the outer axes are inside, a row tap by tap at the borders; extremes take
the line at the border again instead. The lines of a few rows come first, then the windows of them
all. Windows that lie side by side, all of them inside, share nothing: each is read straight from
the operand. Start with :class:`WindowLines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from itertools import product as combinations
from math import prod

from tilewright.ir.tile import (
    Load,
    TileBuffer,
    Value,
)
from tilewright.ir.views import Index
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    equal,
    logical_and,
    maximum,
    minimum,
    select,
)
from tilewright.tile.windows.bands import SHARING_ROWS, UNROLLED_TAPS, Band, Taps
from tilewright.tile.windows.shared_parts import combined_in_pairs

TOGETHER = 1024  # elements of outputs, about, that are made in one step: they stay in L1


class WindowLines(Band):
    """Pooling: a line of columns combined along the outer axes, and the windows of that."""

    def _read_columns(self) -> Expr:
        # Long windows are combined in whole vectors in scratch.
        is_whole = self.dense and self.geometry.kernel[-1] > UNROLLED_TAPS
        return self._whole(self.columns) if is_whole else self.columns

    def write(self) -> None:
        """All statements of the task."""
        if self._is_tiled():
            self.loop(constant(0), self.rows, self.most_rows, self._tiled_row)
            return
        self.lines = self.fixed(self.most_rows * self.pitch)
        self.sums = self.fixed(self.most_columns)
        together = maximum(TOGETHER // maximum(self.columns, 1), SHARING_ROWS)
        together = self.lowering.scope.resolve(minimum(together, self.most_rows))
        lines = minimum(together, self.rows)
        # All steps leave the ends as they are.
        self.loop(constant(0), lines, self.most_rows,
                   lambda number: self.clear_ends(self.lines, [number * self.pitch]))  # fmt: skip
        groups = ceil_div(self.rows, together)
        self.loop(constant(0), groups, self.most_rows, lambda group: self._group(group, together))

    def _group(self, group: Expr, together: Expr) -> None:
        """A few rows, step by step: what is loaded across two stores waits for both of them."""
        first = group * together
        rows = minimum(together, self.rows - first)
        self._columns(first, rows)
        if self.geometry.kernel[-1] > UNROLLED_TAPS:
            long = partial(self._long_windows, first=first)
            self.loop(constant(0), rows, self.most_rows, long)
            return
        self.shared_rows(constant(0), rows, self.most_rows, partial(self._windows, first=first))

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
            # Columns first: they are combined before neighbouring ones are picked apart.
            columns = [self._column(outputs, x * self.stride + tap) for tap in range(self.stride)]
            self.result(row, x, reduce(self.step, columns))

        self.exactly(constant(0), self.columns, self.most_columns, body)

    def _column(self, outputs: Sequence[Expr], x: Expr) -> Value:
        """All taps of the outer axes in one column of the operand."""
        value: Value | None = None
        for taps in combinations(*map(range, self.geometry.kernel[:-1])):
            places = [self.position(axis, output, constant(tap)) for axis, (output, tap) in
                      enumerate(zip(outputs, taps, strict=True))]  # fmt: skip
            value = self.step(value, self.operand(places, x))
        assert value is not None
        return value

    # ------------------------------------------------------------ along the row

    def _windows(self, numbers: Sequence[Expr], first: Expr) -> None:
        """The windows of some lines, as rows of outputs."""

        def body(x: Expr) -> None:
            for number in numbers:
                self.result(first + number, x, self._window(number * self.pitch, x))

        self.exactly(constant(0), self.columns, self.most_columns, body)

    def _long_windows(self, number: Expr, first: Expr) -> None:
        """Those of one line, tap by tap."""
        row, start, most = first + number, number * self.pitch, self.most_columns
        taps = self.geometry.kernel[-1]
        along = self.vectors if self.dense else partial(self.loop, constant(0))
        along(self.columns, most, lambda x: self.put(self.sums, x, self.neutral()))

        def add(tap: Expr) -> None:
            def body(x: Expr) -> None:
                place = start + self.along(x, tap)
                read = Load(self.lines, self.lowering.scope.resolve(place))
                self.put(self.sums, x, self.step(Load(self.sums, x), read))

            along(self.columns, most, body)

        self.loop(constant(0), constant(taps), taps, add)
        self.exactly(constant(0), self.columns, most,
                      lambda x: self.result(row, x, Load(self.sums, x)))  # fmt: skip

    def _window(self, start: Expr, x: Expr) -> Value:
        value: Value | None = None
        for tap in range(self.geometry.kernel[-1]):
            place = start + self.along(x, constant(tap))
            value = self.step(value, Load(self.lines, self.lowering.scope.resolve(place)))
        assert value is not None
        return value

    # ------------------------------------------------------------ along the outer axes

    def _columns(self, first: Expr, rows: Expr) -> None:
        """Lines of some rows of outputs: columns of the operand, combined along the outer axes."""
        begin, end = self._whole_rows(first, rows)
        border = partial(self._border_line, first=first)
        if not self.is_held:
            self.loop(constant(0), begin, self.most_rows, border)

        def several(numbers: Sequence[Expr]) -> None:
            def body(columns: Sequence[tuple[Expr, Expr]]) -> None:
                for x, place in columns:
                    values = self._combined([self._read(first + n) for n in numbers], x)
                    for number, value in zip(numbers, values, strict=True):
                        self.put(self.lines, number * self.pitch + place, value)

            self.inside_columns(body)

        if prod(self.geometry.kernel[:-1]) <= UNROLLED_TAPS:
            self.shared_rows(begin, end, self.most_rows, several)
        if not self.is_held:
            self.loop(end, rows, self.most_rows, border)

    def _whole_rows(self, first: Expr, rows: Expr) -> tuple[Expr, Expr]:
        """The rows, counted from the first, of which all taps of the outer axes are inside."""
        outer = self.geometry.kernel[:-1]
        if not outer:
            return constant(0), rows
        if prod(outer) > UNROLLED_TAPS:
            return constant(0), constant(0)
        if self.is_held:
            return constant(0), rows
        whole = constant(1)
        *others, output = self.outputs(first)
        for axis, other in enumerate(others):
            low, high = self.inside(axis, other)
            whole = logical_and(whole, equal(high - low, outer[axis]))
        inside = self.geometry.whole(len(others))
        begin = minimum(rows, maximum(0, inside[0] - output))
        end = maximum(begin, minimum(rows, inside[1] - output))
        return begin, select(whole, end, begin)

    @cached_property
    def is_held(self) -> bool:
        """Whether taps above and below the operand may read its first and last line instead.

        An extreme may take an element twice. So that the line is one of the window, taps follow
        each other, and one of every window is inside; an operand without lines has no windows.
        """
        geometry, scope = self.geometry, self.lowering.scope
        is_extreme = geometry.kind in ("maximum", "minimum")
        if not is_extreme or prod(geometry.kernel[:-1]) > UNROLLED_TAPS:
            return False
        for axis, taps in enumerate(geometry.kernel[:-1]):
            outputs, size = (
                node.shape[geometry.lead + axis] for node in (self.seed, geometry.operand)
            )
            last = geometry.position(axis, outputs - 1, constant(0))
            inside = (geometry.low[axis], constant(taps - 1)), (last, size - 1)
            has_line = (constant(1), size), (outputs, size)  # either is enough
            if (
                geometry.dilations[axis] != 1
                or any(scope.is_less_equal(*pair) is not Truth.YES for pair in inside)
                or all(scope.is_less_equal(*pair) is not Truth.YES for pair in has_line)
            ):
                return False
        return True

    def _read(self, row: Expr) -> list[Index]:
        """Where in the operand all taps of the outer axes lie, for a row of outputs."""
        outputs, resolve = self.outputs(row), self.lowering.scope.resolve

        def place(axis: int, tap: int) -> Expr:
            position = self.position(axis, outputs[axis], constant(tap))
            if self.is_held:
                last = self.geometry.operand.shape[self.geometry.lead + axis] - 1
                position = minimum(maximum(position, 0), last)
            return resolve(position)

        return [
            tuple(place(axis, tap) for axis, tap in enumerate(taps))
            for taps in combinations(*map(range, self.geometry.kernel[:-1]))
        ]

    def _combined(self, rows: Sequence[list[Index]], x: Expr) -> list[Value]:
        """The taps of each row in column ``x``; what two rows share is combined once."""

        def added(value: Value | None, places: Sequence[Index]) -> Value | None:
            for place in places:
                value = self.step(value, self.operand(place, x))
            return value

        made = combined_in_pairs(rows, added, self.lowering.let)
        assert all(value is not None for value in made)
        return [value for value in made if value is not None]

    def _border_line(self, number: Expr, first: Expr) -> None:
        """The line of a row of which taps lie outside: tap by tap."""
        start = number * self.pitch
        is_apart = self.phases > 1
        line, origin = (self.line, constant(0)) if is_apart else (self.lines, start)
        outputs = self.outputs(first + number)
        bounds = [self.inside(axis, output) for axis, output in enumerate(outputs)]

        def clear(x: Expr) -> None:
            self.put(line, origin + x, self.neutral())

        def add(taps: Taps) -> None:
            places = [self.position(a, o, t) for (a, o), t in
                      zip(enumerate(outputs), taps, strict=True)]  # fmt: skip

            def body(x: Expr) -> None:
                old = Load(line, self.lowering.scope.resolve(origin + x))
                self.put(line, origin + x, self.step(old, self.operand(places, x)))

            self.loop(self.begin, self.end, self.pitch, body)

        def separate(columns: Sequence[tuple[Expr, Expr]]) -> None:
            for x, place in columns:
                self.put(self.lines, start + place, Load(line, self.lowering.scope.resolve(x)))

        self.loop(self.begin, self.end, self.pitch, clear)
        self.nested(bounds, (), add)
        if is_apart:
            self.inside_columns(separate)

    @cached_property
    def line(self) -> TileBuffer:
        """A line at a border, whose columns are not apart yet."""
        return self.fixed(self.pitch)
