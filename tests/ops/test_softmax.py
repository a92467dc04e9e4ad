"""Softmax and its kin in both meanings of an axis, and the losses made of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import Array, check_node, fission, run
from tilewright.support.errors import DimensionError


def _floats(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng(7).normal(0.0, 3.0, shape).astype(dtype)


def _softmax(x: Array, axes: tuple[int, ...]) -> Array:
    wide = x.astype(np.float64)
    grown = np.exp(wide - wide.max(axis=axes, keepdims=True))
    return (grown / grown.sum(axis=axes, keepdims=True)).astype(x.dtype)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_along_one_axis(name: str, axis: int | None) -> None:
    attributes = {} if axis is None else {"axis": axis}
    x = _floats((3, 4, 5))
    also = [[x[:1]], [x[:, :1, :1]]]
    check_node(name, [x], attributes, 13, length=5, also=also)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_in_other_precisions(dtype: type) -> None:
    x = _floats((3, 9), dtype)
    check_node("Softmax", [x], opset=13, expected=[_softmax(x, (1,))])


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_before_opset_13_an_axis_meant_all_that_follow(axis: int | None) -> None:
    x = _floats((3, 4, 5))
    attributes = {} if axis is None else {"axis": axis}
    axes = tuple(range(1 if axis is None else axis, 3))
    expected = _softmax(x, axes)
    check_node("Softmax", [x], attributes, 11, expected=[expected], length=60)
    check_node("LogSoftmax", [x], attributes, 11, expected=[np.log(expected)], relative=1e-5)
    hard = (x == x.max(axis=axes, keepdims=True)).astype(np.float32)
    check_node("Hardmax", [x], attributes, 11, expected=[hard])


def test_large_values_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4, -1e4], [-np.inf, 0.0, -np.inf], [-1e38, -1e38, -1e38]], np.float32)
    expected = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1 / 3] * 3], np.float32)
    check_node("Softmax", [x], opset=13, expected=[expected])
    with np.errstate(divide="ignore"):
        logarithms = np.array([[0, 0, -2e4], [-np.inf, 0, -np.inf], [0, 0, 0]], np.float32)
        logarithms += np.log([[2.0], [1.0], [3.0]]).astype(np.float32) * -1
    check_node("LogSoftmax", [x], opset=13, expected=[logarithms])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_of_nothing(name: str, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    assert run(fission(name, [x], opset=13), [x])[0].shape == shape


def test_hardmax_takes_the_first_of_equals() -> None:
    x = np.array([[2.0, 5.0, 5.0], [1.0, 1.0, 1.0]], np.float32)
    expected = np.array([[0, 1, 0], [1, 0, 0]], np.float32)
    check_node("Hardmax", [x], opset=13, expected=[expected])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -5])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(reduction: str, ignore: int | None, weighted: bool) -> None:
    scores = _floats((3, 5, 2))
    target = np.array([[1, 4], [0, 1], [2, 3]])
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignore is not None:
        attributes["ignore_index"] = ignore
        target = np.where(target == 1, ignore, target)
    weights = [np.linspace(0.5, 2.0, 5).astype(np.float32)] if weighted else []
    operands = [scores, target, *weights]
    also = [[scores[:1], target[:1], *weights], [scores[..., :1], target[..., :1], *weights]]
    check_node("NegativeLogLikelihoodLoss", operands, attributes, 13, length=6, also=also)
    check_node("SoftmaxCrossEntropyLoss", operands, attributes, 13, 2, length=6, also=also)


def test_a_loss_of_other_targets_is_refused() -> None:
    scores, target = _floats((3, 5)), np.array([0, 1, 2])
    graph = fission("NegativeLogLikelihoodLoss", [scores, target], opset=13)
    with pytest.raises(DimensionError, match="differ in shape"):
        run(graph, [scores, target[:2]])
