"""Normalisations against formulas in float64, in all precisions and for unknown sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import Array, check_node, fission, run
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, InvalidModelError

EPSILON = float(np.float32(1e-5))  # the default: attributes are float32
TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def _floats(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 11) -> Array:
    return np.random.default_rng(seed).normal(1.0, 2.0, shape).astype(dtype)


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    wide = x.astype(np.float64)
    return wide.mean(axis=axes, keepdims=True), wide.var(axis=axes, keepdims=True)


def _layer(x: Array, scale: Array, bias: Array, axis: int, epsilon: float) -> list[Array]:
    mean, variance = _moments(x, tuple(range(axis % x.ndim, x.ndim)))
    inverse = 1.0 / np.sqrt(variance + epsilon)
    y = (x.astype(np.float64) - mean) * inverse * scale.astype(np.float64) + bias
    return [y.astype(x.dtype), mean.astype(np.float32), inverse.astype(np.float32)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_layer_normalization(axis: int, dtype: type) -> None:
    x = _floats((3, 4, 5), dtype)
    shape = x.shape[axis % 3 :]
    scale, bias = _floats(shape, dtype, 1), _floats(shape, dtype, 2)
    attributes = {"axis": axis, "epsilon": 1e-3}
    expected = _layer(x, scale, bias, axis, 1e-3)
    for count in (1, 2, 3):
        check_node("LayerNormalization", [x, scale, bias], attributes, 17, count,
                   expected=expected[:count], length=4)  # fmt: skip
    without = _layer(x, scale, np.zeros(1), axis, 1e-3)[:1]
    check_node("LayerNormalization", [x, scale], attributes, 17, expected=without, length=4)


def test_layer_normalization_of_other_sizes() -> None:
    x, scale, bias = _floats((2, 3, 4)), _floats((4,)), _floats((4,))
    also = [
        [x[:, :1], scale, bias],
        [x[:0], scale, bias],
        [x[..., :1], scale[:1], bias[:1]],
        [x, scale[:1], bias],
    ]
    check_node("LayerNormalization", [x, scale, bias], {}, 17, length=4, also=also)
    graph = fission("LayerNormalization", [x, scale, bias], opset=17)
    with pytest.raises(DimensionError, match="the scale"):
        run(graph, [x, scale[:3], bias])


def test_variance_of_a_distant_mean_is_not_lost() -> None:
    x = (np.array([[-1.0, 0.0, 1.0, 2.0]]) + 4096.0).astype(np.float32)
    ones = np.ones(4, np.float32)
    expected = _layer(x, ones, ones * 0, -1, EPSILON)[:1]
    check_node("LayerNormalization", [x, ones], {}, 17, expected=expected, length=4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [1, -1])
def test_root_mean_square_normalization(axis: int, dtype: type) -> None:
    x = _floats((3, 4, 5), dtype)
    scale = _floats(x.shape[axis:], dtype, 1)
    wide = x.astype(np.float64)
    square = (wide * wide).mean(axis=tuple(range(axis % 3, 3)), keepdims=True)
    expected = (wide / np.sqrt(square + EPSILON) * scale.astype(np.float64)).astype(dtype)
    attributes = {"axis": axis}
    check_node("RMSNormalization", [x, scale], attributes, 23, expected=[expected], length=4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 1, 2, 3, 4)])
def test_instance_normalization(shape: tuple[int, ...], dtype: type) -> None:
    x = _floats(shape, dtype)
    scale, bias = _floats(shape[1:2], dtype, 1), _floats(shape[1:2], dtype, 2)
    mean, variance = _moments(x, tuple(range(2, len(shape))))
    column = (-1, *(1,) * (len(shape) - 2))
    y = (x.astype(np.float64) - mean) / np.sqrt(variance + EPSILON)
    y = y * scale.astype(np.float64).reshape(column) + bias.astype(np.float64).reshape(column)
    check_node(
        "InstanceNormalization", [x, scale, bias], {}, 22, expected=[y.astype(dtype)], length=4
    )


def _grouped(x: Array, groups: int) -> Array:
    split = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    mean, variance = _moments(split, (2,))
    return ((split - mean) / np.sqrt(variance + EPSILON)).reshape(x.shape)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization_in_both_versions(groups: int, symbolic: bool) -> None:
    x = _floats((2, 6, 3, 2))
    channel, per_group = _floats((6,), seed=1), _floats((groups,), seed=2)
    normal = _grouped(x, groups)
    column = (1, 6, 1, 1)
    expected = normal * channel.reshape(column) + 2 * channel.reshape(column)
    attributes = {"num_groups": groups}
    check_node("GroupNormalization", [x, channel, 2 * channel], attributes, 21, 1, symbolic,
               expected=[expected.astype(np.float32)], length=4)  # fmt: skip
    spread = np.repeat(per_group, 6 // groups).reshape(column)
    expected = normal * spread + 2 * spread
    check_node("GroupNormalization", [x, per_group, 2 * per_group], attributes, 18, 1, symbolic,
               expected=[expected.astype(np.float32)], length=4)  # fmt: skip


def test_channels_that_cannot_be_grouped_are_refused() -> None:
    x, channel = _floats((2, 6, 3)), _floats((6,))
    with pytest.raises(InvalidModelError, match="4 groups"):
        fission("GroupNormalization", [x, channel, channel], {"num_groups": 4}, opset=21,
                symbolic=False)  # fmt: skip
    graph = fission("GroupNormalization", [x, channel, channel], {"num_groups": 4}, opset=21)
    with pytest.raises(DimensionError, match="4 groups"):
        run(graph, [x, channel, channel])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_batch_normalization(shape: tuple[int, ...], dtype: type) -> None:
    x = _floats(shape, dtype)
    scale, bias, mean = (_floats((3,), np.float32, seed) for seed in (1, 2, 3))
    variance = np.abs(_floats((3,), np.float32, 4))
    column = (-1, *(1,) * (len(shape) - 2))
    wide = x.astype(np.float64) - mean.reshape(column)
    root = np.sqrt(variance.astype(np.float64).reshape(column) + 1e-2)
    y = wide / root * scale.reshape(column)
    expected = (y + bias.reshape(column)).astype(dtype)
    operands = [x, scale, bias, mean, variance]
    check_node("BatchNormalization", operands, {"epsilon": 1e-2}, 15, expected=[expected], length=8)


@pytest.mark.parametrize("opset", [7, 8])
def test_batch_normalization_of_each_element(opset: int) -> None:
    """``spatial=0``, which onnx's reference evaluator does not know."""
    x = _floats((4, 3, 5, 2))
    scale, bias, mean = (_floats((3, 5, 2), seed=seed) for seed in (1, 2, 3))
    variance = np.abs(_floats((3, 5, 2), seed=4))
    expected = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    operands = [x, scale, bias, mean, variance]
    attributes = {"spatial": 0}
    check_node("BatchNormalization", operands, attributes, opset, expected=[expected], length=8)


