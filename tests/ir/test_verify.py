"""The checks of a graph find what is wrong, and nothing in what is right."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, node
from tilewright.ir.primitives import (
    Constant,
    Dimension,
    Input,
    Iota,
    Map,
    Opaque,
    Project,
    Reshape,
    TensorType,
)
from tilewright.ir.verify import VerificationError, problems, verify
from tilewright.shape import Guard, Scope, equal, symbol


def scene(*names):
    scope = Scope()
    return scope, [scope.declare(name, 0, 64) for name in names]


def test_a_correct_graph_has_no_problems():
    scope, (n,) = scene("n")
    x = node(Input("x", DType.FLOAT32, (n,)))
    verify(Graph("g", (x,), (("y", node(Map("negate"), x)),), scope))


def test_inputs_and_outputs():
    scope, (n,) = scene("n")
    x = node(Input("x", DType.FLOAT32, (n,)))
    z = node(Input("x", DType.INT64, (n,)))
    y = node(Map("negate"), x)
    assert "not listed" in problems(Graph("g", (), (("y", y),), scope))[0]
    assert "two outputs" in problems(Graph("g", (x,), (("y", y), ("y", x)), scope))[0]
    assert "two inputs" in problems(Graph("g", (x, z), (("y", y),), scope))[0]
    assert "listed as an input" in problems(Graph("g", (x, y), (("y", y),), scope))[0]
    assert "no outputs" in problems(Graph("g", (x,), (), scope))[0]


def test_a_type_that_was_changed():
    scope, (n,) = scene("n")
    x = node(Input("x", DType.FLOAT32, (n,)))
    y = object.__new__(Node)
    y.primitive, y.inputs, y.type = Map("absolute"), (x,), TensorType(DType.INT8, (n,))
    found = problems(Graph("g", (x,), (("y", y),), scope))
    assert any("another type" in f for f in found)
    assert any("not interned" in f for f in found)


def test_operands_that_do_not_fit():
    scope, (n,) = scene("n")
    x = node(Input("x", DType.FLOAT32, (n,)))
    y = object.__new__(Node)
    y.primitive, y.inputs, y.type = Map("add"), (x,), x.type
    assert "does not fit" in problems(Graph("g", (x,), (("y", y),), scope))[0]


def test_a_constant_that_holds_something_else():
    scope, _ = scene()
    array = np.zeros(3, np.float32)
    wrong = node(Constant(b"other digest", DType.FLOAT64, (3,), array))
    assert "holds float32" in problems(Graph("g", (), (("y", wrong),), scope))[0]


def test_a_selection_of_what_is_not_there():
    scope, (n,) = scene("n")
    x = node(Input("x", DType.FLOAT32, (n,)))
    two = node(Opaque("Two", b"", (x.type, x.type)), x)
    assert problems(Graph("g", (x,), (("y", node(Project(1, x.type), two)),), scope)) == []
    assert problems(Graph("g", (x,), (("y", node(Project(2, x.type), two)),), scope))


def test_dimensions_that_nothing_determines():
    scope, (n, m) = scene("n", "m")
    x = node(Input("x", DType.FLOAT32, (n,)))
    wild = node(Iota((m,), 0))
    graph = Graph("g", (x,), (("y", wild),), scope)
    assert any('"m"' in f for f in problems(graph))
    with pytest.raises(VerificationError, match="m"):
        verify(graph)
    guarded = Graph("g", (x,), (("y", x),), scope, guards=(Guard(equal(m, 3), "m is 3"),))
    assert any("demand" in f for f in problems(guarded))


def test_equalities_bindings_and_opaque_results_determine_dimensions():
    scope, (n, m) = scene("n", "m")
    x = node(Input("x", DType.FLOAT32, (n,)))
    scope.assume_equal(m, n * 1)
    assert problems(Graph("g", (x,), (("y", node(Iota((m,), 0))),), scope)) == []
    value = scope.declare("value", 0, 9)
    sizes = node(Input("sizes", DType.INT64, ()))
    made = node(Dimension(value))
    bound = Graph("g", (x, sizes), (("y", made),), scope, (Binding(sizes, ("value",)),))
    assert problems(bound) == []
    count = scope.declare("count", 0)
    opaque = node(Opaque("Some", b"", (TensorType(DType.FLOAT32, (count,)),)), x)
    flat = node(Reshape((count, symbol("n") * 0 + 1)), opaque)
    assert problems(Graph("g", (x,), (("y", flat),), scope)) == []


def test_a_binding_must_not_need_itself():
    scope, (n,) = scene("n")
    value = scope.declare("value", 0, 9)
    made = node(Dimension(value + n))
    x = node(Input("x", DType.FLOAT32, (n,)))
    graph = Graph("g", (x,), (("y", made),), scope, (Binding(made, ("value",)),))
    assert any('"value"' in f for f in problems(graph))
