"""Every plan that some kernels allow, tried one by one: what a solver's choice is held against."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations, product

from tilewright.ir.graph import Graph
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.layout_problem import Conversion, Traffic
from tilewright.plan.problem import Problem


def cheapest(graph: Graph, problem: Problem, costs: Sequence[float]) -> float:
    """The price of the cheapest valid choice; there are 2 ** kernels to look at."""
    best = float("inf")
    numbers = range(len(problem.kernels))
    for count in range(len(problem.kernels) + 1):
        for chosen in combinations(numbers, count):
            price = sum(costs[n] for n in chosen)
            if price < best and problem.holds(chosen) and is_launchable(graph, problem, chosen):
                best = price
    return best


def is_launchable(graph: Graph, problem: Problem, chosen: Sequence[int]) -> bool:
    """Whether no kernels wait for each other."""
    try:
        in_order(graph, [problem.kernels[n] for n in chosen])
    except LaunchRing:
        return False
    return True


def cheapest_layouts(
    units: Sequence[Sequence[Traffic[Hashable, Hashable]]],
    given: Mapping[Hashable, Hashable],
    wanted: Sequence[tuple[Hashable, Hashable]],
    way: Callable[[int, int], float],
    conversion: Callable[[Conversion[Hashable, Hashable]], float],
) -> float:
    """The price of the cheapest way of every unit with the conversions that they need.

    ``way`` gives the price of a way of a unit, both by number.
    """
    best = float("inf")
    for numbers in product(*(range(len(ways)) for ways in units)):
        price = sum(way(unit, number) for unit, number in enumerate(numbers))
        chosen = [ways[number] for ways, number in zip(units, numbers, strict=True)]
        written = {**given}
        for traffic in chosen:
            written.update(traffic.writes)
        needed = [pair for traffic in chosen for pair in traffic.reads.items()] + [*wanted]
        for tensor, stored in dict.fromkeys(needed):
            if written[tensor] != stored:
                price += conversion(Conversion(tensor, written[tensor], stored))
        best = min(best, price)
    return best
