"""Small language models with a cache of keys and values, and random weights: what generation needs.

Inputs are ``input_ids`` [batch, sequence] and, per layer, ``past_key_0`` and ``past_value_0``
[batch, heads of keys, past, width of a head]; outputs are ``logits`` and ``present_key_0`` …, which
are the ``past`` of the next step, so that every step has a new size. Start with :class:`Decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Step = Callable[[Mapping[str, Array]], Mapping[str, Array]]
_FAR = -1e9  # what a score of a later token becomes before the softmax


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder. ``positions`` is "learned" or "rotary"; fewer heads of keys than
    heads are grouped-query attention; ``longest`` limits learned positions."""

    positions: str = "learned"
    layers: int = 2
    width: int = 64
    heads: int = 4
    key_heads: int = 4
    vocabulary: int = 256
    longest: int = 1024
    seed: int = 0

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    def model(self) -> onnx.ModelProto:
        """The decoder as an ONNX model."""
        return _Writer(self).write()

    def empty(self, batch: int) -> dict[str, Array]:
        """The cache before the first token."""
        shape = (batch, self.key_heads, 0, self.head)
        names = [f"past_{kind}_{i}" for i in range(self.layers) for kind in ("key", "value")]
        return {name: np.zeros(shape, np.float32) for name in names}


VARIANTS: Mapping[str, Decoder] = {
    "learned": Decoder("learned"),
    "rotary": Decoder("rotary"),
    "grouped": Decoder("rotary", key_heads=2),
}


def generate(step: Step, decoder: Decoder, prompt: Array, tokens: int) -> Array:
    """``tokens`` more tokens for each row of ``prompt``, each time the likeliest one."""
    ids, cache, made = prompt, decoder.empty(len(prompt)), []
    for _ in range(tokens):
        results = step({"input_ids": ids, **cache})
        ids = np.argmax(results["logits"][:, -1], axis=-1)[:, None]
        cache = {n.replace("present", "past"): v for n, v in results.items() if n != "logits"}
        made.append(ids)
    return np.concatenate(made, axis=1)


