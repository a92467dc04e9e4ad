"""Local response normalisation: one window along the channels, as an operator and taken apart.

PyTorch exports it as an average over a padded five-dimensional view, whose sizes it computes by
truncating divisions and by the number of elements: the same as the map's but where that is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from support.onnx_models import model, run, tensor
from tilewright.frontend.onnx import import_model
from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Broadcast, Constant, Map, Reshape, Transpose, Window
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last

CHANNELS = 8
PADS = np.array([0, 0, 2, 0, 0, 0, 0, 2, 0, 0], np.int64)
NUMBERS = {
    "minus": np.array(-1, np.int64), "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
    "two": np.array(2, np.int64), "axis": np.array([1], np.int64), "pads": PADS,
    "channels": np.array([CHANNELS], np.int64), "rest": np.array([-1], np.int64),
    "alpha": np.array(1e-2, np.float32), "bias": np.array(1.0, np.float32),
    "beta": np.array(0.75, np.float32), "none": np.array(0.0, np.float32),
}  # fmt: skip


def _sizes(axis: int, name: str) -> list[onnx.NodeProto]:
    """The size of an axis after a convolution and a pooling two apart, as an exporter counts it."""
    make = helper.make_node
    return [
        make("Shape", ["x"], [f"{name}_v"], start=axis, end=axis + 1),
        make("Squeeze", [f"{name}_v"], [f"{name}_0"]),
        make("Add", [f"{name}_0", "minus"], [f"{name}_1"]),
        make("Div", [f"{name}_1", "two"], [f"{name}_2"]),
        make("Add", [f"{name}_2", "minus"], [f"{name}_3"]),
        make("Div", [f"{name}_3", "two"], [f"{name}_4"]),
        make("Add", [f"{name}_4", "one"], [f"{name}_5"]),
        make("Reshape", [f"{name}_5", "rest"], [name]),
    ]


def _taken_apart() -> list[onnx.NodeProto]:
    make = helper.make_node
    return [
        make("Shape", ["x"], ["batch"], start=0, end=1),
        *_sizes(2, "height"),
        *_sizes(3, "width"),
        make("Mul", ["map", "map"], ["squares"]),
        make("Concat", ["batch", "axis", "channels", "height", "rest"], ["wide"], axis=0),
        make("Reshape", ["squares", "wide"], ["view"], allowzero=1),
        make("Pad", ["view", "pads", "none"], ["padded"]),
        make("AveragePool", ["padded"], ["average"], kernel_shape=[5, 1, 1], count_include_pad=1),
        make("Squeeze", ["average", "axis"], ["narrow"]),
        make("Concat", ["batch", "channels", "height", "width"], ["back"], axis=0),
        make("Reshape", ["narrow", "back"], ["mean"], allowzero=1),
        make("Mul", ["mean", "alpha"], ["scaled"]),
        make("Add", ["scaled", "bias"], ["base"]),
        make("Pow", ["base", "beta"], ["power"]),
        make("Div", ["map", "power"], ["normal"]),
    ]


def _operator() -> list[onnx.NodeProto]:
    # The operator divides alpha by the size itself.
    return [helper.make_node("LRN", ["map"], ["normal"], size=5, alpha=1e-2, beta=0.75, bias=1.0)]


def _graph(middle: list[onnx.NodeProto]) -> Graph:
    generator = np.random.default_rng(0)
    drawn: dict[str, Any] = {
        "first": generator.standard_normal((CHANNELS, 3, 7, 7)).astype(np.float32),
        "last": generator.standard_normal((4, CHANNELS, 1, 1)).astype(np.float32),
    }
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "first"], ["made"], strides=[2, 2], pads=[3, 3, 3, 3]),
        make("MaxPool", ["made"], ["map"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        *middle,
        make("Conv", ["normal", "last"], ["y"]),
    ]
    shape = ("batch", 3, "height", "width")
    outputs = [tensor("y", (None, 4, None, None))]
    proto = model(nodes, [tensor("x", shape)], outputs, weights=NUMBERS | drawn)
    return import_model(proto).graph


@pytest.mark.parametrize("middle", [_taken_apart(), _operator()], ids=["taken apart", "operator"])
def test_is_one_window_along_the_last_axis(middle: list[onnx.NodeProto]) -> None:
    nodes = prefer_channels_last(simplify(_graph(middle))).nodes()
    (window,) = (n for n in nodes if isinstance(n.primitive, Window) and n.primitive.kind == "sum")
    assert isinstance(window.primitive, Window)
    assert (window.primitive.kernel, window.primitive.trailing) == ((5,), 0)
    assert window.shape == window.inputs[0].shape
    assert not any(isinstance(n.primitive, Reshape) for n in nodes)
    moved = [n for n in nodes if isinstance(n.primitive, Transpose) and n.inputs[0].inputs]
    assert len(moved) == 1  # the result's, of its four channels
    repeated = [n for n in nodes if isinstance(n.primitive, Broadcast)]
    assert all(isinstance(n.inputs[0].primitive, Constant) for n in repeated)
    functions = [n.primitive.function for n in nodes if isinstance(n.primitive, Map)]
    assert "power" not in functions
    assert functions.count("divide") == 1


@pytest.mark.parametrize("middle", [_taken_apart(), _operator()], ids=["taken apart", "operator"])
@pytest.mark.parametrize("shape", [(2, 3, 3), (1, 21, 18), (0, 9, 12), (0, 1, 2)])
def test_every_value_stays(middle: list[onnx.NodeProto], shape: tuple[int, int, int]) -> None:
    batch, height, width = shape
    before = _graph(middle)
    after = prefer_channels_last(simplify(before))
    x = np.random.default_rng(1).standard_normal((batch, 3, height, width)).astype(np.float32)
    expected = run(before, x=x)["y"]
    assert run(after, x=x)["y"].shape == expected.shape
    np.testing.assert_allclose(run(after, x=x)["y"], expected, rtol=1e-4, atol=1e-4)


def test_both_forms_agree() -> None:
    x = np.random.default_rng(2).standard_normal((1, 3, 30, 17)).astype(np.float32)
    apart, operator = (run(_graph(middle), x=x)["y"] for middle in (_taken_apart(), _operator()))
    np.testing.assert_allclose(apart, operator, rtol=1e-5, atol=1e-5)
