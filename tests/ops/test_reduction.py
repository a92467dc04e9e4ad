"""Reductions: axes in both forms, empty sets, integers, and numerically hard rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support.operator_harness import Array, check_node, compare, fission, reference, run
from support.text_models import model
from tilewright.ops.record import StructuralInput
from tilewright.ops.reduction import BODIES
from tilewright.support.errors import DimensionError, InvalidModelError

FLOAT_ONLY = ("ReduceLogSum", "ReduceLogSumExp")
EMPTY = {
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
    "ReduceMax": -np.inf,
    "ReduceMean": np.nan,
    "ReduceMin": np.inf,
    "ReduceProd": 1.0,
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
}


def _positive(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(5).uniform(0.5, 3.0, shape).astype(dtype)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [0, -1], [-2, 0, 2]])
@pytest.mark.parametrize("name", sorted(BODIES))
def test_axes_as_operand_and_as_attribute(name: str, axes: list[int] | None, keepdims: int) -> None:
    x = _positive((2, 3, 4), np.float32)
    also = [_positive((5, 1, 4), np.float32), _positive((1, 2, 1), np.float32)]
    operands: list[list[Array | None]] = [[v] for v in (x, *also)]
    attributes: dict[str, Any] = {"keepdims": keepdims}
    if name != "ReduceSum":
        old = attributes if axes is None else {**attributes, "axes": axes}
        check_node(name, operands[0], old, 13, length=24, also=operands[1:])
    if axes is not None:
        operands = [[*values, np.array(axes)] for values in operands]
    check_node(name, operands[0], attributes, 18, constants=(1,), length=24, also=operands[1:])


@pytest.mark.parametrize("name", sorted(BODIES))
def test_no_axes_and_nothing_to_do_still_computes(name: str) -> None:
    x = _positive((2, 3), np.float64)
    attributes = {"noop_with_empty_axes": 1}
    expected = {
        "ReduceL2": np.sqrt(x * x),
        "ReduceLogSum": np.log(x),
        "ReduceSumSquare": x * x,
    }.get(name, x)
    for operands in ([x], [x, np.zeros(0, np.int64)]):
        check_node(name, operands, attributes, 18, constants=(1,), expected=[expected], length=2)


def test_axes_of_no_elements_need_no_contents() -> None:
    x, axes = _positive((2, 3), np.float32), np.zeros(0, np.int64)
    graph = fission("ReduceSum", [x, axes], opset=13, symbolic=False)
    compare(run(graph, [x, axes])[0], x.sum(keepdims=True), length=6)


def test_axes_known_at_run_time_only_are_structural() -> None:
    with pytest.raises(StructuralInput, match="axes"):
        fission("ReduceSum", [np.ones((2, 2)), np.array([0])], opset=13)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_over_nothing(name: str) -> None:
    x, axes = np.ones((2, 0, 4), np.float32), np.array([1])
    expected = [np.full((2, 1, 4), EMPTY[name], np.float32)]
    check_node(name, [x, axes], opset=18, constants=(1,), expected=expected)


@pytest.mark.parametrize(("name", "value"), [("ReduceMax", -128), ("ReduceMin", 127)])
def test_extremes_of_no_integers(name: str, value: int) -> None:
    x, axes = np.ones((0, 3), np.int8), np.array([0])
    expected = [np.full((1, 3), value, np.int8)]
    check_node(name, [x, axes], opset=18, constants=(1,), expected=expected)


def test_the_mean_of_no_integers_is_refused() -> None:
    graph = """g (int64[n, m] x) => (int64[n] y) <int64[1] one = {1}> {
        y = ReduceMean <keepdims = 0> (x, one)
    }"""
    compiled = tw.compile(model(graph))
    assert compiled(np.full((2, 3), 4)).tolist() == [4, 4]
    assert compiled(np.zeros((0, 0), np.int64)).shape == (0,)
    with pytest.raises(DimensionError, match="the mean of no integers has no value"):
        compiled(np.zeros((2, 0), np.int64))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("name", [n for n in sorted(BODIES) if n not in FLOAT_ONLY])
def test_of_integers(name: str, dtype: type) -> None:
    x = np.array([[1, 2, 3], [4, 5, 9]], dtype)
    operands = [x, np.array([1])]
    # numpy widens some sums of 32-bit integers; the operator keeps the type.
    expected = [y.astype(dtype) for y in reference(name, operands, opset=18)]
    check_node(name, operands, opset=18, constants=(1,), expected=expected)


@pytest.mark.parametrize("name", ["ReduceMax", "ReduceMin"])
def test_of_truth_values(name: str) -> None:
    x = np.array([[True, False], [True, True], [False, False]])
    check_node(name, [x, np.array([1])], {"keepdims": 0}, 20, constants=(1,))


@pytest.mark.parametrize("name", sorted(BODIES))
def test_of_a_scalar(name: str) -> None:
    value = {"ReduceLogSum": np.log(2.0), "ReduceSumSquare": 4.0}.get(name, 2.0)
    x, expected = np.array(2.0, np.float32), np.array(value, np.float32)
    check_node(name, [x], {"keepdims": 1}, 18, expected=[expected])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_are_summed_in_single_precision(dtype: type) -> None:
    x = np.full((1, 4096), 0.1, dtype)
    expected = x.astype(np.float64).sum(axis=1, keepdims=True).astype(dtype)
    check_node("ReduceSum", [x, np.array([1])], constants=(1,), expected=[expected])


def test_log_sum_exp_does_not_overflow() -> None:
    rows = [[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, 0.0], [-np.inf, -np.inf], [np.inf, 1.0]]
    x = np.array(rows, np.float32)
    half = np.log(np.float32(2.0))
    expected = np.array([1000 + half, -1000 + half, 0.0, -np.inf, np.inf], np.float32)
    check_node(
        "ReduceLogSumExp", [x, np.array([1])], {"keepdims": 0}, constants=(1,), expected=[expected]
    )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_index_of_the_first_or_last(name: str, keepdims: int, last: int) -> None:
    attributes = {"keepdims": keepdims, "select_last_index": last}
    for dtype in (np.float32, np.float16, np.int8):
        x = np.array([[2, 7, 7], [1, 1, 5], [3, 3, 3]], dtype)
        for axis in (0, 1, -1):
            check_node(name, [x], {**attributes, "axis": axis}, also=[[x[:1]], [x[:, :1]]])


def test_index_into_nothing_is_refused() -> None:
    x = np.ones((2, 3), np.float32)
    graph = fission("ArgMax", [x], {"axis": 1}, opset=13)
    assert run(graph, [x[:0]])[0].shape == (0, 1)
    with pytest.raises(DimensionError, match="no elements"):
        run(graph, [x[:, :0]])


def test_axes_out_of_range_are_no_model() -> None:
    with pytest.raises(InvalidModelError, match="no axis 2 in a tensor of 2 axes"):
        fission("ReduceMax", [np.ones((2, 2))], {"axes": [2]}, opset=13)
