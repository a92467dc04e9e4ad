"""Reductions of every kind over any axes, running reductions, and positions of extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOOL,
    F32,
    F64,
    I64,
    Compiled,
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
from support.only_variant import only_variant
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Gather,
    Pad,
    Reduce,
    Reshape,
    Scan,
    Transpose,
)
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.target import preset
from tilewright.tile.rows.columns import lower_columns
from tilewright.tile.values.lowering import Lowering

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
KINDS = ("sum", "product", "maximum", "minimum")
CUBES = [{"a": a, "b": b, "c": c} for a, b, c in
         ((1, 1, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0), (3, 5, 67), (2, 33, 4))]  # fmt: skip


def small(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
    """Values near 1, whose products stay in range."""
    generator = np.random.default_rng(sum(shape))
    if kind.is_float:
        return generator.uniform(0.8, 1.2, shape).astype(kind.numpy)
    return generator.integers(0, 2, shape).astype(kind.numpy)


AXES = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("axes", mostly_slow(AXES, "(0,2)", "(2,)"))
def test_every_kind_over_any_axes(axes: tuple[int, ...]) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b c"))
    outputs = [node(Reduce(kind, axes), x) for kind in KINDS]
    check(space.graph(*outputs), CUBES, length=200, fill=small)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", mostly_slow([DType.INT32, DType.UINT8, BOOL, DType.FLOAT64], "uint8")
)
def test_other_types(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"))
    chosen = KINDS[2:] if dtype is BOOL else KINDS
    outputs = [node(Reduce(kind, axes), x) for kind in chosen for axes in ((0,), (1,))]
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (0, 3), (3, 0), (5, 37))]
    check(space.graph(*outputs), cases, length=40, fill=small)


@pytest.mark.parametrize("dtype", mostly_slow([DType.FLOAT16, DType.BFLOAT16], "bfloat16"))
def test_half_precision_through_float32(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"))
    wide = node(Cast(F32), x)
    total = node(Cast(dtype), node(Reduce("sum", (1,)), wide))
    largest = node(Reduce("maximum", (1,)), x)
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (3, 0), (5, 37))]
    check(space.graph(total, largest), cases, length=8)


def test_a_reduction_in_the_middle_feeds_elementwise_work() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, b, c), space.input("y", F32, a, c)
    inner = node(Reduce("sum", (1,)), apply("multiply", x, x))
    check(space.graph(apply("square_root", apply("maximum", inner, y)), inner), CUBES, length=40)


@pytest.mark.slow
def test_a_reduction_of_a_transposed_operand() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b c"))
    turned = node(Transpose((2, 0, 1)), x)
    flat = node(Reshape((x.shape[2], x.shape[0] * x.shape[1])), turned)
    check(space.graph(node(Reduce("sum", (1,)), flat), node(Reduce("maximum", (0,)), turned)),
          CUBES, length=20)  # fmt: skip


@pytest.mark.parametrize("kind", mostly_slow(["maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("last", mostly_slow([False, True], "True"))
def test_positions_of_extremes(kind: str, last: bool) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = np.random.default_rng(len(name)).integers(0, 4, shape).astype(dtype.numpy)
        if name == "nan" and made.size > 5:
            made.reshape(-1)[[2, 5]] = np.nan
        return made

    space = Space()
    a, b = space.dimension("a", 1), space.dimension("b", 1)
    x, i = space.input("x", F32, a, b), space.input("i", DType.INT8, a, b)
    broken = space.input("nan", F32, a, b)
    outputs = [node(ArgReduce(kind, axis, last), o) for axis in (0, 1) for o in (x, i, broken)]
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (5, 7), (3, 70), (4, 130), (13, 70))]
    cases += [{"a": 3, "b": b} for b in (2, 15, 16, 17, 31, 32, 33, 64, 65, 5000)]
    check(space.graph(*outputs), cases, fill=fill)


@pytest.mark.slow
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_products(exclusive: bool, reverse: bool) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    i = space.input("i", I64, x.shape[0], x.shape[1])
    outputs = [node(Scan("sum", axis, exclusive, reverse), o) for axis in (0, 1) for o in (x, i)]
    outputs.append(node(Scan("product", 1, exclusive, reverse), apply("add", x, scalar(1.0))))
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (0, 3), (3, 0), (5, 37))]
    check(space.graph(*outputs), cases, length=40, fill=small)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum", "product"])
def test_running_combinations_of_whole_vectors(kind: str) -> None:
    """As many elements as vectors have, one more, one less and several times as many."""
    space = Space()
    a, b = space.dimensions("a b")
    given = [space.input(t.value, t, a, b) for t in (F32, F64, I64, DType.INT32, DType.UINT8)]
    halves = space.input("halves", DType.FLOAT16, a, b)
    ways = ((False, False), (True, False), (False, True), (True, True))
    scans = [Scan(kind, 1, exclusive, reverse) for exclusive, reverse in ways]
    outputs = [node(scan, x) for x in given for scan in scans]
    outputs.append(node(scans[0], halves))
    lengths = (0, 1, 2, 8, 9, 16, 17, 18, 63, 64, 65, 259)
    cases = [{"a": 2, "b": length} for length in lengths]
    check(space.graph(*outputs), cases, length=260, fill=small)


def test_a_reduction_of_everything_to_a_scalar() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    total = node(Reduce("sum", (0, 1)), x)
    mean = apply("divide", total, scalar(3.0))
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (0, 3), (3, 0), (50, 37))]
    check(space.graph(mean, apply("subtract", x, mean)), cases, length=2000)


@pytest.mark.slow
def test_a_constant_axis_of_size_one() -> None:
    space = Space()
    (a,) = space.dimensions("a")
    x = space.input("x", F32, a, constant(1), constant(5))
    outputs = [node(Reduce("sum", axes), x) for axes in ((1,), (2,), (1, 2), (0, 1))]
    check(space.graph(*outputs), [{"a": n} for n in (0, 1, 9)], length=9)


def test_axes_that_are_all_of_size_one() -> None:
    space = Space()
    (a,) = space.dimensions("a")
    x = space.input("x", F32, a, constant(1), constant(1))
    y = space.input("y", F32, a, constant(1), constant(3), constant(1))
    largest = node(Reduce("maximum", (1, 2)), x)
    total = node(Reduce("sum", (1, 2, 3)), apply("multiply", y, y))
    check(space.graph(apply("negate", largest), total), [{"a": n} for n in (0, 1, 9)], length=9)


MAPS = ((1, 1, 1), (0, 3, 3), (2, 0, 5), (2, 5, 0), (3, 7, 7), (1, 13, 11))
ROWS_AND_COLUMNS = [{"n": n, "h": h, "w": w} for n, h, w in MAPS]


@pytest.mark.parametrize("channels", mostly_slow([8, 9, 130, 1283], "130"))
def test_pooling_of_whole_maps_with_channels_last(channels: int) -> None:
    space = Space()
    n, h, w = space.dimensions("n h w")
    x = space.input("x", F32, n, h, w, channels)
    total = node(Reduce("sum", (1, 2)), x)
    scale, shift = (spread(fixed(data(F32, (channels,), s)), total.shape) for s in (1, 2))
    affine = apply("add", apply("multiply", total, scale), shift)
    graph = space.graph(apply("maximum", affine, scalar(0.0)), affine)
    compiled = check(graph, ROWS_AND_COLUMNS, length=150)
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
def test_statistics_over_all_but_the_channels() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("n h w"), 37)
    squares = node(Reduce("sum", (0, 1, 2)), apply("multiply", x, x))
    mean = apply("multiply", node(Reduce("sum", (0, 1, 2)), x), scalar(0.25))
    centred = apply("subtract", x, node(Broadcast(x.shape, (3,)), mean))
    check(space.graph(squares, mean, centred), ROWS_AND_COLUMNS, length=500, scale=20)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 2, 6, 7, 8, 9, 12, 13, 16, 49])
def test_any_number_of_rows(size: int) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, size, b, 9)
    total = node(Reduce("sum", (1,)), x)
    largest = node(Reduce("maximum", (1,)), apply("negate", x))
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (0, 3), (2, 0), (3, 7), (1, 61))]
    check(space.graph(total, apply("absolute", largest)), cases, length=max(size, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
def test_numbers_that_are_none(kind: str) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape)
        made.reshape(-1)[16::17] = np.nan
        made.reshape(-1)[28::29] = np.inf
        return made

    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"), 11)
    outputs = [node(Reduce(kind, axes), x) for axes in ((0,), (1,), (0, 1))]
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (2, 9), (5, 20))]
    check(space.graph(*outputs), cases, length=100, fill=fill)


def test_rows_that_are_looked_up_or_padded() -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = np.random.default_rng(len(shape)).integers(-5, 5, shape)
        return made.astype(dtype.numpy) if name == "i" else data(dtype, shape)

    space = Space()
    a, b = space.dimensions("a b")
    table, i = space.input("table", F32, 5, 12), space.input("i", I64, a, b)
    looked_up = node(Reduce("sum", (1,)), node(Gather(0), table, i))
    amounts = (constant(2), constant(0)), (constant(1), constant(3))
    padded = node(Reduce("minimum", (0,)), node(Pad(*amounts), table, scalar(0.5)))
    cases = [{"a": a, "b": b} for a, b in ((1, 1), (0, 3), (2, 0), (3, 29))]
    check(space.graph(looked_up, padded), cases, length=30, fill=fill)


@pytest.mark.parametrize("rows", [0, "n"])
def test_a_result_that_does_not_exist_reads_nothing(rows: int | str) -> None:
    space = Space()
    size = constant(0) if rows == 0 else space.dimension("n", 0, 1)
    space.carry(space.dimension("a"))
    x = space.input("x", F32, size, 5)
    outputs = [
        node(ArgReduce("maximum", 1, False), x),
        node(Reduce("sum", (1,)), apply("negate", x)),
    ]
    counts = space.input("i", I64, size)
    outputs.append(node(Gather(0), fixed(np.arange(3.0, dtype=np.float32)), counts))
    cases = [{"n": 0, "a": 1}] if rows == 0 else [{"n": n, "a": 1} for n in (0, 1)]
    check(space.graph(*outputs), cases, length=5, fill=lambda n, t, s: data(t, s, low=0, high=2))


# ---------------------------------------------------------------- short rows, and rows in parts


def only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions that keep the last axis have this variant alone."""
    only_variant(monkeypatch, "lower_columns", name)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions that keep the last axis are computed in parts."""
    only("parts", monkeypatch)


@pytest.fixture
def in_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions that keep the last axis take whole rows."""
    only("rows", monkeypatch)


