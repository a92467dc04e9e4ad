"""Arguments that do not fit, and arrays of every layout, which do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from support import text_models, tiny_models
from tilewright.support.errors import (
    DimensionError,
    ExecutionError,
    InputError,
    ResourceError,
    TilewrightError,
)

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model() -> tw.Model:
    return tw.compile(tiny_models.two_inputs(), dims={"batch": tw.Dim(2, 64, 2)}, levels=["x86-64"])


@pytest.fixture(scope="module")
def outer() -> tw.Model:
    high = 1 << 62
    return tw.compile(
        tiny_models.outer_sum(), dims={"n": (0, high), "m": (0, high)}, levels=["x86-64"]
    )


def x(batch: int = 2) -> Array:
    return np.arange(batch * 4, dtype=np.float32).reshape(batch, 4)


def y(batch: int = 2) -> Array:
    return np.ones((batch, 3), np.float32)


def refusal(error: type[TilewrightError], model: tw.Model, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        model(*args, **kwargs)
    return str(caught.value)


@pytest.mark.slow
def test_out_of_range(model: tw.Model) -> None:
    message = refusal(DimensionError, model, x(66), y(66))
    assert "batch" in message and "66" in message and "64" in message
    assert "0" in refusal(DimensionError, model, x(0), y(0))


def test_not_a_multiple(model: tw.Model) -> None:
    message = refusal(DimensionError, model, x(3), y(3))
    assert "batch" in message and "multiple of 2" in message


def test_unequal(model: tw.Model) -> None:
    message = refusal(DimensionError, model, x(4), y(2))
    assert 'Input "y", axis 0: size 2 differs from dimension "batch" = 4' in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right", "sizes", "refused"),
    [
        (["n", "m"], ["k", "p"], [(2, 3), (3, 4)], [(2, 3), (4, 4)]),
        (["n", "m"], ["n", "m"], [(3, 3), (3, 3)], [(3, 4), (4, 3)]),
        (["n", "m"], ["n", "k"], [(3, 3), (3, 5)], [(3, 4), (3, 4)]),
    ],
)
def test_dimensions_of_two_names_that_a_product_makes_equal(
    left: list[str], right: list[str], sizes: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    compiled = tw.compile(tiny_models.product(left, right), levels=["x86-64"])
    a, b = (np.arange(i * j, dtype=np.float32).reshape(i, j) for i, j in sizes)
    assert np.array_equal(compiled(a, b), a @ b)
    assert "differs from dimension" in refusal(
        DimensionError, compiled, *(np.ones(shape, np.float32) for shape in refused)
    )


def test_a_fixed_size_that_differs(model: tw.Model) -> None:
    message = refusal(DimensionError, model, np.ones((2, 5), np.float32), y())
    assert 'Input "x", axis 1: size 5 differs from 4' in message


def test_wrong_element_type(model: tw.Model) -> None:
    message = refusal(InputError, model, x().astype(np.float64), y())
    assert "Input 'x' has elements of float64, but float32 is expected" in message


def test_wrong_rank(model: tw.Model) -> None:
    message = refusal(InputError, model, x()[0], y())
    assert "Input 'x' has 1 axis [4], but should have 2" in message


def test_missing_and_extra(model: tw.Model) -> None:
    assert "Input 'y' is missing" in refusal(InputError, model, x())
    assert "Input 'x' is missing" in refusal(InputError, model, y=y())
    assert "Inputs 'x', 'y' are missing" in refusal(InputError, model)
    assert "The model takes 2 inputs, not 3" in refusal(InputError, model, x(), y(), y())
    assert "no input 'z'" in refusal(InputError, model, x(), y(), z=y())
    assert "given twice" in refusal(InputError, model, x(), y(), x=x())


def test_nothing_and_plain_bytes_are_named_in_few_words(model: tw.Model) -> None:
    assert "Input 'x' is None" in refusal(InputError, model, None, y())
    message = refusal(InputError, model, b"\x07" * 5000, y())
    assert (
        "plain memory of 5000 bytes" in message
        and "numpy.frombuffer" in message
        and len(message) < 300
    )
    assert len(refusal(InputError, model, "word " * 5000, y())) < 300


def test_copies_are_the_model_itself_and_pickles_are_refused(model: tw.Model) -> None:
    assert copy.copy(model) is model and copy.deepcopy({"a": model})["a"] is model
    with pytest.raises(InputError, match="cannot be pickled") as caught:
        pickle.dumps(model)
    assert caught.value.hint is not None and "tilewright.load" in caught.value.hint


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, [[1.0], [2.0, 3.0]], object()])
def test_what_is_no_array(model: tw.Model, value: object) -> None:
    assert "Input 'x'" in refusal(InputError, model, value, y())


def misaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    made = raw[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    assert not made.flags.aligned
    return made


def strided(array: Array) -> Array:
    made = np.zeros((array.shape[0], array.shape[1] * 3), array.dtype)[:, ::3]
    made[...] = array
    return made


def read_only(array: Array) -> Array:
    made = array.copy()
    made.flags.writeable = False
    return made


LAYOUTS = {
    "misaligned": misaligned,
    "strided": strided,
    "column-major": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": read_only,
    "element-aligned": lambda a: np.concatenate([np.zeros(1, a.dtype), a.reshape(-1)])[1:].reshape(
        a.shape
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_arrays_of_any_layout_just_work(model: tw.Model, layout: Any) -> None:
    expected = model(x(6), y(6))
    given = layout(x(6)), layout(y(6))
    kept = [np.array(a) for a in given]
    np.testing.assert_array_equal(model(*given), expected)
    for array, before in zip(given, kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_one_array_given_twice(model: tw.Model) -> None:
    base = np.arange(24, dtype=np.float32)
    first, second = base[:8].reshape(2, 4), base[2:8].reshape(2, 3)  # overlapping
    np.testing.assert_array_equal(model(first, second), model(first.copy(), second.copy()))


def test_outputs_are_the_callers_own(model: tw.Model) -> None:
    first = model(x(), y())
    kept = first.copy()
    second = model(x() * 7, y())
    np.testing.assert_array_equal(first, kept)
    first[...] = 0
    assert not np.array_equal(second, first)


# ---------------------------------------------------------------- sizes beyond all bounds


def endless(size: int) -> Array:
    """An array of as many elements as one likes, in the memory of one."""
    return np.broadcast_to(np.zeros(1, np.float32), (size,))


def test_more_memory_than_max_bytes_allows(outer: tw.Model) -> None:
    outer.max_bytes = 1 << 20
    try:
        assert outer(np.ones(10, np.float32), np.ones(10, np.float32)).shape == (10, 10)
        big = np.ones(1000, np.float32)
        message = refusal(ResourceError, outer, big, big)
        assert "4000000" in message and "max_bytes is 1048576" in message
    finally:
        outer.max_bytes = None
    assert outer(np.ones(1000, np.float32), np.ones(1000, np.float32)).shape == (1000, 1000)


def test_more_memory_than_there_is(outer: tw.Model) -> None:
    big = np.ones(1 << 22, np.float32)
    assert "memory" in refusal(ResourceError, outer, big, big)  # 64 TiB


@pytest.mark.parametrize("n,m", [(2**61, 2**61), (2**31, 2**31), (2**40, 2**22)])
def test_sizes_that_overflow_64_bits(outer: tw.Model, n: int, m: int) -> None:
    with pytest.raises(ResourceError):
        outer.memory(n=n, m=m)


def test_no_room_for_a_copy_of_an_input(outer: tw.Model) -> None:
    """A broadcast input would have to be copied row-major, which this machine cannot hold."""
    with pytest.raises(ResourceError, match="no memory for a copy of its 4503599627370496 bytes"):
        outer(endless(2**50), np.ones(1, np.float32))


# ---------------------------------------------------------------- values that cannot be


def test_gather_out_of_bounds() -> None:
    made = tiny_models.model(
        [helper.make_node("Gather", ["x", "i"], ["y"], axis=1)],
        [("x", tiny_models.FLOAT, ["n", 5]), ("i", tiny_models.INT64, ["k"])],
        [("y", tiny_models.FLOAT, ["n", "k"])],
    )
    gather = tw.compile(made, levels=["x86-64"])
    data = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(gather(data, np.array([-5, 4])), data[:, [0, 4]])
    for wrong in (5, -6):
        message = refusal(ExecutionError, gather, data, np.array([0, wrong]))
        assert f"index {wrong} is out of bounds for an axis of size 5" in message
        assert "Gather" in message


def test_an_index_out_of_bounds_names_its_own_operator() -> None:
    made = text_models.model("""
        g (float[n, 5] x, int64[k] i, int64[k] j) => (float[k, 5] y) {
            [first] a = Gather (x, i)
            [second] b = Gather (x, j)
            [both] y = Mul (a, b)
        }""")
    both = tw.compile(made, levels=["x86-64"])
    data, right, wrong = np.ones((2, 5), np.float32), np.array([0, 1]), np.array([0, 2])
    assert 'Gather "first": index 2' in refusal(ExecutionError, both, data, wrong, right)
    assert 'Gather "second": index 2' in refusal(ExecutionError, both, data, right, wrong)


def test_scatter_out_of_bounds() -> None:
    made = tiny_models.model(
        [helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=0)],
        [
            ("x", tiny_models.FLOAT, ["n"]),
            ("i", tiny_models.INT64, ["k"]),
            ("u", tiny_models.FLOAT, ["k"]),
        ],
        [("y", tiny_models.FLOAT, ["n"])],
    )
    scatter = tw.compile(made, levels=["x86-64"])
    data, updates = np.zeros(4, np.float32), np.ones(1, np.float32)
    message = refusal(ExecutionError, scatter, data, np.array([4]), updates)
    assert "index 4 is out of bounds for an axis of size 4" in message
    np.testing.assert_array_equal(scatter(data, np.array([-1]), updates), [0, 0, 0, 1])


def test_integer_division_by_zero() -> None:
    made = tiny_models.model(
        [helper.make_node("Div", ["x", "y"], ["z"])],
        [("x", tiny_models.INT32, ["n"]), ("y", tiny_models.INT32, ["n"])],
        [("z", tiny_models.INT32, ["n"])],
    )
    divide = tw.compile(made, levels=["x86-64"])
    ones = np.ones(3, np.int32)
    assert "Integer division by zero" in refusal(
        ExecutionError, divide, ones, np.array([1, 0, 1], np.int32)
    )
    np.testing.assert_array_equal(divide(ones * -7, ones * 2), [-3, -3, -3])


def test_a_reshape_to_a_size_that_does_not_fit() -> None:
    made = tiny_models.model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", tiny_models.FLOAT, ["n"])],
        [("y", tiny_models.FLOAT, ["a", 4])],
        {"s": np.array([-1, 4], np.int64)},
    )
    reshape = tw.compile(made, levels=["x86-64"])
    assert reshape(np.zeros(8, np.float32)).shape == (2, 4)
    assert "4" in refusal(DimensionError, reshape, np.zeros(7, np.float32))


def test_sizes_that_are_data_are_called_by_what_computes_them() -> None:
    made = text_models.model("""
        g (float[n] x, float[c] v, int64[k] lengths, int64[1] s) => (float[a, 4] y, float[b, 4] z)
        <int64[1] zero = {0}, int64[1] four = {4}> {
            [longest] most = ReduceMax <keepdims = 0> (lengths)
            column = Unsqueeze (most, zero)
            sizes = Concat <axis = 0> (column, four)
            [shaped] y = Reshape (x, sizes)
            [doubled] twice = Add (s, s)
            wide = Concat <axis = 0> (twice, four)
            [widened] z = Expand (v, wide)
        }""")
    shaped = tw.compile(made, levels=["x86-64"])
    one, some = np.ones(1, np.float32), np.ones(8, np.float32)
    assert [r.shape for r in shaped(some, one, np.array([1, 2]), np.array([2]))] == [(2, 4), (4, 4)]
    message = refusal(DimensionError, shaped, some[:7], one, np.array([1, 2]), np.array([2]))
    assert 'Reshape "shaped"' in message and 'computed from ReduceMax "longest") = 2' in message
    message = refusal(DimensionError, shaped, some, one, np.array([1, 2]), np.array([-2]))
    assert 'Expand "widened": a size must not be negative, where "s"[0] = -2' in message


def test_inputs_that_became_constants() -> None:
    made = tiny_models.model(
        [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Mul", ["s", "v"], ["y"])],
        [("x", tiny_models.FLOAT, ["n"]), ("w", tiny_models.FLOAT, [1]),
         ("v", tiny_models.FLOAT, [1])],
        [("y", tiny_models.FLOAT, ["n"])],
        {"w": np.array([2], np.float32)},
    )  # fmt: skip
    x, two, three = np.ones(2, np.float32), np.array([2], np.float32), np.array([3], np.float32)
    default = tw.compile(made, levels=["x86-64"])
    np.testing.assert_array_equal(default(x=x, v=three), [9, 9])
    message = refusal(InputError, default, x=x, v=three, w=two)
    assert "'w' became a constant" in message and 'constants={"w": array}' in message
    given = tw.compile(made, levels=["x86-64"], constants={"w": three, "v": two})
    np.testing.assert_array_equal(given(x), [8, 8])
    for name in "wv":
        assert f"'{name}' became a constant" in refusal(InputError, given, x=x, **{name: two})
    with pytest.raises(InputError, match="no input 'u'"):
        given(x=x, u=x)


def test_dimensions_and_inputs_may_be_called_self() -> None:
    compiled = tw.compile(
        text_models.model("g (float[self] self) => (float[self] y) { y = Neg (self) }"),
        levels=["x86-64"],
    )
    assert compiled.memory(self=3).outputs >= 12
    assert len(compiled.explain(self=3)) == 1
    assert len(compiled.profile(self=np.ones(3, np.float32))) == 1


def test_number_of_threads(model: tw.Model) -> None:
    with pytest.raises(InputError, match="'num_threads' is 0"):
        model.num_threads = 0
    with pytest.raises(InputError, match="'max_bytes' is -1"):
        model.max_bytes = -1
