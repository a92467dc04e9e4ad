"""Cutting and padding with starts, ends and amounts of any sign, known or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from support.operator_harness import check_node, fission, run
from tilewright.ops.record import NoRule
from tilewright.shape import Expr
from tilewright.support.errors import DimensionError, InvalidModelError

FAR = 2**63 - 1


def _numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)  # type: ignore[arg-type]


def _integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _cut(data: np.ndarray, start: int, end: int, step: int) -> np.ndarray:
    """One axis by the operator's text; numpy differs for negative steps from before the front."""
    size = len(data)
    start, end = (v + size if v < 0 else v for v in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = min(max(start, 0), high)
    end = min(max(end, low), high)
    return data[[i for i in range(start, end, step) if 0 <= i < size]]


CUTS = [
    (start, end, step)
    for start in (-9, -2, -1, 0, 1, 3, 9)
    for end in (-FAR - 1, -9, -1, 0, 2, 4, FAR)
    for step in (1, 2, 7, -1, -3)
]
SIZES = (0, 1, 2, 5)


def test_slices_of_run_time() -> None:
    one = _integers(0)
    inputs = [_numbers(5), one, one, one, one]
    graph = fission("Slice", inputs, opset=13, fixed=(1, 2, 4), constants=(3,))
    for start, end, step in CUTS[::3]:
        for size in SIZES:
            data = _numbers(size)
            own = run(graph, [data, *map(_integers, (start, end, 0, step))])[0]
            np.testing.assert_array_equal(
                own, _cut(data, start, end, step), str((start, end, step))
            )


@pytest.mark.parametrize("step", [1, 2, 7, -1, -3])
def test_slices_known_when_compiling(step: int) -> None:
    for start, end, _ in (cut for cut in CUTS if cut[2] == step):
        inputs = [_numbers(5), *map(_integers, (start, end, 0, step))]
        graph = fission("Slice", inputs, opset=13, constants=(1, 2, 3, 4))
        assert not graph.guards and not graph.bindings
        for size in SIZES:
            own = run(graph, [_numbers(size)])[0]
            wanted = _cut(_numbers(size), start, end, step)
            np.testing.assert_array_equal(own, wanted, str((start, end, size)))


def _sliced_size(start: int, end: int, step: int = 1) -> Expr:
    inputs = [_numbers(5), *map(_integers, (start, end, 0, step))]
    return fission("Slice", inputs, opset=13, constants=(1, 2, 3, 4)).outputs[0][1].shape[0]


@pytest.mark.parametrize(
    ("start", "end", "step", "size"),
    [
        (0, FAR, 1, "x0_0"),
        (0, 2**31 - 1, 1, "x0_0"),
        (1, FAR, 1, "x0_0 - min(1, x0_0)"),
        (0, -1, 1, "x0_0 - min(1, x0_0)"),
        (-1, FAR, 1, "min(1, x0_0)"),
        (0, 4, 1, "min(4, x0_0)"),
        (0, FAR, 2, "ceil_div(x0_0, 2)"),
        (-1, -FAR - 1, -1, "x0_0"),
    ],
)
def test_sizes_of_slices_are_plain(start: int, end: int, step: int, size: str) -> None:
    assert str(_sliced_size(start, end, step)) == size


@pytest.mark.parametrize("start", [-1, 3, FAR])
def test_a_slice_backwards_to_beyond_the_end_is_empty(start: int) -> None:
    """The size has no number of more than 64 bits."""
    assert str(_sliced_size(start, FAR, -2)) == "0"


def test_a_whole_slice_is_the_operand() -> None:
    inputs = [_numbers(5, 3), _integers(0, 0), _integers(FAR, FAR)]
    graph = fission("Slice", inputs, opset=13, constants=(1, 2))
    assert graph.outputs[0][1] is graph.inputs[0]


def test_slice_axes_in_any_order() -> None:
    inputs = [_numbers(4, 5, 6), _integers(1, -3), _integers(4, FAR), _integers(-1, 0),
              _integers(2, 1)]  # fmt: skip
    check_node("Slice", inputs, constants=(1, 2, 3, 4))
    check_node("Slice", inputs, constants=(3,), fixed=(1, 2, 4))


def test_slice_axes_of_run_time() -> None:
    inputs = [_numbers(4, 5, 6), _integers(1, 5), _integers(4, 0), _integers(-1, 0),
              _integers(2, -2)]  # fmt: skip
    graph = check_node("Slice", inputs, fixed=(1, 2, 3, 4))
    data = _numbers(4, 5, 6)
    others = [data, _integers(0, 1), _integers(2, 4), _integers(1, 2), _integers(1, 1)]
    np.testing.assert_array_equal(run(graph, others)[0], data[:, 0:2, 1:4])
    with pytest.raises(DimensionError, match="out of range"):
        run(graph, [*others[:3], _integers(0, 3), others[4]])


def test_slice_step_of_zero() -> None:
    graph = fission("Slice", [_numbers(5), *[_integers(0)] * 4], opset=13, fixed=(1, 2, 3, 4))
    with pytest.raises(DimensionError, match="must not be 0"):
        run(graph, [_numbers(5), *[_integers(0)] * 4])
    with pytest.raises(InvalidModelError):
        fission("Slice", [_numbers(5), *[_integers(0)] * 4], opset=13, constants=(1, 2, 3, 4))


# ---------------------------------------------------------------- padding

PADS = [((1, 2), (0, 0)), ((0, 0), (3, 1)), ((2, 0), (0, 2)), ((0, 0), (0, 0))]


def _padded(data: np.ndarray, low: Sequence[int], high: Sequence[int], mode: str) -> np.ndarray:
    return np.pad(data, list(zip(low, high, strict=True)), mode=mode)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("known", [True, False])
def test_pad(mode: str, known: bool) -> None:
    for low, high in PADS:
        inputs = [_numbers(3, 4), _integers(*low, *high)]
        where = {"constants": (1,)} if known else {"fixed": (1,)}
        graph = fission("Pad", inputs, {"mode": mode}, opset=21, **where)
        for shape in ((3, 4), (5, 6), (4, 3)):
            data = _numbers(*shape)
            own = run(graph, [data, inputs[1]])[0]
            np.testing.assert_array_equal(own, _padded(data, low, high, mode), f"{low} {high}")


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_by_more_than_the_axis(mode: str) -> None:
    graph = fission("Pad", [_numbers(3), _integers(7, 8)], {"mode": mode}, opset=21, fixed=(1,))
    for size in (1, 2, 3):
        own = run(graph, [_numbers(size), _integers(7, 8)])[0]
        np.testing.assert_array_equal(own, _padded(_numbers(size), (7,), (8,), mode))


def test_pad_of_nothing() -> None:
    graph = fission("Pad", [_numbers(0, 2), _integers(2, 0, 1, 1)], opset=21, fixed=(1,))
    own = run(graph, [_numbers(0, 2), _integers(2, 0, 1, 1)])[0]
    np.testing.assert_array_equal(own, np.zeros((3, 3)))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("low", "high"), [(-1, 0), (-1, -2), (3, -5), (-4, 2), (-6, 9)])
