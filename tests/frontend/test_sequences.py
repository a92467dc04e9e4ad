"""Sequences of known elements are taken apart when compiling; others run on the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.support.errors import TilewrightError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes: list[onnx.NodeProto], outputs: list[str], **constants: Any) -> onnx.ModelProto:
    """Nodes of x[n, 6] and y[n, 3], and of constants."""
    graph = helper.make_graph(
        nodes,
        "sequences",
        [
            helper.make_tensor_value_info("x", FLOAT, ["n", 6]),
            helper.make_tensor_value_info("y", FLOAT, ["n", 3]),
            helper.make_tensor_value_info("at", INT64, []),
        ],
        [_output(name) for name in outputs],
        [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _output(name: str) -> onnx.ValueInfoProto:
    """A float tensor of any shape; "s" is a sequence and "length" an integer."""
    if name == "s":
        return helper.make_tensor_sequence_value_info(name, FLOAT, None)
    return helper.make_tensor_value_info(name, INT64 if name == "length" else FLOAT, None)


def step(kind: str, reads: str, writes: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, reads.split(), [writes], **attributes)


def feeds(n: int, at: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(n)
    x, y = (random.standard_normal((n, width)).astype(np.float32) for width in (6, 3))
    return {"x": x, "y": y, "at": np.array(at)}


CHAINS: dict[str, tuple[list[onnx.NodeProto], list[str], dict[str, Any]]] = {
    "each column": (
        [step("SplitToSequence", "x", "s", axis=1, keepdims=0), step("SequenceAt", "s k", "a"),
         step("SequenceLength", "s", "length")], ["a", "length"], {"k": -2},
    ),
    "columns by number": (
        [step("SplitToSequence", "x four", "s", axis=-1), step("SequenceAt", "s k", "a"),
         step("SequenceAt", "s zero", "b")], ["a", "b"], {"four": 4, "k": 1, "zero": 0},
    ),
    "columns by lengths": (
        [step("SplitToSequence", "x parts", "s", axis=1), step("Identity", "s", "t"),
         step("ConcatFromSequence", "t", "a", axis=0),
         step("ConcatFromSequence", "t", "b", axis=-1, new_axis=1)], ["a", "b"],
        {"parts": [3, 3]},
    ),
    "put in and taken out": (
        [step("SequenceEmpty", "", "e"), step("SequenceInsert", "e y", "s1"),
         step("Neg", "y", "z"), step("SequenceInsert", "s1 z", "s2"),
         step("Exp", "y", "w"), step("SequenceInsert", "s2 w k", "s3"),
         step("SequenceErase", "s3 zero", "s4"), step("SequenceErase", "s4", "s5"),
         step("SequenceAt", "s3 k", "a"), step("ConcatFromSequence", "s3", "b", axis=1),
         step("ConcatFromSequence", "s5", "c", axis=1, new_axis=1)],
        ["a", "b", "c"], {"k": -1, "zero": 0},
    ),
    "constructed": (
        [step("SequenceConstruct", "y y", "s"), step("SequenceInsert", "s y zero", "t"),
         step("ConcatFromSequence", "t", "a", axis=0, new_axis=1)], ["a"], {"zero": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_nothing_is_left_of_sequences_of_known_elements(name: str) -> None:
    nodes, outputs, constants = CHAINS[name]
    for node in nodes:
        del node.input[len([i for i in node.input if i]) :]
    made = model(nodes, outputs, **constants)
    compiled = tw.compile(made, fallback="error")
    reference = ReferenceEvaluator(made)
    for n in (0, 1, 5):
        given = feeds(n)
        wanted = reference.run(None, given)
        found = compiled.run(given)
        for got, expected in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
            assert np.asarray(got).dtype == np.asarray(expected).dtype


PARTS = step("SplitToSequence", "x three", "s", axis=1)


@pytest.mark.parametrize("place", [2, -3])
def test_a_position_outside_is_an_error_of_the_call(place: int) -> None:
    made = model([PARTS, step("SequenceAt", "s k", "a")], ["a"], three=3, k=place)
    compiled = tw.compile(made)
    assert compiled.info.fallbacks == {"SequenceAt": 1, "SplitToSequence": 1}
    with pytest.raises(TilewrightError, match="out of range"):
        compiled.run(feeds(2))


def test_a_position_that_a_call_tells_and_a_sequence_that_is_a_result() -> None:
    made = model([PARTS, step("SequenceAt", "s at", "a")], ["a", "s"], three=3)
    compiled = tw.compile(made)
    assert compiled.info.fallbacks == {"SequenceAt": 1, "SplitToSequence": 1}
    for at in (0, 1, -1):
        given = feeds(2, at)
        found = compiled.run(given)
        np.testing.assert_array_equal(found["a"], np.split(given["x"], 2, 1)[at])
        np.testing.assert_array_equal(np.concatenate(found["s"], 1), given["x"])


def test_parts_that_are_not_the_whole_are_refused() -> None:
    nodes = [step("SplitToSequence", "x parts", "s"), step("ConcatFromSequence", "s", "a", axis=0)]
    compiled = tw.compile(model(nodes, ["a"], parts=[2, 3]))
    assert compiled.run(feeds(5))["a"].shape == (5, 6)
    with pytest.raises(TilewrightError, match="size 4 differs from 5"):
        compiled.run(feeds(4))
