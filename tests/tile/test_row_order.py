"""Which blocks of a product come first: those of rows, where the right operand is small."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tilewright
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Contract, Input
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import TileProgram
from tilewright.plan.greedy import plan_greedily
from tilewright.policy import BlockSizes, Chosen, Kept, Problem
from tilewright.shape import Expr, Scope, constant, evaluate_all
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.variants import THREADS

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
FEW, MANY = {"n": 130, "k": 20}, {"n": 400, "k": 300}  # columns and depth of right operands


class Blocks:
    """A policy that takes blocks of 48 rows and 64 columns."""

    def choose(self, problem: Problem) -> Chosen:
        kept = Kept(BlockSizes(48, 64, 1024), constant(0))
        return Chosen(tuple((kept,) for _ in problem.spaces))


def lowered(**known: int) -> TileProgram:
    """A product of matrices, whose sizes are named unless they are known."""
    scope = Scope()
    m, n, k = (constant(known[a]) if a in known else scope.declare(a, 0, 4096) for a in "mnk")
    x, y = (node(Input(a, DType.FLOAT32, s)) for a, s in (("x", (m, k)), ("y", (k, n))))
    graph = Graph("product", (x, y), (("z", node(Contract((), ((1, 0),)), x, y)),), scope)
    (kernel,) = plan_greedily(graph).kernels
    return lower_kernel(kernel, scope, TILE, policy=Blocks()).variants[0].steps[0].program


def values(expressions: list[Expr], threads: int, **sizes: int) -> list[int]:
    return list(evaluate_all(expressions, {**sizes, THREADS: threads}))


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [0, 1, 47, 48, 49, 100, 257, 1000])
def test_one_of_two_axes_counts_the_blocks_of_rows(m: int, threads: int) -> None:
    program = lowered()
    nest = ProductNest.of(program)
    assert [name for name, _ in program.grid] == ["_mo", "_nb", "_mb"]
    assert not nest.batch
    counted = [*(size for _, size in program.grid), nest.rows.count]
    around, _, inside, rows = values(counted, threads, m=m, **FEW)
    assert (around, inside) == (rows, 1)
    around, _, inside, rows = values(counted, threads, m=m, **MANY)
    assert (around, inside) == (1, rows)


@pytest.mark.parametrize(("threads", "expected"), [(1, 3), (2, 4), (3, 3), (4, 4)])
def test_threads_that_share_out_rows_have_as_many_blocks_of_them(
    threads: int, expected: int
) -> None:
    rows = ProductNest.of(lowered()).rows
    assert values([rows.count], threads, m=130, **FEW) == [expected]
    assert values([rows.count], threads, m=130, **MANY) == [3]


def test_the_order_is_fixed_where_sizes_are_known() -> None:
    assert [name for name, _ in lowered(**FEW).grid] == ["_mb", "_nb"]
    assert [name for name, _ in lowered(**MANY).grid] == ["_nb", "_mb"]


@pytest.mark.parametrize("sizes", [FEW, MANY, {"n": 1100, "k": 55}, {"n": 1100, "k": 57}])
@pytest.mark.parametrize("m", [1, 5, 97, 300])
def test_both_orders_are_right_on_two_threads(m: int, sizes: dict[str, int]) -> None:
    """A quarter of the room is some 60,000 elements where the second cache has 1 MiB."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
        product (float[m, k] x, float[k, n] y) => (float[m, n] z) { z = MatMul(x, y) }"""
    dims = {"m": (0, 512), "n": (0, 2048), "k": (0, 512)}
    model = tilewright.compile(parser.parse_model(text), dims=dims, num_threads=2)
    rng = np.random.default_rng(m)
    x, y = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((m, sizes["k"]), (sizes["k"], sizes["n"]))
    )
    exact = x.astype(np.float64) @ y.astype(np.float64)
    bound = sizes["k"] * 2.0**-24 * (np.abs(x) @ np.abs(y))
    found = model(x, y)
    assert np.all(np.abs(found - exact) <= bound)
