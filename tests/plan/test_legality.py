"""Why kernels cannot be lowered: each reason, and none for what planners make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import (
    Broadcast,
    Constant,
    Contract,
    Gather,
    Input,
    Map,
    Reduce,
    Scan,
    Transpose,
)
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.legality import Legality
from tilewright.plan.prepare import prepare
from tilewright.shape import Scope, constant

SCOPE = Scope()
ROWS = SCOPE.declare("rows", 0, 64)
X = node(Input("x", DType.FLOAT32, (ROWS, constant(4))))
WEIGHTS = node(Constant.of(np.ones((4, 4), np.float32)))
PRODUCT = node(Contract((), ((1, 0),)), X, WEIGHTS)
DENSE = node(Map("exponential"), PRODUCT)
TOTAL = node(Reduce("sum", (1,)), X)
SHARE = node(Map("divide"), X, node(Broadcast(X.shape, (0,)), TOTAL))

DENSE_LAYER = Kernel((PRODUCT,), (PRODUCT, DENSE), (X, WEIGHTS), (DENSE,), "dense")
SHARES = Kernel((TOTAL,), (TOTAL, SHARE.inputs[1], SHARE), (X,), (SHARE,), "share")


def reason(kernel: Kernel) -> str:
    found = Legality(SCOPE).reason(kernel)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kernel", "kind"), [(DENSE_LAYER, KernelKind.CONTRACTION), (SHARES, KernelKind.ROWS)]
)
def test_a_legal_kernel_has_no_reason(kernel: Kernel, kind: KernelKind) -> None:
    assert kernel.kind is kind
    assert Legality(SCOPE).reason(kernel) is None


def test_what_the_planner_makes_is_legal() -> None:
    outputs = (("dense", DENSE), ("share", SHARE), ("total", node(Scan("sum", 0, False, False), X)))
    graph = prepare(Graph("g", (X,), outputs, SCOPE))
    legality = Legality(graph.scope)
    assert [legality.reason(kernel) for kernel in plan_greedily(graph).kernels] == [None] * 3


def test_a_kernel_without_results() -> None:
    assert reason(replace(DENSE_LAYER, outputs=())) == "writes nothing"


def test_a_kernel_that_is_not_closed() -> None:
    assert "neither reads nor computes" in reason(replace(DENSE_LAYER, reads=(X,)))
    assert "does not need" in reason(replace(DENSE_LAYER, reads=(X, WEIGHTS, SHARE)))
    assert "does not compute" in reason(replace(DENSE_LAYER, body=(PRODUCT,)))


def test_heavy_work_that_seeds_nothing() -> None:
    assert "neither light nor a seed" in reason(replace(SHARES, seeds=()))


def test_an_operand_that_has_to_be_in_memory() -> None:
    powers = node(Map("exponential"), X)
    product = node(Contract((), ((1, 0),)), powers, WEIGHTS)
    kernel = Kernel((product,), (powers, product), (X, WEIGHTS), (product,), "product")
    assert "in memory, as an operand" in reason(kernel)


def test_results_of_another_shape() -> None:
    turned = node(Transpose((1, 0)), X)
    kernel = Kernel((), (DENSE, turned), (PRODUCT, X), (DENSE, turned), "two")
    assert "its loops do not fit" in reason(kernel)


def test_an_epilogue_of_another_shape_or_that_reads_by_index() -> None:
    positions = node(Input("i", DType.INT64, (ROWS,)))
    picked = node(Gather(0), X, positions)
    added = node(Map("add"), PRODUCT, picked)
    kernel = Kernel(
        (PRODUCT,), (PRODUCT, picked, added), (X, WEIGHTS, positions), (added,), "picked"
    )
    assert "in its epilogue" in reason(kernel)
    wide = node(Broadcast((constant(3), *PRODUCT.shape), (1, 2)), PRODUCT)
    result: Node = node(Map("exponential"), wide)
    kernel = Kernel((PRODUCT,), (PRODUCT, wide, result), (X, WEIGHTS), (result,), "wide")
    assert reason(kernel) is not None
