"""Bytes between quantised layers as rewritings: without a sign, under windows of pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.graph_kit import Space, apply, data, fixed, scalar
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Convolve, Map, Window
from tilewright.rewrite.integers import integer_products
from tilewright.rewrite.pooled_bytes import pooled_bytes
from tilewright.rewrite.requantise import quotients_into_scales
from tilewright.rewrite.unsigned import without_signs
from tilewright.shape import constant

F32, I32, U8, S8 = DType.FLOAT32, DType.INT32, DType.UINT8, DType.INT8


def rounded(x: Node, zero: int) -> Node:
    """int8 of the nearest whole number plus a zero point."""
    made = apply("add", apply("round_even", x), scalar(zero))
    made = apply("minimum", apply("maximum", made, scalar(-128.0)), scalar(127.0))
    return node(Cast(S8), made)


def dequantised(x: Node, zero: int, scale: float) -> Node:
    shifted = apply("subtract", node(Cast(F32), x), scalar(zero))
    return apply("multiply", shifted, scalar(scale))


def shifted(x: Node) -> Node:
    """The same in uint8, as a product takes it."""
    return node(Cast(U8), apply("add", node(Cast(I32), x), scalar(128, I32)))


def read_twice(zero: int, source: DType, bias: float = 0.5) -> Graph:
    """Bytes of a scaled sum that a product wants without a sign and a residual as floats."""
    space = Space()
    x = space.input("x", source, space.dimension("n"), 3)
    wide = x if source is F32 else node(Cast(F32), x)
    sums = apply("add", apply("multiply", wide, scalar(0.37)), scalar(bias))
    made = rounded(sums, zero)
    return space.graph(shifted(made), dequantised(made, zero, 0.25), node(Cast(I32), made))


@pytest.mark.parametrize("zero", [-128, -7, 0, 127])
def test_bytes_are_made_without_a_sign_for_all_readers(zero: int) -> None:
    graph = read_twice(zero, I32)
    made = without_signs(graph)
    assert not any(x.dtype is S8 for x in made.nodes())
    x = data(I32, (200, 3), low=-900, high=900)
    for name, want in evaluate(graph, {"x": x}, {"n": 200}).items():
        np.testing.assert_array_equal(evaluate(made, {"x": x}, {"n": 200})[name], want)


def test_bytes_of_what_may_be_no_number_keep_their_sign() -> None:
    """A NaN becomes the byte 0, which with a sign is another number than without."""
    for graph in (read_twice(3, F32), read_twice(3, I32, bias=float("nan"))):
        assert without_signs(graph) is graph


def test_bytes_that_are_a_result_keep_their_sign() -> None:
    space = Space()
    sums = node(Cast(F32), space.input("x", I32, space.dimension("n"), 3))
    made = rounded(sums, 0)
    graph = space.graph(made, shifted(made))
    assert without_signs(graph) is graph


def window(kind: str, low: int, kernel: int, stride: int, after: int, dilation: int = 1) -> Graph:
    space = Space()
    height = space.dimension("h")
    x = space.input("x", S8, 2, height, 3)
    reach = (kernel - 1) * dilation
    size = (height + (low + after - reach - 1)) // stride + 1
    primitive = Window(kind, (kernel,), (stride,), (dilation,), (constant(low),), (size,), 1)
    return space.graph(node(primitive, dequantised(x, -9, 0.3)))


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("geometry", [(1, 3, 2, 1), (0, 2, 2, 0), (2, 3, 1, 2), (1, 2, 1, 0)])
def test_extremes_of_windows_are_taken_of_bytes(
    kind: str, geometry: tuple[int, int, int, int]
) -> None:
    graph = window(kind, *geometry)
    made = pooled_bytes(graph)
    (found,) = (x for x in made.nodes() if isinstance(x.primitive, Window))
    assert found.dtype is S8
    for height in (3, 4, 5, 17):
        x = data(S8, (2, height, 3), low=-128, high=127)
        want, got = (evaluate(g, {"x": x}, {"h": height})["y0"] for g in (graph, made))
        np.testing.assert_array_equal(got, want)


def test_windows_that_may_be_empty_keep_their_floats() -> None:
    """There is no byte for the extreme of nothing; nor for windows that step over elements."""
    for graph in (
        window("maximum", 3, 3, 1, 0),
        window("maximum", 0, 2, 1, 3),
        window("maximum", 1, 2, 1, 1, dilation=2),
        window("sum", 1, 3, 2, 1),
    ):
        kinds = [x.dtype for x in pooled_bytes(graph).nodes() if isinstance(x.primitive, Window)]
        assert kinds == [F32]


def test_what_shrinks_with_its_bytes_is_not_pooled_before() -> None:
    space = Space()
    x = space.input("x", U8, space.dimension("h", low=2))
    primitive = Window("maximum", (2,), (1,), (1,), (constant(0),), (space.dimension("h") - 1,))
    made = pooled_bytes(space.graph(node(primitive, dequantised(x, 3, -0.5))))
    assert [n.dtype for n in made.nodes() if isinstance(n.primitive, Window)] == [F32]


@pytest.mark.parametrize(("kind", "zero"), [(S8, -128), (S8, 5), (U8, 0), (U8, 200)])
def test_depthwise_convolutions_sum_whole_numbers(kind: DType, zero: int) -> None:
    """Nothing is rounded before the scale, and a division behind it is a part of that."""
    space = Space()
    x = space.input("x", kind, space.dimension("n"), 4, 5, 5)
    point = node(Cast(F32), fixed(np.array(zero, kind.numpy)))
    centred = apply("subtract", node(Cast(F32), x), point)
    weights = fixed(data(S8, (4, 1, 3, 3), low=-128, high=127))
    factors = fixed(np.array([0.1, 0.2, 0.3, 0.4], np.float32).reshape(4, 1, 1, 1))
    scaled = apply("multiply", node(Cast(F32), weights), factors)
    sizes, low = (constant(5),) * 2, (constant(1),) * 2
    primitive = Convolve((1, 1), (1, 1), (1, 1), low, sizes, 4)
    sums = node(primitive, apply("multiply", centred, scalar(0.02)), scaled)
    graph = space.graph(apply("divide", sums, scalar(0.7)))
    made = quotients_into_scales(integer_products(graph))
    assert not any(n.primitive == Map("divide") for n in made.nodes())
    (found,) = (n for n in made.nodes() if isinstance(n.primitive, Convolve))
    inside = replace(made, outputs=(("y0", found),))
    ends = np.iinfo(kind.numpy)
    image = data(kind, (3, 4, 5, 5), low=int(ends.min), high=int(ends.max))
    want, got = (evaluate(g, {"x": image}, {"n": 3})["y0"] for g in (graph, made))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    whole = evaluate(inside, {"x": image}, {"n": 3})["y0"]
    np.testing.assert_array_equal(whole, np.rint(whole))
