"""The text of a graph, compared whole."""

from __future__ import annotations

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Dimension,
    GatherND,
    Input,
    Map,
    Opaque,
    Project,
    Reduce,
    Slice,
    TensorType,
)
from tilewright.ir.printing import print_graph, snake_case
from tilewright.shape import Guard, Scope, constant, less_equal

GOLDEN = """\
graph rows(x: float32[batch, 4], sizes: int64[1])
  0 <= batch <= 64, multiple of 2
  require 2 <= batch
  %0: float32[4, 3] = constant <{digest}>                            # weights
  %1: float32[batch, 3] = contract x, %0, batch=[], summed=[[1, 0]]
  %2: float32[batch] = reduce %1, kind=maximum, axes=[1]
  %3: float32[batch, 3] = broadcast %2, shape=[batch, 3], axes=[0]
  %4: float32[batch, 3] = map %1, %3, function=subtract                 # Sub "s"
  %5: int64[] = dimension value=2*batch + 1
  %6: float32[] = cast %5, dtype=float32
  %7: int8[2] = constant [1, -1]
  return y = %4, z = %6, c = %7
  bind_line
"""


def graph():
    scope = Scope()
    batch = scope.declare("batch", 0, 64, 2)
    x = node(Input("x", DType.FLOAT32, (batch, constant(4))))
    sizes = node(Input("sizes", DType.INT64, (constant(1),)))
    weights = node(Constant.of(np.arange(12, dtype=np.float32).reshape(4, 3)))
    product = node(Contract((), ((1, 0),)), x, weights)
    largest = node(Reduce("maximum", (1,)), product)
    wide = node(Broadcast((batch, constant(3)), (0,)), largest)
    y = node(Map("subtract"), product, wide)
    z = node(Cast(DType.FLOAT32), node(Dimension(batch * 2 + 1)))
    c = node(Constant.of(np.array([1, -1], np.int8)))
    guards = (Guard(less_equal(2, batch), "two rows or more"),)
    labels = {weights: "weights", y: 'Sub "s"'}
    outputs = (("y", y), ("z", z), ("c", c))
    made = Graph("rows", (x, sizes), outputs, scope, (), guards, labels)
    assert isinstance(weights.primitive, Constant)
    return made, weights.primitive.digest.hex()[:12]


def test_golden_text():
    made, digest = graph()
    expected = GOLDEN.format(digest=digest).replace("  bind_line\n", "")
    lines = [line.rstrip() for line in print_graph(made, labels=True).splitlines()]
    wanted = [line.rstrip() for line in expected.splitlines()]
    assert [" ".join(line.split()) for line in lines] == [" ".join(w.split()) for w in wanted]
    assert all(line.startswith(("graph", "  ")) for line in lines)


def test_without_labels_there_are_no_comments():
    made, _ = graph()
    assert "#" not in print_graph(made)


def test_opaque_operators_bindings_and_slices():
    scope = Scope()
    n = scope.declare("n", 0)
    x = node(Input("x", DType.FLOAT32, (n,)))
    count = scope.fresh("unique")
    kinds = (TensorType(DType.FLOAT32, (count,)), TensorType(DType.INT64, (count,)))
    values = node(Opaque("Unique", b"payload", kinds, 3), x)
    where = node(Project(1, kinds[1]), values)
    k = scope.fresh("value", None)
    cut = node(Slice((constant(0),), (k,), (constant(1),)), where)
    length = node(Input("k", DType.INT64, ()))
    text = print_graph(
        Graph("g", (x, length), (("y", cut),), scope, (Binding(length, ("value_0",)),))
    )
    assert "opaque Unique #3 x, outputs=[float32[unique_0], int64[unique_0]]" in text
    assert "project %0, index=1, output=int64[unique_0]" in text
    assert "slice %1, starts=[0], sizes=[value_0], steps=[1]" in text
    assert "bind value_0 = k" in text


def test_snake_case():
    assert snake_case(GatherND.__name__) == "gather_nd"
    assert snake_case("ArgReduce") == "arg_reduce"