def test_batch_normalization_in_training() -> None:
    x, scale, bias, mean = _floats((4, 3, 5)), *(_floats((3,), seed=s) for s in (1, 2, 3))
    variance = np.abs(_floats((3,), seed=4))
    operands = [x, scale, bias, mean, variance]
    attributes = {"training_mode": 1, "momentum": 0.75}
    also = [[x[:1], *operands[1:]], [x[..., :2], *operands[1:]]]
    check_node("BatchNormalization", operands, attributes, 15, 3, length=20, also=also)
    with pytest.raises(NoRule, match="opset 14"):
        fission("BatchNormalization", operands, {}, opset=9, outputs=5)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_norms_of_zero_give_zero(axis: int, p: int) -> None:
    x = _floats((3, 4)).astype(np.float64)
    x[1], x[:, 2] = 0.0, 0.0
    norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
    expected = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    attributes = {"axis": axis, "p": p}
    check_node("LpNormalization", [x], attributes, 22, expected=[expected], length=4)


@pytest.mark.parametrize("axes", [None, [0], [1, 2]])
def test_mean_variance_normalization(axes: list[int] | None) -> None:
    x = _floats((2, 3, 4, 5))
    mean, variance = _moments(x, tuple(axes or (0, 2, 3)))
    expected = ((x - mean) / (np.sqrt(variance) + 1e-9)).astype(np.float32)
    attributes = {} if axes is None else {"axes": axes}
    check_node("MeanVarianceNormalization", [x], attributes, 13, expected=[expected], length=4)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 1, 2, 2), (3, 5, 2)])
def test_local_response_normalization(shape: tuple[int, ...], size: int) -> None:
    x = _floats(shape)
    squares = np.zeros(shape)
    for c in range(shape[1]):
        first, last = max(0, c - (size - 1) // 2), c + size // 2 + 1
        squares[:, c] = (x[:, first:last].astype(np.float64) ** 2).sum(axis=1)
    expected = x / (1.5 + 0.02 / size * squares) ** 0.6
    attributes = {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5}
    check_node("LRN", [x], attributes, 13, expected=[expected.astype(np.float32)], length=4)


def test_a_default_epsilon_is_a_float32_as_a_given_one() -> None:
    x, scale = np.array([[1e-3, -1e-3]]), np.ones(2)
    (default,) = run(fission("LayerNormalization", [x, scale], opset=17), [x, scale])
    given = fission("LayerNormalization", [x, scale], {"epsilon": EPSILON}, opset=17)
    np.testing.assert_array_equal(default, run(given, [x, scale])[0])
    expected = 1e-3 / np.sqrt(1e-6 + EPSILON)
    np.testing.assert_allclose(default[0, 0], expected, rtol=1e-12)
