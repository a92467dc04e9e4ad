"""Small ONNX models for the tests of the importer, and running an imported graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Input
from tilewright.ops.reference import evaluate_payload
from tilewright.shape import InputPattern, bind_inputs

FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64
BOOL = onnx.TensorProto.BOOL


def tensor(name: str, shape: Sequence[int | str | None] | None, kind: int = FLOAT) -> Any:
    """A value info; None as shape leaves the rank open, None as size leaves it without a name."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
    opsets: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of the default domain's ``opset`` and any further ``opsets``."""
    initializers = [numpy_helper.from_array(a, name=n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), initializers)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (opsets or {}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def run(graph: Graph, **feeds: Any) -> dict[str, Any]:
    """Evaluate an imported graph on named inputs, its guards checked."""
    inputs = [i.primitive for i in graph.inputs]
    assert all(isinstance(i, Input) for i in inputs)
    plan = bind_inputs([InputPattern(i.name, i.shape) for i in inputs], graph.scope)  # type: ignore[union-attr]
    symbols = plan.solve([np.shape(feeds[p.name]) if p.shape else () for p in plan.inputs])
    for guard in graph.guards:
        if set(guard.condition.free_symbols) <= set(symbols):
            guard.check(symbols)
    return evaluate(graph, feeds, symbols, evaluate_payload)
