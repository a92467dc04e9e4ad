"""Products by constant weights in fewer bits: which ones, what they mean, and their error."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import tilewright
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Constant, Contract, Convolve, Input
from tilewright.rewrite.precision import Precision, narrow_products
from tilewright.shape import Scope, constant

F32 = DType.FLOAT32


def graph_of(weights: np.ndarray) -> Graph:
    """Any number of rows by ``weights`` [depth, columns]."""
    scope = Scope()
    rows = scope.declare("m", 0, 1 << 20)
    x = node(Input("x", F32, (rows, constant(weights.shape[0]))))
    y = node(Contract((), ((1, 0),)), x, node(Constant.of(weights)))
    return Graph("test", (x,), (("y", y),), scope)


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Its result by numpy."""
    return np.asarray(evaluate(graph, {"x": x}, {"m": len(x)})["y"])


def contraction(graph: Graph) -> Node:
    """Its only product."""
    return next(n for n in graph.nodes() if isinstance(n.primitive, Contract))


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 9),
    words=st.integers(1, 40),
    columns=st.integers(16, 40),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 1000),
    precision=st.sampled_from([Precision.BFLOAT16, Precision.INT8]),
)
def test_results_are_as_close_as_the_bits_allow(
    rows: int, words: int, columns: int, scale: float, seed: int, precision: Precision
) -> None:
    generator = np.random.default_rng(seed)
    depth = 4 * words
    weights = generator.standard_normal((depth, columns)).astype(np.float32)
    x = (scale * generator.standard_normal((rows, depth))).astype(np.float32)
    got = run(narrow_products(graph_of(weights), precision), x)
    want = x.astype(np.float64) @ weights
    # Half a step of either operand times the other one, for every product.
    if precision is Precision.BFLOAT16:
        bound = 2.0**-6.99 * (np.abs(x).astype(np.float64) @ np.abs(weights))
    else:
        x_step = np.abs(x).max(1, keepdims=True, initial=0) / 254
        w_step = np.abs(weights).max(0, keepdims=True) / 254
        near = x_step * np.abs(weights).sum(0, keepdims=True)
        bound = near + w_step * np.abs(x).sum(1, keepdims=True) + depth * x_step * w_step
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= 1.001 * bound + 1e-30).all()


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.INT8])
@pytest.mark.parametrize(("taps", "stride", "low"), [(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 2)])
def test_convolutions_with_padding(precision: Precision, taps: int, stride: int, low: int) -> None:
    generator = np.random.default_rng(taps + stride)
    weights = generator.standard_normal((18, 20, taps, taps)).astype(np.float32)
    scope = Scope()
    height = scope.declare("h", taps, 1 << 10)
    x = node(Input("x", F32, (constant(2), height, constant(6), constant(20))))
    sizes = tuple((s + 2 * low - taps) // stride + 1 for s in (height, constant(6)))
    primitive = Convolve(
        (stride,) * 2, (1, 1), (1, 1), (constant(low),) * 2, sizes, 1, channels_last=True
    )
    graph = Graph("test", (x,), (("y", node(primitive, x, node(Constant.of(weights)))),), scope)
    narrow = narrow_products(graph, precision)
    assert any(isinstance(n.primitive, Convolve) and n.primitive.sums for n in narrow.nodes())
    image = generator.standard_normal((2, 5, 6, 20)).astype(np.float32)
    image[1] *= 100
    for one in range(2):  # each image has a scale of its own
        want = evaluate(graph, {"x": image}, {"h": 5})["y"][one]
        got = evaluate(narrow, {"x": image}, {"h": 5})["y"][one]
        assert 0 < np.abs(got - want).max() < 0.02 * np.abs(want).max()


def test_rows_of_zeros_give_zeros() -> None:
    weights = np.ones((8, 16), np.float32)
    got = run(narrow_products(graph_of(weights), Precision.INT8), np.zeros((2, 8), np.float32))
    np.testing.assert_array_equal(got, np.zeros((2, 16), np.float32))


@pytest.mark.parametrize(
    ("precision", "depth", "columns", "narrow"),
    [
        (Precision.FLOAT32, 8, 32, None),
        (Precision.BFLOAT16, 6, 32, DType.BFLOAT16),
        (Precision.BFLOAT16, 7, 32, None),  # no whole words
        (Precision.INT8, 8, 32, DType.UINT8),
        (Precision.INT8, 6, 32, None),
        (Precision.BFLOAT16, 6, 15, None),  # narrowing takes as long as it saves
        (Precision.INT8, 65540, 16, None),  # sums might not fit
    ],
)
def test_which_products(
    precision: Precision, depth: int, columns: int, narrow: DType | None
) -> None:
    weights = np.full((depth, columns), 0.5, np.float32)
    found = contraction(narrow_products(graph_of(weights), precision))
    assert found.inputs[0].dtype is (narrow or F32)


def test_weights_that_are_not_finite_stay() -> None:
    weights = np.ones((8, 16), np.float32)
    weights[3, 3] = np.inf
    graph = graph_of(weights)
    assert narrow_products(graph, Precision.INT8).outputs == graph.outputs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_gives_no_finite_result_and_others_are_as_before(
    value: float,
) -> None:
    """In bytes an infinity has no sign any more: its row is infinities or NaN."""
    chance = np.random.default_rng(3)
    weights = chance.standard_normal((64, 32), np.float32)
    compiled = tilewright.compile(
        model_of(weights), dims={"m": (0, 64)}, precision="int8", levels=["avx2"]
    )
    x = chance.standard_normal((5, 64), np.float32)
    before = compiled(x)
    x[2, 7] = value
    after = compiled(x)
    assert not np.isfinite(after[2]).any()
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(after[others], before[others])


def model_of(weights: np.ndarray) -> onnx.ModelProto:
    """Any number of rows by ``weights``."""
    rows, columns = weights.shape
    text = f"(float[m, {rows}] x) => (float[m, {columns}] y) {{ y = MatMul(x, w) }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> product {text}')
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model
