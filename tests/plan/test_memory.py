"""The memory of plans: beside what calls need, and as a limit, beside brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

import tilewright as tw
from support.random_graphs import build
from support.text_models import model
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.compile import compile_stages
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import candidates
from tilewright.plan.choosing import Array, Choosing
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.memory import PlanMemory
from tilewright.plan.optimal import plan_optimally
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import KernelPrices, points_of
from tilewright.plan.problem import orchestration
from tilewright.rewrite import simplify
from tilewright.support.errors import InputError, ResourceError

LEVEL = "x86-64"
# Each result is read again later, so that one plan keeps it and another one computes it again.
CHAIN = """g (float[n, 64] x) => (float[n, 64] y) {
    a = Softmax <axis = -1> (x)
    b = Softmax <axis = 0> (a)
    c = Softmax <axis = -1> (b)
    d = Add (c, a)
    e = Softmax <axis = 0> (d)
    y = Mul (e, a)
}"""


def small_graph(chance: np.random.Generator) -> Graph:
    numbers = chance.integers(0, 1 << 16, 90).tolist()
    graph = prepare(simplify(build(numbers, int(chance.integers(3, 6)))))
    for name in graph.scope.symbols:
        graph.scope.declare(name, 0, 24)
    return graph


def every_plan(graph: Graph) -> list[list[Kernel]]:
    """The kernels of every valid choice, in their order."""
    kernels = tuple(dict.fromkeys((*plan_greedily(graph).kernels, *candidates(Anchors(graph)))))
    problem = orchestration(kernels, graph.roots)
    found: list[list[Kernel]] = []
    for count in range(len(kernels) + 1):
        for chosen in combinations(range(len(kernels)), count):
            if problem.holds(chosen):
                try:
                    found.append(in_order(graph, [kernels[n] for n in chosen]))
                except LaunchRing:
                    continue
    return found


def price_of(kernels: Sequence[Kernel], prices: KernelPrices, weights: Array) -> float:
    return sum(float(np.array(prices.of(kernel)) @ weights) for kernel in kernels)


def test_the_cheapest_plan_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the least amounts of memory that some plan needs."""
    monkeypatch.setattr(f"{Choosing.__module__}.WORTH", -10.0)
    chance = np.random.default_rng(31)
    asked = bound = 0
    while asked < 20:
        graph = small_graph(chance)
        kernels = dict.fromkeys((*plan_greedily(graph).kernels, *candidates(Anchors(graph))))
        if not 3 < len(kernels) <= 6:
            continue
        lowering = lowering_of(graph, LEVELS[LEVEL])
        memory = PlanMemory(graph, lowering)
        prices = KernelPrices(lowering, points_of(graph, lowering.machine.target.units))
        greedy = [prices.of(kernel) for kernel in plan_greedily(graph).kernels]
        first = np.array([sum(at) for at in zip(*greedy, strict=True)])
        weights = 1 / np.maximum(first, 1.0)
        plans = [
            (price_of(made, prices, weights), memory.fullest(made, 0).bytes)
            for made in every_plan(graph)
        ]
        needs = sorted({need for _, need in plans})
        if len(needs) < 2:
            continue
        asked += 1
        for limit in needs[:2]:
            found = plan_optimally(graph, lowering, limit).plan.kernels
            assert memory.fullest(found, limit).bytes <= limit
            price = price_of(found, prices, weights)
            best = min(price for price, need in plans if need <= limit)
            assert price <= best * 1.006
            bound += best > min(price for price, _ in plans) * 1.01
    assert bound  # for some of them the limit changes the plan


@pytest.mark.parametrize("plan", ["greedy", "none"])
def test_the_memory_of_a_plan_is_that_of_calls(plan: str) -> None:
    made = compile_stages(model(CHAIN), dims={"n": (0, 300)}, plan=plan, levels=[LEVEL])
    lowering = lowering_of(made.graph, LEVELS[LEVEL])
    (fullest,) = [PlanMemory(made.graph, lowering).fullest(made.plans[LEVEL].kernels, 0)]
    compiled = tw.compile(model(CHAIN), dims={"n": (0, 300)}, plan=plan, levels=[LEVEL])
    assert fullest.point["n"] == 300
    assert fullest.bytes <= compiled.memory(n=300).arena <= fullest.bytes * 1.01


def test_an_option_limits_the_memory_of_calls() -> None:
    short = """g (float[n, 64] x) => (float[n, 64] y) {
        a = Softmax <axis = 0> (x)
        y = Softmax <axis = -1> (a)
    }"""

    def arena(limit: int | str | None) -> int:
        options = {"plan": "optimal", "max_arena": limit, "levels": [LEVEL]}
        return tw.compile(model(short), dims={"n": (0, 300)}, **options).memory(n=300).arena

    free = arena(None)
    assert 1 < arena("1M") <= free
    with pytest.raises(ResourceError, match=r"at most 1 bytes .* needs [0-9]+, at n=300"):
        arena(1)


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="makes one plan only"):
        tw.compile(model(CHAIN), dims={"n": (0, 300)}, max_arena="1M")
    with pytest.raises(InputError, match="'max_arena' is '1 parsec'"):
        tw.compile(model(CHAIN), dims={"n": (0, 300)}, plan="optimal", max_arena="1 parsec")
