"""Prices of all candidates at many shapes at once.

Shapes are spread over the declared ranges as evenly as logarithms go, edges included; no shape is
preferred and none is measured. Start with :func:`samples_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tilewright.policy.space import BLOCK_COLUMNS, BLOCK_DEPTH, BLOCK_ROWS, Problem, Space
from tilewright.shape import Expr, Scope, symbol
from tilewright.shape.expr import Atom
from tilewright.shape.table import Operation

Array = np.ndarray[Any, np.dtype[np.float64]]

MOST_THREADS = 64  # for which variants are chosen; with more, those for so many are taken
SHAPES = 64  # for every size that is not known, with every number of threads
LONGEST = 1e12  # picoseconds of a shape on one thread: what takes longer decides nothing
_POINTS = 1000  # of a box of several axes, from which the shapes are taken
# The next and ``_BEST``: the least modelled regret at 400 random shapes of products.
_EVERY = 23  # of the samples is one by which candidates are sifted, beside the corners
_MOST_CORNERS = 16  # of a batch of products of any sizes
_BEST = 24  # candidates of each of these that stay
UNBOUNDED = 1 << 16  # what a size without a bound is taken to be at most
_CELLS = 1 << 14  # candidates times samples that are computed at a time: 128 KiB each
_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)  # of the digits that spread the shapes


@dataclass(frozen=True)
class Samples:
    """Shapes, each with a number of threads: one row of ``values`` for every symbol.

    The first ``corners`` are corners of the box of all shapes.
    """

    values: Mapping[str, Array]
    count: int
    corners: int = 0

    def some(self, every: int) -> Samples:
        """The corners, and one in ``every`` of the others."""
        places = np.r_[: self.corners, self.corners : self.count : every]
        return Samples({n: v[:, places] for n, v in self.values.items()}, len(places), self.corners)


def samples_of(problem: Problem) -> Samples:
    """Every sampled shape with every number of threads."""
    shapes, counts = sampled_shapes(problem), thread_counts(problem.target.units)
    corners = {*_corners([range_of(problem.scope, name) for name in problem.sizes])}
    first = sum(shape in corners for shape in shapes) * len(counts)
    return Samples(_values(problem, shapes, counts), len(shapes) * len(counts), first)


def thread_counts(units: int) -> tuple[int, ...]:
    """Powers of two up to the cores of the machine, and a count beyond.

    An artifact may be taken to a larger machine than the one whose prices choose its variants.
    """
    own = [1 << power for power in range(MOST_THREADS.bit_length()) if 1 << power <= units]
    counts = {min(count, MOST_THREADS) for count in (*own, units, 4 * units)}
    return tuple(sorted(counts))


def space_prices(space: Space, samples: Samples) -> Array:
    """Picoseconds of every candidate of a space: (candidates, samples)."""
    if not space.blocks:
        return np.empty((0, samples.count))
    sizes = [(block.rows, block.columns, block.depth) for block in space.blocks]
    table = np.array(sizes, np.float64).reshape(-1, 3)
    values = dict(samples.values)
    for place, name in enumerate((BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)):
        values[str(name)] = table[:, place, None]
    return np.broadcast_to(evaluated(space.price, values), (len(table), samples.count))


def other_prices(problem: Problem, samples: Samples) -> Array:
    """Picoseconds of the variants that a kernel has anyway: (variants, samples)."""
    shape = (1, samples.count)
    found = _evaluated_together(problem.others, samples.values)
    return np.concatenate(
        [np.empty((0, samples.count)), *(np.broadcast_to(p, shape) for p in found)]
    )


def promising(problem: Problem, samples: Samples) -> Problem:
    """The problem with the candidates only that are among the best at one of a few samples.

    Of equals, which are many where a kernel is small, those come first that are better elsewhere.
    """
    few = samples.some(_EVERY)
    prices = [space_prices(space, few) for space in problem.spaces]
    together = np.concatenate(prices)
    over = together / np.maximum(together.min(axis=0), 1.0)
    elsewhere = np.rint(over * 1e6).sum(axis=1)
    orders = [np.lexsort((elsewhere, column))[:_BEST] for column in together.T]
    near = np.zeros(len(together), bool)
    near[np.concatenate(orders)] = True
    spaces: list[Space] = []
    first = 0
    for space in problem.spaces:
        kept = near[first : first + len(space.blocks)]
        first += len(space.blocks)
        blocks = zip(space.blocks, kept, strict=True)
        spaces.append(replace(space, blocks=tuple(block for block, is_near in blocks if is_near)))
    return replace(problem, spaces=tuple(spaces))


def sampled_shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Values of the sizes of a problem that fill the box of their ranges evenly, corners first.

    The points are those of Halton (1960), with the logarithm of a size along each axis. Of a box
    of several axes most is larger than anything that is ever computed: what would take longer than
    ``LONGEST`` is left out. At corners, as that of few rows by a matrix that no cache holds, other
    candidates are the best than anywhere near the middle. The order is always the same; one shape
    where all sizes are known.
    """
    ranges = [range_of(problem.scope, name) for name in problem.sizes]
    wanted = SHAPES * max(1, len(ranges))
    spread = spread_shapes(ranges, _POINTS + 1 if len(ranges) > 1 else wanted)
    shapes = list(dict.fromkeys((*_corners(ranges), *spread)))
    if len(shapes) > wanted:
        times = evaluated(_usual(problem), _values(problem, shapes, (1,)))
        times = np.broadcast_to(times, (1, len(shapes)))[0]
        most = max(LONGEST, float(np.sort(times)[wanted - 1]))
        shapes = [shape for shape, time in zip(shapes, times, strict=True) if time <= most]
    return tuple(shapes[:wanted])


