"""Tensors that come from little or no data."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from support.operator_harness import check_node, fission, run
from tilewright.support.errors import DimensionError, InvalidModelError


def _one(value: float, dtype: object) -> np.ndarray:
    return np.array(value, dtype=dtype)  # type: ignore[call-overload]


@pytest.mark.parametrize("where", [{"constants": (0,)}, {"fixed": (0,)}])
def test_constant_of_shape(where: dict[str, tuple[int, ...]]) -> None:
    check_node("ConstantOfShape", [np.array([2, 0, 3])], **where)
    check_node("ConstantOfShape", [np.array([], np.int64)], **where)
    attributes = {"value": np.array([True])}
    check_node("ConstantOfShape", [np.array([2])], attributes, expected=[np.full(2, True)], **where)


def test_constant_of_a_negative_shape() -> None:
    graph = fission("ConstantOfShape", [np.array([2])], opset=9, fixed=(0,))
    with pytest.raises(DimensionError, match="negative"):
        run(graph, [np.array([-2])])
    with pytest.raises(InvalidModelError):
        fission("ConstantOfShape", [np.array([-2])], opset=9, constants=(0,))


RANGES = [(0, 5, 1), (3, 9, 3), (10, 4, -2), (0, 10, 3), (5, 5, 1), (5, 0, 1), (-3, 4, 2)]


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("constants", [(), (0, 2), (0, 1, 2)])
def test_range_of_integers(dtype: object, constants: tuple[int, ...]) -> None:
    for limits in RANGES:
        check_node("Range", [_one(v, dtype) for v in limits], constants=constants)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constants", [(), (0, 2), (0, 1, 2)])
def test_range_of_floats(dtype: object, constants: tuple[int, ...]) -> None:
    for limits in [*RANGES, (0.5, 3.0, 0.25), (1.0, -1.0, -0.5), (0.0, 1.0, 0.3)]:
        check_node("Range", [_one(v, dtype) for v in limits], constants=constants)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_range_of_halves(dtype: object) -> None:
    for limits in ((0, 5, 1), (1.0, -1.0, -0.5)):
        check_node("Range", [_one(v, dtype) for v in limits], opset=27)


def test_range_that_does_not_move() -> None:
    graph = fission("Range", [_one(v, np.int64) for v in (0, 5, 1)], opset=11)
    with pytest.raises(DimensionError, match="must not be 0"):
        run(graph, [_one(v, np.int64) for v in (0, 5, 0)])


@pytest.mark.parametrize("k", [0, 1, -2, 9])
def test_eye_like(k: int) -> None:
    data = np.zeros((3, 4), np.int32)
    check_node("EyeLike", [data], {"k": k}, also=[[data[:0]], [data[:, :1]]])
    check_node("EyeLike", [data], {"k": k, "dtype": int(onnx.TensorProto.DOUBLE)})


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("known", [True, False])
def test_trilu(upper: int, known: bool) -> None:
    data = np.arange(1, 25).reshape(2, 3, 4)
    for k in (-4, -1, 0, 2, 5):
        where = {"constants": (1,)} if known else {}
        also = [[data[:, :0], np.array(k)], [data[:, :1, :1], np.array(k)]]
        check_node("Trilu", [data, np.array(k)], {"upper": upper}, also=also, **where)
    check_node("Trilu", [data], {"upper": upper})
    check_node("Trilu", [data > 3], {"upper": upper})
