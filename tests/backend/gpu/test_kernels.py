"""The kernels of a plan in Triton, interpreted at sizes that are no multiples of their tiles."""

from __future__ import annotations

import numpy as np
import pytest

from support.gpu_graphs import (
    attention,
    dense_gelu,
    gelu,
    normalised,
    softmax,
    softmax_of_rows,
    transposed_sum,
)
from support.gpu_kit import UNITS, check, launcher, needs_triton, written
from support.graph_kit import (
    BOOL,
    F32,
    F64,
    I64,
    Array,
    Space,
    apply,
    data,
    default_fill,
    fixed,
    scalar,
    spread,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Contract,
    Dimension,
    Gather,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.shape import ceil_div, constant
from tilewright.support.errors import UnsupportedError

pytestmark = needs_triton


# ---------------------------------------------------------------- products

PRODUCTS = [
    {"b": b, "m": m, "n": n, "k": k}
    for b, m, n, k in (
        (1, 1, 1, 1), (0, 3, 5, 7), (2, 3, 5, 0), (2, 0, 5, 3), (1, 64, 65, 32), (2, 37, 67, 33),
    )
]  # fmt: skip


@pytest.mark.slow
def test_a_product_with_bias_and_gelu() -> None:
    made = check(dense_gelu(Space()), PRODUCTS, length=80, scale=8)
    assert [variants[0].name for variants in made] == ["product"]
    assert "task // size_b" not in made[0][0].source, "batch and rows are one axis"


def test_a_product_of_bfloat16_on_matrix_units() -> None:
    if launcher().device is None:
        pytest.skip("needs a GPU: Triton's interpreter has no bfloat16")
    check(dense_gelu(Space(), DType.BFLOAT16), PRODUCTS, length=80, scale=8)


@pytest.mark.slow
def test_products_of_batches_in_every_transposition_with_a_residual_and_stored_views() -> None:
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", F32, k, b, m), space.input("y", F32, b, n, k)
    product = node(Contract(((1, 0),), ((0, 2),)), x, y)
    residual = space.input("r", F32, b, m, n)
    turned = node(Transpose((1, 0, 2)), apply("add", product, residual))
    check(space.graph(turned), PRODUCTS, length=80, scale=8)


@pytest.mark.slow
def test_products_of_computed_operands_in_doubles() -> None:
    """The exponentials of what lies past the ends of both operands are not 0."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F64, m, k), space.input("y", F64, k, n)
    left, right = apply("exponential", x), apply("exponential", y)
    product = node(Contract((), ((1, 0),)), left, right)
    check(space.graph(product), [{"m": 5, "n": 17, "k": 19}], length=40, scale=50)


def test_other_kinds_of_kernels_are_refused() -> None:
    space = Space()
    x = space.input("x", F32, space.dimension("n"), 3)
    indices = space.input("i", I64, space.dimension("m"))
    with pytest.raises(UnsupportedError, match="positions from data") as caught:
        written(space.graph(node(Gather(0), x, indices)))
    assert caught.value.where and caught.value.hint
    with pytest.raises(UnsupportedError, match="kind is concat"):
        written(space.graph(node(Concat(0), x, x)))


# ---------------------------------------------------------------- rows

ROWS = [
    {"b": b, "c": c}
    for b, c in ((1, 1), (0, 5), (3, 0), (5, 17), (67, 129), (2, 5003), (1, 20_011))
]


def test_softmax() -> None:
    made = check(softmax_of_rows(Space()), ROWS, length=lambda s: s["c"])
    names = ["rows_whole", "long_rows_whole", "rows_in_tiles"]
    assert [kernel.name for kernel in made[0]] == names
    assert made[0][1].launch(ROWS[-1], UNITS) is None, "no tile holds such a row"


@pytest.mark.parametrize("axes", [(2,), (1,), (0, 2), (1, 2)], ids=str)
def test_normalisations_over_any_axes(axes: tuple[int, ...]) -> None:
    cases = [{"a": a, "b": b, "c": c} for a, b, c in ((3, 5, 7), (1, 1, 1), (2, 0, 3), (4, 3, 65))]
    check(normalised(Space(), axes), cases, length=200, scale=30)


def test_results_of_rows_and_kinds_of_reductions() -> None:
    """NaN wins; so do infinities. Rows of integers have a greatest element, too."""
    space = Space()
    b, c = space.dimensions("b c")
    x, i = space.input("x", F32, b, c), space.input("i", I64, b, c)
    greatest, least = (node(Reduce(kind, (1,)), x) for kind in ("maximum", "minimum"))
    far = node(Reduce("maximum", (1,)), i)
    near = apply("subtract", i, spread(far, i.shape, (0,)))

    def fill(name: str, dtype: DType, sizes: tuple[int, ...]) -> Array:
        made = default_fill(name, dtype, sizes)
        if dtype is F32 and made.size > 4:
            made.flat[[0, 3, 4]] = np.nan, np.inf, -np.inf
        return made

    graph = space.graph(apply("add", greatest, least), near)
    check(graph, [{"b": 7, "c": 9}, {"b": 3, "c": 1}, {"b": 2, "c": 131}], fill=fill)


# ---------------------------------------------------------------- attention

ATTENTION = [
    {"b": b, "h": h, "m": m, "n": n}
    for b, h, m, n in ((1, 1, 1, 1), (0, 2, 3, 4), (2, 1, 0, 5), (1, 2, 5, 0), (1, 2, 67, 131))
]


@pytest.mark.parametrize("mask", ["none", "tensor", "causal"])
def test_attention(mask: str) -> None:
    made = check(attention(Space(), mask, 24, 40), ATTENTION, length=200, scale=4)
    assert [variants[0].name for variants in made] == ["attention"]


def test_attention_of_hidden_rows_is_no_number_as_in_the_model() -> None:
    def fill(name: str, dtype: DType, sizes: tuple[int, ...]) -> Array:
        made = default_fill(name, dtype, sizes)
        return np.full_like(made, -np.inf) if name == "mask" else made

    check(attention(Space(), "tensor"), ATTENTION[-1:], fill=fill)


def test_heads_that_no_tile_holds_have_no_launch() -> None:
    (variants,) = written(attention(Space(), "none", depth=300))
    assert [kernel.launch(ATTENTION[-1], UNITS) for kernel in variants] == [None, None]


# ---------------------------------------------------------------- elements

ELEMENTS = [{"b": b, "m": m, "n": n} for b, m, n in ((1, 1, 1), (0, 2, 3), (2, 0, 3), (2, 67, 131))]


def test_broadcasts_and_a_transposed_store() -> None:
    kernels = check(transposed_sum(Space()), ELEMENTS)
    assert "ROWS" in kernels[0][0].source, "reads and writes both have an axis of the tile"


def test_sizes_that_may_be_one_are_broadcast_when_they_are() -> None:
    space = Space()
    b, m, n = space.dimensions("b m n")
    x, y = space.input("x", F32, m, n), space.input("y", F32, b, n)
    both = apply("add", x, node(Broadcast(x.shape, (0, 1)), y))
    check(space.graph(both), [{"b": 1, "m": 5, "n": 7}, {"b": 5, "m": 5, "n": 7}])


def test_layout_is_read_through() -> None:
    """Padding, slices with negative steps and reshapes are positions, with masks of their own."""
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, 6)
    last = (m - 1, constant(5))
    back = node(Slice(last, x.shape, (constant(-1), constant(-1))), x)
    flat = node(Reshape((2 * m, constant(3))), back)
    edge = (constant(1), constant(2))
    padded = node(Pad(edge, (n, constant(1))), flat, scalar(2.5))
    sizes = [{"m": 1, "n": 0}, {"m": 0, "n": 2}, {"m": 23, "n": 3}]
    space.carry(n)
    check(space.graph(apply("exponential", padded)), sizes, length=4)


@pytest.mark.parametrize(
    "function",
    [
        "absolute", "floor", "ceil", "square_root", "exponential", "logarithm", "sine", "cosine",
        "error_function", "hyperbolic_tangent", "negate",
    ],
)  # fmt: skip
def test_functions_of_one_number(function: str) -> None:
    space = Space()
    x = space.input("x", F32, space.dimension("n"))

    def fill(name: str, dtype: DType, sizes: tuple[int, ...]) -> Array:
        special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-6, 0.624, 0.626, -40, 40])
        made = 3 * data(dtype, sizes)
        made[: len(special)] = special
        if function in ("sine", "cosine"):
            made[np.isinf(made)] = 1
        return np.abs(made) if function in ("logarithm", "square_root") else made

    with np.errstate(all="ignore"):
        check(space.graph(apply(function, x)), [{"n": 211}], fill=fill)


def test_functions_of_two_numbers_and_types() -> None:
    space = Space()
    n = space.dimension("n")
    x, y = space.input("x", F32, n), space.input("y", F32, n)
    i, j, flag = space.input("i", I64, n), space.input("j", I64, n), space.input("f", BOOL, n)
    graph = space.graph(
        apply("select", flag, apply("maximum", x, y), apply("minimum", x, y)),
        apply("bitwise_and", apply("multiply", i, j), apply("maximum", i, j)),
        apply("logical_and", apply("less", x, y), apply("logical_not", flag)),
        node(Cast(F32), apply("subtract", i, j)),
        node(Cast(DType.INT32), x),
        node(Cast(BOOL), i),
        apply("logical_xor", apply("is_nan", x), apply("is_infinite", y)),
    )

    def fill(name: str, dtype: DType, sizes: tuple[int, ...]) -> Array:
        made = default_fill(name, dtype, sizes)
        if name == "y" and made.size:
            made[0] = np.inf
        return made

    check(graph, [{"n": 0}, {"n": 1}, {"n": 4099}], fill=fill)


def test_half_precision_is_stored_and_computed_in_float32() -> None:
    space = Space()
    x, y = space.input("x", DType.FLOAT16, *space.dimensions("m n")), space.input("y", F32, 1)
    product = apply("multiply", node(Cast(F32), x), node(Broadcast(x.shape, (1,)), y))
    graph = space.graph(node(Cast(DType.FLOAT16), product))
    check(graph, [{"m": 7, "n": 131}], length=2)


def test_scalars() -> None:
    space = Space()
    m, n = space.dimensions("m n")
    x, i = space.input("x", F32, m, n), space.input("i", I64)
    count = node(Cast(F32), node(Dimension(m * n)))
    graph = space.graph(
        node(Broadcast(x.shape, ()), scalar(3, I64)),
        node(Broadcast(x.shape, ()), scalar(2.5)),
        apply("multiply", i, scalar(3, I64)),
        apply("divide", node(Reduce("sum", (0, 1)), x), count),
        apply("add", node(Dimension(ceil_div(m, 3) * 2 - n)), scalar(-4, I64)),
    )
    check(graph, [{"m": 1, "n": 1}, {"m": 5, "n": 33}], length=165)


def test_several_kernels_one_after_the_other() -> None:
    """A normalisation, two dense layers with GELU between them, a residual and a softmax."""
    space = Space()
    b, c = space.dimensions("b c")
    x, inner = space.input("x", F32, b, c), 96
    total = node(Reduce("sum", (1,)), apply("multiply", x, x))
    root = apply("square_root", apply("add", total, spread(scalar(1e-3), total.shape)))
    scaled = apply("divide", x, spread(root, x.shape, (0,)))
    up, down = space.input("u", F32, c, inner), fixed(data(F32, (inner, 7)))
    hidden = gelu(node(Contract((), ((1, 0),)), scaled, up))
    out = node(Contract((), ((1, 0),)), hidden, down)
    made = check(space.graph(softmax(out)), [{"b": 0, "c": 3}, {"b": 5, "c": 67}], length=200)
    assert len(made) == 4


def test_a_function_that_triton_lacks_is_refused() -> None:
    space = Space()
    x = space.input("x", F32, space.dimension("n"))
    with pytest.raises(UnsupportedError, match="no power of float32"):
        written(space.graph(apply("power", x, x)))
