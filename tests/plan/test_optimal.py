"""The optimal planner: candidates, the binary program beside brute force, results of any choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.brute_force import cheapest, is_launchable
from support.graph_kit import Space, apply, check, few_or_many, fixed
from support.random_graphs import build, fill, largest
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import Broadcast, Constant, Contract, Input, Reduce, Transpose
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import candidates
from tilewright.plan.choosing import Choosing
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.optimal import plan_optimally
from tilewright.plan.parts import LEAST, parts
from tilewright.plan.planners import PLANNERS
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import KernelPrices, points_of
from tilewright.plan.problem import (
    Problem,
    Row,
    all_computed,
    computed_once,
    made_by,
    orchestration,
)
from tilewright.plan.quick import QuickPrices
from tilewright.plan.solver import solve
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.shape import constant

LEVEL = "x86-64"
SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]


def random_graph(chance: np.random.Generator, most: int = 12) -> Graph:
    numbers = chance.integers(0, 1 << 16, 90).tolist()
    return prepare(simplify(build(numbers, int(chance.integers(3, most)))))


def softmax(x: Node) -> Node:
    shape, rows = x.shape, tuple(range(x.rank - 1))

    def repeated(row: Node) -> Node:
        return node(Broadcast(shape, rows), row)

    lowest = repeated(node(Reduce("maximum", (x.rank - 1,)), x))
    raised = apply("exponential", apply("subtract", x, lowest))
    return apply("divide", raised, repeated(node(Reduce("sum", (x.rank - 1,)), raised)))


def dense(x: Node, width: int) -> Node:
    weights = fixed(np.full((x.shape[-1].value, width), 0.125, np.float32))
    return node(Contract((), ((x.rank - 1, 0),)), x, weights)


def every(graph: Graph) -> tuple[Kernel, ...]:
    return tuple(dict.fromkeys((*plan_greedily(graph).kernels, *candidates(Anchors(graph)))))


# ---------------------------------------------------------------- candidates


def test_all_ways_to_divide_a_softmax() -> None:
    space = Space()
    rows, columns = space.dimensions("rows columns")
    graph = prepare(space.graph(softmax(space.input("x", DType.FLOAT32, rows, columns))))
    anchors = Anchors(graph)
    assert len(anchors.nodes) == 4  # maximum, exponential, sum, quotient
    made = candidates(anchors)
    whole = [k for k in made if len(k.seeds) == 2 and k.outputs == (graph.roots[0],)]
    assert len(whole) == 1 and len(whole[0].reads) == 1
    # The exponential is stored, or computed again in the kernel that divides by the sum.
    apart = [k for k in made if k.outputs == (graph.roots[0],) and k is not whole[0]]
    assert {len(k.reads) for k in apart} == {1, 2, 3}


def test_a_product_ends_with_what_follows_it() -> None:
    space = Space()
    (rows,) = space.dimensions("rows")
    x = space.input("x", DType.FLOAT32, rows, constant(16))
    graph = prepare(space.graph(apply("exponential", apply("negate", dense(x, 32)))))
    anchors = Anchors(graph)
    assert anchors.nodes == graph.roots
    (kernel,) = candidates(anchors)
    assert kernel.kind is KernelKind.CONTRACTION and len(kernel.body) == 3


def test_a_projection_may_end_in_its_normalisation() -> None:
    space = Space()
    (rows,) = space.dimensions("rows")
    x = space.input("x", DType.FLOAT32, rows, constant(16))
    graph = prepare(space.graph(softmax(dense(x, 32))))
    kinds = {kernel.kind for kernel in candidates(Anchors(graph))}
    assert {KernelKind.ROW_PRODUCT, KernelKind.CONTRACTION, KernelKind.ROWS} <= kinds


def test_a_result_that_tiles_cannot_store_is_no_candidate() -> None:
    space = Space()
    (rows,) = space.dimensions("rows")
    x = space.input("x", DType.FLOAT32, rows, constant(16))
    graph = prepare(space.graph(node(Transpose((1, 0)), dense(x, 32))))
    assert all(len(kernel.body) == 1 for kernel in candidates(Anchors(graph)))


# ---------------------------------------------------------------- the binary program


@pytest.mark.parametrize("count", few_or_many(20, 500))
def test_the_solver_finds_what_brute_force_finds(count: int) -> None:
    chance = np.random.default_rng(7)
    found = 0
    while found < count:
        graph = random_graph(chance, 6)
        kernels = every(graph)
        if not 3 < len(kernels) <= 14:
            continue
        found += 1
        problem = orchestration(kernels, graph.roots)
        costs = chance.uniform(0.5, 3.0, len(kernels)).tolist()
        assert solved(graph, problem, costs)[1] == pytest.approx(
            cheapest(graph, without_what_follows(graph, problem), costs), rel=2e-4
        )


def test_a_partition_computes_nothing_twice() -> None:
    chance = np.random.default_rng(19)
    repeated = 0
    for _ in range(40):
        graph = random_graph(chance)
        kernels = every(graph)
        nodes = Anchors(graph).nodes
        free = orchestration(kernels, graph.roots)
        once = free.within(computed_once(kernels, nodes))
        costs = chance.uniform(0.5, 3.0, len(kernels)).tolist()
        plan, price = solved(graph, once, costs)
        assert all(sum(node in k.body for k in plan.kernels) <= 1 for node in nodes)
        usual, least = solved(graph, free, costs)
        assert price >= least * (1 - 2e-4)
        repeated += any(sum(node in k.body for k in usual.kernels) > 1 for node in nodes)
    assert repeated


def without_what_follows(graph: Graph, problem: Problem) -> Problem:
    """The problem without constraints that follow from the others."""
    wanted = [root for root in map(made_by, graph.roots) if not is_given(root)]
    written = [[n for n, k in enumerate(problem.kernels) if root in k.outputs] for root in wanted]
    following = set(all_computed(problem.kernels, wanted, is_given))
    following -= {Row(tuple(numbers), (1.0,) * len(numbers), 1.0, None) for numbers in written}
    return replace(problem, rows=tuple(row for row in problem.rows if row not in following))


def is_given(node: Node) -> bool:
    return isinstance(node.primitive, Input | Constant)


def test_what_is_never_written_is_known_to_be_computed() -> None:
    """Two halves of kernels that each read something else are no choice, not even a relaxed one."""
    space = Space()
    rows, columns = space.dimensions("rows columns")
    graph = prepare(space.graph(softmax(space.input("x", DType.FLOAT32, rows, columns))))
    kernels = candidates(Anchors(graph))
    problem = orchestration(kernels, graph.roots)
    for current in graph.nodes():
        computing = tuple(n for n, kernel in enumerate(kernels) if current in kernel.body)
        if not is_given(current):
            assert Row(computing, (1.0,) * len(computing), 1.0, None) in problem.rows


def solved(graph: Graph, problem: Problem, costs: list[float]) -> tuple[Plan, float]:
    """The best choice without rings."""
    while True:
        solution = solve(problem, costs)
        assert problem.holds(solution.chosen)
        try:
            chosen = in_order(graph, [problem.kernels[n] for n in solution.chosen])
        except LaunchRing as ring:
            assert not is_launchable(graph, problem, solution.chosen)
            problem = problem.without([problem.kernels.index(k) for k in ring.kernels])
            continue
        return Plan(tuple(chosen)), solution.price


@pytest.mark.parametrize("count", few_or_many(4, 16))
def test_whatever_is_chosen_gives_the_right_numbers(count: int) -> None:
    """Any candidate may be in a plan: with random costs all kinds of them are."""
    chance = np.random.default_rng(11)
    for _ in range(count):
        graph = random_graph(chance)
        kernels = every(graph)
        problem = orchestration(kernels, graph.roots)
        plan, _ = solved(graph, problem, chance.uniform(0.1, 3.0, len(kernels)).tolist())
        assert problems(graph, plan) == []
        scale = max(largest(graph, sizes) for sizes in SIZES)
        check(graph, SIZES, length=4000, scale=scale, fill=fill, levels=(LEVEL,), plan=plan)


@pytest.mark.parametrize("name", [name for name in PLANNERS if name != "greedy"])
@pytest.mark.parametrize("count", few_or_many(3, 10))
def test_every_planner_gives_the_right_numbers(name: str, count: int) -> None:
    chance = np.random.default_rng(13)
    for _ in range(count):
        graph = random_graph(chance)
        plan = PLANNERS[name](graph, lowering_of(graph, LEVELS[LEVEL]))
        assert problems(graph, plan) == []
        scale = max(largest(graph, sizes) for sizes in SIZES)
        check(graph, SIZES, length=4000, scale=scale, fill=fill, levels=(LEVEL,), plan=plan)


# ---------------------------------------------------------------- the whole


def layers(count: int, width: int = 32) -> Graph:
    space = Space()
    (rows,) = space.dimensions("rows")
    x = space.input("x", DType.FLOAT32, rows, constant(width))
    for _ in range(count):
        x = apply("add", x, dense(softmax(dense(x, width)), width))
    return prepare(space.graph(x))


def test_the_plan_is_not_dearer_than_the_greedy_one() -> None:
    graph = layers(3)
    found = plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL]))
    assert problems(graph, found.plan) == []
    assert 0 < found.bound <= found.price * (1 + 1e-9) and found.price <= 1.0 + 1e-9
    assert found.priced < found.candidates


def test_parts_divide_no_kernel_and_are_planned_like_the_whole() -> None:
    graph = layers(24)
    greedy = plan_greedily(graph).kernels
    anchors = Anchors(graph)
    found = [part.anchors for part in parts(anchors, greedy, greedy, lambda _: 1.0)]
    assert len(found) > 1 and sum(map(len, found)) == len(anchors.nodes)
    assert all(len(part) >= LEAST for part in found[:-1])
    for kernel in greedy:
        kept = anchors.holding({*kernel.seeds, *kernel.outputs})
        assert sum(not part.isdisjoint(kept) for part in found) == 1


def test_parts_end_where_kernels_that_reach_across_save_least() -> None:
    """Each kernel is divided by a cut into halves, of which one writes what the other reads."""
    graph = layers(24)
    anchors = Anchors(graph)
    every_kernel = every(graph)
    every_size = {node: float(number % 7 + 1) for number, node in enumerate(anchors.nodes)}
    found = parts(anchors, plan_greedily(graph).kernels, every_kernel, every_size.__getitem__)
    assert len(found) > 1 and found[-1].lost == 0.0
    earlier: set[Node] = set()
    for part in found[:-1]:
        earlier |= part.anchors
        handed = {
            (node, reader)
            for kernel in every_kernel
            for reader in kernel.body
            if reader in anchors.number and reader not in earlier
            for node in anchors.operands(reader)
            if node in kernel.body and node in earlier
        }
        assert part.lost == sum(every_size[node] for node, _ in handed)
    nothing = parts(anchors, plan_greedily(graph).kernels, (), every_size.__getitem__)
    assert all(part.lost == 0.0 for part in nothing)


def test_what_cuts_lose_is_a_part_of_the_plan() -> None:
    graph = layers(24)
    found = plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL]))
    assert 0.0 <= found.plan.lost < 0.02
    small = layers(1)
    assert plan_optimally(small, lowering_of(small, LEVELS[LEVEL])).plan.lost == 0.0


@pytest.mark.parametrize("count", few_or_many(6, 30))
def test_small_parts_fit_together(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{parts.__module__}.LEAST", 1)
    monkeypatch.setattr(f"{parts.__module__}.MOST", 3)
    monkeypatch.setattr(f"{Choosing.__module__}.WORTH", -10.0)
    chance = np.random.default_rng(17)
    for _ in range(count):
        graph = random_graph(chance)
        found = plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL]))
        assert problems(graph, found.plan) == []


def test_the_quick_price_is_below_the_price() -> None:
    graph = layers(2, 64)
    lowering = lowering_of(graph, LEVELS[LEVEL])
    points = points_of(graph, 2)
    prices, quick = KernelPrices(lowering, points), QuickPrices(lowering.machine, points)
    for kernel in every(graph):
        pairs = zip(quick.of(kernel), prices.of(kernel), strict=True)
        assert all(least <= price * 1.35 for least, price in pairs), kernel


def test_the_same_graph_has_the_same_plan() -> None:
    def made() -> str:
        graph = layers(4)
        return str(plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL])).plan)

    assert made() == made()
