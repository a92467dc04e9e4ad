"""The optimal planner: the cheapest of all plans, by the model of the machine.

After Korch (section 4): all candidate kernels, a price for each, and a binary program over them
(``choosing``). Large graphs are planned in parts (``parts``), each of which stays as the greedy
plan has it unless the gain is larger than the error of prices. The choice for all shapes has the
least mean, over representative points, of its time relative to that of the greedy plan; points
that gain by another one get that (``regions``). Start with :func:`plan_optimally`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilewright.cost import Machine
from tilewright.ir.correction import Correction
from tilewright.ir.graph import Graph, Node
from tilewright.ir.graph import node as made
from tilewright.ir.kernel import Alternatives, Kernel, Plan
from tilewright.ir.primitives import Cast, Input
from tilewright.ir.verify import REPORT
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import candidates
from tilewright.plan.choosing import NEAR, Array, Choice, Choosing, Part
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.measuring import Decided, Measure, Measuring
from tilewright.plan.memory import Fullest, PlanMemory
from tilewright.plan.parts import parts
from tilewright.plan.prices import LONGEST, KernelPrices, points_of
from tilewright.plan.problem import Problem, computed_once, made_by, orchestration
from tilewright.plan.quick import QuickPrices
from tilewright.plan.regions import MOST_WAYS, ways
from tilewright.plan.solver import NoChoice
from tilewright.support.errors import ResourceError
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.library import is_computed
from tilewright.tile.variants import THREADS

MOST_PLANS = 16  # that are tried for one that needs little memory
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class OptimalPlan:
    """A plan and how it was found.

    Prices are relative to the greedy plan, whose price is 1: ``price`` of the choice for all
    shapes, ``bound`` what any such choice of the candidates takes at least, part by part, and
    ``by_shape`` of the plan, which takes the cheapest of several ways.
    """

    plan: Plan
    candidates: int
    priced: int
    rounds: int
    price: float
    bound: float
    by_shape: float


@dataclass(frozen=True)
class _Planned:
    """What was found of one part: the choice for all shapes, and all ways, it among them.

    ``gain`` is what the other ways save in the mean, relative to the greedy plan. ``corrections``
    are those of the kernels, by number, by whose measured times it was decided.
    """

    choice: Choice
    ways: tuple[tuple[int, ...], ...]
    gain: float
    corrections: Mapping[int, Correction]


def plan_optimally(
    graph: Graph,
    lowering: LoweringOnce,
    limit: int | None = None,
    measure: Measure | None = None,
    recomputes: bool = True,
) -> OptimalPlan:
    """The plan with the least modelled time for the machine that ``lowering`` is for.

    With ``measure`` the best choices of every part are decided by running their kernels. Unless it
    ``recomputes``, no anchor is computed by two kernels.

    With ``limit``, that of those which need no more bytes between kernels, at the ends of all
    ranges, with one way for all shapes; kernels that need more together are forbidden as they are
    found. Raises ResourceError if there is none, or none is found.
    """
    search = _Search(graph, lowering, measure, recomputes)
    return search.found() if limit is None else _within(search, PlanMemory(graph, lowering), limit)


def _within(search: _Search, memory: PlanMemory, limit: int) -> OptimalPlan:
    """The plan that is found once all kernels that need too much together are forbidden."""
    search.has_regions = False
    least: Fullest | None = None
    for _ in range(MOST_PLANS):
        try:
            found = search.found()
        except NoChoice:
            break
        fullest = memory.fullest(found.plan.kernels, limit)
        if fullest.bytes <= limit:
            return found
        if least is None or fullest.bytes < least.bytes:
            least = fullest
        search.forbid(fullest)
    assert least is not None
    sizes = [f"{name}={size}" for name, size in least.point.items() if name != THREADS]
    where = ", ".join(sizes) or "its only shape"
    raise ResourceError(
        f"No plan was found that needs at most {limit} bytes between kernels at every shape; the "
        f"least that was found needs {least.bytes}, at {where}",
        where=least.launched.label,
        hint="Allow more bytes, or declare smaller ranges of the dimensions",
    )


class _Search:
    def __init__(
        self, graph: Graph, lowering: LoweringOnce, measure: Measure | None, recomputes: bool
    ) -> None:
        self.graph = graph
        self.recomputes = recomputes
        machine = lowering.machine
        self.greedy = plan_greedily(graph).kernels
        apart = partial(is_computed, scope=graph.scope, machine=machine)
        anchors = Anchors(graph, apart=apart)
        self.kernels = dict.fromkeys((*self.greedy, *candidates(anchors)))
        points = _feasible(graph, machine, lowering, self.greedy)
        self.prices = KernelPrices(lowering, points)
        self.choosing = Choosing(graph, self.prices, QuickPrices(machine, points))
        times = sum((self.choosing.price(k) for k in self.greedy), np.zeros(len(points)))
        self.weights = 1.0 / (np.maximum(times, 1.0) * len(points))  # relative, all points equal
        cut = parts(anchors, self.greedy, tuple(self.kernels), self._moving)
        self.parts = [part.anchors for part in cut]
        self.lost = sum(part.lost for part in cut)
        self.part_of = {node: n for n, part in enumerate(self.parts) for node in part}
        for kernel in self.kernels:  # results of the greedy plan need not be anchors
            for output in kernel.outputs:
                holders = anchors.holding((output,))
                self.part_of.setdefault(output, self.part_of[holders[0]] if holders else 0)
        self.has_regions = _is_decided_by_inputs(graph)
        # Numbers of kernels that must not be chosen together, by what parts that are alike share.
        self.forbidden: dict[object, list[tuple[int, ...]]] = {}
        self.measuring = (
            None if measure is None else Measuring(self.choosing, points, times, measure)
        )
        self._corrections: dict[Kernel, Correction] = {}
        self._known: dict[object, _Planned] = {}
        self._problems: dict[int, tuple[list[Kernel], Problem]] = {}  # of each part

    def found(self) -> OptimalPlan:
        """The choices of all parts together, in their order."""
        of_part: dict[int, list[Kernel]] = {number: [] for number in range(len(self.parts))}
        for kernel in self.kernels:
            numbers = {self.part_of[output] for output in kernel.outputs}
            if len(numbers) == 1:
                of_part[numbers.pop()].append(kernel)
        # Parts that are alike have as many kernels: so many may be alike at most.
        alike = Counter(map(len, of_part.values()))
        needed = [made_by(root) for root in self.graph.roots]
        self._corrections.clear()
        taken: list[list[list[Kernel]]] = []  # by part and way
        found: list[_Planned] = []
        bound = 0.0
        for number in reversed(range(len(self.parts))):
            kernels = of_part[number]
            own = dict.fromkeys(n for n in needed if self.part_of.get(n) == number)
            start = [k for k in self.greedy if self.part_of[k.outputs[0]] == number]
            problem = orchestration(kernels, own, partial(self._is_earlier, number))
            if not self.recomputes:
                problem = problem.within(computed_once(kernels, self.parts[number]))
            self._problems[number] = kernels, problem
            least = NEAR / alike[len(kernels)]
            planned = self._planned(self._allowed(problem), start, least)
            every = [[kernels[n] for n in chosen] for chosen in planned.ways]
            self._corrections |= {kernels[n]: own for n, own in planned.corrections.items()}
            taken.append(self._reading_alike(number, every))
            found.append(planned)
            bound += planned.choice.bound
            needed += [made_by(read) for kernel in every[0] for read in kernel.reads]
        for number, planned in enumerate(found):
            if found.count(planned) * planned.gain < NEAR:  # not worth the code
                del taken[number][1:]
        return self._whole(taken, bound)

    def _moving(self, node: Node) -> float:
        """The price of a tensor that is written and read, as a part of the greedy plan's."""
        if not node.dtype.is_native:
            return 0.0
        read = made(Input("", node.dtype, node.shape))
        copy = made(Cast(node.dtype), read)
        kernel = Kernel((), (copy,), (read,), (copy,), "")
        return float(np.array(self.prices.of(kernel)) @ self.weights)

    def _whole(self, taken: list[list[list[Kernel]]], bound: float) -> OptimalPlan:
        prices = [[self._prices(way) for way in part] for part in taken]
        price = float(sum(part[0] @ self.weights for part in prices))
        by_shape = float(sum(np.min(part, axis=0) @ self.weights for part in prices))
        total = float(self._prices(self.greedy) @ self.weights)
        plan = Plan(self.greedy)
        if by_shape <= total or self.forbidden or not self.recomputes:
            plan = _joined(self.graph, taken)
        else:
            price = by_shape = total
        lost = self.lost * total / by_shape
        if len(self.parts) > 1:
            _LOG.info(
                "Planned in %d parts, which lose at most %.2f %%", len(self.parts), 100 * lost
            )
        numbered = [(n, self._corrections.get(kernel)) for n, kernel in enumerate(plan.kernels)]
        corrections = tuple((n, own) for n, own in numbered if own is not None)
        plan = replace(plan, lost=lost, corrections=corrections)
        return OptimalPlan(
            plan, len(self.kernels), self.choosing.priced, self.choosing.rounds,
            price / total, bound / total, by_shape / total,
        )  # fmt: skip

    def _prices(self, kernels: Sequence[Kernel]) -> Array:
        return sum(map(self._price, kernels), 0 * self.weights)

    def _price(self, kernel: Kernel) -> Array:
        correction = self._corrections.get(kernel)
        if correction is None or self.measuring is None:
            return self.choosing.price(kernel)
        return self.measuring.price(kernel, correction)

    # ------------------------------------------------------------ memory

    def forbid(self, fullest: Fullest) -> None:
        """Let kernels that need too much memory together not be chosen again.

        Of those in several parts, the ones in the part of the kernel that is launched.
        """
        number = self.part_of[fullest.launched.outputs[0]]
        kernels, problem = self._problems[number]
        chosen = [n for n, kernel in enumerate(kernels) if kernel in fullest.together]
        self.forbidden.setdefault(_signature(Part.of(problem)), []).append(tuple(chosen))

    def _allowed(self, problem: Problem) -> Problem:
        if not self.forbidden:
            return problem
        allowed = problem
        for together in self.forbidden.get(_signature(Part.of(problem)), ()):
            allowed = allowed.without(together)
        return allowed

    # ------------------------------------------------------------ one part

    def _is_earlier(self, number: int, node: Node) -> bool:
        return self.part_of.get(node, number) < number

    def _planned(self, problem: Problem, start: Sequence[Kernel], least: float) -> _Planned:
        """The best choice of a part and its ways; parts that are alike have the same.

        What other ways save in the mean is more than ``least``.
        """
        part = Part.of(problem)
        signature = _signature(part)
        if signature not in self._known:
            first = {kernel: number for number, kernel in enumerate(problem.kernels)}
            chosen = tuple(first[kernel] for kernel in start)
            choice = self.choosing.improved(part, chosen, self.weights)
            if not problem.holds(choice.chosen):
                raise NoChoice("No choice of kernels was found that can be launched", hint=REPORT)
            every = (choice.chosen,)
            if self.has_regions:
                every = ways(self.choosing, part, choice, self.weights, least)
            prices: Sequence[Array] = [self.choosing.prices(part, way) for way in every]
            corrections: Mapping[int, Correction] = {}
            decided = self._measured(part, chosen, every)
            if decided is not None:
                every, prices, corrections = decided.ways, decided.prices, decided.corrections
                choice = replace(choice, chosen=every[0], price=float(prices[0] @ self.weights))
            gain = float((prices[0] - np.min(prices, axis=0)) @ self.weights)
            self._known[signature] = _Planned(choice, every, gain, corrections)
        return self._known[signature]

    def _measured(
        self, part: Part, start: tuple[int, ...], every: Sequence[tuple[int, ...]]
    ) -> Decided | None:
        """The ways of a part by measurement; None where it is not wanted or not possible."""
        if self.measuring is None:
            return None
        most = MOST_WAYS if self.has_regions else 1
        return self.measuring.decided(part, start, every, self.weights, most)

    def _reading_alike(self, number: int, every: list[list[Kernel]]) -> list[list[Kernel]]:
        """The ways that read no more of earlier parts than the first one."""

        def earlier(way: Iterable[Kernel]) -> set[Node]:
            sources = (made_by(read) for kernel in way for read in kernel.reads)
            return {source for source in sources if self._is_earlier(number, source)}

        allowed = earlier(every[0])
        return [way for way in every if earlier(way) <= allowed]


