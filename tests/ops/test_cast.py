"""Conversions between all native types, and operators that change nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from support.operator_harness import check_node, fission, run
from tilewright.ir.primitives import Input
from tilewright.ops.record import NoRule, StructuralInput

TYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
]  # fmt: skip


def _number(dtype: type) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_between_native_types(source: type, target: type) -> None:
    x = np.array([[0, 1, 2], [7, 100, 127]]).astype(source)
    check_node("Cast", [x], {"to": _number(target)}, expected=[x.astype(target)])
    check_node("CastLike", [x, np.zeros(1, target)], expected=[x.astype(target)])


def test_floats_truncate_and_integers_wrap() -> None:
    x = np.array([-2.9, -0.5, 0.5, 2.9], np.float32)
    expected = np.array([-2, 0, 0, 2], np.int32)
    check_node("Cast", [x], {"to": onnx.TensorProto.INT32}, expected=[expected])
    whole = np.array([200, -200, 65537], np.int64)
    wrapped = np.array([-56, 56, 1], np.int8)
    check_node("Cast", [whole], {"to": onnx.TensorProto.INT8}, expected=[wrapped])


def test_types_had_names_at_first() -> None:
    x = np.array([-2.9, 0.5], np.float32)
    (made,) = run(fission("Cast", [x], {"to": "INT32"}, opset=1), [x])
    np.testing.assert_array_equal(made, np.array([-2, 0], np.int32))


def test_truth_is_not_zero() -> None:
    x = np.array([0.0, -0.0, 0.25, np.nan, np.inf], np.float32)
    expected = np.array([False, False, True, True, True])
    check_node("Cast", [x], {"to": onnx.TensorProto.BOOL}, expected=[expected])


@pytest.mark.parametrize(
    "name", ["STRING", "FLOAT8E4M3FN", "FLOAT8E8M0", "INT4", "UINT2", "FLOAT6E2M3", "COMPLEX64"]
)
def test_types_without_kernels_have_no_rule(name: str) -> None:
    if name not in [*onnx.TensorProto.DataType.keys()]:
        pytest.skip("the installed onnx is older than the type")
    number = onnx.TensorProto.DataType.Value(name)
    with pytest.raises(NoRule, match="The result has type"):
        fission("Cast", [np.ones(2, np.float32)], {"to": number}, opset=28)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, ml_dtypes.int4, np.complex64, object])
def test_operands_without_kernels_have_no_rule(dtype: type) -> None:
    with pytest.raises(NoRule, match="Operand 0 has type"):
        fission("Cast", [np.ones(2).astype(dtype)], {"to": onnx.TensorProto.FLOAT}, opset=28)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, object])
def test_identity_adds_nothing(dtype: type) -> None:
    graph = fission("Identity", [np.ones(3, dtype)], opset=16)
    assert [type(n.primitive) for n in graph.nodes()] == [Input]


def test_dropout_of_inference_keeps_everything() -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    mask = np.ones((2, 3), np.bool_)
    ratio, training = np.float32(0.5), np.asarray(False)
    check_node("Dropout", [x], opset=13, expected=[x])
    check_node("Dropout", [x], {"ratio": 0.5}, 10, 2, expected=[x, mask])
    operands = [x, np.asarray(ratio), training]
    check_node("Dropout", operands, outputs=2, constants=(2,), expected=[x, mask])


def test_dropout_of_training() -> None:
    x, ratio, training = np.ones((2, 3), np.float32), np.array(0.5), np.array(True)
    with pytest.raises(NoRule, match="random"):
        fission("Dropout", [x, ratio, training], opset=13, constants=(1, 2))
    with pytest.raises(StructuralInput, match="training mode"):
        fission("Dropout", [x, ratio, training], opset=13)
    operands = [x, np.array(0.0), training]
    check_node("Dropout", operands, opset=13, constants=(1, 2), expected=[x])
