from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.bench import (
    PeerOptions,
    Settings,
    compare,
    create_peer,
    create_peers,
    model_inputs,
    random_inputs,
)
from tilewright.support.errors import InputError, UnsupportedError

OPTIONS = PeerOptions(threads=1)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "dense.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_unknown_peer(dense: Path) -> None:
    with pytest.raises(InputError, match="no peer called 'tvm'"):
        create_peers(["tvm"], dense, OPTIONS)


def test_a_peer_that_is_not_installed(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    monkeypatch.delitem(
        __import__("sys").modules, "tilewright.bench.peers.open_vino", raising=False
    )
    with pytest.raises(UnsupportedError, match="pip install openvino"):
        create_peer("openvino", dense, OPTIONS)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_outputs_at_several_batches(dense: Path, name: str) -> None:
    weight = numpy_helper.to_array(onnx.load(dense).graph.initializer[0])
    peer = create_peer(name, dense, OPTIONS)
    for batch in (1, 5, 2):
        inputs = random_inputs(model_inputs(dense), {"batch": batch})
        (actual,) = peer.outputs(inputs)
        # Sixteen products of standard normal values, in f32.
        np.testing.assert_allclose(actual, inputs["x"] @ weight, rtol=0, atol=16 * 1e-6)


@pytest.mark.peers
def test_torch_says_why_it_cannot(dense: Path) -> None:
    peers, failures = create_peers(["torch"], dense, OPTIONS)
    assert peers == ()
    assert "does not name the module" in failures[0].reason


@pytest.mark.peers
def test_comparison_of_two_peers(dense: Path) -> None:
    subject = create_peer("onnxruntime", dense, OPTIONS)
    specifications = model_inputs(dense)
    report = compare(
        subject,
        [create_peer("openvino", dense, OPTIONS)],
        [{"batch": 4}],
        lambda case: random_inputs(specifications, case),
        threads=1,
        settings=Settings(rounds=2, most_rounds=2, quiet=0.001, block=0.001),
    )
    (row,) = report.rows
    assert row.failures == ()
    assert row.timings[1].difference is not None and row.timings[1].difference < 1e-5
    assert all(timing.seconds.median > 0 for timing in row.timings)