def _joined(graph: Graph, taken: Sequence[Sequence[Sequence[Kernel]]]) -> Plan:
    """One plan of all parts, each with its ways; with the first alone where no order has more."""
    while True:
        where = _Memberships(taken)
        try:
            kernels = in_order(graph, where.kernels, where.meet)
            break
        except LaunchRing as ring:
            stuck = {where.of[kernel][0] for kernel in ring.kernels if kernel in where.of}
            if not stuck:
                raise
            taken = [part[:1] if n in stuck else part for n, part in enumerate(taken)]
    place = {kernel: number for number, kernel in enumerate(kernels)}
    alternatives: list[Alternatives] = []
    for part in taken:
        own = [tuple(sorted(place[k] for k in way if k in where.of)) for way in part]
        if len(own) > 1:
            alternatives.append(Alternatives(tuple(own)))
    return Plan(tuple(kernels), tuple(alternatives))


class _Memberships:
    """The kernels of all ways, and of which part and ways those are that not all ways have."""

    def __init__(self, taken: Sequence[Sequence[Sequence[Kernel]]]) -> None:
        self.kernels = list(dict.fromkeys(k for part in taken for way in part for k in way))
        self.of: dict[Kernel, tuple[int, frozenset[int]]] = {}
        for number, part in enumerate(taken):
            for kernel in dict.fromkeys(k for way in part for k in way):
                having = frozenset(n for n, way in enumerate(part) if kernel in way)
                if len(having) < len(part):
                    self.of[kernel] = (number, having)

    def meet(self, one: Kernel, other: Kernel) -> bool:
        """Whether some call launches both."""
        if one not in self.of or other not in self.of:
            return True
        (part, own), (others, their) = self.of[one], self.of[other]
        return part != others or bool(own & their)


def _signature(part: Part) -> object:
    """What is equal of parts that are alike."""
    return part.keys, part.problem.rows


def _is_decided_by_inputs(graph: Graph) -> bool:
    """Whether the sizes of the inputs tell all sizes, so that prices are known before the call."""
    known = {name for node in graph.inputs for size in node.shape for name in size.free_symbols}
    return known.union(graph.scope.definitions).issuperset(graph.scope.symbols)


def _feasible(
    graph: Graph, machine: Machine, lowering: LoweringOnce, greedy: Iterable[Kernel]
) -> list[Mapping[str, int]]:
    """The points at which a plan takes no longer than anybody waits; at least one."""
    points = points_of(graph, machine.target.units)
    prices = KernelPrices(lowering, points)
    times = [sum(values) for values in zip(*map(prices.of, greedy), strict=True)]
    fast = [point for point, time in zip(points, times, strict=True) if time <= LONGEST]
    return fast or [points[times.index(min(times))]]


__all__ = ["OptimalPlan", "plan_optimally"]