@dataclass
class _Writer:
    """Writes the nodes of a decoder; methods return names of values."""

    decoder: Decoder
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.decoder.seed)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One node with one result."""
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def integers(self, *values: int) -> str:
        """A constant vector, the same one for equal values."""
        name = "integers_" + "_".join(map(str, values))
        self.weights[name] = np.array(values, np.int64)
        return name

    def number(self, value: float) -> str:
        """A constant scalar."""
        name = f"number_{value}"
        self.weights[name] = np.array(value, np.float32)
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A random matrix that keeps the size of what it is multiplied by."""
        name = f"weight_{len(self.weights)}"
        deviation = shape[0] ** -0.5 if scale is None else scale
        values = self.random.standard_normal(shape) * deviation
        self.weights[name] = values.astype(np.float32)
        return name

    def size(self, value: str, axis: int) -> str:
        """The size of one axis as a scalar."""
        shape = self.op("Shape", value)
        return self.op("Gather", shape, self._scalar(axis))

    def _scalar(self, value: int) -> str:
        name = f"scalar_{value}"
        self.weights[name] = np.array(value, np.int64)
        return name

    def write(self) -> onnx.ModelProto:
        """The model."""
        d = self.decoder
        past = self.size("past_key_0", 2)
        total = self.op("Add", past, self.size("input_ids", 1))
        positions = self.op("Range", past, total, self._scalar(1))
        keys = self.op("Range", self._scalar(0), total, self._scalar(1))
        queries = self.op("Unsqueeze", positions, self.integers(1))
        seen = self.op("LessOrEqual", keys, queries)
        mask = self.op("Where", seen, self.number(0.0), self.number(_FAR))
        x = self.op("Gather", self.weight(d.vocabulary, d.width, scale=1.0), "input_ids")
        turned: tuple[str, str] | None = None
        if d.positions == "learned":
            x = self.op("Add", x, self.op("Gather", self.weight(d.longest, d.width), positions))
        else:
            turned = self._angles(positions)
        for layer in range(d.layers):
            x = self.op("Add", x, self._attention(self._normal(x), layer, mask, turned))
            x = self.op("Add", x, self._dense(self._normal(x)))
        logits = self.op("MatMul", self._normal(x), self.weight(d.width, d.vocabulary))
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        return self._model()

    def _normal(self, x: str) -> str:
        scale, bias = f"ones_{self.decoder.width}", f"zeros_{self.decoder.width}"
        self.weights[scale] = np.ones(self.decoder.width, np.float32)
        self.weights[bias] = np.zeros(self.decoder.width, np.float32)
        return self.op("LayerNormalization", x, scale, bias, axis=-1)

    def _dense(self, x: str) -> str:
        width = self.decoder.width
        inner = self.op("MatMul", x, self.weight(width, 4 * width))
        gate = self.op("Mul", inner, self.op("Sigmoid", inner))
        return self.op("MatMul", gate, self.weight(4 * width, width))

    def _angles(self, positions: str) -> tuple[str, str]:
        """Cosine and sine for every position and half of a head."""
        half = self.decoder.head // 2
        steps = f"frequencies_{half}"
        self.weights[steps] = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        column = self.op("Unsqueeze", self.op("Cast", positions, to=1), self.integers(1))
        angles = self.op("Mul", column, steps)
        return self.op("Cos", angles), self.op("Sin", angles)

    def _turn(self, x: str, turned: tuple[str, str]) -> str:
        """Rotary positions: the two halves of a head are real and imaginary parts."""
        half = self.decoder.head // 2
        parts = [f"{x}_real", f"{x}_imaginary"]
        self.nodes.append(helper.make_node("Split", [x, self.integers(half, half)], parts, axis=-1))
        (real, imaginary), (cosine, sine) = parts, turned
        products = [self.op("Mul", a, b) for a in (real, imaginary) for b in (cosine, sine)]
        new_real = self.op("Sub", products[0], products[3])
        return self.op("Concat", new_real, self.op("Add", products[1], products[2]), axis=-1)

    def _heads(self, x: str, heads: int) -> str:
        """[batch, sequence, width] times a matrix, as [batch, heads, sequence, head]."""
        d = self.decoder
        made = self.op("MatMul", x, self.weight(d.width, heads * d.head))
        apart = self.op("Reshape", made, self.integers(0, 0, heads, d.head))
        return self.op("Transpose", apart, perm=[0, 2, 1, 3])

    def _attention(self, x: str, layer: int, mask: str, turned: tuple[str, str] | None) -> str:
        d = self.decoder
        query = self._heads(x, d.heads)
        key, value = self._heads(x, d.key_heads), self._heads(x, d.key_heads)
        if turned is not None:
            query, key = self._turn(query, turned), self._turn(key, turned)
        for kind, new in (("key", key), ("value", value)):
            names = [f"past_{kind}_{layer}", new]
            self.nodes.append(
                helper.make_node("Concat", names, [f"present_{kind}_{layer}"], axis=2)
            )
        keys = self._repeated(f"present_key_{layer}")
        values = self._repeated(f"present_value_{layer}")
        across = self.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = self.op("Mul", self.op("MatMul", query, across), self.number(d.head**-0.5))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        context = self.op("Transpose", self.op("MatMul", weights, values), perm=[0, 2, 1, 3])
        flat = self.op("Reshape", context, self.integers(0, 0, d.width))
        return self.op("MatMul", flat, self.weight(d.width, d.width))

    def _repeated(self, x: str) -> str:
        """One head of keys for every head, as exporters write it: unsqueeze, expand, reshape."""
        d = self.decoder
        if d.heads == d.key_heads:
            return x
        sizes = [self.op("Unsqueeze", self.size(x, a), self.integers(0)) for a in (0, 2)]
        groups = self.integers(d.key_heads, d.heads // d.key_heads)
        shape = self.op("Concat", sizes[0], groups, sizes[1], self.integers(d.head), axis=0)
        wide = self.op("Expand", self.op("Unsqueeze", x, self.integers(2)), shape)
        merged = self.op("Concat", sizes[0], self.integers(d.heads), sizes[1],
                         self.integers(d.head), axis=0)  # fmt: skip
        return self.op("Reshape", wide, merged)

    def _model(self) -> onnx.ModelProto:
        d = self.decoder
        pairs = [(kind, layer) for layer in range(d.layers) for kind in ("key", "value")]

        def cache(name: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = ["batch", d.key_heads, length, d.head]
            return [
                helper.make_tensor_value_info(f"{name}_{kind}_{layer}", TensorProto.FLOAT, shape)
                for kind, layer in pairs
            ]

        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["batch", "sequence", d.vocabulary]
        )
        weights = [numpy_helper.from_array(a, name) for name, a in self.weights.items()]
        inputs, outputs = [ids, *cache("past", "past")], [logits, *cache("present", "total")]
        graph = helper.make_graph(self.nodes, f"{d.positions}-decoder", inputs, outputs, weights)
        opset = helper.make_opsetid("", 17)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)
