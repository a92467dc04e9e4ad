"""If, Loop and Scan whose bodies are compiled, against the ONNX reference evaluator.

Needs: a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.ops.reference_corrections import CORRECTIONS
from tilewright.support.errors import UnsupportedError

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 6
Array = np.ndarray[Any, Any]


def info(name: str, kind: int = FLOAT, shape: Sequence[int | str] | None = None) -> Any:
    """A value of a graph."""
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model of these nodes."""
    held = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weights() -> Array:
    """A matrix that keeps states of its own size."""
    return np.random.default_rng(5).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3


def agrees(model: onnx.ModelProto, calls: Sequence[Mapping[str, Any]], tmp_path: Path) -> None:
    """Compiled without the reference evaluator, before and after saving, it gives the same."""
    compiled = tilewright.compile(model, fallback="error")
    assert not compiled.info.fallbacks
    compiled.save(tmp_path / "model.tw")
    loaded = tilewright.load(tmp_path / "model.tw")
    reference = ReferenceEvaluator(model, new_ops=list(CORRECTIONS))
    names = [output.name for output in model.graph.output]
    for feeds in calls:
        given = {name: np.asarray(value) for name, value in feeds.items()}
        wanted: list[Any] = list(reference.run(None, given))
        for one in (compiled, loaded):
            for name, expected in zip(names, wanted, strict=True):
                found = one.run(given)[name]
                assert found.shape == np.shape(expected) and found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def rows(count: int, *more: int) -> Array:
    """Random rows."""
    shape = (count, *more, WIDTH)
    return np.random.default_rng(count).standard_normal(shape).astype(np.float32)


def branches() -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """A product with a constant from around, and twice the input."""
    product = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
    ]
    then = helper.make_graph(product, "then", [], [info("r")])
    twice = [helper.make_node("Add", ["x", "x"], ["t"])]
    return then, helper.make_graph(twice, "else", [], [info("t")])


def test_a_condition_that_is_an_input(tmp_path: Path) -> None:
    then, other = branches()
    chosen = helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other)
    after = helper.make_node("Neg", ["i"], ["y"])
    inputs = [info("c", BOOL, []), info("x", FLOAT, ["n", WIDTH])]
    model = model_of([chosen, after], inputs, [info("y")], {"w": weights()})
    calls = [{"c": c, "x": rows(n)} for c in (True, False) for n in (0, 1, 7, 100)]
    agrees(model, calls, tmp_path)


def loop_body() -> onnx.GraphProto:
    """A state that is multiplied by a constant, and the sums of its rows in every turn."""
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["q"]),
        helper.make_node("ReduceSum", ["q", "last"], ["sums"], keepdims=0),
        helper.make_node("Identity", ["going"], ["still"]),
    ]
    inputs = [info("turn", INT, []), info("going", BOOL, []), info("s")]
    return helper.make_graph(nodes, "body", inputs, [info("still", BOOL), info("q"), info("sums")])


def loop() -> Any:
    """A loop with :func:`loop_body`, whose number of turns is m."""
    return helper.make_node("Loop", ["m", "", "x"], ["y", "z"], body=loop_body())


LAST = {"w": weights(), "last": np.array([1])}


def test_a_loop_that_makes_turns_by_an_input(tmp_path: Path) -> None:
    inputs = [info("m", INT, []), info("x", FLOAT, ["n", WIDTH])]
    model = model_of([loop()], inputs, [info("y"), info("z")], LAST)
    agrees(model, [{"m": m, "x": rows(n)} for m in (1, 2, 9) for n in (0, 1, 5)], tmp_path)


def test_a_loop_that_never_runs_gives_its_states_and_no_turns(tmp_path: Path) -> None:
    inputs = [info("m", INT, []), info("x", FLOAT, ["n", WIDTH])]
    compiled = tilewright.compile(model_of([loop()], inputs, [info("y"), info("z")], LAST))
    found = compiled.run({"m": np.array(0), "x": rows(4)})
    np.testing.assert_array_equal(found["y"], rows(4))
    assert found["z"].shape == (0, 4) and found["z"].dtype == np.float32


def test_results_of_a_loop_are_the_callers_own() -> None:
    inputs = [info("m", INT, []), info("x", FLOAT, ["n", WIDTH])]
    compiled = tilewright.compile(model_of([loop()], inputs, [info("y"), info("z")], LAST))
    given = rows(4)
    found = compiled.run({"m": np.array(0), "x": given})["y"]
    found[:] = 0.0
    np.testing.assert_array_equal(given, rows(4))


