"""What compiling costs as models become deeper, and as a process compiles more of them."""

from __future__ import annotations

import cProfile
import gc
import pstats

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from tilewright.compile import compile_stages
from tilewright.frontend.onnx import import_model
from tilewright.ir.graph import Node
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.shape import expr, interning

WIDTH = 16


def deep(layers: int) -> onnx.ModelProto:
    """A residual network of MatMul, Relu, Add and LayerNormalization."""
    generator = np.random.default_rng(layers)
    nodes: list[onnx.NodeProto] = []
    weights = [
        numpy_helper.from_array(generator.standard_normal(WIDTH).astype(np.float32), name)
        for name in ("scale", "bias")
    ]
    current = "x"
    for layer in range(layers):
        matrix = generator.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        nodes += [
            helper.make_node("MatMul", [current, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]),
            helper.make_node("Add", [f"r{layer}", current], [f"a{layer}"]),
            helper.make_node("LayerNormalization", [f"a{layer}", "scale", "bias"], [f"n{layer}"]),
        ]
        current = f"n{layer}"
    entry, result = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", WIDTH])
        for name in ("x", current)
    )
    graph = helper.make_graph(nodes, "deep", [entry], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def calls(layers: int) -> int:
    """How many functions are called to plan a network."""
    graph = prepare(simplify(import_model(deep(layers)).graph))
    profile = cProfile.Profile()
    profile.enable()
    plan_greedily(graph)
    profile.disable()
    return pstats.Stats(profile).total_calls  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_planning_is_linear_in_the_depth() -> None:
    few, many, most = calls(10), calls(50), calls(90)
    assert most - many <= 1.05 * (many - few)


def test_layers_that_are_alike_are_lowered_once() -> None:
    programs: list[int] = []
    for layers in (4, 6):
        made = compile_stages(deep(layers), levels=["x86-64"]).levels["x86-64"]
        variants = [variant for kernel in made.lowered for variant in kernel.variants]
        steps = [step for variant in variants for step in variant.steps]
        programs.append(len({id(step.program) for step in steps}))
        products = {kernel.kernel.outputs: kernel.variants[0].steps[0] for kernel in made.lowered}
        assert len({step.reads for step in products.values()}) == len(made.lowered) == layers
    assert programs[0] == programs[1]


VARIANT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[{name}, 3] x) => (float[{name}] y) <int64[1] axis = {{1}}, int64[2] shape = {{-1, 3}}> {{
    flat = Reshape(x, shape)
    powers = Exp(flat)
    y = ReduceSum<keepdims = 0>(powers, axis)
}}"""


@pytest.mark.slow
def test_a_process_keeps_nothing_of_the_models_that_it_has_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interning, "_MOST_RECENT", 16)
    tables = (expr._ATOMS, expr._MONOMIALS, expr._EXPRESSIONS, Node._interned)  # pyright: ignore[reportPrivateUsage]

    def alive(first: int, count: int) -> int:
        for number in range(first, first + count):
            compile_stages(onnx.parser.parse_model(VARIANT.format(name=f"n{number}")))
        gc.collect()
        return sum(map(len, tables))

    few = alive(0, 4)
    assert alive(4, 12) <= few + 60
