"""Comparisons, logic, bits and choices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import check_node, fission
from tilewright.ops.record import NoRule, find_operator

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons_of_every_type(name: str, dtype: type) -> None:
    x, y = np.array([[1, 2, 3]], dtype), np.array([[2], [3]], dtype)
    check_node(name, [x, y], also=[[x, x], [x[:, :1], y]])


@pytest.mark.parametrize("name", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons_with_nan_are_false(name: str) -> None:
    x, y = np.array([NAN, 1.0, NAN, INF], np.float32), np.array([1.0, NAN, NAN, INF], np.float32)
    check_node(name, [x, y])


@pytest.mark.parametrize("name", ["And", "Or", "Xor", "Equal"])
def test_logic(name: str) -> None:
    x, y = np.array([[True], [False]]), np.array([True, False])
    check_node(name, [x, y])
    check_node("Not", [x])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
@pytest.mark.parametrize("name", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(name: str, dtype: type) -> None:
    x, y = np.array([[1, 6, 77]], dtype), np.array([[3], [100]], dtype)
    check_node(name, [x, y])
    check_node("BitwiseNot", [x])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int64, np.int32])
def test_shifts_by_any_amount(dtype: type, direction: str) -> None:
    bits = np.iinfo(dtype).bits
    signed = bool(np.iinfo(dtype).min)
    x = np.array([1, 5, 100, -1 if signed else 7, -100 if signed else 9], dtype)
    amounts = [0, 1, bits - 1, bits, bits + 1] + ([-1, -100] if signed else [])
    y = np.array(amounts, dtype).reshape(-1, 1)
    check_node("BitShift", [x, y], {"direction": direction})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinities_by_sign(positive: int, negative: int, dtype: type) -> None:
    x = np.array([NAN, INF, -INF, 0.0, 6e4], dtype)
    check_node("IsInf", [x], {"detect_positive": positive, "detect_negative": negative})
    check_node("IsNaN", [x])


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float64, ml_dtypes.bfloat16])
def test_choice_keeps_the_type(dtype: type) -> None:
    condition = np.array([[True], [False]])
    x, y = np.array([1, 0, 1], dtype), np.array(0, dtype)
    check_node("Where", [condition, x, y], also=[[condition[:1], x, y], [condition, x[:1], y]])


def test_choice_by_a_single_condition() -> None:
    condition, x, y = np.array(False), np.array([1, 2]), np.array([[3], [4]])
    check_node("Where", [condition, x, y])


def test_strings_have_no_rule() -> None:
    text = np.array(["a"], dtype=object)
    with pytest.raises(NoRule, match="string"):
        fission("Equal", [text, text], opset=19)


@pytest.mark.parametrize("name", ["Add", "And", "Greater", "PRelu", "Pow"])
def test_versions_with_other_broadcasting_have_no_rule(name: str) -> None:
    assert find_operator("", name, 6) is None
    assert find_operator("", name, 7) is not None
