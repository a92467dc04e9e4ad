"""Every plan that some kernels allow, tried one by one: what a solver's choice is held against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tilewright.ir.graph import Graph
from tilewright.plan.launches import LaunchRing, in_order
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
