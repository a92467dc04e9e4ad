"""Sizes and places at which what is not proved of a tile program is tried.

Sizes meet every fact and demand; places are the ends of all loops, but all places for memory that
another program reads. Start with :func:`sample_sizes` and :class:`Corners`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilewright.ir.tile_access import Access, Axis
from tilewright.shape import Expr, Scope, symbol
from tilewright.shape.evaluation import evaluate_operation
from tilewright.shape.expr import Atom
from tilewright.shape.table import Operation

MOST_POINTS = 16  # of an access that are tried at one sample of sizes
MOST_ELEMENTS = 512  # of an access that are all gone through at one sample of sizes
Sample = Mapping[str, int]


class Point:
    """Values of symbols, and of all that was computed from them."""

    def __init__(self, values: Sample, outer: Point | None = None) -> None:
        self.values: dict[str, int] = {**(outer.values if outer else {}), **values}
        self._atoms: dict[Atom, int] = {} if outer is None else outer._atoms.copy()

    def of(self, expression: Expr) -> int | None:
        """The value; None where it divides by a size that is 0."""
        try:
            return self._sum(expression)
        except ZeroDivisionError:
            return None

    def _sum(self, expression: Expr) -> int:
        value = 0
        for monomial, size in expression.terms:
            for atom in monomial.atoms:
                size *= self._atom(atom)
            value += size
        return value

    def _atom(self, atom: Atom) -> int:
        if atom.operation is Operation.SYMBOL:
            return self.values[atom.name]
        found = self._atoms.get(atom)
        if found is None:
            found = evaluate_operation(atom.operation, [self._sum(o) for o in atom.operands])
            self._atoms[atom] = found
        return found


class Corners:
    """Values of axes at the ends of their ranges, at one sample of ``sizes``.

    The points of a nest are made once, with all that is computed there: accesses share loops, and
    parts of their offsets.
    """

    def __init__(self, sizes: Point) -> None:
        self.sizes = sizes
        self._points: dict[tuple[Axis, ...], list[Point]] = {(): [sizes]}

    def of(self, access: Access) -> Iterator[Point]:
        """The points at which the access happens."""
        for point in self._at(access.nest):
            if all(point.of(predicate) for predicate in access.under):
                yield point

    def _at(self, nest: tuple[Axis, ...]) -> list[Point]:
        found = self._points.get(nest)
        if found is None:
            axis = nest[-1]
            following: list[Point] = []
            for point in self._at(nest[:-1]):
                extent = point.of(axis.extent) or 0
                ends = dict.fromkeys((0, extent - 1)) if extent > 0 else ()
                following += [Point({axis.name: end}, point) for end in ends]
            found = following[:: max(1, len(following) // MOST_POINTS)]
            self._points[nest] = found
        return found


def written(accesses: Iterable[Access], sizes: Point) -> set[int] | None:
    """All elements that are written at these sizes, or None if they are too many to go through.

    A position that a write depends on may be any, if it comes from memory.
    """
    points: dict[tuple[Axis, ...], list[Point]] = {(): [sizes]}
    found: set[int] = set()
    for access in accesses:
        for end, axis in enumerate(access.nest, 1):
            nest = access.nest[:end]
            if nest not in points:
                following: list[Point] = []
                for point in points[nest[:-1]]:
                    extent = max(point.of(axis.extent) or 0, 1 if axis.read else 0)
                    if len(following) + extent > MOST_ELEMENTS:
                        return None
                    following += [Point({axis.name: value}, point) for value in range(extent)]
                points[nest] = following
        for point in points[access.nest]:
            there = point.of(access.offset)
            if there is not None and all(point.of(predicate) for predicate in access.under):
                found.add(there)
    return found


def sample_sizes(scope: Scope, demands: Sequence[Expr], names: Sequence[str]) -> list[Sample]:
    """A few values of all symbols by which every fact and demand is met; small ones."""
    resolved = {n: scope.resolve(symbol(n)) for n in scope.symbols} | {**scope.definitions}
    free = [name for name, value in resolved.items() if value is symbol(name)]
    choices: list[tuple[int, ...]] = [(0,), (1,), (2,), (3, 2, 5), (9, 17, 4), (70, 33, 1)]
    found: dict[tuple[int, ...], Sample] = {}
    for steps in choices:
        sample = {n: steps[i % len(steps)] for i, n in enumerate(names)}
        for position, name in enumerate(free):
            low, high, multiple = scope.symbols[name]
            value = steps[position % len(steps)]
            value = max(-(-value // multiple) * multiple, low if low is not None else value)
            sample[name] = value if high is None else min(value, high)
        for name, expression in resolved.items():
            value = _value(expression, sample)
            sample[name] = 0 if value is None else value
        if _is_possible(scope, demands, sample):
            found.setdefault(tuple(sample.values()), sample)
    return list(found.values())


def _is_possible(scope: Scope, demands: Sequence[Expr], sample: Sample) -> bool:
    for name, (low, high, multiple) in scope.symbols.items():
        value = sample[name]
        if (low is not None and value < low) or (high is not None and value > high):
            return False
        if value % multiple:
            return False
    for left, right in scope.assumptions:
        if _value(left, sample) != _value(right, sample):
            return False
    for name, limit in scope.limits:
        most = _value(limit, sample)
        if most is None or sample[name] > most:
            return False
    for expression, bounds in scope.known_bounds:
        value = _value(expression, sample)
        if value is None or value not in bounds:
            return False
    return all(_value(demand, sample) for demand in demands)


def _value(expression: Expr, values: Sample) -> int | None:
    return Point(values).of(expression)
