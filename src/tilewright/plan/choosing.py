"""The choice among the candidates of one part of a graph, which are priced when one wants them.

Until then a quick price stands for a candidate, which is a bound from below, so that a choice all
of whose kernels are priced is the best. Prices are those at several points, and what is least is
their sum by the weights of the points. Start with :class:`Choosing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.row_product import row_product_of
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.prices import KernelPrices
from tilewright.plan.problem import Problem
from tilewright.plan.quick import QuickPrices
from tilewright.plan.solver import NoChoice, solve
from tilewright.tile.alike import outline_key

WORTH = 0.05  # of the price of a part: a smaller gain is within the error of prices
NEAR = 5e-3  # a choice this close to the bound is not improved further
GAP = NEAR / 4  # of a choice while not all kernels are priced
ROUNDS = 10  # of choosing and pricing a part

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Part:
    """The candidates of a part of a graph; those that are alike have equal ``keys``."""

    problem: Problem
    keys: tuple[object, ...]

    @staticmethod
    def of(problem: Problem) -> Part:
        """The part whose candidates are the kernels of a problem."""
        return Part(problem, tuple(outline_key(kernel) for kernel in problem.kernels))


@dataclass(frozen=True)
class Choice:
    """Kernels of one part by their number in it, with their price and a bound for any choice."""

    chosen: tuple[int, ...]
    price: float
    bound: float


class Choosing:
    """Prices of kernels at points, in picoseconds, as far as they are known, and choices by them.

    ``rounds`` counts the binary programs that were solved for them.
    """

    def __init__(self, graph: Graph, prices: KernelPrices, quick: QuickPrices) -> None:
        self.graph = graph
        self.rounds = 0
        self._prices = prices
        self._quick = quick
        self._priced: dict[object, Array] = {}
        self._bounds: dict[object, Array] = {}

    @property
    def priced(self) -> int:
        """How many kernels have a price, of those that are alike one."""
        return len(self._priced)

    def price(self, kernel: Kernel, key: object | None = None) -> Array:
        """The price of a kernel at every point; ``key`` is that of all alike, if it is known."""
        key = outline_key(kernel) if key is None else key
        if key not in self._priced:
            self._priced[key] = np.array(self._prices.of(kernel))
        return self._priced[key]

    def prices(self, part: Part, chosen: Sequence[int]) -> Array:
        """The price of a choice at every point."""
        made = np.zeros(len(self._prices.points))
        for number in chosen:
            made = made + self.price(part.problem.kernels[number], part.keys[number])
        return made

    def is_priced(self, key: object) -> bool:
        """Whether kernels with this key have a price by now."""
        return key in self._priced

    def improved(
        self, part: Part, start: tuple[int, ...], weights: Array, least: float = 0.0
    ) -> Choice:
        """Choose and price until all that is chosen is priced, or no choice is worth it.

        The choice ``start`` is kept unless another one gains more than the error of prices, and
        more than ``least``.
        """
        # A later part may read what the greedy plan has nobody write.
        holds = part.problem.holds(start)
        price = float(self.prices(part, start) @ weights) if holds else math.inf
        best = first = Choice(start, price, 0.0)
        wanted = min((1 - WORTH) * price, price - least)
        bound = 0.0
        for chosen, bound in self._tried(part, weights):
            if bound > wanted:  # whatever was chosen is not worth it
                break
            own = float(self.prices(part, chosen) @ weights)
            best = Choice(chosen, own, bound) if own < best.price else best
            if best.price - bound <= NEAR * best.price:
                break
        best = best if best.price <= wanted else first
        return Choice(best.chosen, best.price, bound)

    def cheapest(
        self,
        part: Part,
        weights: Array,
        others: Sequence[Kernel] = (),
        below: float = math.inf,
        rounds: int = ROUNDS,
    ) -> Choice | None:
        """The cheapest choice that runs with ``others``, however small its gain; None for none.

        One that is not ``below`` a price, or is not found in so many ``rounds`` of choosing and
        pricing, need not be the cheapest.
        """
        best: Choice | None = None
        try:
            for chosen, bound in islice(self._tried(part, weights, others), rounds):
                price = float(self.prices(part, chosen) @ weights)
                best = Choice(chosen, price, bound) if best is None or price < best.price else best
                if best.price - bound <= NEAR * best.price or bound >= below:
                    break
        except NoChoice:
            pass  # all that are left wait for themselves
        return best

    def _tried(
        self, part: Part, weights: Array, others: Sequence[Kernel] = ()
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """Choices, each the cheapest by what is known of prices by then, and a bound for any.

        Each has an order in which it runs with ``others``. Who goes on prices the last one before.
        Raises :class:`NoChoice`.
        """
        problem, bound = part.problem, 0.0
        for _ in range(ROUNDS):
            self.rounds += 1
            pairs = zip(problem.kernels, part.keys, strict=True)
            least = np.array([self._least(*pair) for pair in pairs]) @ weights
            solution = solve(problem, least.tolist(), GAP)
            bound = max(bound, solution.bound)
            try:
                in_order(self.graph, [*others, *(problem.kernels[n] for n in solution.chosen)])
            except LaunchRing as ring:
                place = {kernel: number for number, kernel in enumerate(problem.kernels)}
                problem = problem.without([place[k] for k in ring.kernels if k in place])
                continue
            yield solution.chosen, bound

    def _least(self, kernel: Kernel, key: object) -> Array:
        """What is known of a price at every point: itself, or a bound."""
        if key in self._priced:
            return self._priced[key]
        if key not in self._bounds:
            self._bounds[key] = self._bound(kernel)
        return self._bounds[key]

    def _bound(self, kernel: Kernel) -> Array:
        """The quick price; of products, which are soon lowered, the price.

        A product with what is made of its rows takes no less than the product alone and what its
        rows take once they are in registers.
        """
        if kernel.kind is KernelKind.CONTRACTION:
            return self.price(kernel)
        bound = np.array(self._quick.of(kernel))
        parts = row_product_of(kernel) if kernel.kind is KernelKind.ROW_PRODUCT else None
        if parts is None:
            return bound
        apart = self.price(parts.first) + np.array(self._quick.computing(parts.last))
        return np.maximum(bound, apart)


__all__ = ["Choice", "Choosing", "Part"]
