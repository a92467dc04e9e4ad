"""Tiny ONNX models for the tests of what users do wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)
Entry = tuple[str, int, Sequence[int | str] | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Entry],
    outputs: Sequence[Entry],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    """A model of one graph; inputs and outputs are (name, element type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(*entry) for entry in inputs],
        [helper.make_tensor_value_info(*entry) for entry in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def two_inputs() -> onnx.ModelProto:
    """z = x @ w + y for x [batch, 4], y [batch, 3]."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["t"]),
            helper.make_node("Add", ["t", "y"], ["z"]),
        ],
        [("x", FLOAT, ["batch", 4]), ("y", FLOAT, ["batch", 3])],
        [("z", FLOAT, ["batch", 3])],
        {"w": weights},
    )


def outer_sum() -> onnx.ModelProto:
    """z[i, j] = x[i] + y[j]: small inputs, as large an output as one likes."""
    axis = np.array([1], np.int64)
    return model(
        [
            helper.make_node("Unsqueeze", ["x", "axis"], ["column"]),
            helper.make_node("Add", ["column", "y"], ["z"]),
        ],
        [("x", FLOAT, ["n"]), ("y", FLOAT, ["m"])],
        [("z", FLOAT, ["n", "m"])],
        {"axis": axis},
    )


def unary(operator: str, element: int = FLOAT, **attributes: Any) -> onnx.ModelProto:
    """y = operator(x) for x [n, 5]."""
    return model(
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        [("x", element, ["n", 5])],
        [("y", element, ["n", 5])],
    )


def product(left: Sequence[str], right: Sequence[str]) -> onnx.ModelProto:
    """x @ w of named dimensions, which may need to be equal."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["out"])]
    return model(nodes, [("x", FLOAT, left), ("w", FLOAT, right)], [("out", FLOAT, None)])
