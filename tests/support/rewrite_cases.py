"""One or more small graphs for every exact rule, each of which the rule applies to by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.rewrite_harness import (
    HIGH,
    Build,
    K,
    M,
    N,
    apply,
    fill,
    ones,
    shape,
    spread,
    tensor,
    value,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    Cast,
    Concat,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherND,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    Window,
)
from tilewright.shape import Expr, constant, maximum, minimum

MN, MNK = shape(M, N), shape(M, N, K)
BOOL, INT64, INT32 = DType.BOOL, DType.INT64, DType.INT32
WEIGHTS = np.arange(12.0).reshape(3, 4)


def x() -> Node:
    return tensor("x", M, N)


def y() -> Node:
    return tensor("y", M, N)


def z() -> Node:
    return tensor("z", M, N, K)


def truth(name: str = "truth") -> Node:
    return tensor(name, M, N, dtype=BOOL)


def to(sizes: tuple[Expr, ...], operand: Node) -> Node:
    return node(Reshape(sizes), operand)


def turned(operand: Node, *permutation: int) -> Node:
    return node(Transpose(permutation), operand)


def cut(operand: Node, starts: tuple[Expr, ...], sizes: tuple[Expr, ...], *steps: int) -> Node:
    return node(Slice(starts, sizes, shape(*steps) or ones(operand.rank)), operand)


def line(size: Expr) -> Node:
    return node(Iota((size,), 0))


def size_of(expression: Expr) -> Node:
    return node(Dimension(expression))


def padded(operand: Node, low: int, high: int) -> Node:
    amounts = shape(*[low] * operand.rank), shape(*[high] * operand.rank)
    return node(Pad(*amounts), operand, value(1.5))


def positions() -> Node:
    """[m, 1, n, 2]: the pairs of positions, as boolean masks are indexed with."""
    sizes = shape(M, 1, N, 1)
    return node(Concat(3), spread(line(M), sizes, 0), spread(line(N), sizes, 2))


def contract(left: Node, right: Node, batch: int, summed: tuple[int, int]) -> Node:
    return node(Contract(tuple((i, i) for i in range(batch)), (summed,)), left, right)


FOLDING: list[tuple[str, Build]] = [
    ("fold_constants", lambda: turned(value(WEIGHTS), 1, 0)),
    ("fold_constants", lambda: to(shape(2, 6), value(WEIGHTS))),
    ("fold_constants", lambda: node(Cast(INT32), value(WEIGHTS))),
    ("fold_constants", lambda: cut(value(WEIGHTS), shape(1, 0), shape(2, 2), 1, 2)),
    ("fold_constants", lambda: apply("multiply", value(WEIGHTS), fill(2.0, value(WEIGHTS)))),
    ("fold_constants", lambda: node(Gather(0), value(WEIGHTS), value([2, -1], INT64))),
    ("dimension_to_constant", lambda: size_of(minimum(M, -3))),
    ("iota_along_one_axis", lambda: node(Iota(MN, 1))),
    ("iota_of_one_element", lambda: line(constant(1))),
    ("known_integers", lambda: apply("add", size_of(M), value(3, INT64))),
    ("known_integers", lambda: apply("less", size_of(M), value(HIGH + 1, INT64))),
    ("uniform_constant", lambda: value(np.ones((3, 4)), INT64)),
    ("uniform_constant", lambda: value(np.zeros((2, 2)), BOOL)),
]

LAYOUT: list[tuple[str, Build]] = [
    ("reshape_to_own_shape", lambda: to(MN, x())),
    ("reshape_of_reshape", lambda: to(shape(N, M), to(shape(M * N), x()))),
    ("reshape_of_broadcast", lambda: to(shape(M * N), fill(2.5, x()))),
    ("reshape_of_broadcast", lambda: to(shape(1, M, 1, N), spread(tensor("v", N), MN, 1))),
    ("transpose_by_identity", lambda: turned(x(), 0, 1)),
    ("transpose_of_transpose", lambda: turned(turned(z(), 1, 2, 0), 2, 1, 0)),
    ("transpose_of_unit_axes", lambda: turned(tensor("u", M, 1, N), 1, 0, 2)),
    ("transpose_of_broadcast", lambda: turned(spread(tensor("v", M, K), MNK, 0, 2), 0, 2, 1)),
    ("transpose_of_merge", lambda: turned(to(shape(M * N, K), z()), 1, 0)),
    ("transpose_of_merge", lambda: turned(to(shape(M, 1, N * K), z()), 2, 0, 1)),
    ("broadcast_to_own_shape", lambda: spread(x(), MN, 0, 1)),
    ("broadcast_of_unit_axes", lambda: spread(x(), shape(1, M, 1, N), 1, 3)),
    ("broadcast_of_broadcast", lambda: spread(spread(tensor("v", N), MN, 1), MNK, 0, 1)),
    ("broadcast_of_broadcast", lambda: spread(spread(tensor("v", 1), MN, 1), MNK, 0, 1)),
    (
        "broadcast_without_unit_axes",
        lambda: spread(to(shape(M, 1, N), x()), shape(M, K, N), 0, 1, 2),
    ),
    (
        "broadcast_without_unit_axes",
        lambda: spread(to(shape(M, 1), tensor("u", M)), shape(M, N), 0, 1),
    ),
    (
        "broadcast_without_unit_axes",
        lambda: spread(to(shape(M, 1, 1, N), tensor("u", M, 1, N)), shape(M, K, K, N), 0, 1, 2, 3),
    ),
    (
        "broadcast_without_unit_axes",
        lambda: spread(to(shape(1, M, N), tensor("u", M, 1, N, 1)), shape(K, M, N), 0, 1, 2),
    ),
    (
        "slice_of_broadcast",
        lambda: cut(spread(tensor("v", 4), shape(M, 4), 1), shape(0, 1), shape(M, 2)),
    ),
    ("slice_of_broadcast", lambda: cut(fill(1.0, tensor("v", 5)), shape(4), shape(2), -3)),
]

PARTS: list[tuple[str, Build]] = [
    ("slice_of_all", lambda: cut(x(), shape(0, 0), MN)),
    (
        "slice_of_slice",
        lambda: cut(cut(tensor("v", 9), shape(8), shape(4), -2), shape(1), shape(2), 2),
    ),
    ("slice_of_pad", lambda: cut(padded(x(), 2, 1), shape(2, 2), MN)),
    ("slice_of_concat", lambda: cut(node(Concat(1), x(), z2(), x()), shape(0, N), shape(M, K))),
    (
        "slice_of_concat",
        lambda: cut(node(Concat(1), x(), tensor("w", M, 5)), shape(0, N + 2), shape(M, 2)),
    ),
    ("concat_of_one", lambda: node(Concat(0), x())),
    ("concat_of_one", lambda: node(Concat(0), tensor("e", 0, N), x(), y())),
    ("concat_of_one", lambda: node(Concat(0), tensor("e", 0, N), tensor("f", 0, N))),
    ("concat_of_concat", lambda: node(Concat(1), x(), node(Concat(1), z2(), y()))),
    ("pad_by_nothing", lambda: padded(x(), 0, 0)),
    ("pad_of_pad", lambda: padded(padded(x(), 1, 0), 2, 3)),
    ("gather_of_one", lambda: node(Gather(0), tensor("v", 3, N), value(-1, INT64))),
    ("gather_of_one", lambda: node(Gather(1), tensor("v", M, N + 1), size_of(N))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", 6, N), value([1, 3, 5], INT64))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", 6, N), value([[-4], [-3]], INT64))),
    ("gather_of_run", lambda: node(Gather(1), tensor("v", M, N + 1), value([0], INT64))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", HIGH, 2), line(N))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", HIGH + 2, 2), shifted(line(N), 2))),
    ("gather_from_one_row", lambda: node(Gather(1), tensor("v", M, 1), value([0], INT64))),
    (
        "gather_by_view",
        lambda: node(Gather(1), tensor("v", M, 3, K), spread(value([0, 2], INT64), shape(N, 2), 1)),
    ),
    ("gather_by_view", lambda: node(Gather(0), tensor("v", 3, K), to(shape(N, 1), indices()))),
    ("gather_nd_of_positions", lambda: node(GatherND(0), x(), positions())),
    ("gather_nd_of_positions", lambda: node(GatherND(0), z(), positions())),
    ("gather_nd_of_positions", lambda: node(GatherND(0), x(), to(shape(M, 1), line(M)))),
]

ELEMENTWISE: list[tuple[str, Build]] = [
    ("cast_to_own_type", lambda: node(Cast(DType.FLOAT32), x())),
    ("cast_of_lossless_cast", lambda: node(Cast(BOOL), node(Cast(DType.FLOAT64), x()))),
    ("cast_of_lossless_cast", lambda: node(Cast(DType.FLOAT32), node(Cast(INT64), truth()))),
    ("cast_of_lossless_cast", lambda: node(Cast(BOOL), node(Cast(INT32), truth()))),
    ("neutral_operand", lambda: apply("multiply", x(), fill(1.0, x()))),
    ("neutral_operand", lambda: apply("multiply", fill(1.0, x()), x())),
    ("neutral_operand", lambda: apply("divide", x(), fill(1.0, x()))),
    ("neutral_operand", lambda: apply("add", x(), fill(-0.0, x()))),
    ("neutral_operand", lambda: apply("subtract", x(), fill(0.0, x()))),
    ("neutral_operand", lambda: apply("power", x(), fill(1.0, x()))),
    ("neutral_operand", lambda: apply("add", fill(0, line(N)), line(N))),
    ("twice_the_same", lambda: apply("maximum", x(), x())),
    ("twice_the_same", lambda: apply("logical_and", truth(), truth())),
    ("twice_the_same", lambda: apply("select", truth(), x(), x())),
    ("involution", lambda: apply("negate", apply("negate", x()))),
    ("involution", lambda: apply("logical_not", apply("logical_not", truth()))),
    ("select_by_known", lambda: apply("select", fill(True, truth()), x(), y())),
    ("select_by_known", lambda: apply("select", fill(False, truth()), x(), y())),
    ("select_by_known", lambda: apply("select", apply("logical_not", truth()), x(), y())),
    *(
        ("logic_with_known", lambda f=function, v=known: apply(f, fill(v, truth()), truth()))
        for function in ("logical_and", "logical_or", "logical_xor")
        for known in (True, False)
    ),
    ("small_power", lambda: apply("power", x(), fill(2.0, x()))),
    ("division_by_power_of_two", lambda: apply("divide", x(), fill(-8.0, x()))),
    ("comparison_with_itself", lambda: apply("less", x(), x())),
    ("comparison_with_itself", lambda: apply("less_equal", line(N), line(N))),
    ("comparison_of_positions", lambda: apply("less", line(N), spread(size_of(N), shape(N)))),
    ("comparison_of_positions", lambda: apply("less", shifted(line(N), 1), fill(1, line(N)))),
    ("comparison_of_positions", lambda: apply("equal", shifted(line(N), 1), fill(0, line(N)))),
]

MOTION: list[tuple[str, Build]] = [
    ("view_after_map", lambda: apply("add", turned(x(), 1, 0), turned(y(), 1, 0))),
    ("view_after_map", lambda: node(Cast(INT32), to(shape(N, M), node(Cast(BOOL), x())))),
    ("view_after_map", lambda: apply("multiply", heads(), fill(0.3, heads()))),
    ("view_after_map", lambda: apply("add", heads(), spread(value([1.0, 2.0]), heads().shape, 0))),
    ("view_after_map", lambda: apply("add", unit(), spread(tensor("v", N), unit().shape, 2))),
    ("broadcast_after_map", lambda: node(Cast(BOOL), spread(tensor("v", N), MN, 1))),
    (
        "broadcast_after_map",
        lambda: apply("add", spread(tensor("v", M), MNK, 0), spread(tensor("w", K), MNK, 2)),
    ),
    (
        "broadcast_after_map",
        lambda: apply("add", spread(tensor("v", M, 1), MNK, 0, 1), fill(2.0, z())),
    ),
    (
        "broadcast_after_map",  # by 2, so nothing is reported even if m is 0
        lambda: apply(
            "divide",
            spread(tensor("v", N, dtype=INT64), MN, 1),
            fill(2, spread(tensor("v", N, dtype=INT64), MN, 1)),
        ),
    ),
    ("unit_axes_after_reduce", lambda: node(Reduce("maximum", (2,)), to(shape(M, 1, N), x()))),
    ("unit_axes_after_reduce", lambda: node(Reduce("maximum", (0, 1)), to(MN, unit()))),
    ("transpose_after_reduce", lambda: node(Reduce("maximum", (0,)), turned(z(), 2, 0, 1))),
    ("transpose_after_reduce", lambda: node(Reduce("maximum", (0, 2)), turned(z(), 1, 2, 0))),
    ("transpose_after_reduce", lambda: node(Reduce("maximum", (0, 1)), turned(x(), 1, 0))),
]

EXACT_LINEAR: list[tuple[str, Build]] = [
    ("contract_of_transpose", lambda: contract(turned(x(), 1, 0), tensor("w", M, 3), 0, (1, 0))),
    (
        "contract_of_transpose",
        lambda: contract(z(), turned(tensor("w", M, 3, K), 0, 2, 1), 1, (2, 1)),
    ),
    (
        "contract_of_reshape",
        lambda: contract(to(shape(M * N, K), z()), tensor("w", K, 3), 0, (1, 0)),
    ),
    (
        "contract_of_reshape",
        lambda: contract(tensor("w", 3, K), to(shape(M * N, K), z()), 0, (1, 1)),
    ),
    (
        "contract_of_reshape",
        lambda: contract(
            to(shape(M * N, 6), tensor("a", M, N, 2, 3)), tensor("w", 6, K), 0, (1, 0)
        ),
    ),
    (
        "contract_of_unit_axes",
        lambda: contract(to(shape(1, M, N), x()), tensor("w", 1, N, K), 1, (2, 1)),
    ),
]


def z2() -> Node:
    return tensor("z2", M, K)


def indices() -> Node:
    return tensor("indices", N, dtype=INT64)


def shifted(operand: Node, amount: int) -> Node:
    return apply("add", operand, fill(amount, operand))


def heads() -> Node:
    """[2, m, n, 3] from [m, n, 2, 3]: as heads of attention are made."""
    return turned(tensor("h", M, N, 2, 3), 2, 0, 1, 3)


def unit() -> Node:
    return to(shape(M, 1, N), x())


def filled_out(operand: Node, number: float, low: tuple[int, ...], high: tuple[int, ...]) -> Node:
    return node(Pad(shape(*low), shape(*high)), operand, value(number))


def pooled(kind: str, operand: Node, *sizes: int | Expr, low: int = 0, trailing: int = 0) -> Node:
    """Windows of 3, one step apart, along the first of these axes; of 1 along the others."""
    rest = (1,) * (len(sizes) - 1)
    starts = shape(low, *[0] * len(rest))
    ones_each = (1, *rest)
    primitive = Window(kind, (3, *rest), ones_each, ones_each, starts, shape(*sizes), trailing)
    return node(primitive, operand)


FEW = minimum(M, 3)  # 0 only where m is
AT_LEAST_ONE = maximum(FEW, 1)


def few(*sizes: int | Expr) -> Node:
    """[m, min(m, 3), …] under sizes that differ from that only where there are no elements."""
    return to(shape(M, AT_LEAST_ONE, *sizes), tensor("few", M, FEW, *sizes))


def rounded(data: Node) -> Node:
    """Whole numbers of a few hundred, of which sums are exact in whatever order they are added."""
    return apply("floor", apply("multiply", data, fill(256.0, data)))


def channels() -> Node:
    return rounded(tensor("channels", M, 3, N))


def convolved(data: Node, channels_last: bool = False, count: int = 3) -> Node:
    """One convolution of windows of 2, two steps apart, with ``count`` channels of data."""
    primitive = Convolve((2,), (1,), (1,), shape(1), (N + 1,), 1, channels_last)
    return node(primitive, data, value(np.arange(4.0 * count).reshape(2, count, 2) - 5))


def pointwise(stride: int, low: Sequence[int | Expr], sizes: Sequence[int | Expr]) -> Node:
    """A convolution of one tap of [m, 32, 3, n], mostly of padding."""
    twice = (1, 1), (1, 1)
    primitive = Convolve((stride, stride), *twice, shape(*low), shape(*sizes), 1)
    weights = np.arange(64.0).reshape(2, 32, 1, 1) - 31
    return node(primitive, rounded(tensor("deep", M, 32, 3, N)), value(weights))


WINDOWS: list[tuple[str, Build]] = [
    ("window_of_pad", lambda: pooled("sum", filled_out(x(), 0.0, (0, 2), (0, 1)), N + 1)),
    (
        "window_of_pad",
        lambda: pooled(
            "maximum", filled_out(z(), -np.inf, (0, 1, 0), (0, 0, 0)), N, low=1, trailing=1
        ),
    ),
    ("window_of_pad", lambda: pooled("minimum", filled_out(x(), np.inf, (0, 0), (0, 3)), N)),
    ("window_of_unit_axes", lambda: pooled("sum", to(shape(M, 1, N, 1, K), z()), N, 1, K, low=1)),
    ("window_of_unit_axes", lambda: pooled("maximum", to(shape(1, M, N, 1), x()), N, 1)),
    ("window_of_unit_axes", lambda: pooled("sum", to(shape(M, N, 1), x()), M, low=2, trailing=2)),
    ("window_of_unit_axes", lambda: pooled("minimum", to(MN, unit()), M, N)),
    ("window_of_unit_axes", lambda: pooled("sum", few(4), 4, low=1)),
    ("window_of_spanned_axes", lambda: pooled("sum", tensor("a", 2, K, M, N), K, M, N, low=1)),
    ("window_of_spanned_axes", lambda: pooled("maximum", tensor("a", M, N, K), 4, N, K, low=2)),
    ("broadcast_back", lambda: spread(few(), shape(M, FEW), 0, 1)),
    ("broadcast_back", lambda: spread(few(N), shape(M, FEW, N), 0, 1, 2)),
    ("convolve_of_no_channels", lambda: convolved(tensor("none", M, 0, N), count=0)),
    ("convolve_of_no_channels", lambda: convolved(tensor("none", M, N, 0), True, 0)),
    (
        "convolve_of_pad",
        lambda: convolved(filled_out(channels(), 0.0, (0, 0, 2), (0, 0, 1))),
    ),
    (
        "convolve_of_pad",
        lambda: convolved(
            filled_out(rounded(tensor("a", M, N, 3)), 0.0, (0, 1, 0), (0, 0, 0)), True
        ),
    ),
    ("pad_of_pointwise", lambda: pointwise(1, (2, 0), (8, N))),
    ("pad_of_pointwise", lambda: pointwise(2, (3, 0), (5, N + 1))),
    ("pad_of_pointwise", lambda: pointwise(3, (7, 2), (2, N))),
]

EXACT = FOLDING + LAYOUT + PARTS + ELEMENTWISE + MOTION + EXACT_LINEAR + WINDOWS
