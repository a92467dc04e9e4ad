"""Loops are cut where a comparison of positions changes: triangles, bands, what stays as it is."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space, apply, check, scalar, spread
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Iota
from tilewright.ir.tile import Apply, Let, Load, Loop, Store
from tilewright.ir.tile_walk import value_parts
from tilewright.plan.greedy import plan_greedily
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
SIZES = [{"n": n, "m": m} for n, m in [(0, 3), (3, 0), (1, 1), (5, 9), (9, 5), (16, 17), (67, 41)]]


def kept(*comparisons: tuple[str, int, bool]) -> Graph:
    """Elements of x for whose column, moved by a distance, and row all comparisons hold, else 0.5.

    Each is a function, the distance and whether the row is the first operand.
    """
    space = Space()
    n, m = space.dimensions("n m")
    x = space.input("x", F32, n, m)
    made: Node = x
    for name, distance, row_first in comparisons:
        far = spread(scalar(distance, DType.INT64), x.shape)
        columns = apply("add", node(Iota(x.shape, 1)), far)
        pair = columns, node(Iota(x.shape, 0))
        is_kept = apply(name, *(pair[::-1] if row_first else pair))
        made = apply("select", is_kept, made, spread(scalar(0.5, F32), x.shape))
    return space.graph(made)


def loops(graph: Graph) -> list[Loop]:
    (kernel,) = plan_greedily(graph).kernels
    program = lower_kernel(kernel, graph.scope, TILE).variants[0].steps[-1].program
    return [part for part in program.body if isinstance(part, Loop)]


def parts(loop: Loop) -> list[object]:
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    return [part for value in values for part in value_parts(value)]


@pytest.mark.parametrize("function", ["less_equal", "less"])
@pytest.mark.parametrize(("shift", "row_first"), [(-2, False), (0, True), (3, False), (1, True)])
def test_a_triangle_is_a_copy_beside_a_fill(function: str, shift: int, row_first: bool) -> None:
    graph = kept((function, shift, row_first))
    both = loops(graph)
    assert len(both) == 2
    assert not any(isinstance(part, Apply) for loop in both for part in parts(loop))
    assert sorted(any(isinstance(p, Load) for p in parts(loop)) for loop in both) == [False, True]
    check(graph, SIZES)


def test_a_band_has_two_ends() -> None:
    graph = kept(("less_equal", -1, False), ("less", 2, True))
    check(graph, SIZES)
    assert all(not isinstance(part, Apply) for loop in loops(graph) for part in parts(loop))


def test_what_changes_more_often_is_compared_everywhere() -> None:
    graph = kept(("equal", 0, False))
    assert len(loops(graph)) == 1
    check(graph, SIZES)


def test_numbers_that_are_no_positions_are_compared_everywhere() -> None:
    space = Space()
    n, m = space.dimensions("n m")
    x = space.input("x", F32, n, m)
    threshold = space.input("limit", DType.INT64, n, m)
    is_kept = apply("less_equal", node(Iota(x.shape, 1)), threshold)
    graph = space.graph(apply("select", is_kept, x, spread(scalar(0.5, F32), x.shape)))
    assert len(loops(graph)) == 1
