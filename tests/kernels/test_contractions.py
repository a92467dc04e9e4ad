"""Contractions: every layout of operands, batches, edge sizes, constants, and epilogues."""

from __future__ import annotations

import pytest

from support.graph_kit import (
    BOTH_LEVELS,
    F32,
    F64,
    I64,
    WIDE,
    Space,
    apply,
    check,
    data,
    fixed,
    kinds,
    mostly_slow,
    scalar,
    spread,
)
from tilewright.backend.cpu.machine import host_levels
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Cast, Contract, Reduce, Reshape, Slice, Transpose
from tilewright.shape import constant

pytestmark = pytest.mark.sampled(12)

EDGES = [{"m": m, "n": n, "k": k} for m, n, k in
         ((1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (6, 16, 4), (7, 17, 5), (5, 15, 3),
          (13, 65, 31), (97, 63, 33))]  # fmt: skip
LARGE = [{"m": m, "n": n, "k": k} for m, n, k in ((200, 131, 390), (3, 260, 769), (101, 5, 384))]


def depth(sizes: dict[str, int]) -> int:
    return sizes["k"]


def matmul(left: Node, right: Node) -> Node:
    """[…, m, k] by […, k, n], all but the last two axes being the batch."""
    batch = tuple((a, a) for a in range(left.rank - 2))
    return node(Contract(batch, ((left.rank - 1, right.rank - 2),)), left, right)


@pytest.mark.slow
@pytest.mark.parametrize("left", mostly_slow(["mk", "km"], "mk"))
@pytest.mark.parametrize("right", mostly_slow(["kn", "nk"], "nk"))
def test_every_transposition(left: str, right: str) -> None:
    space = Space()
    sizes = dict(zip("mnk", space.dimensions("m n k"), strict=True))
    x = space.input("x", F32, *(sizes[a] for a in left))
    y = space.input("y", F32, *(sizes[a] for a in right))
    product = node(Contract((), ((left.index("k"), right.index("k")),)), x, y)
    cases = EDGES + (LARGE if (left, right) == ("mk", "nk") else LARGE[:1])
    check(space.graph(product), cases, length=depth)


@pytest.mark.parametrize("transposed", mostly_slow([False, True], "True"))
def test_an_explicit_transpose_is_read_in_place(transposed: bool) -> None:
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x = space.input("x", F32, b, m, k)
    y = space.input("y", F32, b, n, k) if transposed else space.input("y", F32, b, k, n)
    right = node(Transpose((0, 2, 1)), y) if transposed else y
    cases = [{"b": i, **s} for i, s in zip((3, 1, 2, 2, 0, 1, 5, 2), EDGES, strict=False)]
    check(space.graph(matmul(x, right)), cases, length=depth)


@pytest.mark.parametrize("dtype", mostly_slow([F64, I64, DType.INT32, DType.UINT8], "int32"))
def test_other_types(dtype: DType) -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", dtype, m, k), space.input("y", dtype, k, n)
    check(space.graph(matmul(x, y)), EDGES, length=depth)


@pytest.mark.parametrize("dtype", mostly_slow([DType.FLOAT16, DType.BFLOAT16]))
def test_half_precision_operands(dtype: DType) -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", dtype, m, k), space.input("y", dtype, k, n)
    product = node(Cast(dtype), matmul(node(Cast(F32), x), node(Cast(F32), y)))
    check(space.graph(product), EDGES, length=4)


@pytest.mark.parametrize("size", mostly_slow([(1, 1), (16, 64), (17, 5), (70, 390)], "(17,5)"))
def test_constant_weights_with_bias_and_activation(size: tuple[int, int]) -> None:
    n, k = size
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b, constant(k))
    weights, bias = fixed(data(F32, (k, n))), fixed(data(F32, (n,), 5))
    product = node(Contract((), ((2, 0),)), x, weights)
    activated = apply("hyperbolic_tangent", apply("add", product, bias))
    cases = [{"a": i, "b": j} for i, j in ((0, 3), (1, 1), (2, 3), (1, 13), (4, 50))]
    compiled = check(space.graph(activated), cases, length=k, scale=4 * k**0.5)
    assert kinds(compiled) == ["contraction"]


