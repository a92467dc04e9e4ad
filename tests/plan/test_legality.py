"""Why kernels cannot be lowered: each reason, and none for what planners make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind, RowSpace
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Gather,
    Input,
    Map,
    Reduce,
    Reshape,
    Scan,
    Transpose,
)
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.legality import Legality, fits_epilogue, fits_rows
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
COLUMNS = node(Reduce("sum", (0,)), X)
COLUMN_SHARE = node(Map("divide"), X, node(Broadcast(X.shape, (1,)), COLUMNS))

COLUMN_SHARES = Kernel(
    (COLUMNS,), (COLUMNS, COLUMN_SHARE.inputs[1], COLUMN_SHARE), (X,), (COLUMN_SHARE,), "columns"
)
SHARES = Kernel((TOTAL,), (TOTAL, SHARE.inputs[1], SHARE), (X,), (SHARE,), "share")


def reason(kernel: Kernel) -> str:
    found = Legality(SCOPE).reason(kernel)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (DENSE_LAYER, KernelKind.CONTRACTION),
        (SHARES, KernelKind.ROWS),
        (COLUMN_SHARES, KernelKind.ROWS),
        (Kernel((COLUMNS,), (COLUMNS,), (X,), (COLUMNS,), "sums"), KernelKind.WINDOW),
    ],
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


def test_what_fits_the_elements_of_rows() -> None:
    """Neighbouring axes may be one, and nothing else may change their order."""
    n, groups, each = SCOPE.declare("n", 0, 64), constant(3), constant(2)
    x = node(Input("pixels", DType.FLOAT32, (n, ROWS, groups, each)))
    space = RowSpace.of(node(Reduce("sum", (1, 3)), x))
    merged = node(Reshape((n, ROWS, constant(6))), x)
    assert fits_rows(merged, space)
    assert fits_rows(node(Map("exponential"), merged), space)
    assert not fits_rows(node(Reshape((n, ROWS, constant(2), constant(3))), x), space)
    assert not fits_rows(node(Transpose((0, 2, 1, 3)), x), space)
    assert not fits_rows(node(Reduce("sum", (1,)), x), space)


def test_what_fits_the_results_of_rows() -> None:
    """One of each row, spread over the elements of that row and of no other."""
    x = node(Input("square", DType.FLOAT32, (ROWS, ROWS)))
    sums = node(Reduce("sum", (0,)), x)
    space = RowSpace.of(sums)
    assert fits_rows(node(Reshape((constant(1), ROWS)), sums), space)
    assert fits_rows(node(Broadcast(x.shape, (1,)), sums), space)
    assert not fits_rows(node(Broadcast(x.shape, (0,)), sums), space)


@pytest.mark.parametrize("function", ["divide", "remainder", "truncated_remainder"])
def test_integers_are_divided_behind_a_product_and_not_in_it(function: str) -> None:
    """They look for a divisor of 0, for which a tile's epilogue has no place; floats do not."""
    whole = node(Cast(DType.INT32), PRODUCT)
    divisor = node(Input("d", DType.INT32, PRODUCT.shape))
    quotient = node(Map(function), whole, divisor)
    assert not fits_epilogue(quotient, PRODUCT)
    assert fits_epilogue(node(Map("divide"), PRODUCT, X), PRODUCT)
    body = (PRODUCT, whole, quotient)
    kernel = Kernel((PRODUCT,), body, (X, WEIGHTS, divisor), (quotient,), "dense")
    assert reason(kernel) == f"cannot compute {quotient!r} where its seeds are"
    plan = plan_greedily(Graph("whole", (X, divisor), (("q", quotient),), SCOPE))
    assert [kernel.kind for kernel in plan.kernels] == [KernelKind.CONTRACTION, KernelKind.LOOPS]
