"""Dimensions of inputs: names, ranges, expressions, and what a model implies."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from support.onnx_models import INT64, model, run, tensor
from tilewright.frontend.onnx import DEFAULT_HIGH, Dim, import_model
from tilewright.support.errors import DimensionError, InvalidModelError, UnsupportedError


def relu(*shapes):
    """One Relu per input shape."""
    nodes = [helper.make_node("Relu", [f"x{i}"], [f"y{i}"]) for i in range(len(shapes))]
    inputs = [tensor(f"x{i}", s) for i, s in enumerate(shapes)]
    outputs = [tensor(f"y{i}", None) for i in range(len(shapes))]
    for value in outputs:
        value.type.tensor_type.ClearField("shape")
    return model(nodes, inputs, outputs)


def shapes(proto, **options):
    graph, report = import_model(proto, **options)
    return [[str(s) for s in i.shape] for i in graph.inputs], report


def test_names_constants_and_unnamed_sizes():
    found, report = shapes(relu(["batch", None, 3], ["batch", 7, "seq"]))
    assert found == [["batch", "x0_1", "3"], ["batch", "7", "seq"]]
    rows = {d.name: d for d in report.dimensions}
    assert set(rows) == {"batch", "x0_1", "seq"}
    assert rows["batch"].places == (("x0", 0), ("x1", 0))
    assert (rows["seq"].low, rows["seq"].high, rows["seq"].origin) == (0, DEFAULT_HIGH, "default")


def test_given_ranges_reach_the_scope():
    graph, report = import_model(relu(["n", 4]), dims={"n": Dim(2, 64, multiple_of=2)})
    assert graph.scope.symbols["n"] == (2, 64, 2)
    assert report.dimensions[0].origin == "given"


def test_unnamed_sizes_can_be_given():
    graph, _ = import_model(relu([None]), dims={"x0_0": Dim(1, 8)})
    assert graph.scope.symbols["x0_0"] == (1, 8, 1)


@pytest.mark.parametrize("stated", ["x0_0", "x0_0 + 1", "x0_0_2*x0_0"])
def test_an_unnamed_size_is_not_the_one_that_another_input_calls_alike(stated: str):
    found, _ = shapes(relu([None], [stated], ["x0_0"]))
    (own,), (other,), _ = found
    assert own not in other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2*n", "2*n"),
        ("n + 1", "n + 1"),
        ("m*n", "m*n"),
        ("sequence length", "sequence_length"),
        ("(floor(height/16))", "floor_height_16"),
        ("12", "dim_12"),
        ("q*r", "q_r"),
        ("p//2", "p_2"),
    ],
)
def test_texts_that_are_no_names(text, expected):
    found, _ = shapes(relu(["m", "n"], [text]))
    assert found[1] == [expected]


def test_names_of_any_script_are_kept():
    found, _ = shapes(relu(["größe", "批次", "2*größe + 1", "批 次", "²"]))
    assert found == [["größe", "批次", "2*größe + 1", "批_次", "dim_²"]]


def test_a_linear_expression_brings_its_own_symbol():
    found, report = shapes(relu(["3*k + 1"]))
    assert found == [["3*k + 1"]]
    assert [d.name for d in report.dimensions] == ["k"]


def test_texts_that_fall_on_the_same_name_stay_apart():
    found, _ = shapes(relu(["a b", "a-b", "a_b"]))
    assert len(set(found[0])) == 3
    assert found[0][2] == "a_b"


def test_the_text_of_the_model_can_be_used_as_key():
    graph, _ = import_model(relu(["sequence length"]), dims={"sequence length": Dim(1, 9)})
    assert graph.scope.symbols["sequence_length"] == (1, 9, 1)


def test_unknown_and_static_dimensions_are_refused():
    with pytest.raises(DimensionError, match="batch, seq"):
        import_model(relu(["batch", "seq"]), dims={"bach": Dim(1, 2)})
    with pytest.raises(DimensionError, match="is 4 in the model"):
        import_model(relu(["batch", 4]), dims={"x0_1": Dim(1, 2)})


@pytest.mark.parametrize("bad", [(-1, 4, 1), (5, 4, 1), (0, 4, 0)])
def test_impossible_ranges(bad):
    with pytest.raises(DimensionError):
        Dim(*bad)


def test_rank_unknown_has_a_way_out():
    proto = relu([1])
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="number of axes") as caught:
        import_model(proto)
    assert caught.value.hint


def test_negative_sizes_are_invalid():
    with pytest.raises(InvalidModelError) as caught:
        import_model(relu([-3]))
    assert caught.value.where == 'input "x0", axis 0' and caught.value.hint


def test_a_size_of_minus_one_is_none():
    """As in ONNX Runtime; PaddlePaddle exports dynamic axes like this."""
    proto = relu([-1, 4])
    found, report = shapes(proto)
    assert found == [["x0_0", "4"]] and [d.name for d in report.dimensions] == ["x0_0"]
    graph, _ = import_model(proto, constants={"x0": np.ones((3, 4), np.float32)})
    assert graph.inputs == ()


def test_a_table_of_positions_limits_its_dimension():
    """[1, 512] positions cut at the length of x, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "n", "one"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    weights = {
        "table": np.arange(512, dtype=np.float32).reshape(1, 512),
        "zero": np.array([0]),
        "one": np.array([1]),
    }
    proto = model(nodes, [tensor("x", ["b", "s"])], [tensor("y", ["b", "s"])], weights=weights)
    graph, report = import_model(proto)
    row = next(d for d in report.dimensions if d.name == "s")
    assert (row.high, row.origin) == (512, "model")
    assert graph.guards == ()
    assert [str(s) for s in graph.outputs[0][1].shape] == ["b", "s"]
    x = np.ones((2, 512), dtype=np.float32)
    assert np.array_equal(run(graph, x=x)["y"], x + np.arange(512, dtype=np.float32))
    with pytest.raises(DimensionError):
        run(graph, x=np.ones((2, 513), dtype=np.float32))


def test_equal_sizes_learnt_late_are_one_symbol():
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    proto = model(
        nodes, [tensor("a", ["m", "k"]), tensor("b", ["l", "n"])], [tensor("y", [None] * 2)]
    )
    graph, _ = import_model(proto, dims={n: Dim(2, 64) for n in "mkln"})
    assert graph.inputs[0].shape[1] is graph.inputs[1].shape[0]
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    assert np.array_equal(run(graph, a=a, b=b)["y"], a @ b)
    with pytest.raises(DimensionError):
        run(graph, a=a, b=np.ones((5, 5), np.float32))


def test_integer_inputs_keep_their_type():
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph, _ = import_model(model(nodes, [tensor("x", ["n"], INT64)], [tensor("y", ["n"], INT64)]))
    assert run(graph, x=np.array([1, -2]))["y"].tolist() == [-1, 2]
