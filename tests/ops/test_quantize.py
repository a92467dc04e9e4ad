"""Quantisation in its three granularities, with ties, saturation and every integer type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from support.operator_harness import Array, check_node, fission, run
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError

TYPES = [np.uint8, np.int8, np.uint16, np.int16]
Operands = list[Array | None]


def _floats(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng(13).normal(0.0, 40.0, shape).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_one_scale_for_all(dtype: type) -> None:
    x, scale, zero = _floats((3, 4)), np.array(0.37, np.float32), np.array(5, dtype)
    also: list[Operands] = [[x[:0], scale, zero], [x[:1, :1], scale, zero]]
    check_node("QuantizeLinear", [x, scale, zero], {}, 21, also=also)
    q = np.array([[0, 1, 100], [7, 8, 120]], dtype)
    check_node("DequantizeLinear", [q, scale, zero], {}, 21)
    check_node("DequantizeLinear", [q, scale], {}, 21)


@pytest.mark.parametrize("dtype", TYPES)
def test_ties_go_to_even_and_ends_saturate(dtype: type) -> None:
    limits = np.iinfo(dtype)
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf], np.float32)
    low, high = limits.min, limits.max
    expected = np.array([10, 12, 12, 10, high, low, high, low], dtype)
    scale, zero = np.array(1.0, np.float32), np.array(10, dtype)
    check_node("QuantizeLinear", [x, scale, zero], expected=[expected])


@pytest.mark.parametrize("axis", [None, 0, 2, -2])
def test_one_scale_per_element_of_an_axis(axis: int | None) -> None:
    x = _floats((2, 3, 4))
    count = x.shape[1 if axis is None else axis]
    scale = np.linspace(0.5, 2.0, count).astype(np.float32)
    zero = np.arange(count, dtype=np.int8)
    attributes = {} if axis is None else {"axis": axis}
    check_node("QuantizeLinear", [x, scale, zero], attributes, 13)
    q = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
    check_node("DequantizeLinear", [q, scale, zero], attributes, 19)


def test_a_scale_per_element_must_fit() -> None:
    x, scale = _floats((2, 3)), np.ones(3, np.float32)
    graph = fission("QuantizeLinear", [x, scale], opset=13)
    with pytest.raises(DimensionError, match="does not fit axis 1"):
        run(graph, [x, np.ones(2, np.float32)])


def test_a_vector_of_one_scales_all() -> None:
    x, scale, zero = _floats((2, 3)), np.ones(1, np.float32), np.zeros(1, np.uint8)
    check_node("QuantizeLinear", [x, scale, zero], {}, 13, 1, False)
    check_node("QuantizeLinear", [x[0], scale, zero], {}, 13, 1, False)
    check_node("QuantizeLinear", [x, scale, zero], {}, 13, constants=(1, 2))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("block", [2, 3, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_one_scale_per_block(axis: int, block: int, symbolic: bool) -> None:
    x = _floats((4, 7))
    shape = [4, 7]
    shape[axis] = -(-shape[axis] // block)
    count = shape[0] * shape[1]
    scale = np.linspace(0.5, 2.0, count).astype(np.float32).reshape(shape)
    zero = np.arange(count, dtype=np.uint8).reshape(shape)
    attributes = {"axis": axis, "block_size": block}
    check_node("QuantizeLinear", [x, scale, zero], attributes, 21, 1, symbolic)
    q = np.arange(28, dtype=np.uint8).reshape(4, 7)
    check_node("DequantizeLinear", [q, scale, zero], attributes, 21, 1, symbolic)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("with_zero", [False, True])
def test_constants_of_four_bits(with_zero: bool, dtype: type) -> None:
    low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
    q = np.arange(low, high + 1).reshape(4, 4).astype(dtype)
    scale = np.linspace(0.5, 2.0, 8).astype(np.float32).reshape(2, 4)
    zero = np.arange(low, low + 8).reshape(2, 4).astype(dtype) if with_zero else None
    attributes = {"axis": 0, "block_size": 2}
    operands = [q, scale, zero] if with_zero else [q, scale]
    check_node("DequantizeLinear", operands, attributes, 21, constants=(0, 1, 2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_scales_divide_in_their_own_precision(dtype: type) -> None:
    x, scale = _floats((64,), dtype), np.array(0.3, dtype)
    expected = np.clip(np.rint((x / scale).astype(np.float32)), -128, 127).astype(np.int8)
    zero = np.array(0, np.int8)
    check_node("QuantizeLinear", [x, scale, zero], {}, 21, expected=[expected])
    attributes = {"precision": onnx.TensorProto.FLOAT}
    wide = x.astype(np.float32) / scale.astype(np.float32)
    expected = np.clip(np.rint(wide), -128, 127).astype(np.int8)
    check_node("QuantizeLinear", [x, scale, zero], attributes, 23, expected=[expected])


def test_types_by_attribute() -> None:
    x, scale = _floats((5,)), np.array(0.5, np.float32)
    check_node("QuantizeLinear", [x, scale], {"output_dtype": onnx.TensorProto.INT16}, 21)
    check_node("QuantizeLinear", [x, scale], {}, 21)
    q = np.array([-3, 0, 100], np.int8)
    half = {"output_dtype": onnx.TensorProto.FLOAT16}
    check_node("DequantizeLinear", [q, scale], half, 23)
    check_node("DequantizeLinear", [q, scale.astype(np.float16)], {}, 23)
    single = {"output_dtype": onnx.TensorProto.FLOAT}
    check_node("DequantizeLinear", [q, scale.astype(np.float16)], single, 23)


def test_integers_in_and_wide_integers_out() -> None:
    x, scale = np.array([-1000, 7, 1000], np.int32), np.array(2.0, np.float32)
    check_node("QuantizeLinear", [x, scale, np.array(0, np.int8)])
    check_node("DequantizeLinear", [x, scale])


@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT4E2M1"])
def test_types_without_kernels_have_no_rule(name: str) -> None:
    if name not in [*onnx.TensorProto.DataType.keys()]:
        pytest.skip("the installed onnx is older than the type")
    number = onnx.TensorProto.DataType.Value(name)
    operands = [_floats((4,)), np.array(1.0, np.float32)]
    with pytest.raises(NoRule, match="The result has type"):
        fission("QuantizeLinear", operands, {"output_dtype": number}, opset=23)


@pytest.mark.parametrize(
    "values", [[-3.0, 0.0, 5.0], [1.0, 2.5, 7.0], [-4.0, -1.0, -2.0], [0.0, 0.0, 0.0], [3.0]]
)
def test_dynamic_quantisation_extends_the_range_to_zero(values: list[float]) -> None:
    x = np.array([values], np.float32)
    check_node("DynamicQuantizeLinear", [x], {}, 11, 3)
