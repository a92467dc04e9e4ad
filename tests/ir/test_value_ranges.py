"""Ranges of inputs follow from what a graph does with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx import import_model
from tilewright.ir.value_ranges import range_texts

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def node(kind: str, inputs: Sequence[str], output: str = "y", **attributes: int) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


def ranges(
    *nodes: onnx.NodeProto, output: int = FLOAT, **constants: object
) -> dict[str, tuple[str, str]]:
    """Of a graph with whole numbers x [n] and a table [m, 4]; its output is y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", INT, ["n"]),
            helper.make_tensor_value_info("table", FLOAT, ["m", 4]),
        ],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return range_texts(
        import_model(helper.make_model(graph, opset_imports=[opset], ir_version=8)).graph
    )


LOOKUP = node("Gather", ["table", "i"])


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ([node("Gather", ["table", "x"])], {}, ("0", "m - 1")),
        ([node("Gather", ["table", "x"], axis=1)], {}, ("0", "3")),
        ([node("Add", ["x", "two"], "i"), LOOKUP], {"two": 2}, ("-2", "m - 3")),
        ([node("Sub", ["x", "two"], "i"), LOOKUP], {"two": 2}, ("2", "m + 1")),
        ([node("Mul", ["x", "two"], "i"), LOOKUP], {"two": 2}, ("0", "ceil_div(m, 2) - 1")),
        ([node("Max", ["x", "one"], "i"), LOOKUP], {"one": 1}, ("", "m - 1")),
        ([node("Reshape", ["x", "flat"], "i"), LOOKUP], {"flat": [-1, 1]}, ("0", "m - 1")),
        (
            [node("OneHot", ["x", "depth", "ends"])],
            {"depth": 7, "ends": np.array([0, 1], np.float32)},
            ("0", "6"),
        ),
    ],
    ids=["gather", "axis", "add", "subtract", "multiply", "maximum", "reshape", "one-hot"],
)
def test_an_index_stays_in_its_table(
    nodes: list[onnx.NodeProto], constants: dict[str, object], expected: tuple[str, str]
) -> None:
    assert ranges(*nodes, **constants)["x"] == expected


def test_two_tables_allow_what_the_smaller_one_has() -> None:
    nodes = [
        node("Gather", ["table", "x"], "a"),
        node("Gather", ["few", "x"], "b"),
        node("Add", ["a", "b"]),
    ]
    assert ranges(*nodes, few=np.ones((2, 4), np.float32))["x"] == ("0", "min(2, m) - 1")


def test_a_negative_index_of_the_model_does_not_empty_the_range() -> None:
    nodes = [
        node("Add", ["x", "ten"], "wrapped"),
        node("Less", ["x", "zero"], "is_negative"),
        node("Where", ["is_negative", "wrapped", "x"], "i"),
        LOOKUP,
    ]
    assert ranges(*nodes, ten=10, zero=0)["x"] == ("0", "m - 1")


def test_a_divisor_is_not_zero_and_a_size_is_small() -> None:
    assert ranges(node("Div", ["one", "x"]), output=INT, one=[1])["x"] == ("1", "")
    count = [node("ReduceMax", ["x"], "end", keepdims=0), node("Range", ["zero", "end", "one"])]
    assert ranges(*count, output=INT, zero=0, one=1)["x"] == ("0", "16")


def test_what_is_only_added_up_has_no_range() -> None:
    assert ranges(node("Add", ["x", "x"]), output=INT) == {}
