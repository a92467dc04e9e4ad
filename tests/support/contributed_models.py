"""Small models that ONNX Runtime's tools optimise or quantise: an image network and an encoder.

:func:`network` has every operator that static quantisation turns into one of com.microsoft;
:func:`encoder` is spelled out as exporters do, for the patterns of the transformer optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, PLACES = 50, 64


class _Writer:
    """Collects nodes and weights; values are named after their operators."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(1)

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def known(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        return self.known(self.random.normal(mean, scale, shape))

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], result: onnx.ValueInfoProto,
        opset: int,
    ) -> onnx.ModelProto:  # fmt: skip
        self.nodes[-1].output[0] = result.name
        graph = helper.make_graph(self.nodes, name, inputs, [result], self.weights)
        imports = [helper.make_opsetid("", opset)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=8)
        onnx.checker.check_model(made)
        return made


def network() -> onnx.ModelProto:
    """Images ``x`` [batch, 3, height, width] to ten classes ``y``."""
    w = _Writer()
    first = w.emit("Conv", "x", w.normal(8, 3, 3, 3, scale=0.3), w.normal(8, scale=0.1),
                   pads=[1] * 4, strides=[2, 2])  # fmt: skip
    first = w.emit("Relu", first)
    second = w.emit("Conv", first, w.normal(8, 8, 3, 3, scale=0.2), w.normal(8), pads=[1] * 4)
    summed = w.emit("Add", first, w.emit("LeakyRelu", second, alpha=0.1))
    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled = [w.emit(kind, summed, **window) for kind in ("AveragePool", "MaxPool")]
    joint = w.emit("Concat", *pooled, axis=1)
    joint = w.emit("Mul", joint, w.emit("Sigmoid", joint))
    flat = w.emit("Flatten", w.emit("GlobalAveragePool", joint))
    classes = w.emit("Gemm", flat, w.normal(10, 16, scale=0.3), w.normal(10), transB=1)
    w.emit("Softmax", classes, axis=-1)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])
    return w.model("network", [given], result, 17)


def encoder(hidden: int, heads: int, layers: int) -> onnx.ModelProto:
    """An encoder of ``input_ids``, ``token_type_ids`` and ``attention_mask`` [batch, seq]."""
    w = _Writer()
    x = _embedded(w, hidden)
    mask = w.emit("Unsqueeze", "attention_mask", w.known([1], np.int64))
    mask = w.emit("Unsqueeze", mask, w.known([2], np.int64))
    mask = w.emit("Sub", w.known(1.0), w.emit("Cast", mask, to=TensorProto.FLOAT))
    mask = w.emit("Mul", mask, w.known(-10000.0))
    for _ in range(layers):
        attended = _linear(w, _attention(w, x, mask, hidden, heads), hidden, hidden)
        x = _normalised(w, w.emit("Add", attended, x), hidden)
        wide = _linear(w, x, hidden, 4 * hidden)
        inner = w.emit("Erf", w.emit("Div", wide, w.known(2**0.5)))
        wide = w.emit("Mul", wide, w.emit("Add", inner, w.known(1.0)))
        narrow = _linear(w, w.emit("Mul", wide, w.known(0.5)), 4 * hidden, hidden)
        x = _normalised(w, w.emit("Add", narrow, x), hidden)
    names = ("input_ids", "token_type_ids", "attention_mask")
    given = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in names]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", hidden])
    return w.model("encoder", given, result, 14)


def _embedded(w: _Writer, hidden: int) -> str:
    length = w.emit("Gather", w.emit("Shape", "input_ids"), w.known(1, np.int64), axis=0)
    length = w.emit("Unsqueeze", length, w.known([0], np.int64))
    places = w.known(np.arange(PLACES)[None], np.int64)
    bounds = w.known([0], np.int64), length, w.known([1], np.int64)
    places = w.emit("Slice", places, *bounds)
    words = w.emit("Gather", w.normal(WORDS, hidden), "input_ids")
    kinds = w.emit("Gather", w.normal(2, hidden), "token_type_ids")
    total = w.emit(
        "Add", w.emit("Add", words, kinds), w.emit("Gather", w.normal(PLACES, hidden), places)
    )
    return _normalised(w, total, hidden)


def _normalised(w: _Writer, x: str, hidden: int) -> str:
    centred = w.emit("Sub", x, w.emit("ReduceMean", x, axes=[-1]))
    variance = w.emit("ReduceMean", w.emit("Pow", centred, w.known(2.0)), axes=[-1])
    root = w.emit("Sqrt", w.emit("Add", variance, w.known(1e-5)))
    scaled = w.emit("Mul", w.emit("Div", centred, root), w.normal(hidden, scale=0.1, mean=1.0))
    return w.emit("Add", scaled, w.normal(hidden, scale=0.1))


def _linear(w: _Writer, x: str, size: int, result: int) -> str:
    product = w.emit("MatMul", x, w.normal(size, result, scale=size**-0.5))
    return w.emit("Add", product, w.normal(result, scale=0.1))


def _attention(w: _Writer, x: str, mask: str, hidden: int, heads: int) -> str:
    def split(order: list[int]) -> str:
        shape = w.known([0, 0, heads, hidden // heads], np.int64)
        return w.emit(
            "Transpose", w.emit("Reshape", _linear(w, x, hidden, hidden), shape), perm=order
        )

    query, key, value = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scores = w.emit("Div", w.emit("MatMul", query, key), w.known((hidden / heads) ** 0.5))
    weights = w.emit("Softmax", w.emit("Add", scores, mask), axis=-1)
    context = w.emit("Transpose", w.emit("MatMul", weights, value), perm=[0, 2, 1, 3])
    return w.emit("Reshape", context, w.known([0, 0, hidden], np.int64))
