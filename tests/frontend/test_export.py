"""Graphs written back as ONNX compute the same: in onnx's reference, and imported again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tilewright.frontend.onnx.export import to_onnx
from tilewright.ir.decay import DECAY
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Binding, Graph, node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Input,
    Iota,
    Map,
    Pad,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.shape import (
    Scope,
    ceil_div,
    constant,
    equal,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)
from tilewright.support.errors import UnsupportedError

SCOPE = Scope()
N = SCOPE.declare("n", 0, 64)
M = SCOPE.declare("m", 0, 64)
SIZES = [{"n": 3, "m": 5}, {"n": 1, "m": 1}, {"n": 4, "m": 2}]
X = node(Input("x", DType.FLOAT32, (N, M)))
ONE = constant(1)
ZERO = constant(0)


def literal(values, dtype=np.int64):
    return node(Constant.of(np.array(values, dtype=dtype)))


def check(root, feeds=None, sizes=SIZES, inputs=(X,), bindings=()):
    """Both meanings of a one-output graph, at several sizes."""
    graph = Graph("g", tuple(inputs), (("y", root),), SCOPE, tuple(bindings))
    model = to_onnx(graph)
    onnx.checker.check_model(model)
    reference = ReferenceEvaluator(model)
    generator = np.random.default_rng(0)
    for symbols in sizes:
        given = {"x": generator.standard_normal((symbols["n"], symbols["m"])).astype(np.float32)}
        given = {**given, **(feeds or {})}
        given = {i.primitive.name: given[i.primitive.name] for i in inputs}
        expected = evaluate(graph, given, symbols)["y"]
        actual = reference.run(None, given)[0]
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        if expected.dtype.kind == "f":
            limit = 64 * np.finfo(np.float32).eps * max(1.0, np.abs(expected).max(initial=0))
            np.testing.assert_allclose(actual, expected, atol=limit, rtol=1e-5)
        else:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", sorted(SCALAR_FUNCTIONS.keys() - {DECAY}))
def test_scalar_functions(name):
    row = SCALAR_FUNCTIONS[name]
    floats = np.array([-2.5, -1.0, -0.25, 0.25, 0.5, 1.0, 1.5, 3.0], dtype=np.float32)
    integers = np.array([-7, -2, -1, 1, 2, 3, 5, 40], dtype=np.int32)
    bools = np.array([1, 0, 1, 0, 1, 1, 0, 0], dtype=bool)
    if name.startswith("logical"):
        columns = [bools, ~bools]
    elif name.startswith(("bitwise", "shift")):
        shifts = np.array([0, 1, 2, 3, 4, 5, 31, 6], dtype=np.int32)
        columns = [integers, shifts if name.startswith("shift") else integers[::-1].copy()]
    elif name == "select":
        columns = [bools, floats, -floats]
    elif name == "area_hyperbolic_cosine":
        columns = [np.abs(floats) + 1]
    elif name in ("arc_sine", "arc_cosine", "area_hyperbolic_tangent"):
        columns = [floats / 4]
    elif name in ("logarithm", "square_root", "power"):
        columns = [np.abs(floats), floats]
    else:
        columns = [floats, floats[::-1].copy()]
    operands = [literal(c, c.dtype) for c in columns[: row.arity]]
    check(node(Map(name), *operands), sizes=SIZES[:1])


@pytest.mark.parametrize("name", ["remainder", "truncated_remainder", "divide", "maximum", "less"])
def test_scalar_functions_of_integers(name):
    a, b = literal([-7, -6, 5, 7, 0], np.int32), literal([3, -3, -2, 7, 4], np.int32)
    check(node(Map(name), a, b), sizes=SIZES[:1])


@pytest.mark.parametrize(
    "expression",
    [
        2 * N * M - 3 * N + 7,
        (N + M) // 3,
        (3 - N) // 2,
        (N - 7) % 4,
        ceil_div(N * M, 4),
        ceil_div(0 - N, 2),
        minimum(N, M, 4),
        maximum(N - M, 0),
        select(less(N, M), N + 1, 2 * M),
        equal(N, 3) + less(M, N),
        logical_and(less(N, 4), less(M, 4)) + logical_or(equal(N, 1), equal(M, 2)),
        logical_not(equal(N, 1)),
    ],
    ids=str,
)
def test_shape_expressions(expression):
    check(node(Dimension(expression)), sizes=[*SIZES, {"n": 0, "m": 3}])


LAYOUT = {
    "reshape": node(Reshape((M, ONE, N)), X),
    "transpose": node(Transpose((1, 0)), X),
    "broadcast": node(Broadcast((N, constant(2), M), (0, 2)), X),
    "broadcast new axes": node(Broadcast((N, M), (0,)), node(Reduce("sum", (1,)), X)),
    "slice": node(Slice((N - 1, ZERO), (ONE, M), (ONE, ONE)), X),
    "slice backwards": node(Slice((N - 1, M - 1), (N, M), (constant(-1), constant(-1))), X),
    "pad": node(Pad((ONE, ZERO), (constant(2), M)), X, literal(7, np.float32)),
    "concat": node(Concat(1), X, X, X),
    "iota": node(Iota((N, M), 1)),
    "cast": node(Cast(DType.INT32), X),
}


@pytest.mark.parametrize("name", sorted(LAYOUT))
def test_layout(name):
    check(LAYOUT[name])


@pytest.mark.parametrize("kind", ["sum", "product", "maximum", "minimum"])
def test_reductions(kind):
    check(node(Reduce(kind, (0,)), X))
    check(node(Reduce(kind, (0, 1)), X))


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("last", [False, True])
def test_positions_of_extremes(kind, last):
    check(node(ArgReduce(kind, 1, last), node(Map("round_even"), X)))


@pytest.mark.parametrize("kind", ["sum", "product"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_reductions(kind, exclusive, reverse):
    check(node(Scan(kind, 1, exclusive, reverse), X))


def test_contractions():
    check(node(Contract((), ((1, 1),)), X, X))
    check(node(Contract(((0, 0),), ((1, 1),)), X, X))
    check(node(Contract((), ()), X, node(Reduce("sum", (1,)), X)))


def test_indexing():
    rows = literal([[0, -1], [0, 0]])
    sizes = [{"n": 2, "m": 2}, {"n": 3, "m": 2}]
    check(node(Gather(1), X, rows), sizes=sizes)
    check(node(GatherElements(0), X, rows), sizes=sizes)
    check(node(GatherND(0), X, rows), sizes=sizes)
    updates = literal([[1.0, 2.0], [3.0, 4.0]], np.float32)
    for reduction in ("add", "multiply", "maximum", "minimum"):
        check(node(ScatterElements(0, reduction), X, rows, updates), sizes=sizes)
        line = literal([2.0, 3.0], np.float32)
        check(node(ScatterND(reduction), X, literal([[0, 1], [-1, 0]]), line), sizes=sizes)
    check(node(ScatterND("none"), X, literal([[0, 1], [1, 0]]), line), sizes=sizes)


@pytest.mark.parametrize("spread", [1, 2])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_convolutions(spread, stride, dilation):
    image = node(Reshape((ONE, ONE, N, M)), X)
    weights = literal(np.arange(12).reshape(2, 1, 2, 3) / 7, np.float32)
    sizes = (N + 1, M)
    made = Convolve((stride,) * 2, (dilation,) * 2, (spread,) * 2, (ONE, constant(2)), sizes, 1)
    check(node(made, image, weights))


def test_convolution_with_channels_last():
    image = node(Reshape((ONE, N, M, ONE)), X)
    weights = literal(np.arange(12).reshape(2, 1, 2, 3) / 7, np.float32)
    for spread in (1, 2):
        made = Convolve(
            (1, 1), (1, 1), (spread,) * 2, (ONE, constant(2)), (N + 1, M), 1, channels_last=True
        )
        check(node(made, image, weights))


def test_windows_with_channels_last():
    image = node(Reshape((ONE, ONE, N, M)), X)
    made = Window("maximum", (2,), (1,), (1,), (ONE,), (N,), trailing=1)
    check(node(made, image))


@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32])
def test_windows(kind, dtype):
    made = Window(kind, (2, 3), (1, 2), (1, 1), (ONE, ZERO), (N, ceil_div(M, 2)))
    image = node(Cast(dtype), node(Map("round_even"), X)) if dtype is DType.INT32 else X
    check(node(made, image))


def test_bound_contents_and_linear_sizes():
    wide = node(Input("w", DType.FLOAT32, (2 * N + 1,)))
    length = node(Input("k", DType.INT64, ()))
    k = SCOPE.declare("k_value", 0)
    root = node(Iota((k, N), 0))
    feeds = {"w": np.zeros(7, np.float32), "k": np.array(4)}
    check(root, feeds, [{"n": 3, "m": 0}], (wide, length), [Binding(length, ("k_value",))])


def test_sequences_cannot_be_written():
    sequence = node(Input("s", DType.OBJECT, ()))
    with pytest.raises(UnsupportedError, match="sequence"):
        to_onnx(Graph("g", (sequence,), (("y", sequence),), SCOPE))