@pytest.mark.parametrize("columns", [3, 13, 22, 33, 71, 79])
def test_columns_that_fill_no_vector_are_finished_in_registers(columns: int) -> None:
    """Nothing behind them is written, and operands of the result's shape are not read beyond it."""
    space = Space()
    m, depth = space.dimension("m"), 9
    x = space.input("x", F32, m, depth)
    weights, bias = fixed(data(F32, (depth, columns))), fixed(data(F32, (columns,), 5))
    sums = apply("add", node(Contract((), ((1, 0),)), x, weights), bias)
    residual = space.input("r", F32, m, columns)
    outputs = apply("maximum", sums, scalar(0.0)), apply("add", sums, residual)
    cases = [{"m": rows} for rows in (0, 1, 11, 12, 13, 97)]
    plain = (level.name for level in host_levels() if level.serves(None))
    levels = dict.fromkeys((*BOTH_LEVELS[:1], *plain))
    check(space.graph(*outputs), cases, length=depth, scale=12, levels=tuple(levels))


@pytest.mark.slow
def test_weights_stored_transposed() -> None:
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, constant(33))
    weights = fixed(data(F32, (20, 33)))
    product = node(Contract((), ((1, 1),)), x, weights)
    check(space.graph(apply("maximum", product, scalar(0.0))), [{"m": i} for i in (0, 1, 7, 50)],
          length=33)  # fmt: skip


@pytest.mark.slow
def test_epilogue_with_residual_row_column_and_several_outputs() -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F32, m, k), space.input("y", F32, k, n)
    residual, row = space.input("residual", F32, m, n), space.input("row", F32, n)
    column = space.input("column", F32, m)
    product = matmul(x, y)
    scaled = apply("multiply", product, spread(column, (m, n), [0]))
    total = apply("add", apply("add", scaled, row), residual)
    positive = apply("maximum", total, scalar(0.0))
    mask = apply("less", scalar_like(total, 0.0), total)
    graph = space.graph(positive, total, mask)
    check_signs_apart(graph)


def scalar_like(wanted: Node, value: float) -> Node:
    return spread(scalar(value), wanted.shape)


def check_signs_apart(graph: object) -> None:
    compiled = check(graph, EDGES, length=depth)  # type: ignore[arg-type]
    assert kinds(compiled).count("contraction") == 1


@pytest.mark.slow
def test_column_broadcast_of_a_middle_axis() -> None:
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", F32, b, m, k), space.input("y", F32, b, k, n)
    shift = space.input("shift", F32, b, n)
    product = matmul(x, y)
    moved = apply("add", product, node(Broadcast((b, m, n), (0, 2)), shift))
    cases = [{"b": i, **s} for i, s in zip((3, 1, 2, 2, 0, 1, 5, 2), EDGES, strict=False)]
    check(space.graph(moved), cases, length=depth)


@pytest.mark.slow
def test_heads_split_and_merged_around_attention() -> None:
    """softmax(q kᵀ) v with the head axis inside, read and stored without copies."""
    space = Space()
    b, s = space.dimensions("b s")
    heads, width = constant(3), constant(8)
    x = space.input("x", F32, b, s, constant(24))

    def split(which: int) -> Node:
        weights = fixed(data(F32, (24, 24), which) * 0.2)
        made = node(Contract((), ((2, 0),)), x, weights)
        return node(Transpose((0, 2, 1, 3)), node(Reshape((b, s, heads, width)), made))

    q, k, v = split(0), split(1), split(2)
    scores = apply("multiply", matmul(q, node(Transpose((0, 1, 3, 2)), k)), scalar(8**-0.5))
    top = node(Reduce("maximum", (3,)), scores)
    powers = apply("exponential", apply("subtract", scores, spread(top, scores.shape, [0, 1, 2])))
    total = node(Reduce("sum", (3,)), powers)
    weights = apply("divide", powers, spread(total, powers.shape, [0, 1, 2]))
    mixed = node(Transpose((0, 2, 1, 3)), matmul(weights, v))
    merged = node(Reshape((b, s, constant(24))), mixed)
    out = node(Contract((), ((2, 0),)), merged, fixed(data(F32, (24, 24), 3) * 0.2))
    cases = [{"b": i, "s": j} for i, j in ((0, 3), (2, 0), (1, 1), (2, 5), (1, 33), (3, 17))]
    check(space.graph(apply("add", out, x)), cases, length=100)


@pytest.mark.slow
def test_work_before_a_contraction() -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F32, m, k), space.input("y", F32, n, k)
    scale = space.input("scale", F32, k)
    left = apply("exponential", x)
    right = node(Transpose((1, 0)), apply("multiply", y, scale))
    check(space.graph(matmul(left, right)), EDGES, length=depth)


