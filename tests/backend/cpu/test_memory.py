"""Compiling holds the weights of a model once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

LAYERS, WIDTH = 8, 2048
BYTES = LAYERS * WIDTH * WIDTH * 4
IN_FLIGHT = 2 * WIDTH * WIDTH * 4  # what two threads read of the file at a time
SLACK = 48 << 20  # code, graphs and what else a compiler has

MEASURE = """
import os, resource, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import tilewright
models = []
for path in sys.argv[1:]:
    models.append(tilewright.compile(path, levels=["avx2"], dims={"n": (0, 64)}))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def write(folder: Path, layers: int) -> Path:
    """Products by weights in a file of their own, every other one of them transposed first."""
    folder.mkdir()
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    last = "x"
    with (folder / "w.bin").open("wb") as file:
        for number in range(layers):
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT)
            tensor.dims.extend([WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            size = WIDTH * WIDTH * 4
            for key, value in [("location", "w.bin"), ("offset", file.tell()), ("length", size)]:
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            file.write(np.arange(number, number + WIDTH * WIDTH, dtype=np.float32))
            right = f"w{number}"
            if number % 2:
                nodes.append(helper.make_node("Transpose", [right], [f"t{number}"], perm=[1, 0]))
                right = f"t{number}"
            nodes.append(helper.make_node("MatMul", [last, right], [f"h{number}"]))
            last = f"h{number}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", WIDTH])],
        weights,
    )
    opset = helper.make_opsetid("", 18)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.slow
def test_compiling_holds_weights_once(tmp_path: Path) -> None:
    small, large = write(tmp_path / "small", 2), write(tmp_path / "large", LAYERS)
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    assert after - before <= BYTES + IN_FLIGHT + SLACK