@pytest.mark.usefixtures("in_whole_rows")
@pytest.mark.parametrize("dtype", mostly_slow([F32, F64, DType.FLOAT16, DType.UINT8], "float32"))
def test_whole_rows_of_any_length(dtype: DType) -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x = space.input("x", dtype, a, b, c)
    sizes = [(1, 0, 3), (2, 3, 0), (1, 1, 1), (2, 9, 127), (2, 8, 129), (3, 17, 513), (1, 13, 2050)]
    cases = [{"a": a, "b": b, "c": c} for a, b, c in sizes]
    graph = space.graph(node(Reduce("maximum", (1,)), x), node(Reduce("minimum", (1,)), x))
    check(graph, cases)


@pytest.mark.usefixtures("in_whole_rows")
@pytest.mark.parametrize("rows", [1, 7, None])
def test_sums_of_whole_rows(rows: int | None) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b if rows is None else rows, 517)
    total = apply("negate", node(Reduce("sum", (1,)), x))
    check(space.graph(total), [{"a": a, "b": b} for a, b in ((0, 3), (1, 0), (3, 49))], length=50)


def test_many_long_rows_are_taken_whole_and_a_few_in_pieces_or_parts() -> None:
    """With as many tasks as fill the threads."""
    space = Space()
    a, b = space.dimensions("a b")
    graph = space.graph(node(Reduce("sum", (1,)), space.input("x", F32, a, b, 513)))
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset("x86-64"))
    found = lower_columns(kernel, lambda: Lowering(kernel, graph.scope), machine)

    def cheapest(**sizes: int) -> str:
        return min(found, key=lambda variant: variant.cost.evaluate(sizes)).name

    # With four threads memory limits both ways alike.
    for threads in (1, 2):
        assert cheapest(a=67, b=49, _threads=threads) == "in order"
    # Twelve rows are too little work for a second thread, eighty are not.
    assert cheapest(a=1, b=12, _threads=4) == "rows"
    assert cheapest(a=1, b=80, _threads=2) == "loops"
    assert cheapest(a=1, b=40_000, _threads=4) == "parts"