@pytest.mark.slow
def test_a_slice_of_a_larger_tensor_as_operand() -> None:
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, constant(30))
    y = space.input("y", F32, constant(30), n)
    zero, one = constant(0), constant(1)
    left = node(Slice((zero, constant(10)), (m, constant(10)), (one, one)), x)
    right = node(Slice((constant(20), zero), (constant(10), n), (one, one)), y)
    cases = [{"m": i, "n": j} for i, j in ((0, 3), (1, 1), (7, 17), (33, 20))]
    check(space.graph(matmul(left, right)), cases, length=10)


@pytest.mark.slow
def test_results_beyond_the_nearest_caches() -> None:
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", F32, b, m, k), space.input("y", F32, b, k, n)
    product = matmul(x, y)
    shifted = apply("add", product, space.input("row", F32, n))
    cases = [{"b": 3, "m": 300, "n": 201, "k": 5}, {"b": 1, "m": 5, "n": 30011, "k": 2}]
    check(space.graph(shifted, node(Transpose((0, 2, 1)), shifted)), cases, length=depth)


@pytest.mark.slow
def test_outer_products_and_inner_products() -> None:
    space = Space()
    m, n = space.dimensions("m n")
    x, y, z = space.input("x", F32, m), space.input("y", F32, n), space.input("z", F32, n)
    outer = node(Contract((), ()), x, y)
    inner = node(Contract((), ((0, 0),)), y, z)
    paired = node(Contract(((0, 0),), ()), y, z)
    cases = [{"m": i, "n": j} for i, j in ((0, 3), (3, 0), (1, 1), (7, 17), (33, 65))]
    check(space.graph(outer, inner, paired), cases, length=65)


@pytest.mark.slow
def test_several_summed_axes_in_another_order() -> None:
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    x, y = space.input("x", F32, a, b, c), space.input("y", F32, c, d, b)
    product = node(Contract((), ((1, 2), (2, 0))), x, y)
    cases = [{"a": 2, "b": 3, "c": 4, "d": 5}, {"a": 1, "b": 1, "c": 1, "d": 1},
             {"a": 7, "b": 5, "c": 0, "d": 17}, {"a": 7, "b": 5, "c": 13, "d": 17}]  # fmt: skip
    check(space.graph(product), cases, length=65)


@pytest.mark.slow
def test_a_batch_broadcast_over_one_operand() -> None:
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", F32, b, m, k), space.input("y", F32, k, n)
    product = matmul(x, node(Broadcast((b, k, n), (1, 2)), y))
    cases = [{"b": i, **s} for i, s in zip((3, 1, 2, 2, 0, 1, 5, 2), EDGES, strict=False)]
    check(space.graph(product), cases, length=depth)


@pytest.mark.slow
def test_one_product_feeds_another() -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y, z = space.input("x", F32, m, k), space.input("y", F32, k, n), space.input("z", F32, n, m)
    first = matmul(x, y)
    check(space.graph(matmul(first, z), first), EDGES, length=lambda s: 64 * (s["k"] + s["n"]))


@pytest.mark.slow
def test_rows_that_do_not_lie_like_one_axis() -> None:
    """Channels first: the summed axis lies between the rows."""
    space = Space()
    n, h, w = space.dimensions("n h w")
    x = space.input("x", F32, n, constant(12), h, w)
    y = space.input("y", F32, n, h, n)
    known = node(Contract((), ((1, 0),)), x, fixed(data(F32, (12, 17))))
    given = node(Contract((), ((1, 1),)), x, space.input("z", F32, constant(5), constant(12)))
    batched = node(Contract(((2, 1),), ((0, 0),)), x, y)
    rows = ((1, 1, 1), (0, 2, 3), (2, 0, 3), (3, 5, 7), (2, 4, 17))
    cases = [dict(zip("nhw", row, strict=True)) for row in rows]
    check(space.graph(known, given, batched), cases, length=12)


@pytest.mark.slow
def test_summed_axes_that_do_not_lie_like_one_axis() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, b, c), space.input("y", F32, c, a, constant(3))
    product = node(Contract((), ((0, 1), (2, 0))), x, y)
    rows = ((1, 1, 1), (0, 2, 3), (2, 0, 3), (3, 5, 7))
    cases = [dict(zip("abc", row, strict=True)) for row in rows]
    check(space.graph(apply("maximum", product, scalar(0.0)), product), cases, length=21)


@pytest.mark.slow
def test_tiles_of_avx512_on_other_machines() -> None:
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y, row = (
        space.input("x", F32, m, k),
        space.input("y", F32, k, n),
        space.input("row", F32, n),
    )
    total = apply("add", matmul(x, y), row)
    check(space.graph(apply("maximum", total, scalar(0.0)), total), EDGES + LARGE, length=depth,
          levels=(WIDE,))  # fmt: skip
