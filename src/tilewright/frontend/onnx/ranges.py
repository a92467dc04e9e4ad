"""Ranges of dimensions that the model itself implies.

A table of 512 positions makes sense for at most 512 tokens: the import then demands it of every
call. :func:`implied` reads such demands back as ranges, for dimensions whose range nobody gave, so
that the import can start again and rely on them; the demands themselves then disappear. A demand
that is not proved to hold on one side of a size only, such as one for multiples, stays with the
call.

Some demands leave a few ranges with gaps between them: what is added to seven rows has seven rows
itself, or one. :class:`Alternatives` tries such ranges of all dimensions together against
everything that the model demands, and keeps those that nothing contradicts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.frontend.onnx.dims import Dim, Implied
from tilewright.frontend.onnx.report import DimensionReport
from tilewright.shape import Expr, Guard, Interval, Scope, constant, symbol
from tilewright.shape.guards import without_values
from tilewright.shape.interval import hull, intersect
from tilewright.shape.slopes import slope
from tilewright.shape.table import Operation

Ranges = tuple[Interval, ...]  # not empty each, in order, with gaps between them

# Combinations of ranges that are tried, each against every demand: a limit of effort, six
# dimensions with two ranges each. Ranges of what is left out stay as they are.
MOST_TOGETHER = 64


def implied(guards: Iterable[Guard], dimensions: Iterable[DimensionReport]) -> dict[str, Implied]:
    """Narrower ranges, by the model's name of the dimension; empty if there are none.

    Only demands on a single dimension count. One that leaves nothing of the range is left to the
    call, which raises it.
    """
    free = {d.name: d for d in dimensions if d.origin != "given"}
    found: dict[str, Implied] = {}
    for guard in guards:
        symbols = guard.condition.free_symbols
        if len(symbols) != 1 or symbols[0] not in free:
            continue
        row = free[symbols[0]]
        before = found[row.text].dim if row.text in found else _range_of(row)
        after = _narrowed(guard.condition, row.name, before)
        if after != before:
            found[row.text] = Implied(after, without_values(guard.message))
    return found


def relied_on(
    facts: Sequence[Guard], dimensions: Sequence[DimensionReport], scope: Scope
) -> dict[str, Implied]:
    """The narrower ranges of what holds in every call; ``scope`` learns those of given ranges.

    A range that the caller gave is shown as it was given.
    """
    for row in dimensions:
        for known in implied(facts, [replace(row, origin="model")]).values():
            if row.origin == "given":
                scope.declare(row.name, known.dim.low, known.dim.high)
    return implied(facts, dimensions)


class Alternatives:
    """Ranges with gaps that demands leave of dimensions, tried together against all demands.

    Case analysis in the small: a combination of ranges, one of each dimension, is impossible where
    a demand is proved to fail in it. Dimensions whose range was given are left alone.
    """

    def __init__(self, dimensions: Iterable[DimensionReport], scope: Scope) -> None:
        self._dimensions = tuple(dimensions)
        self._free = {d.name: d for d in self._dimensions if d.origin != "given"}
        self._scope = scope
        self._possible: list[dict[str, Interval]] = [{}]
        self._reasons: dict[str, str] = {}
        self._demands: list[Guard] = []

    def learn(self, guards: Sequence[Guard]) -> dict[str, Implied]:
        """Take note of more demands: narrower ranges by the model's name of the dimension."""
        if found := implied(guards, self._dimensions):
            return found
        self._demands += guards
        before = self._possible
        for guard in guards:
            symbols = guard.condition.free_symbols
            if len(symbols) == 1 and symbols[0] in self._free:
                self._divide(self._free[symbols[0]], guard)
        if not self._possible[0]:
            return {}
        demands = guards if self._possible is before else self._demands
        left = [found for found in self._possible if not self._is_refuted(found, demands)]
        if not left:  # every call is refused, and says why
            return {}
        self._possible = left
        return self._narrower()

    def _divide(self, row: DimensionReport, guard: Guard) -> None:
        """Cut the combinations at the gaps that a demand leaves in the range of a dimension."""
        ranges = _solutions_within(guard.condition, row.name, _range_of(row))
        if len(ranges) < 2:
            return
        divided = [
            found | {row.name: part}
            for found in self._possible
            for part in _both(ranges, (found.get(row.name, Interval(row.low, row.high)),))
        ]
        if 0 < len(divided) <= MOST_TOGETHER:
            self._possible = divided
            self._reasons[row.name] = without_values(guard.message)

    def _is_refuted(self, found: dict[str, Interval], demands: Iterable[Guard]) -> bool:
        """Whether a demand is proved to fail where the dimensions lie within ``found``."""
        scope = self._scope.copy()
        for name, part in found.items():
            scope.declare(name, part.low, part.high)
        concerned = (
            d.condition for d in demands if not found.keys().isdisjoint(d.condition.free_symbols)
        )
        return any(scope.resolve(c) is constant(0) for c in concerned)

    def _narrower(self) -> dict[str, Implied]:
        out: dict[str, Implied] = {}
        for name, reason in self._reasons.items():
            row = self._free[name]
            before = _range_of(row)
            after = _spanned(_either(tuple(f[name] for f in self._possible), ()), before)
            if after != before:
                out[row.text] = Implied(after, reason)
        return out


