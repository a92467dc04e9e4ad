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

# Every instruction set for this machine, and what described ones with narrow products get.
SCRIPT = """
import sys
from tilewright.compile import compile_to_file
chosen = {
    "host": {"levels": ["x86-64", "avx2", "avx512"]},
    "bytes": {"target": "zen4", "precision": "int8"},
    "matrix": {"target": "sapphire-rapids", "precision": "bfloat16"},
}
for name, options in chosen.items():
    compile_to_file(sys.argv[1], f"{name}.tw", dims={"batch": (0, 64)}, dump=name, **options)
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


def compiled(folder: Path, source: Path, seed: str) -> dict[str, bytes]:
    """All files that a process with its own hash seed, folder and cache of code writes."""
    folder.mkdir()
    cache = str(folder.with_name(f"cache {seed}"))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TILEWRIGHT_CACHE_DIR": cache}
    command = [sys.executable, "-c", SCRIPT, str(source)]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_equal_bytes_of_every_instruction_set_under_different_hash_seeds(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    model(source)
    first, second = (compiled(tmp_path / f"folder {seed}", source, seed) for seed in ("1", "2"))
    assert first.keys() == second.keys()
    assert [name for name in first if name.endswith(".tw")] == ["bytes.tw", "host.tw", "matrix.tw"]
    assert [name for name in first if first[name] != second[name]] == []
