"""Positions in tables, loops cut at borders, and short last loops: what nests become, and results.

Results are compared with numpy, at axes of no and of one element too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from support.text_models import assert_as_reference, floats
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Broadcast, Dimension, Gather, Input, Iota, Map, Transpose
from tilewright.ir.tile import LetIndex, Loop, Statement, TileProgram
from tilewright.ops.build import scalar
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope, constant
from tilewright.support.errors import ExecutionError
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
Array = np.ndarray[Any, Any]


def _programs(scope: Scope, inputs: tuple[Node, ...], output: Node) -> list[TileProgram]:
    plan = plan_greedily(Graph("tables", inputs, (("y", output),), scope))
    variant, *_ = lower_kernel(plan.kernels[-1], scope, TILE).variants
    return [step.program for step in variant.steps]


def _positions(body: tuple[Statement, ...]) -> list[LetIndex]:
    inner = [p for s in body if isinstance(s, Loop) for p in _positions(s.body)]
    return [s for s in body if isinstance(s, LetIndex)] + inner


def _gather(axis: int) -> list[TileProgram]:
    scope = Scope()
    rows, columns, count = (scope.declare(name, 0, 100) for name in ("rows", "columns", "count"))
    x = node(Input("x", DType.FLOAT32, (rows, columns)))
    indices = node(Input("indices", DType.INT64, (count,)))
    return _programs(scope, (x, indices), node(Gather(axis), x, indices))


def test_positions_along_the_last_axis_are_checked_once_and_read_from_a_table() -> None:
    filling, reading = _gather(1)
    (checked,), (together, left) = _positions(filling.body), _positions(reading.body)
    assert checked.check == 0
    assert together.check is left.check is None
    assert not filling.grid


def test_positions_that_are_read_once_per_row_stay_where_they_are() -> None:
    (program,) = _gather(0)
    assert [position.check for position in _positions(program.body)] == [0]


def test_an_axis_padded_by_its_edge_has_an_interior_without_positions() -> None:
    scope = Scope()
    rows, columns = (scope.declare(name, 1, 100) for name in ("rows", "columns"))
    x = node(Input("x", DType.FLOAT32, (rows, columns)))
    size = columns + 5
    zero, two = (node(Broadcast((size,), ()), scalar(value, DType.INT64)) for value in (0, 2))
    last = node(Broadcast((size,), ()), node(Dimension(columns - 1)))
    place = node(Map("maximum"), node(Map("subtract"), node(Iota((size,), 0)), two), zero)
    padded = node(Gather(1), x, node(Map("minimum"), place, last))
    chosen = node(Input("chosen", DType.INT64, (rows,)))
    reading = _programs(scope, (x, chosen), node(Gather(0), padded, chosen))[-1]
    loops = [s for s in reading.body if isinstance(s, Loop)]
    assert [len(_positions(loop.body)) for loop in loops] == [1, 0, 1]
    assert loops[0].end is loops[1].begin is constant(2)


def test_a_short_last_loop_does_not_make_a_task_of_its_own() -> None:
    """Three channels last: a task of three elements would cost more than they do."""
    scope = Scope()
    size = scope.declare("size", 0, 100)
    x = node(Input("x", DType.FLOAT32, (size, constant(3), size)))
    turned = node(Transpose((2, 0, 1)), node(Map("exponential"), x))
    (program,) = _programs(scope, (x,), turned)
    assert constant(3) not in [extent for _, extent in program.grid]


# ---------------------------------------------------------------- results


def _compiled(operator: str, constants: dict[str, Array], **attributes: Any) -> tilewright.Model:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["A", "B", "C"])
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["K"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    inputs = ["x", *constants] if constants else ["x", "i"]
    tensors = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    made = helper.make_node(operator, inputs, ["y"], **attributes)
    graph = helper.make_graph([made], "g", [x] if constants else [x, i], [y], tensors)
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return tilewright.compile(model, check=True)


def _data(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap", "constant"])
@pytest.mark.parametrize("low, high", [(2, 3), (0, 4), (3, 0), (-1, 2)])
def test_padded_axes_of_all_sizes_are_those_of_numpy(mode: str, low: int, high: int) -> None:
    model = _compiled("Pad", {"p": np.array([0, low, low, 0, high, high])}, mode=mode)
    for size in (2, 3, 4, 5, 7, 13, 67):
        for batch in (0, 1, 3):
            x = _data(batch, size, size + 1)
            first = max(-low, 0)
            kept = x[:, first:, first:]
            amounts = [(0, 0)] + [(max(low, 0), high)] * 2
            wanted = np.pad(kept, amounts, mode=mode)  # type: ignore[call-overload]
            assert np.array_equal(model(x), wanted), (size, batch)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gathered_elements_of_every_axis_and_wrong_positions(axis: int) -> None:
    model = _compiled("Gather", {}, axis=axis)
    for shape in ((5, 5, 5), (1, 5, 7), (5, 1, 1), (3, 17, 31)):
        x = _data(*shape)
        size = shape[axis]
        positions = np.random.default_rng(1).integers(-size, size, 19)
        assert np.array_equal(model(x, positions), np.take(x, positions, axis))
        assert model(x, positions[:0]).size == 0
        for wrong in (size, -size - 1, 2**40):
            with pytest.raises(ExecutionError, match=f"index {wrong} is out of bounds"):
                model(x, np.array([0, wrong, 0]))


def test_wrong_positions_are_no_error_where_nothing_is_read() -> None:
    model = _compiled("Gather", {}, axis=2)
    assert model(_data(0, 5, 5), np.array([99])).shape == (0, 5, 1)
    assert model(_data(5, 0, 5), np.array([99])).shape == (5, 0, 1)


Scales = list[float]
_NEAREST: list[tuple[Scales, Callable[[Array], Array]]] = [
    ([1.0, 2.0, 2.0], lambda x: x.repeat(2, 1).repeat(2, 2)),
    ([1.0, 3.0, 1.0], lambda x: x.repeat(3, 1)),
    ([1.0, 1.0, 5.0], lambda x: x.repeat(5, 2)),
]


@pytest.mark.parametrize("scales, wanted", _NEAREST)
def test_repeated_elements_of_all_sizes(scales: Scales, wanted: Callable[[Array], Array]) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["A", "B", "C"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    tensors = [numpy_helper.from_array(np.array(scales, np.float32), "s")]
    made = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    graph = helper.make_graph([made], "g", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 19)]
    model = tilewright.compile(
        helper.make_model(graph, opset_imports=opsets, ir_version=9), check=True
    )
    for shape in ((0, 3, 3), (1, 1, 1), (2, 3, 5), (1, 7, 2053), (3, 31, 17)):
        data = _data(*shape)
        assert np.array_equal(model(data), wanted(data)), shape


# Positions that are asked for in a part of their axis only, or elsewhere in other parts.
_PARTS = {
    "rows, several per pass": """g (float[k, m] x, int64[n] i) => (float[b] y)
        <int64[1] axis = {0}> {
            rows = Gather(x, i)
            y = ReduceSum<keepdims = 0>(rows, axis)
        }""",
    "the interior of a padded axis": """g (float[m, k] x, int64[n] i) => (float[a, b] y)
        <int64[4] amounts = {0, 2, 1, 1}> {
            columns = Gather<axis = 1>(x, i)
            y = Pad<mode = "edge">(columns, amounts)
        }""",
    "steps before the first": """g (float[m, k] x, int64[n] i) => (float[a, b] y)
        <int64 axis = {1}> {
            columns = Gather<axis = 1>(x, i)
            y = CumSum<exclusive = 1>(columns, axis)
        }""",
    "steps after the last": """g (float[k, m] x, int64[n] i) => (float[a, b] y)
        <int64 axis = {0}> {
            rows = Gather(x, i)
            y = CumSum<exclusive = 1, reverse = 1>(rows, axis)
        }""",
}


@pytest.mark.parametrize("text", _PARTS.values(), ids=_PARTS)
def test_tables_hold_only_positions_that_are_asked_for(text: str) -> None:
    """Others lie outside of the memory of positions: at any size, verification would say so."""
    feeds = []
    for count in (1, 2, 3, 7, 8, 9, 17, 67):
        for rows in (1, 5):
            positions = np.random.default_rng(count).integers(-4, 4, count)
            shape = (4, rows) if "[k, m]" in text else (rows, 4)
            feeds.append({"x": floats(*shape), "i": positions})
    assert_as_reference(text, *feeds)


def test_positions_that_lie_in_scratch_are_no_table() -> None:
    """A row of a normalisation lies in scratch, its positions with it: while a task runs only."""
    text = """g (float[n, m] x, int64[m] lengths) => (float[n, m] y) <int64[1] axis = {-1}> {
        reversed = ReverseSequence(x, lengths)
        mean = ReduceMean(reversed, axis)
        y = Sub(reversed, mean)
    }"""
    feeds = []
    for n, m in ((1, 1), (3, 2), (7, 19)):
        lengths = np.random.default_rng(m).integers(1, n, m, endpoint=True)
        feeds.append({"x": floats(n, m), "lengths": lengths})
    assert_as_reference(text, *feeds)
