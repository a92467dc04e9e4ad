"""Shape arithmetic as exporters write it must become symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

from support.composed import Composition
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Dimension
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.record import StructuralInput
from tilewright.shape import Expr, symbol
from tilewright.support.errors import DimensionError

F32, I64 = DType.FLOAT32, DType.INT64


@pytest.fixture
def model() -> Composition:
    return Composition()


def _dims(model: Composition, *names: str) -> list[Expr]:
    return [model.scope.declare(name) for name in names]


def _dimension_of(model: Composition, x: Node, axis: int) -> Node:
    """Shape, Gather, Unsqueeze: one size as a vector of one element."""
    size = model("Gather", model("Shape", x), model.constant(axis), axis=0)
    return model("Unsqueeze", size, model.constant([0]))


def _sequence(batch: int, length: int, width: int = 12) -> np.ndarray:
    values = np.arange(batch * length * width, dtype=np.float32)
    return values.reshape(batch, length, width)


@pytest.mark.parametrize(("batch", "length"), [(2, 5), (1, 1), (3, 0), (0, 4)])
def test_heads_are_split_by_a_computed_shape(model: Composition, batch: int, length: int) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b, s, 12)
    parts = [_dimension_of(model, x, 0), _dimension_of(model, x, 1),
             model.constant([3]), model.constant([-1])]  # fmt: skip
    y = model("Reshape", x, model("Concat", *parts, axis=0))
    assert [str(size) for size in y.shape] == ["batch", "seq", "3", "4"]
    assert not model.facts.bindings and not model.facts.guards
    values = _sequence(batch, length)
    np.testing.assert_array_equal(model.run(y, [values]), values.reshape(batch, length, 3, 4))


@pytest.mark.parametrize("shape", [[0, 0, 4, 3], [0, -1, 4, 3]])
def test_zero_copies_and_minus_one_is_inferred(model: Composition, shape: list[int]) -> None:
    b, s = _dims(model, "batch", "seq")
    y = model("Reshape", model.input(F32, b, s, 12), model.constant(shape))
    assert y.shape[:2] == (b, s)
    assert not model.facts.guards


def test_axes_are_merged_and_split_again(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b, s, 12)
    flat = model("Reshape", x, model.constant([-1, 12]))
    assert flat.shape[0] is b * s
    parts = [_dimension_of(model, x, 0), model.constant([-1, 12])]
    back = model("Reshape", flat, model("Concat", *parts, axis=0))
    assert back.shape == x.shape
    assert not model.facts.guards
    np.testing.assert_array_equal(model.run(back, [_sequence(0, 3)]), _sequence(0, 3))


def test_merged_with_a_past_of_another_length(model: Composition) -> None:
    b, s, past = _dims(model, "batch", "seq", "past")
    x = model("Concat", model.input(F32, b, past, 12), model.input(F32, b, s, 12), axis=1)
    y = model("Reshape", x, model.constant([0, -1, 2, 6]))
    assert y.shape[1] is past + s
    assert not model.facts.guards


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 2, "batch, seq"),
        (-2, 2**63 - 1, "seq, 12"),
        (1, -1, "seq"),
    ],
)
def test_slice_of_a_shape(model: Composition, start: int, end: int, expected: str) -> None:
    b, s = _dims(model, "batch", "seq")
    shape = model("Shape", model.input(F32, b, s, 12))
    part = model("Slice", shape, model.constant([start]), model.constant([end]),
                 model.constant([0]))  # fmt: skip
    y = model("ConstantOfShape", part)
    assert ", ".join(map(str, y.shape)) == expected


@pytest.mark.parametrize(
    ("scale", "rounding", "expected"),
    [
        (2.0, "Floor", "2*h"),
        (0.5, "Floor", "h//2"),
        (0.5, "Ceil", "ceil_div(h, 2)"),
        (1.5, "Floor", "h + (h//2)"),
        (0.25, None, "h//4"),
    ],
)
def test_sizes_scaled_in_floats(
    model: Composition, scale: float, rounding: str | None, expected: str
) -> None:
    (h,) = _dims(model, "h")
    size = model("Cast", model("Shape", model.input(F32, h)), to=1)
    scaled = model("Mul", size, model.constant(scale, np.float32))
    rounded = scaled if rounding is None else model(rounding, scaled)
    y = model("ConstantOfShape", model("Cast", rounded, to=7))
    assert [str(e) for e in y.shape] == [expected]
    assert not model.facts.bindings


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("rounding", ["Floor", "Ceil", "Round"])
def test_quotients_of_sizes_round_as_floats_do(
    model: Composition, rounding: str, size: int
) -> None:
    (h,) = _dims(model, "h")
    length = model("Cast", model("Shape", model.input(F32, h)), to=1)
    divided = model("Div", length, model.constant(4.0, np.float32))
    y = model("ConstantOfShape", model("Cast", model(rounding, divided), to=7))
    assert not model.facts.bindings
    function = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}[rounding]
    result = model.run(y, [np.zeros(size, np.float32)])
    assert result.shape == (int(function(size / 4)),)


def test_a_scale_that_floats_round_is_left_to_run_time(model: Composition) -> None:
    (h,) = _dims(model, "h")
    length = model("Cast", model("Shape", model.input(F32, h)), to=1)
    scaled = model("Mul", length, model.constant(0.7, np.float32))
    y = model("ConstantOfShape", model("Cast", model("Floor", scaled), to=7))
    assert len(model.facts.bindings) == 1
    assert model.run(y, [np.zeros(10, np.float32)]).shape == (7,)


def test_resize_to_the_size_of_another_tensor(model: Composition) -> None:
    n, h, w, h2, w2 = _dims(model, "n", "h", "w", "h2", "w2")
    x, skip = model.input(F32, n, 3, h, w), model.input(F32, n, 3, h2, w2)
    head = model("Slice", model("Shape", x), model.constant([0]), model.constant([2]))
    tail = model("Slice", model("Shape", skip), model.constant([2]), model.constant([4]))
    sizes = model("Concat", head, tail, axis=0)
    resized = model("Resize", x, None, None, sizes, mode="linear",
                    coordinate_transformation_mode="align_corners")  # fmt: skip
    assert resized.shape == skip.shape
    y = model("Add", resized, skip)
    assert not model.facts.guards and not model.facts.bindings
    image, other = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 3, 7, 9), np.float32)
    np.testing.assert_allclose(model.run(y, [image, other]), 2 * other, rtol=1e-6)


def test_positions_from_a_range(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(I64, b, s)
    length = model("Gather", model("Shape", x), model.constant(1), axis=0)
    positions = model("Range", model.constant(0), length, model.constant(1))
    assert positions.shape == (s,)
    row = model("Unsqueeze", positions, model.constant([0]))
    y = model("Expand", row, model("Shape", x))
    assert y.shape == (b, s)
    expected = np.broadcast_to(np.arange(4), (3, 4))
    np.testing.assert_array_equal(model.run(y, [np.zeros((3, 4), np.int64)]), expected)


def test_positions_in_floats(model: Composition) -> None:
    (s,) = _dims(model, "seq")
    length = model("Cast", model("Squeeze", model("Shape", model.input(F32, s)), None), to=1)
    zero, one = (model.constant(v, np.float32) for v in (0, 1))
    y = model("Range", zero, length, one)
    assert y.shape == (s,) and y.dtype is F32
    np.testing.assert_array_equal(model.run(y, [np.zeros(3, np.float32)]), [0, 1, 2])


def test_range_after_a_past(model: Composition) -> None:
    s, past = _dims(model, "seq", "past")
    lengths = [model("Gather", model("Shape", model.input(F32, size)), model.constant(0))
               for size in (past, s)]  # fmt: skip
    whole = model("Add", *lengths)
    y = model("Range", lengths[0], whole, model.constant(1))
    assert y.shape == (s,)
    values = [np.zeros(3, np.float32), np.zeros(2, np.float32)]
    np.testing.assert_array_equal(model.run(y, values), [3, 4])


def test_expand_by_a_shape_with_minus_ones(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b, 1, s, s)
    shape = model("Concat", _dimension_of(model, x, 0), model.constant([-1]),
                  _dimension_of(model, x, 2), model.constant([-1]), axis=0)  # fmt: skip
    ones = model("ConstantOfShape", model.constant([4]), value=np.array([1], np.int64))
    is_open = model("Equal", shape, model("Mul", ones, model.constant(-1)))
    y = model("Expand", x, model("Where", is_open, ones, shape))
    assert y.shape == x.shape
    assert not model.facts.bindings and not model.facts.guards


def test_causal_mask(model: Composition) -> None:
    s, past = _dims(model, "seq", "past")
    size = model("Shape", model.input(F32, s))
    whole = model("Add", size, model("Shape", model.input(F32, past)))
    square = model("Expand", model.constant([[1.0]], np.float32),
                   model("Concat", size, whole, axis=0))  # fmt: skip
    offset = model("Squeeze", model("Shape", model.input(F32, past)), model.constant([0]))
    y = model("Trilu", square, offset, upper=0)
    assert y.shape == (s, s + past)
    values = [np.zeros(n, np.float32) for n in (3, 2, 2)]
    np.testing.assert_array_equal(model.run(y, values), np.tri(3, 5, 2))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9])
def test_padding_to_a_multiple(model: Composition, length: int) -> None:
    """Window attention pads its axis by (8 - n % 8) % 8, then splits it by 8."""
    b, n = _dims(model, "batch", "n")
    x = model.input(F32, b, n)
    size = _dimension_of(model, x, 1)
    eight = model.constant([8])
    missing = model("Mod", model("Sub", eight, model("Mod", size, eight)), eight)
    zeros = model.constant([0, 0, 0])
    padded = model("Pad", x, model("Concat", zeros, missing, axis=0))
    blocks = model("Reshape", padded, model.constant([0, -1, 8]))
    assert not model.facts.bindings
    values = np.ones((2, length), np.float32)
    result = model.run(blocks, [values])
    assert result.shape == (2, -(-length // 8), 8)
    assert result.sum() == 2 * length


def test_division_of_sizes(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b, s * 16)
    width = model("Div", _dimension_of(model, x, 1), model.constant([16]))
    y = model(
        "Reshape", x, model("Concat", model.constant([0]), width, model.constant([16]), axis=0)
    )
    assert y.shape[1] is s
    assert not model.facts.guards


def test_quotient_of_products(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b * s, 4)
    whole, batch = _dimension_of(model, x, 0), model("Shape", model.input(F32, b))
    parts = [batch, model("Div", whole, batch), model.constant([4])]
    y = model("Reshape", x, model("Concat", *parts, axis=0))
    assert y.shape[1] is s
    assert not model.facts.guards and not model.facts.bindings


@pytest.mark.parametrize("divisor", [-4, -1, 1, 3, 4])
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_division_truncates(model: Composition, divisor: int, fmod: int) -> None:
    value = node(Dimension(model.scope.declare("n", low=None)))
    quotient = model("Div", value, model.constant(divisor))
    remainder = model("Mod", value, model.constant(divisor), fmod=fmod)
    contents = [integer_contents(result) for result in (quotient, remainder)]
    for n in range(-9, 10):
        own = [known.item().evaluate({"n": n}) for known in contents if known is not None]
        wanted = np.fmod(n, divisor) if fmod else n % divisor
        assert own == [int(n / divisor), wanted], n


def test_sizes_by_truncating_division_are_those_of_convolutions(model: Composition) -> None:
    """(h - 1) / 4 + 1 is ceil(h / 4), but for h = 0; there the model fails, and says so."""
    b, h = _dims(model, "batch", "h")
    x = model.input(F32, b, h)
    every_fourth = model("Slice", x, model.constant([0]), model.constant([2**63 - 1]),
                         model.constant([1]), model.constant([4]))  # fmt: skip
    less = model("Sub", _dimension_of(model, x, 1), model.constant([1]))
    length = model("Add", model("Div", less, model.constant([4])), model.constant([1]))
    y = model("Reshape", every_fourth, model("Concat", model.constant([0]), length, axis=0))
    assert y.shape == every_fourth.shape
    (guard,) = model.facts.guards
    assert str(guard.condition) == "1 <= h" and "unless h >= 1" in guard.message
    for size in (1, 4, 5):
        values = np.ones((2, size), np.float32)
        np.testing.assert_array_equal(model.run(y, [values]), values[:, ::4])
    with pytest.raises(DimensionError, match="unless h >= 1"):
        model.run(y, [np.ones((2, 0), np.float32)])


def test_sizes_that_differ_for_more_than_small_values_are_only_guarded(model: Composition) -> None:
    h, w = _dims(model, "h", "w")
    model("Reshape", model.input(F32, h), model("Shape", model.input(F32, w)))
    (guard,) = model.facts.guards
    assert set(guard.condition.free_symbols) == {"h", "w"}


def test_counting_by_nonzero(model: Composition) -> None:
    """arange in old exports: the positions of a vector of ones."""
    (s,) = _dims(model, "seq")
    ones = model("ConstantOfShape", model("Shape", model.input(F32, s)),
                 value=np.array([1], np.int64))  # fmt: skip
    found = model("Transpose", model("NonZero", ones), perm=[1, 0])
    y = model("Squeeze", found, model.constant([1]))
    assert y.shape == (s,)
    np.testing.assert_array_equal(model.run(y, [np.zeros(4, np.float32)]), np.arange(4))


# ---------------------------------------------------------------- run-time values


def test_only_the_run_time_part_of_a_shape_is_bound(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    x = model.input(F32, b, s, 12)
    heads = model.input(I64, 1)
    parts = [_dimension_of(model, x, 0), _dimension_of(model, x, 1), heads, model.constant([-1])]
    y = model("Reshape", x, model("Concat", *parts, axis=0))
    assert y.shape[:2] == (b, s)
    assert [binding.source for binding in model.facts.bindings] == [heads]
    values = _sequence(2, 3)
    result = model.run(y, [values, np.array([4])])
    np.testing.assert_array_equal(result, values.reshape(2, 3, 4, 3))
    with pytest.raises(DimensionError, match="cannot be reshaped"):
        model.run(y, [values, np.array([5])])


def test_arithmetic_on_a_run_time_length_keeps_its_relations(model: Composition) -> None:
    n = model.input(I64)
    length = model("Range", model.constant(0), n, model.constant(1))
    longer = model("Range", model.constant(0), model("Add", n, model.constant(1)),
                   model.constant(1))  # fmt: skip
    tail = model("Slice", longer, model.constant([1]), model.constant([2**63 - 1]))
    y = model("Sub", tail, length)
    assert len(model.facts.bindings) == 1
    np.testing.assert_array_equal(model.run(y, [np.array(5)]), np.ones(5))


def test_a_length_found_in_data(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    lengths, x = model.input(I64, b), model.input(F32, b, s)
    longest = model("ReduceMax", lengths, None, keepdims=1)
    y = model("Slice", x, model.constant([0]), longest, model.constant([1]))
    values = np.arange(12, dtype=np.float32).reshape(2, 6)
    result = model.run(y, [np.array([2, 4]), values])
    np.testing.assert_array_equal(result, values[:, :4])


def test_a_shape_of_unknown_length_is_refused(model: Composition) -> None:
    (r,) = _dims(model, "rank")
    with pytest.raises(StructuralInput, match="known length"):
        model("Reshape", model.input(F32, 4), model.input(I64, r))


def test_symbols_of_the_model_are_named_in_guards(model: Composition) -> None:
    b, s = _dims(model, "batch", "seq")
    model("Reshape", model.input(F32, b, s), model.constant([4, 6]))
    (guard,) = model.facts.guards
    assert set(guard.condition.free_symbols) <= {"batch", "seq"}
    assert "number of elements" in guard.message
    assert symbol("batch") is b
