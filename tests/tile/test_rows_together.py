"""Tasks of several rows that pick at the same positions: what nests become, and results.

Results are compared with numpy, at counts of rows around those of a task and at none.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tilewright
from support.graph_kit import VECTOR_LEVELS
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Gather, Input, Map
from tilewright.ir.tile import LetIndex, Loop, Statement, Store, TileProgram
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, Scope, constant
from tilewright.tile.lower import lower_kernel
from tilewright.tile.passes.rows_together import ROWS
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
HEAD = '<ir_version: 10, opset_import: ["": 23]>'
COUNTS = (0, 1, 2, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS - 1, 2 * ROWS, 13)


def _picked(rows: int | None, lines: bool) -> TileProgram:
    """Two positions along the last axis, of the sum of two picked lines or of a line in memory."""
    scope = Scope()
    size: Expr = scope.declare("rows", 0, 100) if rows is None else constant(rows)
    columns, count, deep, n = (scope.declare(v, 0, 100) for v in ("columns", "count", "deep", "n"))
    x = node(Input("x", DType.FLOAT32, (n, deep, columns)))
    picks = [node(Input(f"i{i}", DType.INT64, (size if i < 2 else count,))) for i in range(4)]
    mixed = node(Gather(1), x, picks[0])
    if lines:
        mixed = node(Map("add"), mixed, node(Gather(1), x, picks[1]))
    output = node(Map("add"), *(node(Gather(2), mixed, pick) for pick in picks[2:]))
    plan = plan_greedily(Graph("rows", (x, *picks), (("y", output),), scope))
    variant, *_ = lower_kernel(plan.kernels[-1], scope, TILE).variants
    return variant.steps[-1].program


def _innermost(body: tuple[Statement, ...]) -> list[Loop]:
    loops = [part for part in body if isinstance(part, Loop)]
    return [found for loop in loops for found in (_innermost(loop.body) or [loop])]


def test_rows_of_a_task_share_positions_and_have_scratch_memory_each() -> None:
    program = _picked(None, lines=True)
    *fills, picking = _innermost(program.body)[: ROWS + 1]
    filled = [part.buffer for fill in fills for part in fill.body if isinstance(part, Store)]
    assert filled == list(program.scratch) and len(filled) == ROWS
    assert [type(part) for part in picking.body] == [LetIndex] * 2 + [Store] * ROWS


def test_rows_in_memory_share_positions_too() -> None:
    program = _picked(None, lines=False)
    picking = _innermost(program.body)[0]
    assert not program.scratch
    assert [type(part) for part in picking.body] == [LetIndex] * 2 + [Store] * ROWS


def test_fewer_rows_than_a_task_makes_leave_it_to_the_axis_outside() -> None:
    program = _picked(ROWS - 1, lines=True)
    assert len(program.scratch) == ROWS
    assert program.grid[1][1] is constant(ROWS - 1)


@pytest.mark.parametrize("level", VECTOR_LEVELS)
def test_any_number_of_rows(level: str) -> None:
    text = """rows (float[n,height,width] x, int64[picks] i) => (float[n,height,picks] y) {
        y = Gather<axis = 2>(x, i)
    }"""
    model = tilewright.compile(parser.parse_model(f"{HEAD}\n{text}"), levels=[level])  # type: ignore[list-item]
    random = np.random.default_rng(3)
    for height in COUNTS:
        for width, picks in ((1, 1), (7, 16), (33, 17), (200, 131)):
            x = random.standard_normal((2, height, width)).astype(np.float32)
            positions = random.integers(0, width, picks)
            np.testing.assert_array_equal(model(x, positions), x[:, :, positions])


@pytest.mark.slow
@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_any_number_of_resized_rows(level: str, scale: float) -> None:
    text = f"""resized (float[n,height,width] x) => (float[n,a,b] y)
            <float[3] s = {{1, {scale}, {scale}}}> {{ y = Resize<mode = "linear">(x, , s) }}"""
    model = tilewright.compile(parser.parse_model(f"{HEAD}\n{text}"), levels=[level])  # type: ignore[list-item]
    random = np.random.default_rng(4)
    for height in (*COUNTS, 2 * ROWS + 1):
        for width in (0, 1, 2, 31, 64, 67, 131):
            x = random.standard_normal((2, height, width)).astype(np.float32)
            wanted = x.astype(np.float64)
            for axis in (1, 2):
                wanted = _resized(wanted, axis, scale)
            np.testing.assert_allclose(model(x), wanted, atol=8 * 2.0**-24 * 2 * 5, rtol=0)


def _resized(x: np.ndarray, axis: int, scale: float) -> np.ndarray:  # type: ignore[type-arg]
    """One axis resized linearly, by half-pixel coordinates."""
    last = max(x.shape[axis] - 1, 0)
    places = (np.arange(int(x.shape[axis] * scale)) + 0.5) / scale - 0.5
    low = np.floor(places).astype(np.int64)
    part = (places - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    first, second = (np.take(x, np.clip(low + i, 0, last), axis) for i in (0, 1))
    return first * (1 - part) + second * part
