"""Values computed along an axis before positions of it are picked: what nests become, and results.

Results are compared with matrix products in float64, at axes of one element too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Gather, Input, Map
from tilewright.ir.tile import Load, Loop, Statement, Store, TileProgram
from tilewright.ir.tile_walk import value_loads
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
Array = np.ndarray[Any, Any]


def _interpolation(lines: int) -> TileProgram:
    """Two positions along the last axis, of the sum of some lines (of the line itself if one)."""
    scope = Scope()
    rows, columns, count = (scope.declare(name, 0, 100) for name in ("rows", "columns", "count"))
    x = node(Input("x", DType.FLOAT32, (rows, columns)))
    picks = [node(Input(f"i{i}", DType.INT64, (count,))) for i in range(2 + lines)]
    mixed = node(Gather(0), x, picks[2])
    for other in picks[3:]:
        mixed = node(Map("add"), mixed, node(Gather(0), x, other))
    output = node(Map("add"), *(node(Gather(1), mixed, pick) for pick in picks[:2]))
    plan = plan_greedily(Graph("rows", (x, *picks), (("y", output),), scope))
    (variant,) = lower_kernel(plan.kernels[-1], scope, TILE).variants
    program = variant.steps[-1].program
    return program


def _stores(body: tuple[Statement, ...]) -> list[Store]:
    inner = [store for s in body if isinstance(s, Loop) for store in _stores(s.body)]
    return [s for s in body if isinstance(s, Store)] + inner


def test_what_two_positions_share_is_computed_along_the_axis_once() -> None:
    program = _interpolation(2)
    row = program.scratch[0]
    rows, wide, direct = _stores(program.body)[-3:]  # those of one row by itself
    assert rows.buffer is row
    assert [load.buffer for load in _loads(wide)] == [row, row]
    assert len(_loads(direct)) == 4  # where far fewer elements are picked than there are


def test_a_line_that_is_only_picked_from_is_not_copied() -> None:
    program = _interpolation(1)
    assert not program.scratch


def _loads(store: Store) -> list[Load]:
    return [load for load in value_loads(store.value) if load.buffer.dtype is DType.FLOAT32]


def _weights(size: int, scale: float) -> Array:
    """What a linear resize multiplies an axis with."""
    wanted = int(np.floor(size * scale))
    place = (np.arange(wanted) + 0.5) / np.float64(np.float32(scale)) - 0.5
    low = np.floor(place).astype(int)
    matrix = np.zeros((wanted, size))
    for row, (first, part) in enumerate(zip(low, place - low, strict=True)):
        matrix[row, np.clip(first, 0, size - 1)] += 1 - part
        matrix[row, np.clip(first + 1, 0, size - 1)] += part
    return matrix


def _resize(scale: float, rank: int) -> tilewright.Model:
    scales = numpy_helper.from_array(np.array([1, *[scale] * rank], np.float32), "scales")
    made = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    axes = ["n", *(f"a{i}" for i in range(rank))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([made], "resize", [x], [y], [scales])
    return tilewright.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0, 0.5, 1.75, 0.25, 1 / 32])
def test_resized_axes_are_products_with_weights(scale: float) -> None:
    model = _resize(scale, 2)
    random = np.random.default_rng(5)
    for sizes in ((1, 32, 32), (2, 33, 67), (3, 37, 64), (1, 64, 131), (2, 40, 1031), (0, 40, 40)):
        x = random.standard_normal(sizes).astype(np.float32)
        left, right = (_weights(size, scale) for size in sizes[1:])
        wanted = left @ x.astype(np.float64) @ right.T
        # Four products with weights that are rounded, and three sums.
        np.testing.assert_allclose(model(x), wanted, atol=8 * 2.0**-24 * 2 * 5, rtol=0)


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_three_resized_axes(scale: float) -> None:
    model = _resize(scale, 3)
    x = np.random.default_rng(6).standard_normal((2, 5, 6, 37)).astype(np.float32)
    wanted = x.astype(np.float64)
    for axis in (1, 2, 3):
        wanted = np.moveaxis(
            np.tensordot(_weights(x.shape[axis], scale), wanted, (1, axis)), 0, axis
        )
    np.testing.assert_allclose(model(x), wanted, atol=16 * 2.0**-24 * 2 * 5, rtol=0)
