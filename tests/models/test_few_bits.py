"""Models with weights of 4 and 8 bits: results, sizes of artifacts, and equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from support.graph_kit import F32, Array, tolerance
from tilewright.compile import compile_to_file

ROWS = (0, 1, 2, 3, 7, 33, 131)
BLOCK = 32


def model(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], depth: int, columns: int
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "m", depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "m", columns])
    graph = helper.make_graph(nodes, "few_bits", [x], [y], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def contributed(depth: int, columns: int, bits: int, zeros: bool) -> tuple[onnx.ModelProto, Array]:
    """MatMulNBits, and its weights [K, N] in float64."""
    random = np.random.default_rng(depth)
    count = -(-depth // BLOCK)
    whole = random.integers(0, 1 << bits, (columns, count, BLOCK)).astype(np.uint8)
    scale = random.uniform(0.01, 0.1, (columns, count)).astype(np.float32)
    points = np.full((columns, count), 1 << (bits - 1))
    packed = whole if bits == 8 else whole[..., ::2] | whole[..., 1::2] << 4
    constants = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scale, "s")]
    if zeros:
        points = random.integers(0, 1 << bits, (columns, count)).astype(np.uint8)
        even = np.pad(points, [(0, 0), (0, count % 2)])
        held = points if bits == 8 else even[:, ::2] | even[:, 1::2] << 4
        constants.append(numpy_helper.from_array(held, "z"))
    names = ["x", "w", "s", *(["z"] if zeros else [])]
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": BLOCK}
    made = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)
    numbers = (whole - points[..., None].astype(np.float64)) * scale[..., None]
    return model([made], constants, depth, columns), numbers.reshape(columns, -1)[:, :depth].T


def dequantised(depth: int, columns: int, kind: int, zeros: bool) -> tuple[onnx.ModelProto, Array]:
    """DequantizeLinear in blocks along the depth before MatMul, and the weights in float64."""
    limits = {
        TensorProto.INT4: (-8, 8),
        TensorProto.UINT4: (0, 16),
        TensorProto.INT8: (-128, 128),
        TensorProto.UINT8: (0, 256),
    }
    random = np.random.default_rng(columns)
    count = -(-depth // BLOCK)
    whole = random.integers(*limits[kind], (depth, columns))
    scale = random.uniform(0.01, 0.1, (count, columns)).astype(np.float32)
    points = random.integers(*limits[kind], (count, columns)) if zeros else np.zeros_like(scale)
    given = [("w", whole), *([("z", points)] if zeros else [])]
    constants = [helper.make_tensor(n, kind, a.shape, a.reshape(-1).tolist()) for n, a in given]
    names = ["w", "s", *(["z"] if zeros else [])]
    nodes = [
        helper.make_node("DequantizeLinear", names, ["f"], axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    made = model(nodes, [*constants, numpy_helper.from_array(scale, "s")], depth, columns)
    wide = (np.repeat(a, BLOCK, axis=0)[:depth].astype(np.float64) for a in (points, scale))
    point, factor = wide
    return made, (whole - point) * factor


def compare(made: onnx.ModelProto, weights: Array) -> None:
    """The compiled model beside float64 at all rows."""
    compiled = tw.compile(made)
    for m in ROWS:
        x = np.random.default_rng(m).standard_normal((2, m, len(weights))).astype(np.float32)
        got = compiled(x)
        want = x.astype(np.float64) @ weights
        largest = float(np.abs(want).max(initial=0))
        allowed = tolerance(F32, len(weights), max(largest, float(np.abs(weights).max())))
        assert got.shape == want.shape
        assert float(np.abs(got - want).max(initial=0)) <= allowed, f"{m} rows"


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("depth", "columns"), [(256, 128), (401, 97)])
def test_products_of_the_contributed_domain(
    depth: int, columns: int, bits: int, zeros: bool
) -> None:
    compare(*contributed(depth, columns, bits, zeros))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8", "UINT8"])
def test_dequantised_weights(kind: str, zeros: bool) -> None:
    compare(*dequantised(401, 97, TensorProto.DataType.Value(kind), zeros))


@pytest.mark.parametrize("bits", [4, 8])
def test_artifacts_hold_few_bits(tmp_path: Path, bits: int) -> None:
    depth, columns = 2048, 1024
    made, _ = contributed(depth, columns, bits, zeros=True)
    compile_to_file(made, tmp_path / "m.tw", levels=["avx2"])
    blocks = depth // BLOCK * columns
    words, parameters = depth * columns * bits // 8, blocks * (4 + 1)
    size = (tmp_path / "m.tw").stat().st_size
    assert words + parameters <= size < words + parameters + (256 << 10)


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "zen3", "levels": ["x86-64", "avx2"]}
    for name in ("first", "second"):
        made, _ = dequantised(512, 640, TensorProto.UINT4, zeros=True)
        compile_to_file(made, tmp_path / name, **options)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_other_precisions_have_weights_of_their_own(tmp_path: Path) -> None:
    """Weights that are to be held in bfloat16 are, whatever they were made of."""
    made, weights = contributed(256, 128, 4, zeros=False)
    compiled = tw.compile(made, precision="bfloat16")
    x = np.ones((1, 3, 256), np.float32)
    got = compiled(x)
    want = x.astype(np.float64) @ weights
    assert np.abs(got - want).max() <= 2.0**-8 * np.abs(weights).sum(0).max()