def _corners(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """All corners of the box of some ranges, none where there are many."""
    found = tuple(product(*ranges)) if 2 ** len(ranges) <= _MOST_CORNERS else ()
    return tuple(dict.fromkeys(found))


def spread_shapes(ranges: Sequence[tuple[int, int]], count: int) -> list[tuple[int, ...]]:
    """At most ``count`` points of the box of some ranges, as evenly as logarithms go, edges first.

    A range is its least and its greatest value, from 1 on.
    """
    return list(_spread(tuple(ranges), count))


@lru_cache(maxsize=256)
def _spread(ranges: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, ...], ...]:
    shapes = [tuple(low for low, _ in ranges), tuple(high for _, high in ranges)]
    for number in range(1, count - 1):
        shapes.append(
            tuple(
                round(low * (high / low) ** _radical_inverse(number, _BASES[axis % len(_BASES)]))
                for axis, (low, high) in enumerate(ranges)
            )
        )
    return tuple(dict.fromkeys(shapes))


def range_of(scope: Scope, name: str) -> tuple[int, int]:
    """The values from 1 on that a size may have; a size without a bound has one here."""
    bounds = scope.bounds(symbol(name))
    low = max(1, bounds.low or 1)
    return low, max(low, UNBOUNDED if bounds.high is None else bounds.high)


