"""Axes that are repeated: what nests become, what they cost, and results at any length of a row."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tilewright
from support.graph_kit import VECTOR_LEVELS
from tilewright.cost.loops import loop_price
from tilewright.cost.machine import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Broadcast, Input, Reshape
from tilewright.ir.tile import Loop, TileProgram
from tilewright.ir.tile_repeated import repeats
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope, constant
from tilewright.target import preset
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
HEAD = '<ir_version: 10, opset_import: ["": 18]>'
WIDTHS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 40, 4099)


def _repeated(rows: int, columns: int) -> TileProgram:
    """Rows and columns of images, each so many times."""
    scope = Scope()
    n, h, w = (scope.declare(v, 0, 1 << 16) for v in ("n", "h", "w"))
    x = node(Input("x", DType.FLOAT32, (n, h, w)))
    taller = node(Broadcast((n, h, constant(rows), w), (0, 1, 3)), x)
    taller = node(Reshape((n, h * rows, w)), taller)
    wider = node(Broadcast((n, h * rows, w, constant(columns)), (0, 1, 2)), taller)
    output = node(Reshape((n, h * rows, w * columns)), wider)
    plan = plan_greedily(Graph("repeated", (x,), (("y", output),), scope))
    variant, *_ = lower_kernel(plan.kernels[-1], scope, TILE).variants
    return variant.steps[-1].program


def _innermost(program: TileProgram) -> Loop:
    (loop,) = program.body
    assert isinstance(loop, Loop)
    while repeats(loop) is None and isinstance(loop.body[0], Loop):
        loop = loop.body[0]
    return loop


@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("columns", [2, 3, 4])
def test_a_task_makes_the_rows_that_hold_the_same(rows: int, columns: int) -> None:
    program = _repeated(rows, columns)
    found = repeats(_innermost(program))
    assert found is not None and found.times == columns
    (steps,) = program.body
    assert isinstance(steps, Loop) and steps.end is constant(rows)
    assert len(program.grid) == 2, "rows of all images are one axis"


def test_a_plain_copy_stays_as_it_is() -> None:
    program = _repeated(2, 1)
    assert repeats(_innermost(program)) is None


def test_what_is_stored_is_priced_by_the_vector() -> None:
    machine = Machine(preset("zen4"))
    sizes = {"n": 16, "h": 40, "w": 40}
    made = [
        loop_price(_repeated(rows, columns), machine).computed.evaluate(sizes)
        for rows, columns in ((2, 1), (2, 2))
    ]
    assert made[0] < made[1] < 4 * made[0], "twice as many elements, and a permutation of each"


@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize("element", ["float", "double", "uint8", "float16"])
@pytest.mark.parametrize("times", [(2, 2), (3, 2), (1, 4)])
def test_rows_of_any_length(level: str, element: str, times: tuple[int, int]) -> None:
    text = f"""g ({element}[n,h,w] x) => ({element}[n,oh,ow] y)
        <float[3] scales = {{1, {times[0]}, {times[1]}}}> {{
        y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                   nearest_mode = "floor">(x, "", scales)
    }}"""
    model = tilewright.compile(parser.parse_model(f"{HEAD}\n{text}"), levels=[level])  # type: ignore[list-item]
    dtype = {"float": "float32", "double": "float64"}.get(element, element)
    random = np.random.default_rng(5)
    for height in (0, 1, 3):
        for width in WIDTHS:
            x = random.integers(0, 200, (2, height, width)).astype(dtype)
            expected = x.repeat(times[0], 1).repeat(times[1], 2)
            np.testing.assert_array_equal(model(x=x), expected)
