"""Models that ONNX Runtime's tools optimised or quantised agree with ONNX Runtime at all shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from support.contributed_models import WORDS, encoder, network
from support.oldest_level import of_a_module
from support.operator_harness import Array
from support.runtime_peer import DOMAIN, model_of, runtime
from tilewright.options import LevelName
from tilewright.support.errors import UnsupportedError

pytestmark = pytest.mark.peers

SHAPES = [(2, 7), (1, 1), (3, 33)]
__all__ = ["of_a_module"]  # what operators mean is the same for all processors


def _tools(name: str) -> Any:
    return pytest.importorskip(f"onnxruntime.{name}")


def _operators(path: Path) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load(path).graph.node if n.domain == DOMAIN)


def _agree(
    path: Path, feeds: list[dict[str, Array]], near: float, level: LevelName | None = None
) -> None:
    """One compiled model, at all shapes."""
    compiled, model = tw.compile(path, levels=level), onnx.load(path)
    for given in feeds:
        (expected,) = runtime(model, given)
        np.testing.assert_allclose(compiled(**given), expected, rtol=near, atol=near)


def _sentences(dtype: Any) -> list[dict[str, Array]]:
    random = np.random.default_rng(3)
    every: list[dict[str, Array]] = []
    for shape in SHAPES:
        mask = random.integers(0, 2, shape).astype(dtype)
        mask[:, 0] = 1
        every.append(
            {
                "input_ids": random.integers(0, WORDS, shape).astype(dtype),
                "token_type_ids": random.integers(0, 2, shape).astype(dtype),
                "attention_mask": mask,
            }
        )
    return every


# ---------------------------------------------------------------- networks of bytes


@pytest.mark.slow
@pytest.mark.parametrize("types", [("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8")])
def test_a_network_of_quantised_operators(types: tuple[str, str], tmp_path: Path) -> None:
    tools = _tools("quantization")
    random = np.random.default_rng(2)
    images = [random.normal(0, 1, (2, 3, 16, 16)).astype(np.float32) for _ in range(4)]

    class Images(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[Array] = iter(images)

        def get_next(self) -> dict[str, Array] | None:
            image = next(self.left, None)
            return None if image is None else {"x": image}

    onnx.save(network(), tmp_path / "network.onnx")
    path = tmp_path / "quantised.onnx"
    tools.quantize_static(
        tmp_path / "network.onnx",
        path,
        Images(),
        quant_format=tools.QuantFormat.QOperator,
        activation_type=tools.QuantType[types[0]],
        weight_type=tools.QuantType[types[1]],
    )
    assert _operators(path).keys() >= {"QLinearAdd", "QLinearMul", "QLinearConcat", "QGemm"}
    shapes = [(2, 3, 16, 16), (1, 3, 9, 20), (5, 3, 33, 17)]
    given = [{"x": random.normal(0, 1, shape).astype(np.float32)} for shape in shapes]
    _agree(path, given, 0.0)


# ---------------------------------------------------------------- encoders


@pytest.mark.slow
def test_an_encoder_that_is_optimised_and_quantised(tmp_path: Path) -> None:
    optimizer, tools = _tools("transformers.optimizer"), _tools("quantization")
    onnx.save(encoder(32, 4, 2), tmp_path / "encoder.onnx")
    made = optimizer.optimize_model(
        str(tmp_path / "encoder.onnx"), model_type="bert", num_heads=4, hidden_size=32, opt_level=0
    )
    path = tmp_path / "optimised.onnx"
    made.save_model_to_file(str(path))
    assert _operators(path)["Attention"] == 2
    _agree(path, _sentences(np.int64), 1e-5)
    narrow = tmp_path / "quantised.onnx"
    options = {"DefaultTensorType": TensorProto.FLOAT}
    # Of seven bits, as ONNX Runtime's products of bytes saturate on processors without VNNI.
    tools.quantize_dynamic(path, narrow, reduce_range=True, extra_options=options)
    assert _operators(narrow)["QAttention"] == 2
    _agree(narrow, _sentences(np.int64), 1e-5, "x86-64")


@pytest.mark.slow
def test_what_onnx_runtime_saves(tmp_path: Path) -> None:
    """It writes LayerNormalization into a model whose opset has none."""
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    path = tmp_path / "saved.onnx"
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(encoder(32, 4, 1).SerializeToString(), options)
    assert _operators(path).keys() >= {"BiasGelu", "FusedMatMul"}
    _agree(path, _sentences(np.int64), 1e-5)


@pytest.mark.slow
def test_weights_of_four_bits() -> None:
    random = np.random.default_rng(5)
    packed = random.integers(0, 256, (24, 4, 16)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (24, 4)).astype(np.float32)
    zeros = random.integers(0, 256, (24, 2)).astype(np.uint8)
    attributes = {"bits": 4, "block_size": 32, "N": 24, "K": 128}
    data = [random.normal(0, 1, s).astype(np.float32) for s in ((2, 5, 128), (1, 1, 128))]
    operands = [data[0], packed, scales, zeros]
    model = model_of("MatMulNBits", operands, attributes, constants=(1, 2, 3))
    result = helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(result)
    compiled = tw.compile(model)
    for x in data:
        (expected,) = runtime(model, {"x0": x})
        np.testing.assert_allclose(compiled(x0=x), expected, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------- decoders, and refusals


def _decoder_step() -> onnx.ModelProto:
    """Shared keys with a past, whose lengths follow from a mask as exporters write them."""
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    names = ["query", "key", "value", "past_key", "past_value", "last", "total", "cos", "sin"]
    results = ["y", "present_key", "present_value"]
    angles = np.outer(np.arange(64), 0.5 ** np.arange(8))
    weights = {
        "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32),
        "one": np.array([1], np.int64), "axis": np.array([1], np.int64), "first": np.array(1),
    }  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["last"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["size"], axis=0),
        helper.make_node("Cast", ["size"], ["total"], to=TensorProto.INT32),
        helper.make_node("GroupQueryAttention", names, results, domain=DOMAIN, **attributes),
    ]
    shapes: dict[str, list[str | int]] = {
        "query": ["batch", "new", 64], "key": ["batch", "new", 32], "value": ["batch", "new", 32],
        "past_key": ["batch", 2, "past", 16], "past_value": ["batch", 2, "past", 16],
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total"]))
    graph = helper.make_graph(
        nodes, "step", inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results],
        [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.slow
def test_steps_of_a_decoder_with_shared_keys() -> None:
    model = _decoder_step()
    compiled = tw.compile(model)
    random = np.random.default_rng(4)

    def feeds(batch: int, new: int, past: int) -> dict[str, Array]:
        shapes = {
            "query": (batch, new, 64), "key": (batch, new, 32), "value": (batch, new, 32),
            "past_key": (batch, 2, past, 16), "past_value": (batch, 2, past, 16),
        }  # fmt: skip
        made = {n: random.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
        return {**made, "mask": np.ones((batch, past + new), np.int64)}

    for sizes in ((2, 1, 5), (1, 1, 40), (3, 6, 0), (1, 4, 3)):
        given = feeds(*sizes)
        for own, other in zip(compiled(**given), runtime(model, given), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    ragged = feeds(2, 1, 5)
    ragged["mask"][1, 0] = 0
    with pytest.raises(tw.TilewrightError, match="different lengths"):
        compiled(**ragged)


def test_a_form_without_a_rule_says_what_to_do() -> None:
    operands = [np.ones((2, 3, 8), np.float32), np.ones((8, 24), np.float32)]
    model = model_of("Attention", operands, {"num_heads": 2, "do_rotary": 1})
    result = helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(result)
    with pytest.raises(UnsupportedError) as caught:
        tw.compile(model)
    text = str(caught.value)
    assert "Queries and keys are to be rotated" in text and "where: Attention" in text
    assert "try: " in text and "reference evaluator" not in text
