"""Equal models give equal artifacts, whatever the hash seed, the folder and the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SCRIPT = """
import sys, tilewright
tilewright.compile(sys.argv[1], dims={"batch": (0, 64)}, levels=["avx2"]).save(sys.argv[2])
"""


def model(path: Path) -> None:
    """Two dense layers with a softmax between them, and an operator without a rule."""
    generator = np.random.default_rng(3)
    weights = {name: generator.standard_normal((8, 8)).astype(np.float32) for name in ("a", "b")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Softmax", ["h"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "b"], ["y"]),
        helper.make_node("Det", ["b"], ["d"]),
        helper.make_node("Mul", ["y", "d"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)


@pytest.mark.slow
def test_equal_bytes_under_different_hash_seeds(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    model(source)
    artifacts: list[bytes] = []
    for seed in ("1", "2"):
        folder = tmp_path / f"folder {seed}"
        folder.mkdir()
        cache = str(tmp_path / f"cache {seed}")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TILEWRIGHT_CACHE_DIR": cache}
        command = [sys.executable, "-c", SCRIPT, str(source), "out.tw"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        artifacts.append((folder / "out.tw").read_bytes())
    assert artifacts[0] == artifacts[1]
