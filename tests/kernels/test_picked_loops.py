"""Elements picked at listed positions: near each other, far apart, falling, and both in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import BOOL, F32, F64, Space, apply, check, data, mostly_slow, scalar
from support.tile_loops import innermost
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.picked_loops import AS_USUAL, picking_loop
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Dimension, Gather
from tilewright.ir.tile import Loop
from tilewright.plan.greedy import plan_greedily
from tilewright.tile.lower import lower_kernel
from tilewright.tile.passes.rows_together import ROWS

Array = np.ndarray[Any, Any]
INT64 = DType.INT64
LIMITS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 34, 67)
COUNTS = (0, 1, 7, 8, 9, 15, 16, 17, 33, 70)
CASES = [{"a": 2, "b": limit, "n": 37} for limit in LIMITS]
CASES += [{"a": 2, "b": 41, "n": count} for count in COUNTS]
CASES += [{"a": 3, "b": 12, "n": count} for count in COUNTS]
CASES += [{"a": 0, "b": 5, "n": 5}, {"a": 2, "b": 900, "n": 16 * AS_USUAL + 40}]


def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype is not INT64:
        return data(dtype, shape, seed=len(name))
    (count,) = shape
    near = np.arange(count) * 5 // 7 - 2
    far = np.random.default_rng(count).integers(-1000, 1000, count)
    mixed = np.where(np.arange(count) // 30 % 2 == 0, near, far)
    return {"near": near, "next": near + 1, "far": far, "falling": -near, "mixed": mixed}[name]


class Picks:
    """Positions below the size of the axis b, by the names that ``fill`` knows."""

    def __init__(self) -> None:
        self.space = Space()
        self.a, self.n = self.space.dimensions("a n")
        self.b = self.space.dimension("b", 1)
        self.last = node(Dimension(self.b - 1))

    def at(self, name: str) -> Node:
        """A new input."""
        given = self.space.input(name, INT64, self.n)
        return apply("minimum", apply("maximum", given, scalar(0, INT64)), self.last)


def loops(graph: Graph) -> list[Loop]:
    """The innermost loops of the last kernel."""
    tile = register_tile(LEVELS["avx512"])
    plan = plan_greedily(graph)
    (variant,) = lower_kernel(plan.kernels[-1], graph.scope, tile).variants
    return list(innermost(variant.steps[-1].program.body))


@pytest.mark.parametrize(
    "dtype", mostly_slow((F32, DType.INT32, DType.FLOAT16, DType.UINT8, BOOL, F64), "float32")
)
def test_picked_elements(dtype: DType) -> None:
    picks = Picks()
    x = picks.space.input("x", dtype, picks.a, picks.b)
    outputs = [node(Gather(1), x, picks.at(name)) for name in ("near", "far", "falling", "mixed")]
    check(picks.space.graph(*outputs), CASES, fill=fill)


def test_two_positions_of_a_row_and_of_one_in_scratch() -> None:
    picks = Picks()
    x, y = (picks.space.input(name, F32, picks.a, picks.b) for name in ("x", "y"))
    near, following = picks.at("near"), picks.at("next")
    w = picks.space.input("w", F32, picks.n)
    first, second = (node(Gather(1), x, at) for at in (near, following))
    pair = apply("add", apply("multiply", first, w), second)
    sums = apply("add", x, y)
    mixed = apply("subtract", *(node(Gather(1), sums, at) for at in (following, near)))
    check(picks.space.graph(pair, mixed), CASES, length=3, scale=8, fill=fill)


def test_what_is_picked_by_permutations() -> None:
    picks = Picks()
    x = picks.space.input("x", F32, picks.a, picks.b)
    found = [
        picking_loop(p) for p in loops(picks.space.graph(node(Gather(1), x, picks.at("near"))))
    ]
    # Of several rows together, and of one.
    assert [0 if picked is None else len(picked.picked) for picked in found] == [ROWS, 1]


@pytest.mark.parametrize("dtype", [F64, INT64], ids=str)
def test_longer_elements_are_looked_up(dtype: DType) -> None:
    picks = Picks()
    x = picks.space.input("x", dtype, picks.a, picks.b)
    made = loops(picks.space.graph(node(Gather(1), x, picks.at("near"))))
    assert [picking_loop(loop) for loop in made] == [None, None]
