"""Running payloads on onnx's reference, and the operators that it gets wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

from support.first_in_order import first_in_order
from tilewright.ops.reference import check_payload, evaluate_payload
from tilewright.support.errors import ExecutionError, UnsupportedError

NODE = helper.make_node


def value(name, kind=onnx.TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def payload(node, opset=21):
    inputs = [value(n) for n in node.input if n]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model.SerializeToString()


def test_a_payload_runs():
    data = payload(NODE("Add", ["a", "b"], ["c"]))
    one = np.ones(3, np.float32)
    assert evaluate_payload(data, [one, one])[0].tolist() == [2, 2, 2]
    check_payload(data, "here")


def test_unknown_operators_are_unsupported():
    with pytest.raises(UnsupportedError, match="neither a rule nor a reference"):
        check_payload(payload(NODE("NoSuchThing", ["a"], ["b"])), "here")


def test_failures_name_the_operator():
    with pytest.raises(ExecutionError, match="Add"):
        evaluate_payload(payload(NODE("Add", ["a", "b"], ["c"])), [np.ones(2), np.ones(3)])


def test_scatter_under_its_old_name():
    data = payload(NODE("Scatter", ["d", "i", "u"], ["y"], axis=1), 9)
    out = evaluate_payload(
        data,
        [np.zeros((1, 4), np.float32), np.array([[1, -1]]), np.array([[5, 6]], np.float32)],
    )
    assert out[0].tolist() == [[0, 5, 0, 6]]


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalised_where_there_are_none(norm):
    node = NODE("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm=norm)
    graph = helper.make_graph([node], "g", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets)
    assert evaluate_payload(model.SerializeToString(), [np.empty((0, 3), np.float32)])[0].size == 0
    x = np.array([[3, -4], [0, 0], [-1, -1]], np.float32)
    (made,) = evaluate_payload(model.SerializeToString(), [x])
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int64, np.str_])
def test_no_rows_have_no_class(dtype):
    labels = {np.int64: {"classlabels_ints": [3, 5]}, np.str_: {"classlabels_strings": ["a", "b"]}}
    node = NODE(
        "LinearClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml",
        coefficients=[1.0, -1.0, 2.0, 0.5], intercepts=[0.0, 0.5], **labels[dtype],
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [value("x")], [value("y"), value("z")])
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    chosen, scores = evaluate_payload(model, [np.empty((0, 2), np.float32)])
    assert (chosen.shape, chosen.dtype.kind) == ((0,), np.dtype(dtype).kind)
    assert (scores.shape, scores.dtype) == ((0, 2), np.float32)
    assert evaluate_payload(model, [np.ones((3, 2), np.float32)])[1].shape == (3, 2)


def test_trees_of_no_rows_have_no_scores():
    tensor, float_ = helper.make_tensor, onnx.TensorProto.FLOAT
    node = NODE(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, tree_roots=[0],
        nodes_featureids=[0], nodes_modes=tensor("modes", onnx.TensorProto.UINT8, [1], [0]),
        nodes_splits=tensor("splits", float_, [1], [0.5]), nodes_truenodeids=[0],
        nodes_falsenodeids=[1], nodes_trueleafs=[1], nodes_falseleafs=[1],
        leaf_targetids=[0, 1], leaf_weights=tensor("weights", float_, [2], [1.0, 2.0]),
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("ai.onnx.ml", 5), helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    (none,) = evaluate_payload(model, [np.empty((0, 3), np.float32)])
    assert (none.shape, none.dtype) == ((0, 2), np.float32)
    (some,) = evaluate_payload(model, [np.array([[0, 9], [1, 9]], np.float32)])
    assert some.tolist() == [[1, 0], [0, 2]]


def test_chances_of_three_classes_are_those_of_libsvm():
    random = np.random.default_rng(3)
    onnxruntime = pytest.importorskip("onnxruntime")
    node = NODE(
        "SVMClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml", kernel_type="RBF",
        kernel_params=[0.2, 0.0, 3.0], support_vectors=random.standard_normal(36).tolist(),
        coefficients=random.standard_normal(18).tolist(), vectors_per_class=[4, 3, 2],
        rho=[0.3, -0.2, 0.1], prob_a=[-2.0, -3.0, -1.5], prob_b=[0.1, -0.4, 0.2],
        classlabels_ints=[3, 5, 8],
    )  # fmt: skip
    outputs = [value("y", onnx.TensorProto.INT64), value("z")]
    graph = helper.make_graph([node], "g", [value("x")], outputs)
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = random.standard_normal((40, 4)).astype(np.float32)
    wanted = session.run(None, {"x": x})
    made = evaluate_payload(model, [x])
    np.testing.assert_array_equal(made[0], wanted[0])
    np.testing.assert_allclose(made[1], wanted[1], rtol=1e-3, atol=1e-5)
    assert [part.shape for part in evaluate_payload(model, [x[:0]])] == [(0,), (0, 3)]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_the_best_of_rows_with_ties(dtype, largest):
    random = np.random.default_rng(5)
    data = random.integers(0, 9, (3, 17, 2)).astype(dtype)
    if data.dtype.kind == "f":
        data = (data - dtype(4)) / dtype(2)
        data[0, 3:5, 0] = np.nan, np.inf
        data[1, 2:6, 1] = -0.0, 0.0, -np.inf, -np.nan
    for count, axis in ((5, 1), (0, 0), (3, 0), (2, -1), (17, 1)):
        data_of = payload(NODE("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest))
        values, places = evaluate_payload(data_of, [data, np.array([count])])
        expected_values, expected_places = first_in_order(data, count, axis, largest)
        np.testing.assert_array_equal(places, expected_places)
        np.testing.assert_array_equal(values, expected_values)
        assert values.dtype == data.dtype and places.dtype == np.int64


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i4", "u4", "i8", "u8"])
def test_the_best_of_long_rows(dtype):
    random = np.random.default_rng(6)
    least = 0 if dtype.startswith("u") else -2000
    data = random.integers(least, 2000, (3, 5003)).astype(dtype)
    data[2] = np.sort(data[2])  # every element is better than all before
    for count in (1, 33, 1000, 5003):
        for largest in (0, 1):
            data_of = payload(NODE("TopK", ["x", "k"], ["v", "i"], largest=largest))
            values, places = evaluate_payload(data_of, [data, np.array([count])])
            expected_values, expected_places = first_in_order(data, count, 1, largest)
            np.testing.assert_array_equal(places, expected_places)
            np.testing.assert_array_equal(values, expected_values)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_the_best_of_nothing(shape):
    data_of = payload(NODE("TopK", ["x", "k"], ["v", "i"]))
    values, places = evaluate_payload(data_of, [np.zeros(shape, np.float32), np.array([0])])
    assert values.shape == places.shape == (shape[0], 0)


def test_more_than_there_are_is_an_error():
    data_of = payload(NODE("TopK", ["x", "k"], ["v", "i"]))
    with pytest.raises(ExecutionError, match="5 of 3 elements"):
        evaluate_payload(data_of, [np.zeros((2, 3), np.float32), np.array([5])])


def loop(element):
    """A Loop that carries v, doubles it, and collects ``element`` of it."""
    body = helper.make_graph(
        [
            NODE("Identity", ["c"], ["going"]),
            NODE("Add", ["v", "v"], ["next"]),
            NODE(element, ["v"], ["part"]),
        ],
        "body",
        [value("i", 7, []), value("c", 9, []), value("v")],
        [value("going", 9, []), value("next"), value("part")],
    )
    return payload(NODE("Loop", ["count", "", "start"], ["last", "all"], body=body))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_loops_stack_what_they_collect(shape):
    start = np.ones(shape, np.float32)
    last, collected = evaluate_payload(loop("Neg"), [np.array(3), start])
    assert np.array_equal(last, 8 * start)
    assert np.array_equal(collected, np.stack([-start, -2 * start, -4 * start]))


def test_a_loop_without_turns():
    last, collected = evaluate_payload(loop("Neg"), [np.array(0), np.ones(3, np.float32)])
    assert last.tolist() == [1, 1, 1] and collected.shape[0] == 0


def scan(**options):
    body = helper.make_graph(
        [NODE("Add", ["s", "e"], ["next"]), NODE("Identity", ["next"], ["part"])],
        "body",
        [value("s"), value("e")],
        [value("next"), value("part")],
    )
    node = NODE("Scan", ["start", "x"], ["last", "all"], num_scan_inputs=1, body=body, **options)
    return payload(node)


def test_scans_along_axes_and_backwards():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = scan(scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1])
    last, collected = evaluate_payload(data, [np.zeros(2, np.float32), x])
    assert np.array_equal(last, x.sum(1))
    assert np.array_equal(collected, np.cumsum(x[:, ::-1], axis=1))
    data = scan(scan_output_directions=[1])
    _, collected = evaluate_payload(data, [np.zeros(3, np.float32), x])
    assert np.array_equal(collected, np.cumsum(x, axis=0)[::-1])


def test_optionals_hold_their_element():
    data = payload(NODE("Optional", ["x"], ["y"]), 15)
    x = np.ones(2, np.float32)
    assert evaluate_payload(data, [x])[0] is x
