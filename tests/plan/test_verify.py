"""The checks of a plan find what is wrong, and nothing in what the planner makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Dimension,
    Input,
    Map,
    Opaque,
    TensorType,
)
from tilewright.ir.verify import VerificationError
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.plan.verify import problems, verify
from tilewright.shape import Scope, constant


def two_products() -> Graph:
    """Two products one after the other, both of them outputs."""
    scope = Scope()
    rows = scope.declare("rows", 0, 64)
    x = node(Input("x", DType.FLOAT32, (rows, constant(4))))
    weights = node(Constant.of(np.ones((4, 4), np.float32)))
    first = node(Contract((), ((1, 0),)), x, weights)
    second = node(Contract((), ((1, 0),)), node(Map("exponential"), first), weights)
    return prepare(Graph("two", (x,), (("a", first), ("b", second)), scope))


def planned() -> tuple[Graph, Plan]:
    graph = two_products()
    return graph, plan_greedily(graph)


def test_what_the_planner_makes_is_right() -> None:
    graph, plan = planned()
    assert problems(graph, plan) == []
    verify(graph, plan)


def test_a_kernel_that_reads_what_a_later_one_writes() -> None:
    graph, plan = planned()
    turned = replace(plan, kernels=plan.kernels[::-1])
    assert any("only a later kernel writes" in text for text in problems(graph, turned))
    with pytest.raises(VerificationError, match="only a later kernel") as caught:
        verify(graph, turned)
    assert caught.value.where == "stage plan, graph 'two'"
    assert "--dump" in str(caught.value.hint)


def test_kernels_that_wait_for_each_other() -> None:
    scope = Scope()
    n = scope.declare("n", 0, 64)
    x = node(Input("x", DType.FLOAT32, (n,)))
    a, b = node(Map("negate"), x), node(Map("absolute"), x)
    c, d = node(Map("exponential"), b), node(Map("exponential"), a)
    graph = Graph("g", (x,), (("c", c), ("d", d)), scope)
    kernels = (
        Kernel((), (a, c), (x, b), (a, c), "one"),
        Kernel((), (b, d), (x, a), (b, d), "other"),
    )
    found = problems(graph, Plan(kernels))
    assert any("can never start" in text for text in found)


def test_a_value_that_nothing_writes_and_one_that_two_kernels_write() -> None:
    graph, plan = planned()
    missing = problems(graph, replace(plan, kernels=plan.kernels[:1]))
    assert any('no kernel writes the output "b"' in text for text in missing)
    twice = problems(graph, replace(plan, kernels=(*plan.kernels, plan.kernels[-1])))
    assert any("is written by 2 kernels" in text for text in twice)


def test_a_product_that_is_not_in_memory() -> None:
    graph = two_products()
    _, (_, second) = graph.outputs
    heavy, first = second.inputs[0], second.inputs[0].inputs[0]
    kernel = Kernel((second,), (first, heavy, second), (*first.inputs,), (second,), "product")
    found = problems(graph, Plan((kernel,)))
    assert any("neither light nor a seed" in text for text in found)


def test_a_size_that_is_used_before_the_data_that_decides_it_is_there() -> None:
    scope = Scope()
    n, k = scope.declare("n", 0, 64), scope.declare("k", 0, 64)
    x = node(Input("x", DType.INT64, (n,)))
    picked = node(Opaque("NonZero", b"", (TensorType(DType.INT64, (k,)),)), x)
    size = node(Cast(DType.INT64), node(Dimension(k)))
    wide = node(Broadcast((n,), ()), size)
    result = node(Map("add"), x, wide)
    graph = Graph("g", (x,), (("y", result), ("z", picked)), scope)
    opaque = Kernel((), (picked,), (x,), (picked,), "NonZero")
    loops = Kernel((), (size.inputs[0], size, wide, result), (x,), (result,), "add")
    assert problems(graph, Plan((opaque, loops))) == []
    alone = replace(graph, outputs=(("y", result),))
    assert any(
        '"k" has no value' in text
        for text in problems(
            replace(alone, bindings=(Binding(result, ("k",)),)),
            Plan((loops,)),
        )
    )


def test_an_output_that_shares_its_memory() -> None:
    graph, plan = planned()
    (name, root), _ = graph.outputs
    shared: tuple[tuple[str, Node], ...] = ((name, root), ("b", root))
    found = problems(replace(graph, outputs=shared), plan)
    assert any("shares its memory" in text for text in found)
