"""Reading and writing at computed positions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from support.first_in_order import first_in_order
from support.operator_harness import check_node, fission, run
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, ExecutionError

GENERATOR = np.random.default_rng(11)


def _numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)  # type: ignore[arg-type]


def _integers(*values: int, dtype: object = np.int64) -> np.ndarray:
    return np.array(values, dtype=dtype)  # type: ignore[call-overload]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis: int, dtype: object) -> None:
    indices = np.array([[0, -1], [1, 1]], dtype=dtype)  # type: ignore[call-overload]
    other = np.zeros((3, 0), dtype=dtype)  # type: ignore[call-overload]
    check_node("Gather", [_numbers(3, 4, 2), indices], {"axis": axis},
               also=[[_numbers(2, 2, 2), indices], [_numbers(3, 4, 2), other]])  # fmt: skip
    check_node("Gather", [_numbers(3, 4, 2), indices[0, 1]], {"axis": axis})


def test_gather_out_of_bounds_is_an_error() -> None:
    graph = fission("Gather", [_numbers(3), _integers(0)], opset=13)
    for index in (3, -4):
        with pytest.raises(ExecutionError, match="out of bounds"):
            run(graph, [_numbers(3), _integers(index)])


def test_gather_keeps_types() -> None:
    for dtype in (np.bool_, np.float16, ml_dtypes.bfloat16, np.uint8):
        check_node("Gather", [_numbers(3, dtype=dtype), _integers(2, 0)])


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_gather_elements(axis: int) -> None:
    indices = GENERATOR.integers(-3, 3, (3, 3))
    graph = check_node("GatherElements", [_numbers(3, 3), indices], {"axis": axis})
    for part in (indices[:1, :2], indices[:0]):
        data = _numbers(3, 3)
        own = run(graph, [data, part])[0]
        for where in np.ndindex(*part.shape):
            place = list(where)
            place[axis] = part[where]
            assert own[where] == data[tuple(place)]
        assert own.shape == part.shape
    with pytest.raises(DimensionError, match="longer than the data"):
        run(graph, [_numbers(1, 1), indices])


@pytest.mark.parametrize(("batch", "depth"), [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)])
def test_gather_nd(batch: int, depth: int) -> None:
    data = _numbers(2, 3, 4)
    indices = GENERATOR.integers(-2, 2, (2, 3, depth))
    check_node("GatherND", [data, indices], {"batch_dims": batch}, fixed=(1,),
               expected=[_gathered(data, indices, batch)])  # fmt: skip


def _gathered(data: np.ndarray, indices: np.ndarray, batch: int) -> np.ndarray:
    out = []
    for where in np.ndindex(*indices.shape[:-1]):
        out.append(data[where[:batch] + tuple(indices[where])])
    depth = indices.shape[-1]
    return np.array(out).reshape(indices.shape[:-1] + data.shape[batch + depth :])


def test_gather_nd_of_unknown_depth_has_no_rule() -> None:
    with pytest.raises(NoRule, match="known size"):
        fission("GatherND", [_numbers(2, 2), np.zeros((1, 2), np.int64)], opset=13)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    data, updates = _numbers(4, 4), GENERATOR.standard_normal((3, 3)).astype(np.float32)
    indices = np.array([[0, 1, -1], [1, 2, 0], [-1, 0, 2]])
    if reduction != "none":
        indices[0] = indices[1]
    check_node("ScatterElements", [data, indices, updates], {"axis": axis, "reduction": reduction},
               also=[[data, indices[:0], updates[:0]]], length=3)  # fmt: skip


def test_scatter_of_the_oldest_name() -> None:
    inputs = [_numbers(1, 5), np.array([[1, 3]]), np.array([[1.1, 2.1]], np.float32)]
    own = run(fission("Scatter", inputs, {"axis": 1}, opset=10), inputs)[0]
    np.testing.assert_array_equal(own, np.array([[0, 1.1, 2, 2.1, 4]], np.float32))


def test_scatter_of_halves_is_summed_in_floats() -> None:
    data, updates = np.zeros(1, np.float16), np.full(2051, 1, np.float16)
    inputs = [data, np.zeros(2051, np.int64), updates]
    graph = fission("ScatterElements", inputs, {"reduction": "add"}, opset=18)
    assert run(graph, inputs)[0][0] == np.float16(2051)
    with pytest.raises(DimensionError, match="indices and updates differ"):
        run(graph, [data, inputs[1], updates[:-1]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd(reduction: str, depth: int) -> None:
    data = _numbers(4, 4, 2)
    indices = np.array([[0, 1], [3, -1], [2, 2]])[:, :depth]
    updates = GENERATOR.standard_normal((3, *data.shape[depth:])).astype(np.float32)
    check_node("ScatterND", [data, indices, updates], {"reduction": reduction}, fixed=(1,))
    graph = fission("ScatterND", [data, indices, updates], opset=18, fixed=(1,))
    with pytest.raises(DimensionError, match="do not fit"):
        run(graph, [data, indices, updates[:2]])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache = _numbers(2, 3, 5, 4)
    starts = _integers(1, 4) if mode == "circular" else _integers(0, 3)
    update = -_numbers(2, 3, 2, 4) - 1
    also = [[cache, update[:, :, :count], starts] for count in (0, 1)]
    check_node("TensorScatter", [cache, update, starts], {"mode": mode}, opset=24, also=also)
    check_node("TensorScatter", [cache, update], {"mode": mode, "axis": 2}, opset=24)
    graph = fission("TensorScatter", [cache, update], opset=24)
    with pytest.raises(DimensionError, match="exceeds the cache"):
        run(graph, [cache[:, :, :1], update])


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("known", [True, False])
def test_one_hot(axis: int, known: bool) -> None:
    indices = np.array([[0, -1, 2], [5, -4, 1]])
    values = np.array([-2.0, 3.0], np.float32)
    where = {"constants": (1,)} if known else {}
    graph = check_node("OneHot", [indices, np.array(3), values], {"axis": axis}, **where)
    if not known:
        own = run(graph, [indices, np.array(6), values])[0]
        assert own.shape[axis] == 6 and (own == 3).sum() == 6
        assert run(graph, [indices, np.array(0), values])[0].size == 0


def test_one_hot_of_float_operands() -> None:
    indices = np.array([0.0, 2.0, -1.0], np.float32)
    for depth in (np.array([3.0], np.float32), np.array([3], np.int32)):
        for where in ({}, {"constants": (1,)}):
            own = run(fission("OneHot", [indices, depth, _integers(0, 1)], opset=11, fixed=(1,),
                              **where), [indices, depth, _integers(0, 1)])[0]  # fmt: skip
            np.testing.assert_array_equal(own, np.eye(3, dtype=np.int64)[[0, 2, 2]])


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(time: int, batch: int) -> None:
    attributes = {"time_axis": time, "batch_axis": batch}
    check_node("ReverseSequence", [_numbers(4, 4, 2), _integers(0, 1, 4, 3)], attributes)
    graph = fission("ReverseSequence", [_numbers(4, 4), _integers(1, 1)], attributes, opset=10)
    assert run(graph, [np.zeros((0, 0), np.float32), _integers()])[0].shape == (0, 0)
    with pytest.raises(DimensionError, match="a length per sample"):
        run(graph, [_numbers(4, 4), _integers(1)])


def test_compress_by_a_known_condition() -> None:
    condition = np.array([False, True, True])
    check_node("Compress", [_numbers(3, 4), condition], {"axis": 0}, constants=(1,))
    check_node("Compress", [_numbers(3, 4), condition], constants=(1,))
    with pytest.raises(NoRule):
        fission("Compress", [_numbers(3, 4), condition], {"axis": 0}, opset=11)


def test_non_zero_of_what_is_known() -> None:
    check_node("NonZero", [np.array([[0, 2], [3, 0]])], constants=(0,))
    with pytest.raises(NoRule):
        fission("NonZero", [_numbers(3)], opset=13)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_greatest_element(largest: int) -> None:
    data = GENERATOR.integers(0, 4, (3, 5)).astype(np.float32)
    attributes = {"largest": largest, "axis": 1}
    check_node("TopK", [data, _integers(1)], attributes, outputs=2, constants=(1,),
               also=[[data[:, :1], _integers(1)]])  # fmt: skip
    graph = fission("TopK", [data, _integers(1)], attributes, opset=11, outputs=2, constants=(1,))
    with pytest.raises(DimensionError, match="no element"):
        run(graph, [data[:, :0], None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("count", "axis"), [(1, 1), (1, -1), (2, 0), (3, 1), (8, 1), (5, -1)])
def test_the_first_in_order(count: int, axis: int, largest: int, dtype: type) -> None:
    """With ties, both zeros, and what is no number, which is the greatest."""
    data = GENERATOR.integers(0, 6, (4, 8, 5)).astype(dtype)
    if data.dtype.kind == "f":
        data = data - dtype(3)
        data[0, 3:7, 0] = np.nan, np.inf, -np.nan, -np.inf
        data[1, 2:4, 1] = -0.0, 0.0
        data[2, :, 2], data[3, :, 3] = np.nan, (np.nan, *[np.inf] * 7)
    check_node(
        "TopK", [data, _integers(count)], {"largest": largest, "axis": axis}, outputs=2,
        constants=(1,), fixed=(0,), expected=first_in_order(data, count, axis, largest),
    )  # fmt: skip


def test_many_or_more_than_there_are_need_a_sort() -> None:
    for data, symbolic in ((_numbers(3, 9), False), (_numbers(3, 5), True)):
        for count in (0, 2, 6):
            with pytest.raises(NoRule, match="sort"):
                fission("TopK", [data, _integers(count)], opset=11, outputs=2, constants=(1,),
                        symbolic=symbolic)  # fmt: skip