def _usual(problem: Problem) -> Expr:
    """One of the prices, by which it is told what is never computed."""
    if not problem.spaces:
        return problem.others[0]
    space = problem.spaces[0]
    return space.blocks[len(space.blocks) // 2].price(space.price)


def _values(
    problem: Problem, shapes: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> dict[str, Array]:
    """Each symbol at all shapes, each with all numbers of threads."""
    values = {problem.threads: np.tile(np.array(counts, np.float64), len(shapes))[None, :]}
    for number, name in enumerate(problem.sizes):
        column = np.array([shape[number] for shape in shapes], np.float64)
        values[name] = np.repeat(column, len(counts))[None, :]
    return values


def _radical_inverse(number: int, base: int) -> float:
    """The digits of ``number`` mirrored behind the point."""
    value, place = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        value += digit * place
        place /= base
    return value


def evaluated(expression: Expr, values: Mapping[str, Array]) -> Array:
    """An expression where each symbol is an array; float64, exact while integers fit 53 bits.

    A quotient or remainder by 0 is 0. Some samples after others: the values of all parts of an
    expression are kept while it is computed, and take no more than a cache in this way.
    """
    return _evaluated_together((expression,), values)[0]


def _evaluated_together(expressions: Sequence[Expr], values: Mapping[str, Array]) -> list[Array]:
    """As :func:`evaluated`, several expressions, whose common parts are computed once."""
    rows, count = np.broadcast_shapes(*(array.shape for array in values.values()), (1, 1))
    step = max(1, _CELLS // rows)
    parts: list[list[Array]] = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for first in range(0, max(1, count), step):
            some = {
                name: array[:, first : first + step] if array.shape[1] > 1 else array
                for name, array in values.items()
            }
            evaluation = _Evaluation(some)
            parts.append([evaluation.expression(expression) for expression in expressions])
    return [
        own[0] if len(own) == 1 else np.concatenate(_alike(own, step, count), axis=1)
        for own in zip(*parts, strict=True)
    ]


def evaluated_at(
    expressions: Sequence[Expr], points: Sequence[Mapping[str, int]]
) -> list[list[float]]:
    """The values of expressions at points that give every symbol a value, a row for each."""
    names = {name for expression in expressions for name in expression.free_symbols}
    values = {n: np.array([point[n] for point in points], np.float64)[None, :] for n in names}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        evaluation = _Evaluation(values)
        rows = [evaluation.expression(expression)[0] for expression in expressions]
    return [np.broadcast_to(row, len(points)).tolist() for row in rows]


def _alike(parts: Sequence[Array], step: int, count: int) -> list[Array]:
    """Parts of a row of samples, of ``step`` samples each, where some knew no sample."""
    wide = [min(step, count - number * step) for number in range(len(parts))]
    return [
        np.broadcast_to(part, (len(part), width)) for part, width in zip(parts, wide, strict=True)
    ]


class _Evaluation:
    """Values of the parts of expressions, each computed once.

    Most factors know only samples, or only candidates: what is small is multiplied and added
    first, so that few operations go over (candidates, samples).
    """

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values
        self._known: dict[Expr | Atom, Array] = {}

    def expression(self, expression: Expr) -> Array:
        found = self._known.get(expression)
        if found is None:
            found = self._sum(expression)
            self._known[expression] = found
        return found

    def _sum(self, expression: Expr) -> Array:
        sums: dict[tuple[int, ...], list[Array]] = {}
        offset = 0.0
        for monomial, coefficient in expression.terms:
            atoms = monomial.atoms
            if not atoms:
                offset = float(coefficient)
                continue
            if len(atoms) == 1:
                term = self.atom(atoms[0])
                term = term if coefficient == 1 else term * float(coefficient)
            else:
                first, *others = sorted(map(self.atom, atoms), key=_size)
                term = first * float(coefficient)
                for factor in others:
                    term = term * factor
            sums.setdefault(term.shape, []).append(term)
        total = np.full((1, 1), offset) if offset or not sums else None
        for added in sorted(map(_added, sums.values()), key=_size):
            total = added if total is None else total + added
        assert total is not None, "there is a term, or the offset"
        return total

    def atom(self, atom: Atom) -> Array:
        found = self._known.get(atom)
        if found is None:
            if atom.operation is Operation.SYMBOL:
                found = self._values[atom.name]
            else:
                found = _applied(atom.operation, [self.expression(o) for o in atom.operands])
            self._known[atom] = found
        return found


def _size(values: Array) -> int:
    return values.size


def _added(terms: Sequence[Array]) -> Array:
    """The sum of arrays of one shape, which stay as they are."""
    if len(terms) == 1:
        return terms[0]
    total = terms[0] + terms[1]
    for term in terms[2:]:
        total += term
    return total


def _applied(operation: Operation, values: Sequence[Array]) -> Array:
    match operation:
        case Operation.FLOORDIV:
            return _quotient(np.floor, values)
        case Operation.CEILDIV:
            return _quotient(np.ceil, values)
        case Operation.MOD:
            return values[0] - _quotient(np.floor, values) * values[1]
        case Operation.SELECT:
            return np.where(values[0] != 0, values[1], values[2])
        case Operation.NOT:
            return (values[0] == 0).astype(np.float64)
        case _:
            return _FOLDED[operation](*values)


def _quotient(rounded: Callable[[Array], Array], values: Sequence[Array]) -> Array:
    quotient = rounded(values[0] / values[1])
    return quotient if values[1].all() else np.where(np.isfinite(quotient), quotient, 0.0)


def _fold(function: Any) -> Any:
    """A function of two arrays for any number of them, with a number as the result."""

    def folded(first: Array, *others: Array) -> Array:
        for other in others:
            first = function(first, other)
        return np.asarray(first, np.float64)

    return folded


_FOLDED: Mapping[Operation, Any] = {
    Operation.MINIMUM: _fold(np.minimum),
    Operation.MAXIMUM: _fold(np.maximum),
    Operation.EQUAL: _fold(np.equal),
    Operation.LESS_EQUAL: _fold(np.less_equal),
    Operation.AND: _fold(np.logical_and),
    Operation.OR: _fold(np.logical_or),
}
