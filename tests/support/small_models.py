"""Small ONNX models that several folders of tests use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 1000, 16


def encoder(seed: int = 0) -> onnx.ModelProto:
    """Token ids and a mask [batch, seq] to one normalised embedding [batch, 16] per row."""
    generator = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = generator.standard_normal(shape).astype(np.float32)
        return numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("MatMul", ["words", "dense"], ["hidden"]),
        helper.make_node("LayerNormalization", ["hidden", "scale", "bias"], ["normal"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["column"]),
        helper.make_node("Cast", ["column"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["normal", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["embedding"], keepdims=0),
    ]
    weights = [
        weight("table", VOCABULARY, WIDTH),
        weight("dense", WIDTH, WIDTH),
        weight("scale", WIDTH),
        weight("bias", WIDTH),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.int64), "middle"),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "encoder", inputs, [output], weights)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def save_encoder(path: Path, seed: int = 0) -> Path:
    """Write :func:`encoder` to a file."""
    onnx.save(encoder(seed), path)
    return path
