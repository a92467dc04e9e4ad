"""Products of quantised tensors as a rewriting: which become what, and that they mean the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.graph_kit import Space, apply, check, data, fixed, scalar, spread
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Contract, Convolve, Map
from tilewright.rewrite.integers import has_integer_products, integer_products
from tilewright.rewrite.requantise import quotients_into_scales
from tilewright.shape import constant

F32, I32, U8, S8 = DType.FLOAT32, DType.INT32, DType.UINT8, DType.INT8


def centred(x: Node, zero: Node | None, wide: DType = I32) -> Node:
    """Bytes minus a zero point."""
    made = node(Cast(wide), x)
    return made if zero is None else apply("subtract", made, zero)


def by_constant(
    left: DType, right: DType, depth: int, columns: int, zeros: tuple[int, int], seed: int
) -> Graph:
    """Rows of bytes by a constant, both minus a zero point."""
    space = Space()
    x = space.input("x", left, space.dimension("m"), depth)
    weights = fixed(data(right, (depth, columns), seed, -128, 255))
    operands = (
        centred(x, scalar(zeros[0], I32)),
        centred(weights, scalar(zeros[1], I32)),
    )
    return space.graph(node(Contract((), ((1, 0),)), *operands))


@settings(deadline=None, max_examples=60)
@given(
    left=st.sampled_from([U8, S8]),
    right=st.sampled_from([U8, S8]),
    depth=st.integers(1, 21),
    columns=st.integers(1, 9),
    rows=st.integers(0, 5),
    zeros=st.tuples(st.integers(-128, 255), st.integers(-128, 255)),
    seed=st.integers(0, 99),
)
def test_products_mean_the_same(
    left: DType, right: DType, depth: int, columns: int, rows: int,
    zeros: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    graph = by_constant(left, right, depth, columns, zeros, seed)
    narrow = integer_products(graph)
    assert has_integer_products(narrow) and not has_integer_products(graph)
    x = data(left, (rows, depth), seed + 1, -128, 255)
    want, got = (evaluate(g, {"x": x}, {"m": rows})["y0"] for g in (graph, narrow))
    np.testing.assert_array_equal(got, want)


def product_of(narrow: Graph) -> Node:
    """The only product of a graph."""
    return next(x for x in narrow.nodes() if isinstance(x.primitive, Contract | Convolve))


@pytest.mark.parametrize(
    ("depth", "wide"), [(258, F32), (259, DType.FLOAT64), (None, DType.FLOAT64)]
)
def test_products_of_two_inputs_are_summed_in_floats_that_hold_them(
    depth: int | None, wide: DType
) -> None:
    space = Space()
    k = space.dimension("k") if depth is None else constant(depth)
    x, y = space.input("x", U8, space.dimension("m"), k), space.input("y", S8, k, 5)
    graph = space.graph(node(Contract((), ((1, 0),)), centred(x, None), centred(y, None)))
    assert product_of(integer_products(graph)).dtype is wide


def dequantised(x: Node, scale: Node, zero: int) -> Node:
    """(x - zero) * scale."""
    return apply("multiply", centred(x, scalar(float(zero)), F32), scale)


def test_floats_are_narrowed_by_constant_scales_that_do_not_vary_along_the_depth() -> None:
    def product_by(scale: Node, right: Node, depth: int = 8) -> DType:
        left = dequantised(space.input("x", U8, m, depth), scale, 3)
        graph = space.graph(node(Contract((), ((1, 0),)), left, right))
        return product_of(integer_products(graph)).dtype

    space = Space()
    m = space.dimension("m")
    weights = fixed(data(S8, (8, 16), low=-128, high=127))
    plain = dequantised(weights, scalar(0.5), 0)
    assert product_by(scalar(0.1), plain) is I32
    rows = spread(fixed(np.linspace(1, 2, 8, dtype=np.float32)), (constant(8), constant(16)), (0,))
    assert product_by(scalar(0.1), apply("multiply", node(Cast(F32), weights), rows)) is F32
    assert product_by(scalar(float("inf")), plain) is F32
    assert product_by(space.input("scale", F32), plain) is F32
    deep = dequantised(fixed(np.ones((40_000, 16), np.int8)), scalar(0.5), 0)
    assert product_by(scalar(0.1), deep, 40_000) is F32  # a sum might leave int32


@pytest.mark.parametrize("zero", [0, 255])
@pytest.mark.parametrize(("channels", "taps"), [(20, 3), (3, 2), (16, 1)])
def test_convolutions_mean_the_same(channels: int, taps: int, zero: int) -> None:
    space = Space()
    height = space.dimension("h", low=taps)
    x = space.input("x", U8, 2, channels, height, 7)
    weights = fixed(data(U8, (5, channels, taps, taps), low=0, high=255))
    sizes = tuple((s + 2 - taps) // 2 + 1 for s in (height, constant(7)))
    primitive = Convolve((2, 2), (1, 1), (1, 1), (constant(1),) * 2, sizes, 1)
    operands = centred(x, scalar(zero, I32)), centred(weights, scalar(7, I32))
    graph = space.graph(node(primitive, *operands))
    narrow = integer_products(graph)
    assert has_integer_products(narrow)
    image = data(U8, (2, channels, 5, 7), low=0, high=255)
    want, got = (evaluate(g, {"x": image}, {"h": 5})["y0"] for g in (graph, narrow))
    np.testing.assert_array_equal(got, want)


def test_narrow_products_without_tiles_are_loops() -> None:
    """A convolution with the channels first."""
    space = Space()
    x = space.input("x", U8, space.dimension("n"), 8, 5, 5)
    weights = fixed(data(S8, (3, 8, 2, 2), low=-128, high=127))
    sizes = (constant(4), constant(4))
    plain = Convolve((1, 1), (1, 1), (1, 1), (constant(0),) * 2, sizes, 1, sums=I32)

    def fill(_: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        return data(dtype, shape, low=0, high=255)

    check(space.graph(node(plain, x, weights)), [{"n": 2}], fill=fill)


def requantised(limit: Node | None, divisor: float) -> Graph:
    """Converted integers scaled, shifted, limited and divided."""
    space = Space()
    sums = node(Cast(F32), space.input("x", I32, space.dimension("m"), 4))
    scales = fixed(np.linspace(0.1, 1, 4, dtype=np.float32))
    made = apply("add", apply("multiply", sums, scales), fixed(np.arange(4, dtype=np.float32)))
    made = made if limit is None else apply("maximum", made, limit)
    return space.graph(apply("divide", made, scalar(divisor)))


@pytest.mark.parametrize(
    ("limit", "divisor", "divides"),
    [(None, 0.3, False), (scalar(-2.0), 0.3, False), (None, -0.3, True), (None, 1e-39, True)],
)
def test_scales_are_divided_when_compiling(
    limit: Node | None, divisor: float, divides: bool
) -> None:
    graph = requantised(limit, divisor)
    made = quotients_into_scales(graph)
    assert divides == any(x.primitive == Map("divide") for x in made.nodes())
    x = data(I32, (5, 4), low=-1000, high=1000)
    want, got = (evaluate(g, {"x": x}, {"m": 5})["y0"] for g in (graph, made))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)
