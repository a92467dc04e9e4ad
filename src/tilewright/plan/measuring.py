"""Choices of a part of a graph decided by running kernels, where prices are not better than errors.

The contenders are the greedy plan's choice, those that the optimal planner made for all shapes and
for regions of them, and for each of the kernels that count most the cheapest choice without it.
Only kernels that not all contenders have are timed, at a few of the points at which they are
priced, on one thread and on all; the measured times, as corrections of the modelled ones
(``ir/correction.py``), take the place of prices. Calls use the same corrections where they choose
among ways at their own sizes. A part is decided by measurement if all these kernels could be timed,
and by prices otherwise: the two are never mixed. What is chosen then may join kernels of several
contenders.

A kernel is timed alone, with its operands where its last run left them, which is also what prices
assume. Who times is up to the caller: see :data:`Measure`. Start with :class:`Measuring`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.correction import Correction
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel
from tilewright.plan.choosing import WORTH, Array, Choosing, Part
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.prices import corrected
from tilewright.plan.solver import solve
from tilewright.tile.variants import THREADS

# Picoseconds of kernels at each of several points, sizes and threads; None of one that cannot be
# timed, or for which no time is left.
Measure = Callable[
    [Graph, Sequence[Kernel], Sequence[Mapping[str, int]]], Sequence[Sequence[float] | None]
]

MEASURED_WORTH = 0.02  # of the price of a part: a smaller gain is within the error of measuring
MOST_TRIED = 4  # kernels that are left out in turns
MOST_DEARER = 0.25  # of what is replaced: prices are seldom further from what is measured
_ROUNDS = 2  # of looking for the cheapest choice without one
_SHAPES = 3  # at which kernels are timed: small, middling and large
_LONGEST = 1e11  # picoseconds of a whole plan at a point at which its kernels are timed


@dataclass(frozen=True)
class Decided:
    """The ways of a part with their prices at every point, and the kernels that were timed.

    ``corrections`` are by the number of a kernel in the part, of all contenders.
    """

    ways: tuple[tuple[int, ...], ...]
    prices: tuple[Array, ...]
    corrections: Mapping[int, Correction]


class Measuring:
    """Decides parts of one graph by timing kernels; those that are alike are timed once."""

    def __init__(
        self,
        choosing: Choosing,
        points: Sequence[Mapping[str, int]],
        greedy_times: Array,
        measure: Measure,
    ) -> None:
        self._choosing = choosing
        self._points = points
        self._chosen = timed_points(points, greedy_times)
        self._measure = measure
        self._known: dict[object, Correction | None] = {}

    def decided(
        self,
        part: Part,
        start: tuple[int, ...],
        ways: Sequence[tuple[int, ...]],
        weights: Array,
        most: int,
    ) -> Decided | None:
        """The ways of a part by measurement, ``most`` of them at most; None to leave it to prices.

        ``start`` is what the greedy plan has and ``ways`` what prices have chosen. The first way is
        the best for all points by their weights, as are those that prices choose.
        """
        holds = part.problem.holds(start)
        found = [
            *([start] if holds else []),
            *ways,
            *offers(self._choosing, part, ways[0], weights),
        ]
        contenders = list(dict.fromkeys(found))
        shared = set(contenders[0]).intersection(*contenders[1:])
        unshared = sorted({n for contender in contenders for n in contender} - shared)
        self._time(part, unshared)
        known = {n: self._known.get(part.keys[n]) for n in unshared}
        corrections = {n: own for n, own in known.items() if own is not None}
        if not unshared or len(corrections) < len(unshared):
            return None
        costs = {n: self._price(part, n, corrections) for n in (*shared, *unshared)}
        contenders = list(dict.fromkeys([*contenders, *self._joined(part, costs, weights)]))
        prices = [np.sum([costs[n] for n in contender], axis=0) for contender in contenders]
        totals = [float(price @ weights) for price in prices]
        best = min(range(len(totals)), key=totals.__getitem__)
        if holds and totals[best] > (1 - MEASURED_WORTH) * totals[0]:
            best = 0
        taken = _ways(best, prices, weights, most)
        chosen = tuple(contenders[n] for n in taken)
        return Decided(chosen, tuple(prices[n] for n in taken), corrections)

    def _joined(
        self, part: Part, costs: Mapping[int, Array], weights: Array
    ) -> list[tuple[int, ...]]:
        """The best choice of kernels from all contenders, for all points; none without an order."""
        numbers = sorted(costs)
        problem = part.problem.of(numbers)
        solution = solve(problem, [float(costs[n] @ weights) for n in numbers])
        try:
            in_order(self._choosing.graph, [problem.kernels[n] for n in solution.chosen])
        except LaunchRing:
            return []
        return [tuple(numbers[n] for n in solution.chosen)]

    def price(self, kernel: Kernel, correction: Correction, key: object | None = None) -> Array:
        """The price of a kernel that was timed, at every point."""
        modelled = self._choosing.price(kernel, key)
        return np.array(corrected(correction, modelled.tolist(), self._points))

    def _price(self, part: Part, number: int, corrections: Mapping[int, Correction]) -> Array:
        kernel, key = part.problem.kernels[number], part.keys[number]
        if number in corrections:
            return self.price(kernel, corrections[number], key)
        return self._choosing.price(kernel, key)

    def _time(self, part: Part, numbers: Sequence[int]) -> None:
        """Time the kernels whose like have not been."""
        wanted: dict[object, int] = {}
        for n in numbers:
            if part.keys[n] not in self._known:
                wanted.setdefault(part.keys[n], n)
        if not wanted:
            return
        kernels = [part.problem.kernels[n] for n in wanted.values()]
        points = [self._points[place] for place in self._chosen]
        found = self._measure(self._choosing.graph, kernels, points)
        for (key, n), times in zip(wanted.items(), found, strict=True):
            modelled = self._choosing.price(part.problem.kernels[n], key)
            self._known[key] = None if times is None else self._correction(modelled, times)

    def _correction(self, modelled: Array, times: Sequence[float]) -> Correction | None:
        pairs: dict[int, list[tuple[float, float]]] = {}
        for place, time in zip(self._chosen, times, strict=True):
            threads = self._points[place][THREADS]
            pairs.setdefault(threads, []).append((float(modelled[place]), time))
        return Correction.of_times(pairs)


def _ways(first: int, prices: Sequence[Array], weights: Array, most: int) -> list[int]:
    """The contender ``first``, and those that are better at some points by more than an error."""
    found = [first]
    least = np.min(prices, axis=0)
    while len(found) < most:
        own = np.min([prices[n] for n in found], axis=0)
        wanting = (own * (1 - WORTH) > least) & (weights > 0)
        if not wanting.any():
            break
        theirs = np.where(wanting, weights, 0.0)
        better = min(range(len(prices)), key=lambda n: float(prices[n] @ theirs))
        if better in found:
            break
        found.append(better)
    return found


def offers(
    choosing: Choosing, part: Part, chosen: Sequence[int], weights: Array
) -> list[tuple[int, ...]]:
    """Choices beside one: each the cheapest without some of its kernels, all that are alike.

    Those that count most are left out first. A choice whose other kernels are much dearer than
    what they replace is none.
    """
    costs = {n: float(choosing.price(part.problem.kernels[n], part.keys[n]) @ weights)
             for n in chosen}  # fmt: skip
    total = sum(costs.values())
    alike: dict[object, float] = {}
    for n, cost in costs.items():
        alike[part.keys[n]] = alike.get(part.keys[n], 0.0) + cost
    counting = [key for key, cost in alike.items() if cost >= MEASURED_WORTH * total]
    counting.sort(key=lambda key: -alike[key])
    found: list[tuple[int, ...]] = []
    for key in counting[:MOST_TRIED]:
        left_out = [n for n, own in enumerate(part.keys) if own == key]
        other = Part(part.problem.without_any(left_out), part.keys)
        below = total + MOST_DEARER * alike[key]
        choice = choosing.cheapest(other, weights, below=below, rounds=_ROUNDS)
        if choice is None:
            continue
        replaced = sum(cost for n, cost in costs.items() if n not in choice.chosen)
        if choice.price <= total + MOST_DEARER * replaced:
            found.append(choice.chosen)
    return found


def timed_points(points: Sequence[Mapping[str, int]], times: Array) -> list[int]:
    """Which points kernels are timed at, by number: small, middling and large for each of threads.

    ``times`` are those of a whole plan, in picoseconds. Points that take longer than anybody waits
    for are left out, unless there are no others.
    """
    chosen: list[int] = []
    for threads in sorted({point[THREADS] for point in points}):
        own = [n for n, point in enumerate(points) if point[THREADS] == threads]
        own.sort(key=lambda n: (float(times[n]), n))
        own = [n for n in own if times[n] <= _LONGEST] or own[:1]
        places = np.linspace(0, len(own) - 1, min(_SHAPES, len(own)))
        chosen += [own[round(place)] for place in places]
    return chosen


__all__ = ["Decided", "Measure", "Measuring", "offers", "timed_points"]
