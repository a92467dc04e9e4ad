"""Products of quantised tensors as a rewriting: which become what, and that they mean the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.graph_kit import Space, apply, check, data, fixed, inputs_at, scalar, spread
from support.tile_runs import TileRun
from tilewright.backend.cpu.machine import host_levels
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Contract, Convolve, Map, Pad, Reduce, Reshape, Transpose
from tilewright.rewrite.integers import has_integer_products, integer_products
from tilewright.rewrite.requantise import quotients_into_scales
from tilewright.shape import constant

pytestmark = pytest.mark.sampled(10)

LEVELS = tuple(level.name for level in host_levels() if level.serves("uint8"))
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


def of_two_inputs(
    left: DType, right: DType, depth: int | None, zeros: tuple[bool, bool], is_turned: bool
) -> Graph:
    """Matrices of bytes in a batch, the second one transposed or not, minus zero points or not."""
    space = Space()
    b, m, n = space.dimensions("b m n")
    k = space.dimension("k") if depth is None else constant(depth)
    x = space.input("x", left, b, m, k)
    y = space.input("y", right, *((b, n, k) if is_turned else (b, k, n)))
    p, q = space.input("p", left), space.input("q", right, n)
    columns = spread(node(Cast(I32), q), y.shape, (1 if is_turned else 2,))
    operands = (
        centred(x, node(Cast(I32), p) if zeros[0] else None),
        centred(y, columns if zeros[1] else None),
    )
    summed = ((2, 2 if is_turned else 1),)
    return space.graph(node(Contract(((0, 0),), summed), *operands))


@settings(deadline=None, max_examples=60)
@given(
    types=st.tuples(st.sampled_from([U8, S8]), st.sampled_from([U8, S8])),
    sizes=st.tuples(*[st.integers(0, 9)] * 3, st.integers(0, 13)),
    zeros=st.tuples(st.booleans(), st.booleans()),
    is_turned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_of_two_inputs_mean_the_same(
    types: tuple[DType, DType], sizes: tuple[int, ...], zeros: tuple[bool, bool],
    is_turned: bool, seed: int,
) -> None:  # fmt: skip
    graph = of_two_inputs(*types, None, zeros, is_turned)
    narrow = integer_products(graph)
    assert has_integer_products(narrow)
    named = dict(zip("bmnk", sizes, strict=True))
    inputs = inputs_at(graph, named, partial(of_bytes, seed))
    want, got = (evaluate(g, inputs, named)["y0"] for g in (graph, narrow))
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("depth", [1, 3, 4, 30, 64])
@pytest.mark.parametrize("right", [S8, U8])
def test_products_of_two_inputs_are_exact_at_every_size(
    right: DType, depth: int, is_turned: bool
) -> None:
    graph = of_two_inputs(U8, right, depth, (True, True), is_turned)
    shapes = [(2, 3, 1), (1, 0, 5), (2, 7, 0), (3, 1, 8), (1, 13, 63), (2, 6, 64), (1, 25, 197)]
    narrow, fill = integer_products(graph), partial(of_bytes, 1)
    cases = [dict(zip("bmn", sizes, strict=True)) for sizes in shapes]
    compiled = check(narrow, cases, fill=fill, levels=LEVELS)
    meaning = TileRun(narrow, compiled.levels[LEVELS[-1]].lowered)
    for sizes in cases[:4]:
        inputs = inputs_at(narrow, sizes, fill)
        want = evaluate(narrow, inputs, sizes)["y0"]
        for last in (0, -1):
            got = meaning.outputs(inputs, sizes, lambda k, at=last: range(len(k.variants))[at])
            np.testing.assert_array_equal(got["y0"], want)


def test_sums_of_rows_need_no_copy_that_is_filled_up_to_whole_words() -> None:
    """They are of the bytes as they are made, which whoever makes them can sum."""
    narrow = integer_products(of_two_inputs(U8, S8, None, (True, True), False))
    sums = [x for x in narrow.nodes() if isinstance(x.primitive, Reduce)]
    wide = [x.inputs[0] for x in sums]
    assert any(x.inputs == (narrow.inputs[0],) for x in wide)
    assert isinstance(product_of(narrow).inputs[0].primitive, Pad)


def of_bytes(seed: int, name: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """From the whole range of a type."""
    low = -128 if dtype is S8 else 0
    return data(dtype, shape, seed + ord(name), low, low + 255)


@pytest.mark.parametrize(
    ("depth", "wide"), [(258, F32), (259, DType.FLOAT64), (None, DType.FLOAT64)]
)
def test_zero_points_that_vary_along_the_depth_leave_sums_in_floats_that_hold_them(
    depth: int | None, wide: DType
) -> None:
    space = Space()
    k = space.dimension("k") if depth is None else constant(depth)
    x, y = space.input("x", U8, space.dimension("m"), k), space.input("y", S8, k, 5)
    zero = spread(node(Cast(I32), space.input("z", U8, k)), x.shape)
    graph = space.graph(node(Contract((), ((1, 0),)), centred(x, zero), centred(y, None)))
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
    deep = dequantised(fixed(np.full((140_000, 16), 127, np.int8)), scalar(0.5), 0)
    assert product_by(scalar(0.1), deep, 140_000) is F32  # sums have more values than an int32
    half = apply("subtract", node(Cast(F32), weights), scalar(0.5))
    assert product_by(scalar(0.1), half) is F32  # no zero point


@pytest.mark.parametrize("zeros", [(0, 0), (0, 255), (255, 255), (0, 120), (128, 127), (40, 200)])
def test_floats_of_any_two_inputs_are_narrowed_up_to_the_depth_that_an_int32_tells_apart(
    zeros: tuple[int, int],
) -> None:
    """Also where the sums leave it: what they are near is known."""
    space = Space()
    m, n, k = space.dimension("m"), space.dimension("n"), space.dimension("k", high=1 << 16)
    left = dequantised(space.input("x", U8, m, k), scalar(0.5), zeros[0])
    turned = dequantised(space.input("y", U8, n, k), scalar(0.25), zeros[1])
    right = node(Reshape((k, n)), node(Transpose((1, 0)), turned))
    graph = space.graph(node(Contract((), ((1, 0),)), left, right))
    narrow = integer_products(graph)
    assert has_integer_products(narrow)
    generator = np.random.default_rng(0)
    for depth in (1, 2, 33_025, 33_026, 1 << 16):
        x = generator.integers(0, 256, (4, depth)).astype(np.uint8)
        y = generator.integers(0, 256, (4, depth)).astype(np.uint8)
        x[1], x[2], y[1], y[2] = 0, 255, 0, 255
        got = evaluate(narrow, {"x": x, "y": y}, {"m": 4, "n": 4, "k": depth})["y0"]
        wide = [a.astype(np.int64) - zero for a, zero in zip((x, y), zeros, strict=True)]
        want = wide[0] @ wide[1].T * 0.125
        ends = 255 * 255 * depth * 0.125
        assert (np.abs(got - want) <= 2.0**-23 * (np.abs(want) + ends * (depth > 33_025))).all()


def test_no_deeper_floats_are_narrowed() -> None:
    space = Space()
    m, n, k = space.dimension("m"), space.dimension("n"), space.dimension("k", high=67_000)
    left = dequantised(space.input("x", U8, m, k), scalar(0.5), 0)
    right = dequantised(space.input("y", U8, k, n), scalar(0.5), 0)
    graph = space.graph(node(Contract((), ((1, 0),)), left, right))
    assert product_of(integer_products(graph)).dtype is F32


def test_views_of_dequantised_tensors_keep_their_parameters() -> None:
    """A scale by column follows its axis through a transposition; a reshape needs single ones."""

    def made(view: Callable[[Node], Node], scale: Node) -> Graph:
        space = Space()
        m = space.dimension("m")
        left = dequantised(space.input("x", U8, m, 8), scalar(0.5), 3)
        weights = view(dequantised(space.input("y", S8, 6, 8), scale, 5))
        return integer_products(space.graph(node(Contract((), ((1, 0),)), left, weights)))

    def turned(x: Node) -> Node:
        return node(Transpose((1, 0)), x)

    def reshaped(x: Node) -> Node:
        return node(Reshape((constant(8), constant(6))), x)

    by_row = spread(fixed(np.linspace(1, 2, 6, dtype=np.float32)), (constant(6), constant(8)), (0,))
    assert product_of(made(turned, scalar(0.5))).dtype is I32
    assert product_of(made(reshaped, scalar(0.5))).dtype is I32
    assert product_of(made(reshaped, by_row)).dtype is F32
    graph = made(turned, by_row)
    assert product_of(graph).dtype is I32
    x, y = data(U8, (3, 8), low=0, high=255), data(S8, (6, 8), low=-128, high=127)
    got = evaluate(graph, {"x": x, "y": y}, {"m": 3})["y0"]
    want = (x.astype(float) - 3) @ (y.astype(float) - 5).T * 0.5 * np.linspace(1, 2, 6)
    np.testing.assert_allclose(got, want, rtol=1e-6)


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


@pytest.mark.parametrize(("zero", "is_narrow"), [(-1, False), (0, True), (255, True), (256, False)])
def test_borders_of_convolutions_need_a_byte_that_means_zero(zero: int, is_narrow: bool) -> None:
    space = Space()
    x = space.input("x", U8, space.dimension("n"), 8, 4, 4)
    primitive = Convolve((1, 1), (1, 1), (1, 1), (constant(1),) * 2, (constant(4),) * 2, 1)
    filters = fixed(data(S8, (3, 8, 3, 3), low=-128, high=127))
    operands = centred(x, scalar(zero, I32)), centred(filters, None)
    graph = space.graph(node(primitive, *operands))
    assert has_integer_products(integer_products(graph)) is is_narrow


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