def test_states_that_grow_until_a_condition_fails(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Concat", ["s", "x"], ["more"], axis=0),
        helper.make_node("Shape", ["more"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["length"]),
        helper.make_node("Less", ["length", "limit"], ["still"]),
    ]
    parameters = [info("turn", INT, []), info("going", BOOL, []), info("s", FLOAT, ["a", WIDTH])]
    outputs = [info("still", BOOL), info("more", FLOAT, ["b", WIDTH])]
    body = helper.make_graph(nodes, "body", parameters, outputs)
    node = helper.make_node("Loop", ["", "c", "x"], ["y"], body=body)
    inputs = [info("c", BOOL, []), info("x", FLOAT, ["n", WIDTH])]
    constants = {"first": np.array(0), "limit": np.array(20)}
    model = model_of([node], inputs, [info("y", FLOAT, ["k", WIDTH])], constants)
    agrees(model, [{"c": c, "x": rows(n)} for c in (True, False) for n in (1, 3, 30)], tmp_path)


def test_a_loop_inside_of_a_branch(tmp_path: Path) -> None:
    inner = helper.make_node("Loop", ["m", "", "x"], ["inner", "unread"], body=loop_body())
    then = helper.make_graph([inner], "then", [], [info("inner")])
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=branches()[1])
    inputs = [info("c", BOOL, []), info("m", INT, []), info("x", FLOAT, ["n", WIDTH])]
    model = model_of([chosen], inputs, [info("y")], LAST)
    calls = [{"c": c, "m": m, "x": rows(3)} for c in (True, False) for m in (0, 4)]
    agrees(model, calls, tmp_path)


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_scan_along_any_axis(axis: int, backward: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["p"]),
        helper.make_node("Add", ["p", "x"], ["q"]),
        helper.make_node("Tanh", ["q"], ["r"]),
        helper.make_node("Identity", ["r"], ["each"]),
    ]
    body = helper.make_graph(nodes, "body", [info("s"), info("x")], [info("r"), info("each")])
    node = helper.make_node(
        "Scan", ["h", "xs"], ["y", "ys"], body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[backward], scan_output_axes=[axis], scan_output_directions=[1],
    )  # fmt: skip
    sizes = ["t", "b", WIDTH] if axis == 0 else ["b", "t", WIDTH]
    inputs = [info("h", FLOAT, ["b", WIDTH]), info("xs", FLOAT, sizes)]
    model = model_of([node], inputs, [info("y"), info("ys")], {"w": weights()})
    calls = [
        {"h": rows(b), "xs": rows(t, b) if axis == 0 else rows(b, t)}
        for b in (1, 3)
        for t in (1, 5)
    ]
    agrees(model, calls, tmp_path)


def test_operators_without_a_rule_inside_of_a_body_are_named() -> None:
    nodes = [helper.make_node("Det", ["x"], ["z"]), helper.make_node("Neg", ["z"], ["y1"])]
    then = helper.make_graph(nodes, "then", [], [info("y1", FLOAT)])
    other = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y2"])], "else", [], [info("y2", FLOAT)]
    )
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [info("c", BOOL, []), info("x", FLOAT, ["n", 3, 3])]
    model = model_of([chosen], inputs, [info("y", FLOAT, ["n"])])
    with pytest.raises(UnsupportedError, match="Det"):
        tilewright.compile(model, fallback="error")
    compiled = tilewright.compile(model)
    assert set(compiled.info.fallbacks) == {"Det"}
    for taken in (True, False):
        given = {"c": np.array(taken), "x": np.ones((2, 3, 3), np.float32)}
        (wanted,) = ReferenceEvaluator(model).run(None, given)
        np.testing.assert_array_equal(compiled.run(given)["y"], wanted)


def test_bodies_that_insert_at_a_position_stay_with_the_evaluator() -> None:
    nodes = [
        helper.make_node("Constant", [], ["first"], value_int=0),
        helper.make_node("SequenceInsert", ["s", "x", "first"], ["more"]),
        helper.make_node("Identity", ["going"], ["still"]),
    ]
    sequence = helper.make_tensor_sequence_value_info
    parameters = [info("turn", INT, []), info("going", BOOL, []), sequence("s", FLOAT, None)]
    outputs = [info("still", BOOL), sequence("more", FLOAT, None)]
    body = helper.make_graph(nodes, "body", parameters, outputs)
    model = model_of(
        [
            helper.make_node("SequenceEmpty", [], ["none"], dtype=FLOAT),
            helper.make_node("Loop", ["m", "", "none"], ["all"], body=body),
            helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0),
        ],
        [info("m", INT, []), info("x", FLOAT, ["n", WIDTH])],
        [info("y", FLOAT, ["k", WIDTH])],
    )
    compiled = tilewright.compile(model)
    assert "Loop" in compiled.info.fallbacks
    found = compiled.run({"m": np.array(3), "x": rows(2)})["y"]
    np.testing.assert_array_equal(found, np.concatenate([rows(2)] * 3))


def test_a_body_that_does_not_fit_what_it_is_given_is_named() -> None:
    """Where the branch is not taken, nothing is wrong."""
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["sum"])], "then", [], [info("sum")]
    )
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=branches()[1])
    inputs = [info("c", BOOL, []), info("x", FLOAT, ["n", WIDTH]), info("z", FLOAT, ["k", WIDTH])]
    compiled = tilewright.compile(model_of([chosen], inputs, [info("y")]))
    given = {"x": rows(3), "z": rows(2)}
    with pytest.raises(tilewright.errors.ExecutionError, match="A body of If cannot run") as found:
        compiled.run({"c": np.array(True), **given})
    assert 'If "y"' in str(found.value)
    np.testing.assert_array_equal(compiled.run({"c": np.array(False), **given})["y"], 2 * rows(3))


def test_options_reach_the_bodies() -> None:
    inputs = [info("m", INT, []), info("x", FLOAT, ["n", WIDTH])]
    compiled = tilewright.compile(model_of([loop()], inputs, [info("y"), info("z")], LAST))
    compiled.num_threads = 1
    compiled.max_bytes = 1
    with pytest.raises(tilewright.errors.ResourceError):
        compiled.run({"m": np.array(2), "x": rows(4)})
    compiled.max_bytes = None
    compiled.shrink()
    assert compiled.run({"m": np.array(2), "x": rows(4)})["z"].shape == (2, 4)