def test_negative_amounts_cut(low: int, high: int, known: bool) -> None:
    inputs = [_numbers(6), _integers(low, high), np.float32(7)]
    where = {"constants": (1,)} if known else {"fixed": (1,)}
    graph = fission("Pad", inputs, opset=21, **where)
    wide = np.pad(_numbers(6), 20, constant_values=7)
    np.testing.assert_array_equal(run(graph, inputs)[0], wide[20 - low : 26 + high])


def test_negative_amounts_cut_before_the_rest_is_reflected() -> None:
    graph = fission(
        "Pad", [_numbers(6), _integers(-2, 2)], {"mode": "reflect"}, opset=21, fixed=(1,)
    )
    own = run(graph, [_numbers(6), _integers(-2, 2)])[0]
    np.testing.assert_array_equal(own, [2, 3, 4, 5, 4, 3])


def test_pad_below_nothing() -> None:
    graph = fission("Pad", [_numbers(6), _integers(-3, -2)], opset=21, fixed=(1,))
    with pytest.raises(DimensionError, match="padded axis"):
        run(graph, [_numbers(4), _integers(-3, -2)])


def test_pad_of_some_axes_with_a_value_of_run_time() -> None:
    inputs = [
        _numbers(2, 3, 4, dtype=np.int32),
        _integers(1, 0, 2, 1),
        np.int32(9),
        _integers(-1, 0),
    ]
    check_node("Pad", inputs, constants=(3,), fixed=(1,))


def test_pad_by_attributes() -> None:
    attributes = {"pads": [1, 0, 0, 2], "value": 3.0}
    own = run(fission("Pad", [_numbers(2, 2)], attributes, opset=2), [_numbers(2, 2)])[0]
    wanted = np.pad(_numbers(2, 2), [(1, 0), (0, 2)], constant_values=3)
    np.testing.assert_array_equal(own, wanted)
    with pytest.raises(NoRule):
        fission("Pad", [_numbers(2), _integers(1, 1)], {"mode": "mean"}, opset=21, constants=(1,))


@pytest.mark.parametrize("known", [True, False])
def test_center_crop_pad(known: bool) -> None:
    where = {"constants": (1,)} if known else {"fixed": (1,)}
    target = _integers(4, 5)
    graph = fission(
        "CenterCropPad", [_numbers(3, 8, 6), target], {"axes": [1, -1]}, opset=18, **where
    )
    for shape in ((3, 8, 6), (1, 1, 9), (2, 4, 5), (2, 7, 2)):
        data = _numbers(*shape)
        wanted = np.zeros((shape[0], 4, 5), np.float32)
        spans = []
        for size, goal in zip(shape[1:], (4, 5), strict=True):
            inner, outer = max(size - goal, 0) // 2, max(goal - size, 0) // 2
            length = min(size, goal)
            spans.append((slice(inner, inner + length), slice(outer, outer + length)))
        wanted[:, spans[0][1], spans[1][1]] = data[:, spans[0][0], spans[1][0]]
        np.testing.assert_array_equal(run(graph, [data, target])[0], wanted)