FOLDED = [
    {"a": a, "b": b} for a, b in ((0, 3), (1, 0), (2, 1), (1, 15), (3, 16), (2, 131), (1, 997))
]


@pytest.mark.parametrize("columns", mostly_slow([1, 2, 3, 7, 8, 15], "7"))
@pytest.mark.parametrize("dtype", [F32, I64])
def test_short_rows_are_taken_together(columns: int, dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"), columns)
    total = node(Reduce("sum", (1,)), x)
    graph = space.graph(total, apply("negate", node(Reduce("maximum", (0,)), x)))
    check(graph, FOLDED, length=1000, scale=997**0.5)  # so large are sums of as many on the way


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("columns", mostly_slow([5, 16, 300, 2049], "5"))
def test_rows_in_parts(columns: int) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"), columns)
    total = apply("absolute", node(Reduce("sum", (1,)), x))
    check(space.graph(total, node(Reduce("minimum", (0, 1)), x)), FOLDED, length=1000)


@pytest.mark.usefixtures("in_parts")
def test_parts_of_rows_of_any_length() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x = space.input("x", F32, a, b, c)
    cases = [
        {"a": a, "b": b, "c": c} for a, b, c in ((1, 0, 3), (2, 3, 0), (2, 9, 17), (1, 67, 2050))
    ]
    check(space.graph(node(Reduce("sum", (1,)), x)), cases, length=100)


def test_short_rows_from_outside_need_no_kernel_of_their_own() -> None:
    space = Space()
    x = space.input("x", F32, space.dimension("a"), 5)
    mean = apply("multiply", node(Reduce("sum", (0,)), x), scalar(0.5))
    assert kinds(Compiled(space.graph(mean))) == ["window"]