def _range_of(row: DimensionReport) -> Dim:
    return Dim(row.low, row.high, row.multiple_of)


def _narrowed(condition: Expr, name: str, dim: Dim) -> Dim:
    """The part of the range outside of which the condition surely fails."""
    ranges = _solutions_within(condition, name, dim)
    return _spanned(ranges, dim) if ranges else dim


def _spanned(ranges: Ranges, dim: Dim) -> Dim:
    """The least range that holds all of some that lie within ``dim``."""
    low, high = ranges[0].low, ranges[-1].high
    assert low is not None
    assert high is not None
    return Dim(low, high, dim.multiple_of)


def _solutions_within(condition: Expr, name: str, dim: Dim) -> Ranges:
    """The sizes within ``dim`` that are not known to fail the condition."""
    scope = Scope()
    every = (Interval(dim.low, dim.high),)
    scope.declare(name, dim.low, dim.high)
    atom = condition.atom
    together = atom is not None and atom.operation is Operation.AND
    left: Ranges = every
    for part in atom.operands if atom is not None and together else (condition,):
        found = _solutions(part, name, scope)
        left = left if found is None else _both(left, found)
    return left


def _solutions(condition: Expr, name: str, scope: Scope) -> Ranges | None:
    """All sizes within the scope for which the condition holds, if they are known to be ranges."""
    every = scope.bounds(symbol(name))
    if condition.is_constant:
        return (every,) if condition.value else ()
    atom = condition.atom
    if atom is None:
        return None
    match atom.operation:
        case Operation.LESS_EQUAL:
            return _sizes_with_order(atom.operands[1] - atom.operands[0], name, scope)
        case Operation.EQUAL:
            difference = atom.operands[1] - atom.operands[0]
            sides = [_sizes_with_order(d, name, scope) for d in (difference, -difference)]
        case Operation.AND | Operation.OR:
            sides = [_solutions(operand, name, scope) for operand in atom.operands]
        case _:
            return None
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    join = _either if atom.operation is Operation.OR else _both
    return functools.reduce(join, known)


def _both(left: Ranges, right: Ranges) -> Ranges:
    """The sizes in both."""
    shared = (intersect(a, b) for a in left for b in right)
    return tuple(found for found in shared if not found.is_empty)


def _either(left: Ranges, right: Ranges) -> Ranges:
    """The sizes in either."""
    out: list[Interval] = []
    for found in sorted((*left, *right), key=_low):
        last = out[-1] if out else None
        if last is not None and (last.high is None or _low(found) <= last.high + 1):
            out[-1] = hull(last, found)
        else:
            out.append(found)
    return tuple(out)


def _low(interval: Interval) -> int:
    return 0 if interval.low is None else interval.low


def _sizes_with_order(difference: Expr, name: str, scope: Scope) -> Ranges | None:
    """Sizes for which ``difference`` is 0 or more, where it only rises or only falls with them."""
    change, every = slope(difference, name, scope), scope.bounds(symbol(name))
    if change is None or every.low is None or every.high is None:
        return None

    def holds(size: int) -> bool:
        return difference.evaluate({name: size}) >= 0

    if change.low is not None and change.low >= 0:
        return () if not holds(every.high) \
            else (Interval(_first(every.low, every.high, holds), every.high),)  # fmt: skip
    if change.high is not None and change.high <= 0:
        return () if not holds(every.low) \
            else (Interval(every.low, _last(every.low, every.high, holds)),)  # fmt: skip
    return None


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least value at which what holds at ``high``, and from some value on, holds."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The greatest value at which what holds at ``low``, and up to some value, holds."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
