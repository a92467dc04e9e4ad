"""Reductions across rows: what the loops over neighbouring results become."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import ArgReduce, Input
from tilewright.ir.tile import Loop, Statement
from tilewright.ir.tile_walk import own_values, value_loads
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope
from tilewright.tile.loops.side_by_side import ROWS
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile


def _innermost(body: tuple[Statement, ...]) -> list[Loop]:
    loops = [s for s in body if isinstance(s, Loop)]
    return [found for s in loops for found in (_innermost(s.body) or [s])]


def test_running_values_are_read_once_for_several_rows_and_positions_are_narrow() -> None:
    scope = Scope()
    rows, columns = (scope.declare(name, 1, 100) for name in ("rows", "columns"))
    x = node(Input("x", DType.FLOAT32, (rows, columns)))
    output = node(ArgReduce("minimum", 0, False), x)
    plan = plan_greedily(Graph("g", (x,), (("y", output),), scope))
    variant, *_ = lower_kernel(
        plan.kernels[-1], scope, RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
    ).variants
    program = variant.steps[-1].program
    best, position = program.scratch
    assert (best.dtype, position.dtype) == (DType.FLOAT32, DType.INT32)
    # The first loop begins, one takes a group of rows, one a single row, and the last one stores.
    loads = [
        {id(load): load for value in own_values(loop) for load in value_loads(value)}.values()
        for loop in _innermost(program.body)
    ]
    for running, counts in ((best, [0, 1, 1, 0]), (position, [0, 1, 1, 1])):
        assert [sum(load.buffer is running for load in each) for each in loads] == counts
    elements = [{load.offset for load in each if not load.buffer.scratch} for each in loads]
    assert [len(each) for each in elements] == [0, ROWS, 1, 0]
