"""Graphs that are deeper than Python calls functions, and operators of very many operands."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from support.text_models import assert_as_reference, floats, model
from tilewright.options import PlanName

COUNT = 1500  # of operations or operands; Python's limit on recursion is 1000


def chained(step: str, count: int = COUNT) -> str:
    """A graph of ``count`` times the statement, which makes {b} of {a} and x."""
    steps = "\n".join(step.format(a=f"t{i}", b=f"t{i + 1}", c=f"c{i}") for i in range(count))
    return f"""g (float[n, 4] x) => (float[n, 4] y) {{
        t0 = Neg (x)
        {steps}
        y = Sigmoid (t{count})
    }}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "{b} = Sin ({a})",
        "{b} = Max ({a}, x)",
        "{c} = Sigmoid ({a})\n{b} = Add ({c}, x)",
        "{c} = ReduceMax <keepdims = 1> ({a})\n{b} = Sigmoid ({c})",
        "{c} = Transpose ({a})\n{b} = Transpose ({c})",
        "{c} = CastLike ({a}, x)\n{b} = Abs ({c})",
    ],
)
def test_operations_that_are_made_one_of_the_other(step: str) -> None:
    assert_as_reference(chained(step), {"x": floats(3, 4)}, {"x": floats(0, 4)})


@pytest.mark.parametrize("plan", ["greedy", "optimal"])
def test_a_chain_behind_a_product_ends_in_memory(plan: PlanName) -> None:
    count = 120  # more than what a kernel grows over
    steps = "\n".join(f"t{i + 1} = Sub (x, t{i})" for i in range(count))
    graph = f"""g (float[n, 8] x, float[8, 8] w) => (float[n, 8] y) {{
        t0 = MatMul (x, w)
        {steps}
        s = Softmax (t{count})
        y = MatMul (s, w)
    }}"""
    compiled = tw.compile(model(graph), plan=plan, levels=["x86-64"])
    x, w = floats(5, 8), floats(8, 8)
    wanted = x @ w
    for _ in range(count):
        wanted = x - wanted
    wanted = np.exp(wanted) / np.exp(wanted).sum(axis=1, keepdims=True) @ w
    np.testing.assert_allclose(compiled(x, w), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["Sum", "Max", "Concat"])
def test_many_operands(operator: str) -> None:
    names = [f"x{i}" for i in range(COUNT)]
    attributes = {"axis": 1} if operator == "Concat" else {}
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Split", ["x"], names, axis=0, num_outputs=COUNT),
            helper.make_node(operator, names, ["y"], **attributes),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [COUNT, "n"])],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    opset = [helper.make_opsetid("", 18)]
    compiled = tw.compile(helper.make_model(graph, opset_imports=opset, ir_version=9))
    for n in (0, 1, 3):
        x = floats(COUNT, n)
        wanted = {
            "Sum": x.sum(axis=0, keepdims=True),
            "Max": x.max(axis=0, keepdims=True),
            "Concat": x.reshape(1, -1),
        }[operator]
        np.testing.assert_allclose(compiled(x), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("steps", [("Add", "Mul", "Mod"), ("Add", "Max"), ("Mul", "Add")])
def test_sizes_of_many_steps(steps: tuple[str, ...]) -> None:
    """Multiplied out they are polynomials of a degree that grows with every step."""
    operands = {"Add": "one", "Max": "one", "Mul": "v", "Mod": "seven"}
    count = 90 if steps == ("Mul", "Add") else 300
    body = "\n".join(
        f"t{i + 1} = {step} (t{i}, {operands[step]})"
        for i, step in zip(range(count), steps * count, strict=False)
    )
    graph = f"""g (float[a, b] x) => (float[c] y)
        <int64[2] one = {{1, 1}}, int64[2] seven = {{7, 7}}, int64[2] wide = {{9, 9}},
         float zero = {{0}}> {{
        v = Shape (x)
        t0 = Add (v, one)
        {body}
        size = Mod (t{count}, wide)
        y = Expand (zero, size)
    }}"""
    assert_as_reference(graph, {"x": floats(3, 5)}, {"x": floats(1, 2)}, {"x": floats(1, 0)})


def test_sizes_that_are_added_to_themselves() -> None:
    """Written out without sharing, sixty doublings are 2^60 sums."""
    body = "\n".join(
        f"t{i + 1} = Add (t{i}, t{i})" if i % 2 else f"t{i + 1} = Mod (t{i}, seven)"
        for i in range(120)
    )
    graph = f"""g (int64[2] v) => (float[a, b] y)
        <int64[2] seven = {{7, 7}}, float zero = {{0}}> {{
        t0 = Add (v, v)
        {body}
        y = Expand (zero, t120)
    }}"""
    assert_as_reference(graph, {"v": np.array([3, 4])}, {"v": np.array([0, 1])})
