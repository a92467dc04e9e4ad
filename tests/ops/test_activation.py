"""Activations against the reference, and at the ends of the range of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from support.operator_harness import Array, check_node, fission, run
from tilewright.frontend.onnx import import_model
from tilewright.ir.primitives import Map
from tilewright.support.errors import DimensionError, InvalidModelError

CASES: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("LeakyRelu", {}),
    ("Elu", {"alpha": 1.5}),
    ("Celu", {"alpha": 0.7}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Sigmoid", {}),
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.5, "beta": 0.6}),
    ("HardSwish", {}),
    ("Swish", {}),
    ("Swish", {"alpha": 1.7}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Mish", {}),
    ("Tanh", {}),
    ("Shrink", {"lambd": 1.0, "bias": 0.25}),
]


def _floats(shape: tuple[int, ...], dtype: type) -> Array:
    return np.random.default_rng(3).normal(0.0, 2.0, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("name", "attributes"), CASES)
def test_activations(name: str, attributes: dict[str, Any], dtype: type) -> None:
    x = _floats((3, 7), dtype)
    # The reference rounds 16-bit intermediate results: a handful of its units.
    relative = 4e-3 if dtype is np.float16 else 3e-6 if dtype is np.float32 else 3e-7
    check_node(name, [x], attributes, relative=relative, also=[[x[:0]], [x[:1, :1]]])


@pytest.mark.parametrize(("name", "attributes"), CASES)
def test_activations_of_huge_values_are_their_limits(name: str, attributes: dict[str, Any]) -> None:
    x = np.array([-1e30, -200.0, -90.0, 90.0, 200.0, 1e30], np.float32)
    narrow = fission(name, [x], attributes, opset=28)
    wide = fission(name, [x.astype(np.float64)], attributes, opset=28)
    with np.errstate(all="ignore"):
        expected = run(wide, [x.astype(np.float64)])[0].astype(np.float32)
    assert not np.isnan(expected).any()
    np.testing.assert_allclose(run(narrow, [x])[0], expected, rtol=1e-6, atol=1e-30)


def test_softplus_is_precise_for_large_values() -> None:
    x = np.array([-30.0, -5.0, 0.0, 5.0, 30.0, 1000.0], np.float64)
    check_node("Softplus", [x], expected=[np.logaddexp(0.0, x)], relative=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_mish_is_precise_everywhere(dtype: type) -> None:
    x = np.concatenate([np.linspace(-20, 20, 4001), [-80.0, 80.0, 300.0, 6e4]]).astype(dtype)
    made = run(fission("Mish", [x], {}, opset=22), [x])[0].astype(np.longdouble)
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        grown = np.exp(np.minimum(wide, 100))
    expected = wide * (grown * (grown + 2)) / (grown * (grown + 2) + 2)
    # Five roundings, of which the square of the exponential counts the first one twice.
    allowed = 6 * np.finfo(dtype).eps * np.abs(expected) + np.finfo(dtype).smallest_normal
    assert np.all(np.abs(made - expected) <= allowed)


def test_mish_that_is_spelled_out_is_mish() -> None:
    text = """<ir_version: 10, opset_import: ["" : 22]> g (float[n] x) => (float[n] y)
        { s = Softplus (x) t = Tanh (s) y = Mul (x, t) }"""
    graph = import_model(onnx.parser.parse_model(text)).graph
    functions = {n.primitive.function for n in graph.nodes() if isinstance(n.primitive, Map)}
    assert "hyperbolic_tangent" not in functions
    assert "logarithm" not in functions


@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_relu_and_shrink_of_integers(dtype: type) -> None:
    x = np.array([-3, -1, 0, 1, 3], dtype)
    check_node("Relu", [x])
    check_node("Shrink", [x], {"lambd": 1.5, "bias": 1.5})


def test_slopes_are_broadcast_to_the_data() -> None:
    x = _floats((2, 3, 4), np.float32)
    slopes = [_floats(shape, np.float32) for shape in ((4,), (3, 1), (1,), (2, 3, 4))]
    for slope in slopes:
        check_node("PRelu", [x, slope])
    check_node("PRelu", [x, slopes[0]], also=[[x, slopes[2]], [x[:0], slopes[0]]])


def test_a_slope_must_not_widen_the_data() -> None:
    x, slope = np.ones((2, 1), np.float32), np.ones((3,), np.float32)
    graph = fission("PRelu", [x, slope], opset=16)
    with pytest.raises(DimensionError, match="cannot be repeated"):
        run(graph, [x, slope])
    with pytest.raises(InvalidModelError, match="axes"):
        fission("PRelu", [slope, x], opset=16)


def test_gated_swish() -> None:
    gate, value = _floats((2, 5), np.float32), _floats((2, 5), np.float32)[::-1].copy()
    check_node("SwiGLU", [gate, value], {"alpha": 1.3}, relative=2e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, np.float32, np.float64])
def test_clip_with_optional_bounds(dtype: type) -> None:
    x = np.array([[0, 1, 2], [3, 4, 5]], dtype)
    low, high = np.array(1, dtype), np.array(4, dtype)
    for bounds in ([low, high], [low], [None, high], []):
        check_node("Clip", [x, *bounds], expected=[np.clip(x, *_both(bounds))])


def _both(bounds: list[Array | None]) -> tuple[Array | None, Array | None]:
    padded = [*bounds, None, None]
    return padded[0], padded[1]


def test_the_upper_bound_wins() -> None:
    x = np.array([0.0, 2.0, 9.0], np.float32)
    low, high = np.float32(5.0), np.float32(1.0)
    check_node("Clip", [x, np.asarray(low), np.asarray(high)], expected=[np.full(3, high)])


def test_a_bound_may_be_a_vector_of_one() -> None:
    x, low = np.array([0.0, 2.0], np.float32), np.array([1.0], np.float32)
    graph = check_node("Clip", [x, low], opset=12)
    with pytest.raises(DimensionError, match="scalar"):
        run(graph, [x, x])


def test_bounds_as_attributes() -> None:
    x = np.array([-2.0, 0.5, 2.0], np.float32)
    check_node("Clip", [x], {"min": -1.0, "max": 1.0}, 6)
    check_node("Clip", [x], {"max": 1.0}, 6)


def test_gates_of_another_shape_are_refused() -> None:
    gate = np.ones((2, 5), np.float32)
    graph = fission("SwiGLU", [gate, gate], opset=28)
    with pytest.raises(DimensionError, match="differ in shape"):
        run(graph, [gate, gate[:1]])
    with pytest.raises(InvalidModelError, match="2 and 1 axes"):
        fission("SwiGLU", [gate, gate[0]], opset=28)


def test_the_sixth_of_a_hard_swish_is_a_float32() -> None:
    x = np.array([1.0])
    (result,) = run(fission("HardSwish", [x], opset=22), [x])
    np.testing.assert_allclose(result, 0.5 + np.float64(np.float32(1 / 6)), rtol=1e-12)
