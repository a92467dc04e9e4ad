"""What ``verify`` says of a shape where one side or both refuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.bench.inputs import ModelInputs, model_inputs
from tilewright.bench.verify import References, Verification, verify
from tilewright.frontend.onnx import import_model

pytestmark = pytest.mark.peers


def windows(path: Path) -> Path:
    """Sums of windows of three by three pixels: smaller images have none."""
    weights = np.ones((1, 1, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "windows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def verdicts(path: Path, first: str, *shapes: dict[str, int]) -> Verification:
    model = tw.compile(path)
    graph = import_model(path).graph
    inputs = ModelInputs(model_inputs(path), {})
    return verify(model, graph, References(path, first, 1), inputs, shapes)


def test_what_both_refuse_is_refused_though_onnx_computes_something(tmp_path: Path) -> None:
    found = verdicts(
        windows(tmp_path / "model.onnx"),
        "onnxruntime",
        {"n": 2, "h": 5, "w": 4},
        {"n": 2, "h": 2, "w": 4},
    )
    assert [check.verdict for check in found.checks] == ["agrees", "refused"]
    assert found.is_right
    assert "onnxruntime: " in (found.checks[1].note or "")


def test_onnx_is_asked_first_where_an_input_is_empty(tmp_path: Path) -> None:
    shapes = ({"n": 0, "h": 5, "w": 4}, {"n": 1, "h": 5, "w": 4})
    found = verdicts(windows(tmp_path / "model.onnx"), "onnxruntime", *shapes)
    assert [check.reference for check in found.checks] == ["onnx", "onnxruntime"]


def test_a_shape_that_only_the_reference_runs_differs(tmp_path: Path) -> None:
    found = verdicts(windows(tmp_path / "model.onnx"), "onnx", {"n": 2, "h": 2, "w": 4})
    assert [check.verdict for check in found.checks] == ["differs"]
    assert not found.is_right
