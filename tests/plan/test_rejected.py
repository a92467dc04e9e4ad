"""What a plan could have done instead, beside trying all choices and beside running it."""

from __future__ import annotations

import numpy as np
import pytest

from support.graph_kit import Space, apply, check, few_or_many, fixed
from support.random_graphs import build, fill, largest
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import Broadcast, Contract, Reduce
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.launches import in_order
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import KernelPrices
from tilewright.plan.rejected import Rejected
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.shape import constant
from tilewright.tile.variants import THREADS

LEVEL = "x86-64"
SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]


def softmax_of_product() -> Graph:
    """A product with a softmax of its rows."""
    space = Space()
    (rows,) = space.dimensions("rows")
    x = space.input("x", DType.FLOAT32, rows, constant(16))
    weights = fixed(np.full((16, 48), 0.125, np.float32))
    y = node(Contract((), ((1, 0),)), x, weights)

    def repeated(row: Node) -> Node:
        return node(Broadcast(y.shape, (0,)), row)

    raised = apply("exponential", apply("subtract", y, repeated(node(Reduce("maximum", (1,)), y))))
    return prepare(
        space.graph(apply("divide", raised, repeated(node(Reduce("sum", (1,)), raised))))
    )


def without(plan: Plan, graph: Graph, kernel: Kernel, rejected: Rejected) -> Plan | None:
    """The plan that makes the other choice."""
    found = rejected.beside(kernel)
    if found is None:
        return None
    assert kernel in found.removed and kernel not in found.added
    kept = [k for k in plan.kernels if k not in found.removed]
    return Plan(tuple(in_order(graph, [*kept, *found.added])))


def test_a_product_with_its_rows_is_divided() -> None:
    graph, point = softmax_of_product(), {"rows": 200, THREADS: 2}
    lowering = lowering_of(graph, LEVELS[LEVEL])
    plan = plan_greedily(graph)
    (kernel,) = plan.kernels
    assert kernel.kind is KernelKind.ROW_PRODUCT
    found = Rejected(graph, lowering, point, plan.kernels).beside(kernel)
    assert found is not None and found.removed == (kernel,) and len(found.added) > 1
    prices = KernelPrices(lowering, [point])
    added = sum(prices.of(k)[0] for k in found.added)
    assert found.more == pytest.approx(added - prices.of(kernel)[0])


def test_kernels_apart_are_joined() -> None:
    """The other choice for each half is the kernel that was divided."""
    graph, point = softmax_of_product(), {"rows": 200, THREADS: 2}
    lowering = lowering_of(graph, LEVELS[LEVEL])
    (whole,) = plan_greedily(graph).kernels
    halves = Rejected(graph, lowering, point, (whole,)).beside(whole)
    assert halves is not None
    product = next(k for k in halves.added if k.kind is KernelKind.CONTRACTION)
    joined = Rejected(graph, lowering, point, halves.added).beside(product)
    assert joined is not None and product in joined.removed
    assert {k.kind for k in joined.added} & {KernelKind.ROW_PRODUCT, KernelKind.ROWS}


def test_what_cannot_be_computed_otherwise_has_no_other_choice() -> None:
    space = Space()
    (rows,) = space.dimensions("rows")
    graph = prepare(space.graph(apply("negate", space.input("x", DType.FLOAT32, rows))))
    (kernel,) = plan_greedily(graph).kernels
    point = {"rows": 8, THREADS: 1}
    assert (
        Rejected(graph, lowering_of(graph, LEVELS[LEVEL]), point, (kernel,)).beside(kernel) is None
    )


@pytest.mark.parametrize("count", few_or_many(3, 8, 12))
def test_rejected_choices_give_the_right_numbers(count: int) -> None:
    chance = np.random.default_rng(17)
    made = 0
    while made < count:
        numbers = chance.integers(0, 1 << 16, 90).tolist()
        graph = prepare(simplify(build(numbers, int(chance.integers(4, 12)))))
        plan = plan_greedily(graph)
        point = {**dict.fromkeys(graph.scope.symbols, 7), THREADS: 1}
        rejected = Rejected(graph, lowering_of(graph, LEVELS[LEVEL]), point, plan.kernels)
        found = [without(plan, graph, kernel, rejected) for kernel in plan.kernels]
        for other in [plan for plan in found if plan is not None][:1]:
            made += 1
            assert problems(graph, other) == []
            scale = max(largest(graph, sizes) for sizes in SIZES)
            check(graph, SIZES, length=4000, scale=scale, fill=fill, levels=(LEVEL,), plan=other)
