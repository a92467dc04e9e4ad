"""Write a decoder of Qwen2's form with random weights in a file of their own.

    python scripts/make_decoder.py FOLDER [--layers 24] [--width 896] [--vocabulary 151936]

Grouped-query attention, rotary positions, RMS normalisation, a gated MLP, and the table of tokens
used once more for the logits. With the sizes that are the default, the file of weights has 2 GB.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ALIGNMENT = 4096  # of a tensor in the file of weights


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder."""

    layers: int = 24
    width: int = 896
    heads: int = 14
    groups: int = 2
    hidden: int = 4864
    vocabulary: int = 151936

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads


class Builder:
    """Collects nodes, small constants, and large weights as they are written to their file."""

    def __init__(self, sizes: Decoder, folder: Path) -> None:
        self.sizes = sizes
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)
        self.path = folder / "weights.bin"
        self.file = self.path.open("wb")

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of its output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A small constant."""
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.02) -> str:
        """Random weights, in the file."""
        data = self.random.standard_normal(shape, np.float32)
        data *= np.float32(scale)
        offset = -(-self.file.tell() // ALIGNMENT) * ALIGNMENT
        self.file.seek(offset)
        self.file.write(data)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in [
            ("location", self.path.name), ("offset", offset), ("length", data.nbytes)
        ]:  # fmt: skip
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name

    def dense(self, x: str, name: str, inner: int, outer: int, *, bias: bool = False) -> str:
        """A product by weights, with a bias or without."""
        made = self.op("MatMul", x, self.weight(f"{name}.weight", inner, outer))
        return self.op("Add", made, self.weight(f"{name}.bias", outer)) if bias else made

    def normalised(self, x: str, name: str) -> str:
        """The root of the mean of squares becomes 1, then a scale."""
        squares = self.op("Mul", x, x)
        mean = self.op("ReduceMean", squares, self.constant([-1], np.int64), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6)))
        return self.op(
            "Mul", self.op("Div", x, root), self.weight(name, self.sizes.width, scale=1.0)
        )

    def split(self, x: str, heads: int) -> str:
        """[batch, sequence, heads * head] → [batch, heads, sequence, head]."""
        shape = self.constant([0, 0, heads, self.sizes.head], np.int64)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def rotated(self, x: str, cosine: str, sine: str) -> str:
        """Rotary positions."""
        half, end = self.sizes.head // 2, self.sizes.head
        parts = [
            self.op("Slice", x, *(self.constant([v], np.int64) for v in (low, high, 3)))
            for low, high in ((half, end), (0, half))
        ]
        turned = self.op("Concat", self.op("Neg", parts[0]), parts[1], axis=3)
        return self.op("Add", self.op("Mul", x, cosine), self.op("Mul", turned, sine))

    def repeated(self, x: str) -> str:
        """Keys or values of a group, once for each of its heads."""
        sizes = self.sizes
        spread = self.op("Unsqueeze", x, self.constant([2], np.int64))
        times = [1, 1, sizes.heads // sizes.groups, 1, 1]
        spread = self.op("Expand", spread, self.constant(times, np.int64))
        shape = self.constant([0, sizes.heads, -1, sizes.head], np.int64)
        return self.op("Reshape", spread, shape)

    def attention(self, x: str, name: str, positions: tuple[str, str], mask: str) -> str:
        """Grouped-query attention with a causal mask."""
        sizes, narrow = self.sizes, self.sizes.groups * self.sizes.head
        query = self.split(
            self.dense(x, f"{name}.q", sizes.width, sizes.width, bias=True), sizes.heads
        )
        key = self.split(self.dense(x, f"{name}.k", sizes.width, narrow, bias=True), sizes.groups)
        value = self.split(self.dense(x, f"{name}.v", sizes.width, narrow, bias=True), sizes.groups)
        query, key = self.rotated(query, *positions), self.rotated(key, *positions)
        keys = self.op("Transpose", self.repeated(key), perm=[0, 1, 3, 2])
        scores = self.op("MatMul", query, keys)
        scores = self.op("Mul", scores, self.constant(sizes.head**-0.5))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        mixed = self.op("MatMul", shares, self.repeated(value))
        joined = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.op("Reshape", joined, self.constant([0, 0, sizes.width], np.int64))
        return self.dense(joined, f"{name}.o", sizes.width, sizes.width)

    def gated(self, x: str, name: str) -> str:
        """SiLU of one projection times another, projected back."""
        width, hidden = self.sizes.width, self.sizes.hidden
        gate = self.dense(x, f"{name}.gate", width, hidden)
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        product = self.op("Mul", gate, self.dense(x, f"{name}.up", width, hidden))
        return self.dense(product, f"{name}.down", hidden, width)

    def positions(self, ids: str) -> tuple[tuple[str, str], str]:
        """Cosine and sine of every position, and the causal mask."""
        length = self.op("Squeeze", self.op("Shape", ids, start=1, end=2))
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        line = self.op("Range", zero, length, one)
        column = self.op("Unsqueeze", line, self.constant([1], np.int64))
        later = self.op("Less", column, self.op("Unsqueeze", line, self.constant([0], np.int64)))
        mask = self.op("Where", later, self.constant(-1e9), self.constant(0.0))
        half = np.arange(self.sizes.head // 2) / (self.sizes.head // 2)
        frequencies = self.constant(np.tile(1e6**-half, 2)[None])
        angles = self.op("Mul", self.op("Cast", column, to=TensorProto.FLOAT), frequencies)
        return (self.op("Cos", angles), self.op("Sin", angles)), mask

    def model(self) -> onnx.ModelProto:
        """The whole decoder: logits of every position from token numbers."""
        sizes = self.sizes
        table = self.weight("tokens", sizes.vocabulary, sizes.width)
        x = self.op("Gather", table, "ids")
        positions, mask = self.positions("ids")
        for number in range(sizes.layers):
            inner = self.normalised(x, f"layer{number}.norm1")
            x = self.op("Add", x, self.attention(inner, f"layer{number}", positions, mask))
            inner = self.normalised(x, f"layer{number}.norm2")
            x = self.op("Add", x, self.gated(inner, f"layer{number}"))
        x = self.normalised(x, "norm")
        logits = self.op("MatMul", x, self.op("Transpose", table, perm=[1, 0]))
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])],
            [
                helper.make_tensor_value_info(
                    logits, TensorProto.FLOAT, ["batch", "sequence", sizes.vocabulary]
                )
            ],
            self.initializers,
        )
        self.file.close()
        opset = helper.make_opsetid("", 18)
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def make_decoder(folder: Path, sizes: Decoder | None = None) -> Path:
    """Write ``decoder.onnx`` and ``weights.bin`` into a folder that exists; the model's path."""
    path = folder / "decoder.onnx"
    onnx.save(Builder(sizes or Decoder(), folder).model(), path)
    return path


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    standard = Decoder()
    parser.add_argument("--layers", type=int, default=standard.layers)
    parser.add_argument("--width", type=int, default=standard.width)
    parser.add_argument("--vocabulary", type=int, default=standard.vocabulary)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sizes = Decoder(given.layers, given.width, vocabulary=given.vocabulary)
    print(make_decoder(given.folder, sizes))


if __name__ == "__main__":
    main()
