"""Reductions across rows: what the loops over neighbouring results become."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import ArgReduce, Input
from tilewright.ir.tile import Loop, Statement, Store
from tilewright.ir.tile_walk import value_loads
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope
from tilewright.tile.loops.side_by_side import ROWS
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile


def _stores(body: tuple[Statement, ...]) -> list[Store]:
    inner = [store for s in body if isinstance(s, Loop) for store in _stores(s.body)]
    return [s for s in body if isinstance(s, Store)] + inner


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
    for running in (best, position):
        stores = [s for s in _stores(program.body) if s.buffer is running]
        loads = [{id(load): load for load in value_loads(s.value)}.values() for s in stores]
        counts = [sum(load.buffer is running for load in each) for each in loads]
        assert counts == [0, 1, 1]  # the neutral element, a group of rows, one row
        elements = [len({load.offset for load in each if load.buffer is not running and
                         not load.buffer.scratch}) for each in loads]  # fmt: skip
        assert elements == [0, ROWS, 1]
