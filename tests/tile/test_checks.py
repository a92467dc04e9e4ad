"""Checks of divisors: what loops become, that every bad element is found, and where it stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import BOTH_LEVELS, Compiled, Space, apply, check, inputs_at
from support.tile_loops import innermost
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.tile import Check, Loop, Store, TileProgram
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.support.errors import ExecutionError
from tilewright.tile.loops.loops import CHUNK
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

Array = np.ndarray[Any, Any]
I64, TILE = DType.INT64, RegisterTile(6, 16, narrow_rows=4, room=384 << 10)


def quotient(heavy: bool = False, row: bool = False) -> Graph:
    """x by y, which is computed if ``heavy``, and one row of it for all of x if ``row``."""
    space = Space()
    n, m = space.dimensions("n m")
    x = space.input("x", I64, n, m)
    y = space.input("y", I64, constant(1) if row else n, m)
    divisor = apply("add", apply("power", y, y), y) if heavy else y
    return space.graph(apply("divide", x, divisor))


def loops_of(graph: Graph) -> list[Loop]:
    plan = plan_greedily(graph)
    (variant,) = lower_kernel(plan.kernels[-1], graph.scope, TILE).variants
    program = variant.steps[-1].program
    assert isinstance(program, TileProgram)
    return list(innermost(program.body))


def kinds(loop: Loop) -> list[type]:
    return [type(statement) for statement in loop.body]


def test_a_loop_of_divisions_has_no_check() -> None:
    first, second = loops_of(quotient())
    assert not first.body and first.accumulators[0].value.dtype is DType.BOOL
    assert kinds(second) == [Store] and (first.begin, first.end) == (second.begin, second.end)


def test_divisors_that_take_long_are_computed_once() -> None:
    (loop,) = loops_of(quotient(heavy=True))
    assert kinds(loop) == [Check, Store]


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("row", [False, True])
def test_quotients(heavy: bool, row: bool) -> None:
    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        made = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + 1
        return (made if name == "y" else made * 1009 - 2000).astype(kind.numpy)

    sizes = [(0, 3), (3, 0), (1, 1), (1, CHUNK - 1), (1, CHUNK), (1, CHUNK + 1), (3, 1021)]
    cases = [{"n": n, "m": m} for n, m in sizes]
    check(quotient(heavy, row), cases, fill=fill)


@pytest.mark.parametrize("place", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK])
def test_a_zero_is_found_wherever_it_is(place: int) -> None:
    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        made = np.ones(shape, kind.numpy)
        if name == "y":
            made[0, place] = 0
        return made

    sizes = {"n": 1, "m": 2 * CHUNK + 1}
    graph = quotient()
    compiled, inputs = Compiled(graph), inputs_at(graph, sizes, fill)
    for level in BOTH_LEVELS:
        with pytest.raises(ExecutionError, match="Integer division by zero"):
            compiled.guarded(level, inputs, sizes, pieces=2)
