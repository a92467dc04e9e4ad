"""Arithmetic element by element: every type, broadcasting decided at run time, exact integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import Array, check_node, fission, run
from tilewright.ir.primitives import Map
from tilewright.ops.elementwise import UNARY
from tilewright.support.errors import DimensionError, InvalidModelError

POSITIVE = {"Acosh": 1.0, "Log": 0.1, "Sqrt": 0.0}
WITHIN_ONE = ("Acos", "Asin", "Atanh")
INTEGERS = (np.int8, np.int32, np.int64, np.uint8, np.uint32)


def _floats(shape: tuple[int, ...], dtype: type, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 1.5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_functions(name: str, dtype: type) -> None:
    x = _floats((3, 5), dtype)
    if name in POSITIVE:
        x = np.abs(x) + dtype(POSITIVE[name])
    if name in WITHIN_ONE:
        x = np.tanh(x)
    check_node(name, [x], also=[[x[:0]], [x[:1]]])


@pytest.mark.parametrize("name", ["Abs", "Neg", "Sign"])
def test_unary_functions_of_integers(name: str) -> None:
    check_node(name, [np.array([[-128, -3, 0], [1, 2, 127]], np.int8)])


def test_rounding_is_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e20, np.inf], np.float32)
    check_node("Round", [x], expected=[np.array([-2, -2, -0.0, 0, 2, 2, 1e20, np.inf], np.float32)])


def test_erf_of_integers_truncates() -> None:
    expected = np.array([0, 0, 0, 0], np.int32)
    check_node("Erf", [np.array([-1, 0, 1, 2], np.int32)], expected=[expected], opset=13)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div"])
def test_broadcasting_is_decided_at_run_time(name: str) -> None:
    x, y = _floats((2, 1, 4), np.float32), _floats((3, 1), np.float32, 1)
    also = [
        [x, y[:1]],
        [_floats((1, 3, 1), np.float32), _floats((3, 4), np.float32)],
        [_floats((0, 1, 4), np.float32), y],
    ]
    check_node(name, [x, y], also=also)


def test_sizes_that_do_not_broadcast_are_refused() -> None:
    graph = fission("Add", [np.ones(3, np.float32), np.ones(3, np.float32)], opset=14)
    with pytest.raises(DimensionError, match="cannot be broadcast"):
        run(graph, [np.ones(3, np.float32), np.ones(2, np.float32)])


def test_known_sizes_that_do_not_broadcast_are_no_model() -> None:
    with pytest.raises(InvalidModelError, match="cannot be broadcast"):
        fission("Add", [np.ones(3), np.ones(2)], opset=14, symbolic=False)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_division_truncates_and_remainders_have_a_sign(dtype: type, fmod: int) -> None:
    values = [7, -7, 7, -7, 100, 0] if np.iinfo(dtype).min else [7, 6, 5, 4, 100, 0]
    x = np.array(values, dtype)
    y = np.array([2, 2, -2, -2, 7, 3] if np.iinfo(dtype).min else [2, 3, 4, 5, 7, 3], dtype)
    check_node("Div", [x, y])
    check_node("Mod", [x, y], {"fmod": fmod})


def test_float_remainder_has_the_sign_of_the_dividend() -> None:
    x = np.array([5.5, -5.5, 5.5, -5.5], np.float32)
    y = np.array([2.0, 2.0, -2.0, -2.0], np.float32)
    check_node("Mod", [x, y], {"fmod": 1}, opset=13)


@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("base", [np.int32, np.int64, np.float16, np.float32, np.float64])
def test_power_of_mixed_types_has_the_type_of_the_base(base: type, exponent: type) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], base)
    y = np.array([3, 0, 2], exponent)
    check_node("Pow", [x, y], opset=15)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_small_whole_powers_are_products(exponent: int, dtype: type) -> None:
    x = np.array([-2, 0, 1, 7], dtype)
    y = np.array([exponent], np.float32)
    # numpy 2.1 makes float32 of a power of bfloat16 and a Python integer.
    expected = x ** np.array(exponent, dtype)
    graph = check_node("Pow", [x, y], opset=15, constants=(1,), expected=[expected])
    functions = {n.primitive.function for n in graph.nodes() if isinstance(n.primitive, Map)}
    assert functions <= {"multiply"}


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_powers_of_integers_are_exact_and_wrap(dtype: type) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.max, limits.max - 1, 3, 7, 0, limits.max], dtype)
    y = np.array([1, 1, 39, 2, 0, 2], dtype)
    values = [pow(int(a), int(b), 1 << limits.bits) for a, b in zip(x, y, strict=True)]
    expected = np.array(values, np.uint64).astype(dtype)
    check_node("Pow", [x, y], opset=15, expected=[expected])


def test_powers_of_integers_with_exponents_below_zero() -> None:
    x, y = np.array([1, -1, -1, 2, -3], np.int32), np.array([-2, -2, -3, -1, -2], np.int32)
    check_node("Pow", [x, y], opset=15, expected=[np.int32([1, 1, -1, 0, 0])])


def test_power_keeps_the_exponents_axes() -> None:
    x, y = np.array([2.0, 3.0], np.float32), np.array([[2.0]], np.float32)
    check_node("Pow", [x, y], opset=15, constants=(1,), expected=[np.float32([[4.0, 9.0]])])


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.float64])
@pytest.mark.parametrize("name", ["Max", "Min"])
def test_extremes_of_any_number_of_operands(name: str, dtype: type) -> None:
    parts = [np.array([1, 5, 3], dtype), np.array([[4], [2]], dtype), np.array(3, dtype)]
    for count in (1, 2, 3):
        check_node(name, parts[:count])


def test_extremes_pass_nan_on() -> None:
    x, y = np.array([np.nan, 1.0], np.float32), np.array([1.0, np.nan], np.float32)
    check_node("Max", [x, y])
    check_node("Min", [x, y])


@pytest.mark.parametrize("name", ["Sum", "Mean"])
def test_sums_and_means_of_any_number_of_operands(name: str) -> None:
    parts = [_floats(shape, np.float32) for shape in ((2, 3), (3,), (2, 1))]
    for count in (1, 2, 3):
        check_node(name, parts[:count], length=count)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_running_sums_and_products(axis: int, exclusive: int, reverse: int) -> None:
    x = _floats((3, 4), np.float64)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    also = [[x[:1], np.array(axis)], [x[:, :1], np.array(axis)]]
    for name in ("CumSum", "CumProd"):
        operands = [x, np.array(axis)]
        check_node(name, operands, attributes, constants=(1,), length=4, also=also)


def test_running_sum_of_nothing() -> None:
    x = np.ones((0, 3), np.float32)
    graph = fission("CumSum", [x, np.array(0)], {"exclusive": 1}, opset=14, constants=(1,))
    assert run(graph, [x, np.array(0)])[0].shape == (0, 3)


@pytest.mark.parametrize("name", ["Sqrt", "Reciprocal", "Neg", "Exp"])
def test_brain_floats_are_computed_in_single_precision(name: str) -> None:
    x = np.array([0.5, 1.0, 2.25, 9.0], ml_dtypes.bfloat16)
    wide = {
        "Sqrt": np.sqrt,
        "Reciprocal": np.reciprocal,
        "Neg": np.negative,
        "Exp": np.exp,
    }[name](x.astype(np.float32))
    check_node(name, [x], expected=[wide.astype(ml_dtypes.bfloat16)])
