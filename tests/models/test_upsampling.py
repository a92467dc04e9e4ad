"""Transposed convolutions between others: compiled, at edge sizes, against sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from support.graph_kit import VECTOR_LEVELS

Array = np.ndarray[Any, Any]


def decoder(
    kernel: int, stride: int, padding: int, groups: int
) -> tuple[onnx.ModelProto, Array, Array]:
    """Eight channels to twelve through a transposed convolution, a bias and a LeakyRelu."""
    generator = np.random.default_rng(kernel * stride)
    weights = generator.standard_normal((8, 12 // groups, kernel, 3)).astype(np.float32)
    bias = generator.standard_normal(12).astype(np.float32)
    nodes = [
        helper.make_node(
            "ConvTranspose", ["x", "w", "b"], ["t"], strides=[stride, 1], group=groups,
            pads=[padding, 1, padding, 1],
        ),
        helper.make_node("LeakyRelu", ["t"], ["y"], alpha=0.5),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made, weights, bias


def expected(
    x: Array, weights: Array, bias: Array, stride: int, padding: int, groups: int
) -> Array:
    """Every element of the data adds its weights to the result."""
    n, channels, h, w = x.shape
    each, kernel = weights.shape[1], weights.shape[2]
    out = np.zeros((n, each * groups, max(0, (h - 1) * stride + kernel), w + 2))
    for c, k, m in np.ndindex(channels, kernel, 3):
        first = c // (channels // groups) * each
        added = x[:, c, None].astype(np.float64) * weights[c, :, k, m].reshape(-1, 1, 1)
        out[:, first : first + each, k : k + h * stride : stride, m : m + w] += added
    out = out[:, :, padding : out.shape[2] - padding, 1 : 1 + w] + bias.reshape(-1, 1, 1)
    return np.where(out < 0, out / 2, out)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups"),
    [(4, 2, 1, 1), (2, 2, 0, 1), (3, 2, 1, 2), (16, 8, 4, 4), (2, 3, 0, 1)],
)
def test_any_number_of_pixels(
    level: Any, kernel: int, stride: int, padding: int, groups: int
) -> None:
    made, weights, bias = decoder(kernel, stride, padding, groups)
    compiled = tw.compile(made, levels=[level], dims={"h": (1, 64), "w": (0, 64)})
    generator = np.random.default_rng(0)
    for size in (
        (1, 8, 1, 1),
        (2, 8, 2, 7),
        (1, 8, 16, 17),
        (0, 8, 3, 3),
        (1, 8, 5, 0),
        (3, 8, 1, 6),
    ):
        x = generator.standard_normal(size).astype(np.float32)
        found = compiled.run({"x": x})["y"]
        wanted = expected(x, weights, bias, stride, padding, groups)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
