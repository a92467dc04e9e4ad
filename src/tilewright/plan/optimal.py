"""The optimal planner: the cheapest of all plans, by the model of the machine.

After Korch (section 4): all candidate kernels, a price for each, and a binary program over them.
Candidates are priced when a choice wants them: until then a quick price stands for them, which is a
bound from below, so that a choice all of whose kernels are priced is the best. Large graphs are
planned in parts (``parts``), each of which stays as the greedy plan has it unless the gain is
larger than the error of prices. One plan is made for the whole range of shapes: it has the least
mean, over representative points, of its time relative to that of the greedy plan. Start with
:func:`plan_optimally`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.cost import Machine
from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.row_product import row_product_of
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import candidates
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.parts import parts
from tilewright.plan.prices import KernelPrices, Prices, points_of
from tilewright.plan.problem import Problem, made_by, orchestration
from tilewright.plan.quick import QuickPrices
from tilewright.plan.solver import solve
from tilewright.tile.alike import LoweringOnce, outline_key

LONGEST = 1e12  # picoseconds of a point: shapes that take longer are not planned for
WORTH = 0.05  # of the price of a part: a smaller gain is within the error of prices
NEAR = 5e-3  # a choice this close to the bound is not improved further
GAP = NEAR / 4  # of a choice while not all kernels are priced
ROUNDS = 10  # of choosing and pricing a part


@dataclass(frozen=True)
class OptimalPlan:
    """A plan and how it was found.

    ``price`` and ``bound`` are relative to the greedy plan, whose price is 1: what the plan takes,
    and what any other choice of the candidates takes at least, part by part.
    """

    plan: Plan
    candidates: int
    priced: int
    rounds: int
    price: float
    bound: float


@dataclass(frozen=True)
class _Choice:
    """Kernels of one part by their number in it, with their price and a bound for any choice."""

    chosen: tuple[int, ...]
    price: float
    bound: float


def plan_optimally(graph: Graph, lowering: LoweringOnce) -> OptimalPlan:
    """The plan with the least modelled time for the machine that ``lowering`` is for."""
    return _Search(graph, lowering).found()


class _Search:
    def __init__(self, graph: Graph, lowering: LoweringOnce) -> None:
        self.graph = graph
        machine = lowering.machine
        self.greedy = plan_greedily(graph).kernels
        anchors = Anchors(graph)
        self.parts = parts(anchors, self.greedy)
        self.kernels = dict.fromkeys((*self.greedy, *candidates(anchors)))
        self.part_of = {node: n for n, part in enumerate(self.parts) for node in part}
        for kernel in self.kernels:  # results of the greedy plan need not be anchors
            for output in kernel.outputs:
                holders = anchors.holding((output,))
                self.part_of.setdefault(output, self.part_of[holders[0]] if holders else 0)
        points = _feasible(graph, machine, lowering, self.greedy)
        self.prices = KernelPrices(lowering, points)
        self.quick = QuickPrices(machine, points)
        self.weights = _weights([self.prices.of(kernel) for kernel in self.greedy])
        self.bounds: dict[object, float] = {}
        self.costs: dict[object, float] = {}
        self.rounds = 0

    def found(self) -> OptimalPlan:
        """The choices of all parts together, in their order."""
        of_part: dict[int, list[Kernel]] = {number: [] for number in range(len(self.parts))}
        for kernel in self.kernels:
            numbers = {self.part_of[output] for output in kernel.outputs}
            if len(numbers) == 1:
                of_part[numbers.pop()].append(kernel)
        needed = [made_by(root) for root in self.graph.roots]
        known: dict[object, _Choice] = {}
        chosen: list[Kernel] = []
        bound = 0.0
        for number in reversed(range(len(self.parts))):
            kernels = of_part[number]
            own = dict.fromkeys(n for n in needed if self.part_of.get(n) == number)
            start = [k for k in self.greedy if self.part_of[k.outputs[0]] == number]
            problem = orchestration(kernels, own, partial(self._is_earlier, number))
            choice = self._solved(problem, start, known)
            taken = [kernels[n] for n in choice.chosen]
            chosen += taken
            bound += choice.bound
            needed += [made_by(read) for kernel in taken for read in kernel.reads]
        order = in_order(self.graph, chosen)
        price = sum(self._cost(kernel) for kernel in order)
        total = sum(self._cost(kernel) for kernel in self.greedy)
        if price > total:
            order, price = list(self.greedy), total
        return OptimalPlan(
            Plan(tuple(order)), len(self.kernels), len(self.costs), self.rounds,
            price / total, bound / total,
        )  # fmt: skip

    # ------------------------------------------------------------ one part

    def _is_earlier(self, number: int, node: Node) -> bool:
        return self.part_of.get(node, number) < number

    def _solved(
        self, problem: Problem, start: Sequence[Kernel], known: dict[object, _Choice]
    ) -> _Choice:
        """The best choice of a part; parts that are alike have one."""
        keys = [outline_key(kernel) for kernel in problem.kernels]
        signature = (tuple(keys), problem.rows)
        if signature not in known:
            known[signature] = self._improved(problem, keys, start)
        return known[signature]

    def _improved(
        self, problem: Problem, keys: Sequence[object], start: Sequence[Kernel]
    ) -> _Choice:
        """Choose and price until all that is chosen is priced, or no choice is worth it.

        The greedy choice ``start`` is kept unless another one gains more than the error of prices.
        """
        first = {kernel: number for number, kernel in enumerate(problem.kernels)}
        chosen = tuple(first[kernel] for kernel in start)
        # A later part may read what the greedy plan has nobody write.
        price = sum(self._cost(kernel) for kernel in start) if problem.holds(chosen) else math.inf
        best = greedy = _Choice(chosen, price, 0.0)
        wanted = (1 - WORTH) * greedy.price
        bound = 0.0
        for _ in range(ROUNDS):
            self.rounds += 1
            pairs = zip(problem.kernels, keys, strict=True)
            solution = solve(problem, [self._least(kernel, key) for kernel, key in pairs], GAP)
            bound = max(bound, solution.bound)
            kernels = [problem.kernels[n] for n in solution.chosen]
            try:
                in_order(self.graph, kernels)
            except LaunchRing as ring:
                problem = problem.without([problem.kernels.index(k) for k in ring.kernels])
                continue
            price = sum(self._cost(kernel) for kernel in kernels)
            if price < best.price:
                best = _Choice(solution.chosen, price, bound)
            if bound > wanted or best.price - bound <= NEAR * best.price:
                break
        best = best if best.price <= wanted else greedy
        return _Choice(best.chosen, best.price, bound)

    # ------------------------------------------------------------ costs

    def _cost(self, kernel: Kernel) -> float:
        """The price of a kernel, relative to the greedy plan's at every point."""
        key = outline_key(kernel)
        if key not in self.costs:
            self.costs[key] = self._weighed(self.prices.of(kernel))
        return self.costs[key]

    def _least(self, kernel: Kernel, key: object) -> float:
        """What is known of a price: itself, or a bound."""
        if key in self.costs:
            return self.costs[key]
        if key not in self.bounds:
            self.bounds[key] = self._bound(kernel)
        return self.bounds[key]

    def _bound(self, kernel: Kernel) -> float:
        """The quick price; of products, which are soon lowered, the price.

        A product with what is made of its rows takes no less than the product alone and what its
        rows take once they are in registers.
        """
        if kernel.kind is KernelKind.CONTRACTION:
            return self._cost(kernel)
        bound = self._weighed(self.quick.of(kernel))
        parts = row_product_of(kernel) if kernel.kind is KernelKind.ROW_PRODUCT else None
        if parts is None:
            return bound
        return max(bound, self._cost(parts.first) + self._weighed(self.quick.computing(parts.last)))

    def _weighed(self, prices: Prices) -> float:
        return sum(weight * price for weight, price in zip(self.weights, prices, strict=True))


def _feasible(
    graph: Graph, machine: Machine, lowering: LoweringOnce, greedy: Iterable[Kernel]
) -> list[Mapping[str, int]]:
    """The points at which a plan takes no longer than anybody waits; at least one."""
    points = points_of(graph, machine.target.units)
    prices = KernelPrices(lowering, points)
    times = [sum(values) for values in zip(*map(prices.of, greedy), strict=True)]
    fast = [point for point, time in zip(points, times, strict=True) if time <= LONGEST]
    return fast or [points[times.index(min(times))]]


def _weights(prices: Sequence[Prices]) -> Prices:
    """By which the price of a point is relative to that of a whole plan, and all points equal."""
    times = [sum(values) for values in zip(*prices, strict=True)]
    return tuple(1.0 / (max(time, 1.0) * len(times)) for time in times)


__all__ = ["OptimalPlan", "plan_optimally"]
