"""Quantised operators of com.microsoft give the bytes that ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, fission, run
from support.runtime_peer import DOMAIN, check_contributed

pytestmark = pytest.mark.peers

TYPES = [np.uint8, np.int8]
# Powers of two meet halves again and again, where it matters when the zero point is added.
SCALES = [(0.25, 0.5, 1.0), (0.013, 0.021, 0.04)]


def _bytes(dtype: Any, *shape: int, seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    made = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    return np.asarray(made).astype(dtype)


def _zero(dtype: Any, offset: int) -> Array:
    limits = np.iinfo(dtype)
    return np.array((limits.min + limits.max) // 2 + offset, dtype)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_two_operands(name: str, dtype: type, scales: tuple[float, ...]) -> None:
    factor = 64 if name == "QLinearMul" else 1

    def operands(left: tuple[int, ...], right: tuple[int, ...]) -> list[Array | None]:
        return [
            _bytes(dtype, *left, seed=1), _scale(scales[0]), _zero(dtype, 3),
            _bytes(dtype, *right, seed=2), _scale(scales[1]), _zero(dtype, -5),
            _scale(scales[2] * factor), _zero(dtype, 7),
        ]  # fmt: skip

    # Sums of products of decimals are halves but for their last bits, which ONNX Runtime's kernels
    # with fused multiplication do not round.
    units = 1 if name == "QLinearAdd" and scales == SCALES[1] else 0
    sizes = [((1, 1), (1, 1)), ((0, 4), (0, 4)), ((64, 33), (64, 33)), ((7, 33), (1, 33))]
    sizes += [((7, 1), (7, 9)), ((1, 9), (7, 1))]
    also = [operands(*s) for s in sizes]
    check_contributed(name, operands((3, 5), (3, 5)), units=units, also=also)
    also = [operands((64, 1), (30,))]
    check_contributed(name, operands((3, 5), (5,)), units=units, also=also)
    check_contributed(name, operands((3, 5), ()), units=units, also=[operands((64, 30), ())])


@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_zero_points_that_are_missing_are_zero(name: str) -> None:
    """ONNX Runtime describes them as optional, but refuses a node without them."""
    x, y = _bytes(np.uint8, 6, 7, seed=1), _bytes(np.uint8, 6, 7, seed=2)
    made: list[Array] = []
    for zero in (None, np.uint8(0)):
        point = None if zero is None else np.asarray(zero)
        operands = [x, _scale(0.5), point, y, _scale(0.25), point, _scale(2.0), point]
        graph = fission(name, operands, opset=1, domain=DOMAIN)
        made += run(graph, operands)
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "attributes", "result"),
    [
        ("QLinearLeakyRelu", {"alpha": 0.25}, None),
        ("QLinearLeakyRelu", {}, None),
        ("QLinearSigmoid", {}, 1 / 256),
    ],
)
def test_one_operand(
    name: str, attributes: dict[str, Any], result: float | None, dtype: type,
    scales: tuple[float, ...],
) -> None:  # fmt: skip
    tables = [np.arange(256).astype(dtype), *(_bytes(dtype, n) for n in (0, 1, 100))]
    every: list[list[Array | None]] = [
        [x, _scale(scales[0]), _zero(dtype, 3), _scale(result or scales[2]), _zero(dtype, -6)]
        for x in tables
    ]
    check_contributed(name, every[0], attributes, also=every[1:])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [1, -2])
def test_parts_are_brought_to_one_scale(axis: int, dtype: type) -> None:
    def operands(*lengths: int) -> list[Array | None]:
        out: list[Array | None] = [_scale(0.5), _zero(dtype, 1)]
        for index, length in enumerate(lengths):
            shape = (3, length, 4)
            part = _bytes(dtype, *shape, seed=index)
            out += [part, _scale((0.5, 0.25, 0.07)[index]), _zero(dtype, index)]
        return out

    check_contributed("QLinearConcat", operands(2, 3), {"axis": axis}, also=[operands(0, 1)])
    check_contributed("QLinearConcat", operands(2, 3, 4), {"axis": axis})


@pytest.mark.parametrize("dtype", TYPES)
def test_a_choice_is_brought_to_one_scale(dtype: type) -> None:
    def operands(rows: int) -> list[Array | None]:
        return [
            _bytes(np.uint8, rows, 5) > 100,
            _bytes(dtype, rows, 5, seed=1), _scale(0.5), _zero(dtype, 1),
            _bytes(dtype, rows, 5, seed=2), _scale(0.3), _zero(dtype, -2),
            _scale(0.7), _zero(dtype, 4),
        ]  # fmt: skip

    check_contributed("QLinearWhere", operands(6), also=[operands(1), operands(0)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (12, 1), (12, 2)])
def test_softmax(opset: int, axis: int, dtype: type) -> None:
    def operands(*shape: int) -> list[Array | None]:
        # Of other scales ONNX Runtime takes the inverse as a whole number, cut off; and where a
        # result of 1 is no byte, it wraps around.
        zero = np.array(np.iinfo(dtype).min, dtype)
        return [_bytes(dtype, *shape), _scale(0.02), _zero(dtype, 3), _scale(1 / 256), zero]

    attributes = {"opset": opset, "axis": axis}
    also = [operands(1, 2, 2), operands(2, 30, 100)]
    check_contributed("QLinearSoftmax", operands(2, 3, 5), attributes, also=also)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("last", [0, 1])
def test_means_of_channels(last: int, dtype: type) -> None:
    def operands(*shape: int) -> list[Array | None]:
        return [
            _bytes(dtype, *shape),
            _scale(0.5),
            _zero(dtype, 3),
            _scale(0.0625),
            _zero(dtype, 5),
        ]

    also = [operands(1, 1, 1, 1), operands(2, 8, 8, 4), operands(3, 33, 17, 2)]
    attributes = {"channels_last": last}
    check_contributed("QLinearGlobalAveragePool", operands(2, 3, 4, 4), attributes, also=also)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 2], "strides": [2, 1], "channels_last": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ],
    ids=str,
)
def test_means_of_windows(
    attributes: dict[str, Any], dtype: type, scales: tuple[float, ...]
) -> None:
    def operands(*shape: int) -> list[Array | None]:
        form = [_scale(scales[0]), _zero(dtype, 3), _scale(scales[1]), _zero(dtype, -4)]
        return [_bytes(dtype, *shape), *form]

    also = [operands(1, 4, 5, 3), operands(3, 9, 12, 8)]
    # Sums of decimals are rounded in another order where they are halves but for their last bits.
    units = 1 if scales == SCALES[1] else 0
    first = operands(2, 3, 8, 7)
    check_contributed("QLinearAveragePool", first, attributes, units=units, also=also)


@pytest.mark.parametrize("dtype", TYPES)
def test_maxima_with_the_channels_last(dtype: type) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 0, 1]}
    also: list[list[Array | None]] = [[_bytes(dtype, 1, 2, 2, 1)], [_bytes(dtype, 3, 9, 7, 6)]]
    check_contributed("NhwcMaxPool", [_bytes(dtype, 2, 8, 8, 3)], attributes, also=also)


@pytest.mark.parametrize("keep", [0, 1])
def test_means_along_axes(keep: int) -> None:
    """ONNX Runtime describes this operator and has no kernel for it."""
    x = _bytes(np.uint8, 3, 4, 5)
    operands = [x, _scale(0.5), _zero(np.uint8, 3), _scale(0.1), _zero(np.uint8, 2)]
    attributes = {"axes": [1, -1], "keepdims": keep}
    (made,) = run(
        fission("QLinearReduceMean", operands, attributes, opset=1, domain=DOMAIN),
        operands,
    )
    mean = (x.astype(np.float32) - 130).mean((1, 2), keepdims=bool(keep)) * np.float32(0.5)
    expected = np.clip(np.rint(mean / np.float32(0.1)) + 129, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 0, 2])
def test_conversions(axis: int | None, dtype: type) -> None:
    def parameters(size: int) -> tuple[Array, Array]:
        if axis is None:
            return _scale(0.3), _zero(dtype, 3)
        values = np.linspace(0.1, 2.0, size, dtype=np.float32)
        return values, np.full(size, _zero(dtype, 3), dtype)

    attributes = {} if axis is None else {"axis": axis}
    wide: list[list[Array | None]] = []
    narrow: list[list[Array | None]] = []
    for shape in ((3, 4, 5), (1, 1, 1), (2, 0, 3)):
        form = parameters(0 if axis is None else shape[axis])
        x = np.random.default_rng(1).normal(0, 30, shape).astype(np.float32)
        wide.append([x, *form])
        narrow.append([_bytes(dtype, *shape), *form])
    check_contributed("QuantizeLinear", wide[0], attributes, also=wide[1:])
    check_contributed("DequantizeLinear", narrow[0], attributes, also=narrow[1:])
