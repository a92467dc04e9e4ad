"""One model for several instruction sets: the generator writes all, the loader takes the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.backend.cpu.machine import LEVELS, host_levels
from tilewright.compile import compile_stages
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import UnsupportedError

pytestmark = pytest.mark.slow  # every level is compiled
RUNNABLE = [level.name for level in host_levels()]
DEPTH, WIDTH = 70, 33  # neither a multiple of any vector nor of any tile


def small_network() -> onnx.ModelProto:
    """A dense layer, an activation and a softmax over a dynamic number of rows."""
    generator = np.random.default_rng(3)
    weights = generator.standard_normal((DEPTH, WIDTH)).astype(np.float32)
    bias = generator.standard_normal(WIDTH).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Add", ["t", "b"], ["u"]),
        helper.make_node("Tanh", ["u"], ["v"]),
        helper.make_node("Softmax", ["v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    weights, bias = (numpy_helper.to_array(i).astype(np.float64) for i in model.graph.initializer)
    hidden = np.tanh(x.astype(np.float64) @ weights + bias)
    powers = np.exp(hidden)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = compile_stages(small_network(), levels=list(LEVELS))
    path = tmp_path_factory.mktemp("levels") / "small.tw"
    CompiledModel.from_contents(stages.contents).save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("level", RUNNABLE)
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 97])
def test_every_level_of_this_machine_computes_the_same_thing(
    artifact: Path, level: str, rows: int
) -> None:
    model = CompiledModel.load(artifact, level=level)
    x = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype(np.float32)
    # Rounding of a sum of DEPTH products, carried through functions with slopes of at most 1.
    tolerance = DEPTH * np.finfo(np.float32).eps * np.abs(x).sum(axis=1).max(initial=1.0)
    assert np.abs(model(x) - expected(small_network(), x)).max(initial=0.0) <= tolerance


def test_the_best_level_is_the_default(artifact: Path) -> None:
    assert CompiledModel.load(artifact).level == host_levels()[-1].name


@pytest.mark.slow
def test_code_of_every_level_is_there_and_differs() -> None:
    stages = compile_stages(small_network(), levels=list(LEVELS))
    images = {name: compiled.image for name, compiled in stages.levels.items()}
    assert list(images) == list(LEVELS)
    plain = [image.data for name, image in images.items() if not LEVELS[name].dots]
    assert len(set(plain)) == len(plain)
    assert images["avx512"].features == LEVELS["avx512"].features
    for compiled in stages.levels.values():
        called = {s.function for s in compiled.program.steps if hasattr(s, "function")}
        assert called <= set(compiled.image.functions)


has_bfloat16 = pytest.mark.skipif(
    not any("avx512bf16" in level.features for level in host_levels()),
    reason="products of bfloat16 need AVX-512",
)


@pytest.mark.parametrize(
    ("precision", "bound"),
    [pytest.param("bfloat16", 2.0**-7, marks=has_bfloat16), ("int8", 2.0**-5)],
)
def test_a_model_in_fewer_bits(precision: str, bound: float) -> None:
    generator = np.random.default_rng(5)
    weights = generator.standard_normal((512, 384)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 384])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stages = compile_stages(model, precision=precision)
    x = generator.standard_normal((7, 512)).astype(np.float32)
    got = CompiledModel.from_contents(stages.contents)(x)
    want = x.astype(np.float64) @ weights
    # Far more than float32 rounds: the narrow product is the one that ran.
    assert 1e-4 * np.abs(want).max() < np.abs(got - want).max() <= bound * np.abs(want).max()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no precision 'float8'"):
        compile_stages(small_network(), precision="float8")
