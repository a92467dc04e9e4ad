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
    assert compiled.info.fallbacks == {"SplitToSequence": 1}
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


# ---------------------------------------------------------------- numbers that a call tells

UNKNOWN: dict[str, tuple[list[onnx.NodeProto], list[str], dict[str, Any]]] = {
    "each row": (
        [step("SplitToSequence", "x", "s", axis=0, keepdims=0), step("SequenceAt", "s at", "a"),
         step("SequenceLength", "s", "length"),
         step("ConcatFromSequence", "s", "b", axis=-1, new_axis=1),
         step("ConcatFromSequence", "s", "c", axis=0)],
        ["a", "length", "b", "c"], {},
    ),
    "each row as a matrix": (
        [step("SplitToSequence", "x", "s", axis=0), step("SequenceAt", "s at", "a"),
         step("ConcatFromSequence", "s", "b", axis=1),
         step("ConcatFromSequence", "s", "c", axis=1, new_axis=1)],
        ["a", "b", "c"], {},
    ),
    "rows by number": (
        [step("SplitToSequence", "x two", "s", axis=0), step("Identity", "s", "t"),
         step("SequenceAt", "t at", "a"), step("SequenceLength", "t", "length"),
         step("ConcatFromSequence", "t", "b", axis=0)], ["a", "length", "b"], {"two": 2},
    ),
    "alike": (
        [step("Neg", "x", "z"), step("SequenceConstruct", "x z x z", "s"),
         step("SequenceAt", "s at", "a")], ["a"], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_left_of_parts_whose_number_a_call_tells(name: str) -> None:
    nodes, outputs, constants = UNKNOWN[name]
    made = model(nodes, outputs, **constants)
    compiled = tw.compile(made, fallback="error")
    reference = ReferenceEvaluator(made)
    for n, at in ((7, 0), (7, 1), (7, -1), (7, 3), (8, -2), (1, 0)):
        given = feeds(n, at)
        wanted = reference.run(None, given)
        for got, expected in zip(compiled.run(given).values(), wanted, strict=True):
            np.testing.assert_array_equal(got, expected)
            assert np.asarray(got).dtype == np.asarray(expected).dtype
    with pytest.raises(TilewrightError, match="out of bounds"):
        compiled.run(feeds(1, 4))


@pytest.mark.parametrize("size", [None, 3])
def test_lengths_that_a_call_tells(size: int | None) -> None:
    nodes = [step("SplitToSequence", "x l", "s", axis=0), step("SequenceAt", "s at", "a")]
    outputs = ["a"]
    if size is not None:  # of a known number of parts, which can be put together again
        nodes.append(step("ConcatFromSequence", "s", "b", axis=0))
        outputs.append("b")
    made = model([*nodes, step("SequenceLength", "s", "length")], [*outputs, "length"])
    made.graph.input.append(helper.make_tensor_value_info("l", INT64, [size or "p"]))
    if size is not None:
        nodes[1].input[1] = "k"
        del made.graph.node[1]
        made.graph.node.insert(1, nodes[1])
        made.graph.initializer.append(numpy_helper.from_array(np.array(1), "k"))
    compiled = tw.compile(made, fallback="error")
    reference = ReferenceEvaluator(made)
    for lengths, at in (([2, 3, 5], 1), ([0, 7, 0], -2), ([4, 0, 1], 1)):
        given = {**feeds(sum(lengths), at), "l": np.array(lengths)}
        wanted = reference.run(None, given)
        for got, expected in zip(compiled.run(given).values(), wanted, strict=True):
            np.testing.assert_array_equal(got, expected)
    if size is not None:
        for lengths, message in (([2, 3, 4], "not the whole"), ([-1, 3, 8], "negative")):
            with pytest.raises(TilewrightError, match=message):
                compiled.run({**feeds(10), "l": np.array(lengths)})


# ---------------------------------------------------------------- loops


def loop(
    body: list[onnx.NodeProto], appended: str, first: str = "", *, states: tuple[str, ...] = ()
) -> onnx.NodeProto:
    """A loop of n turns that appends a value of each turn to a sequence "s", which is "t" then.

    ``states`` are others, "h" and so on, which the body hands back as "h2" and so on.
    """
    values = helper.make_tensor_value_info
    state = helper.make_tensor_sequence_value_info("s_in", FLOAT, None)
    back = helper.make_tensor_sequence_value_info("s_out", FLOAT, None)
    graph = helper.make_graph(
        [*body, step("SequenceInsert", f"s_in {appended}", "s_long"),
         step("Identity", "s_long", "s_out"), step("Identity", "go", "go_on")],
        "body",
        [values("i", INT64, []), values("go", TensorProto.BOOL, []),
         *(values(h, FLOAT, None) for h in states), state],
        [values("go_on", TensorProto.BOOL, []), *(values(f"{h}2", FLOAT, None) for h in states),
         back],
    )  # fmt: skip
    ends = [f"{h}_end" for h in states]
    return helper.make_node(
        "Loop", ["count", "yes", *(f"{h}_first" for h in states), first], [*ends, "t"], body=graph
    )


COUNT = [
    step("Shape", "x", "shape"), step("Gather", "shape zero", "count"),
    step("Constant", "", "yes", value=numpy_helper.from_array(np.array(True))),
]  # fmt: skip
EMPTY = [step("SequenceEmpty", "", "e")]
LOOPS: dict[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "rows are stacked": (
        [*COUNT, *EMPTY, loop([step("Gather", "x i", "r"), step("Exp", "r", "o")], "o", "e"),
         step("ConcatFromSequence", "t", "a", axis=-1, new_axis=1),
         step("SequenceLength", "t", "length")], ["a", "length"],
    ),
    "rows of a sequence are joined": (
        [*COUNT, *EMPTY, step("SplitToSequence", "x", "rows", axis=0),
         loop([step("SequenceAt", "rows i", "r"), step("Exp", "r", "o")], "o", "e"),
         step("ConcatFromSequence", "t", "a", axis=0)], ["a"],
    ),
    "behind a first one, with a state": (
        [*COUNT, step("Gather", "x zero", "h_first"), step("Neg", "h_first", "g"),
         step("SequenceConstruct", "g h_first", "e"),
         loop([step("Gather", "x i", "r"), step("Add", "r h", "h2")], "h2", "e", states=("h",)),
         step("ConcatFromSequence", "t", "a", axis=0, new_axis=1), step("Neg", "h_end", "b")],
        ["a", "b"],
    ),
    "one of a few by number": (
        [*COUNT, *EMPTY, step("Neg", "x", "z"), step("SequenceConstruct", "x z", "both"),
         loop([step("Mod", "i two", "j"), step("SequenceAt", "both j", "o")], "o", "e"),
         step("ConcatFromSequence", "t", "a", axis=1)], ["a"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_append_are_compiled(name: str) -> None:
    nodes, outputs = LOOPS[name]
    made = model(nodes, outputs, zero=0, two=2)
    compiled = tw.compile(made, fallback="error")
    reference = ReferenceEvaluator(made)
    for n in (1, 2, 5):
        wanted = reference.run(None, feeds(n))
        for got, expected in zip(compiled.run(feeds(n)).values(), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
            assert np.asarray(got).dtype == np.asarray(expected).dtype


def test_a_loop_that_appends_in_no_turn() -> None:
    """ONNX's operators refuse to join nothing; here nothing is joined to an empty tensor."""
    nodes, outputs = LOOPS["rows are stacked"]
    compiled = tw.compile(model(nodes, outputs, zero=0), fallback="error")
    found = compiled.run(feeds(0))
    assert found["a"].shape == (6, 0)
    assert found["length"] == 0


def test_the_sequence_of_a_loop_may_be_a_result() -> None:
    nodes, _ = LOOPS["rows are stacked"]
    made = model([*nodes[:-2], step("Identity", "t", "s")], ["s"], zero=0)
    compiled = tw.compile(made)
    assert compiled.info.fallbacks == {"Loop": 1}  # what makes a sequence of its stack
    given = feeds(3)
    np.testing.assert_allclose(np.stack(compiled.run(given)["s"]), np.exp(given["x"]), rtol=1e-6)


MORE: dict[str, list[onnx.NodeProto]] = {
    "the sequence is read": [step("SequenceLength", "s_in", "q"), step("Gather", "x q", "o")],
    "sizes change": [step("Add", "i one", "k"), step("Reshape", "k wide", "end"),
                     step("Slice", "x none end", "o")],
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_other_loops_stay_with_the_reference(name: str) -> None:
    nodes = [*COUNT, *EMPTY, loop(MORE[name], "o", "e"), step("Identity", "t", "s")]
    compiled = tw.compile(model(nodes, ["s"], zero=0, one=1, wide=[1], none=[0]))
    assert "Loop" in compiled.info.fallbacks
    given = feeds(3)
    rows = [given["x"][i] if name.startswith("the") else given["x"][: i + 1] for i in range(3)]
    for got, expected in zip(compiled.run(given)["s"], rows, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("known", [True, False])
def test_sequence_map(known: bool) -> None:
    """Of known elements, which may differ in their sizes, and of rows whose number is unknown."""
    body = helper.make_graph(
        [step("Exp", "r", "q"), step("Mul", "q k", "m")],
        "body",
        [helper.make_tensor_value_info("r", FLOAT, None)],
        [helper.make_tensor_value_info("m", FLOAT, None)],
    )
    first = step("SplitToSequence", "x", "e", axis=0)
    second = step("ConcatFromSequence", "t", "a", axis=0)
    if known:
        first, second = step("SequenceConstruct", "x y", "e"), step("SequenceAt", "t at", "a")
        second.input[1] = "one"
    nodes = [first, helper.make_node("SequenceMap", ["e"], ["t"], body=body), second]
    made = model(nodes, ["a"], one=1)
    made.graph.initializer.append(numpy_helper.from_array(np.float32(2), "k"))
    compiled = tw.compile(made, fallback="error")
    for n in (1, 4):
        given = feeds(n)
        wanted = 2 * np.exp(given["y" if known else "x"])
        np.testing.assert_allclose(compiled.run(given)["a"], wanted, rtol=1e-6)


def test_an_element_is_inserted_where_a_call_tells() -> None:
    """From the beginning to behind the last one, which onnx's evaluator mistakes."""
    nodes = [step("SequenceConstruct", "y y", "t"), step("SequenceInsert", "t x at", "s")]
    compiled = tw.compile(model(nodes, ["s"]))
    for at, place in ((0, 0), (1, 1), (2, 2), (-1, 1), (-2, 0)):
        found = compiled.run(feeds(3, at))["s"]
        assert [v.shape[1] for v in found].index(6) == place
    with pytest.raises(TilewrightError, match="out of range"):
        compiled.run(feeds(3, 3))
