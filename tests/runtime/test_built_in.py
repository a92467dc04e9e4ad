"""Operators that the runtime computes itself, called by steps, against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from support.first_in_order import first_in_order
from tilewright.runtime.built_in import BuiltInStep, compute
from tilewright.support.errors import ArtifactError, ExecutionError, ResourceError

Array = np.ndarray[Any, Any]
DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
          np.uint64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]  # fmt: skip
LENGTHS = (1, 2, 15, 16, 17, 64, 65, 129, 513, 2053)


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    """Some of which are equal, and some 0."""
    random = np.random.default_rng(seed)
    made = random.integers(0, 40, shape)
    if np.dtype(dtype).kind not in "bu":
        made = made - 20
    return made.astype(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_best_elements_of_rows_of_any_length(dtype: Any, length: int) -> None:
    data = numbers(dtype, 3, length)
    if data.dtype.kind in "fV":
        data[0, length // 2] = np.nan
        data[1, ::3] = dtype(-0.0)
        data[2, length // 3] = -np.inf
    for count in sorted({1, 2, 7, 17, length // 3, length - 1, length} & set(range(1, length + 1))):
        for largest in (0, 1):
            values, places = compute("TopK", [data, np.array(count)], largest=largest)
            expected_values, expected_places = first_in_order(data, count, 1, largest)
            np.testing.assert_array_equal(places, expected_places)
            assert values.dtype == data.dtype
            assert values.tobytes() == np.ascontiguousarray(expected_values).tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_best_elements_along_any_axis(axis: int, count: int) -> None:
    data = numbers(np.float32, 19, 18, 21)
    for largest in (0, 1):
        values, places = compute("TopK", [data, np.array(count)], axis=axis, largest=largest)
        expected_values, expected_places = first_in_order(data, count, axis, largest)
        np.testing.assert_array_equal(places, expected_places)
        np.testing.assert_array_equal(values, expected_values)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("shape", [(21, 9), (4, 40)])
def test_the_best_elements_of_short_rows_beside_each_other(dtype: Any, shape: Any) -> None:
    data = numbers(dtype, *shape)
    if data.dtype.kind in "fV":
        data[::2, 3] = np.nan
        data[1, ::3] = dtype(-0.0)
        data[2::3, 5] = np.inf
    for axis, count, largest in [(0, 3, 0), (0, 4, 1), (1, 1, 0), (1, 9, 0), (1, 6, 1)]:
        values, places = compute("TopK", [data, np.array(count)], axis=axis, largest=largest)
        expected_values, expected_places = first_in_order(data, count, axis, largest)
        np.testing.assert_array_equal(places, expected_places)
        assert values.tobytes() == np.ascontiguousarray(expected_values).tobytes()


@pytest.mark.parametrize("length", [300, 3000])
def test_the_best_elements_in_no_order(length: int) -> None:
    data = numbers(np.float32, 2, length)
    values, places = compute("TopK", [data, np.array(100)], sorted=0)
    _, expected = first_in_order(data, 100, 1, 1)
    np.testing.assert_array_equal(np.sort(places), np.sort(expected))
    np.testing.assert_array_equal(values, np.take_along_axis(data, places, 1))


def test_rows_that_lanes_tell_nothing_of() -> None:
    """Rows of one value, of no numbers, and with all that is good in one lane."""
    rows = np.zeros((5, 1024), np.float32)
    rows[1], rows[2, 5:] = np.nan, np.nan
    rows[3, ::16] = np.arange(64)
    rows[4] = -np.inf
    for count in (2, 16, 60, 500):
        for largest in (0, 1):
            _, places = compute("TopK", [rows, np.array(count)], largest=largest)
            np.testing.assert_array_equal(places, first_in_order(rows, count, 1, largest)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_of_what_is_not_zero(dtype: Any) -> None:
    for shape in ((), (1,), (4097,), (3, 5), (70, 61, 2), (9, 1, 1), (0, 4), (3, 0), (2, 1, 8193)):
        data = np.where(numbers(np.int8, *shape) > 5, numbers(dtype, *shape, seed=1), dtype(0))
        data = data.astype(dtype)
        (found,) = compute("NonZero", [data])
        expected = np.stack(np.nonzero(np.atleast_1d(data))) if shape else np.zeros((0, found.size))
        assert found.dtype == np.int64 and found.shape[0] == len(shape)
        if shape:
            np.testing.assert_array_equal(found, expected)


def test_what_is_no_number_is_not_zero() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        (found,) = compute("NonZero", [np.array([0.0, -0.0, np.nan, 1e-3]).astype(dtype)])
        assert found.tolist() == [[2, 3]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_what_a_condition_keeps(dtype: Any, axis: int | None) -> None:
    data = numbers(dtype, 7, 11, 8)
    for length in (0, 3, 7):
        condition = np.arange(length) % 3 != 1
        (found,) = compute("Compress", [data, condition], axis=axis)
        np.testing.assert_array_equal(found, np.compress(condition, data, axis=axis))
    (found,) = compute("Compress", [data[:, :, :0], np.array([True])], axis=0)
    assert found.shape == (1, 11, 0)
    with pytest.raises(ExecutionError, match="element 11 of 11"):
        compute("Compress", [data, np.arange(12) == 11], axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 40, 500])
def test_different_elements(dtype: Any, length: int) -> None:
    data = numbers(dtype, length)
    comparable = data.astype(np.float64)
    for is_sorted in (0, 1):
        values, firsts, numbers_of, counts = compute("Unique", [data], sorted=is_sorted)
        _, places, expected_counts = np.unique(comparable, return_index=True, return_counts=True)
        order = np.arange(len(places)) if is_sorted else np.argsort(places)
        np.testing.assert_array_equal(firsts, places[order])
        np.testing.assert_array_equal(counts, expected_counts[order])
        np.testing.assert_array_equal(values, data[firsts])
        np.testing.assert_array_equal(values[numbers_of], data)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_different_slices(axis: int) -> None:
    data = np.random.default_rng(0).integers(0, 2, (6, 3, 4)).astype(np.float32)
    found = compute("Unique", [data], axis=axis)
    expected = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other.reshape(one.shape))


def finder() -> onnx.ModelProto:
    """Places of what is positive, what is there, and the best three of each row."""
    return onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n, m] x) => (int64[2, k] places, float[k] found, float[n, 3] squares,
                              int64[n, 3] where) <int64[1] three = {3}> {
            positive = Relu(x)
            places = NonZero(positive)
            turned = Transpose(places)
            found = GatherND(x, turned)
            best, where = TopK(positive, three)
            squares = Mul(best, best)
        }""")


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_among_kernels(threads: int) -> None:
    model = tw.compile(finder(), num_threads=threads, fallback="error")
    assert model.stats().opaque_operators == {}
    for shape in ((1, 3), (3, 17), (200, 130), (0, 5), (2, 5), (200, 131)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        made = model.run({"x": x})
        np.testing.assert_array_equal(made["places"], np.stack(np.nonzero(x > 0)))
        np.testing.assert_array_equal(made["found"], x[x > 0])
        best, where = first_in_order(np.maximum(x, 0), 3, 1, 1)
        np.testing.assert_array_equal(made["squares"], best * best)
        np.testing.assert_array_equal(made["where"], where)
        made["places"][...] = 0  # the caller's own


def test_results_in_memory_of_the_caller() -> None:
    model = tw.compile(finder())
    x = np.random.default_rng(2).standard_normal((4, 9)).astype(np.float32)
    places = np.zeros((2, int((x > 0).sum())), np.int64)
    made = model.run({"x": x}, out=(places, None, None, None))
    assert made["places"] is places
    np.testing.assert_array_equal(places, np.stack(np.nonzero(x > 0)))


def test_what_is_made_counts_as_memory() -> None:
    model = tw.compile(finder(), max_bytes=20_000)
    model(np.ones((4, 9), np.float32))
    with pytest.raises(ResourceError, match="max_bytes"):
        model(np.ones((40, 90), np.float32))


def test_a_step_says_where_it_failed() -> None:
    with pytest.raises(ExecutionError, match="3 of 2 elements"):
        tw.compile(finder())(np.ones((4, 2), np.float32))


def test_payloads() -> None:
    step = BuiltInStep("TopK", (0, None), (1,), (-1, None, 1))
    assert BuiltInStep.of(step.payload()) == step
    with pytest.raises(ArtifactError, match="payload"):
        BuiltInStep.of(step.payload()[:-1])
