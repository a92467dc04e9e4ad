"""Rows that lie side by side, and few long ones: softmax and normalisations over any axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    F32,
    F64,
    FLOATS,
    Compiled,
    Space,
    apply,
    check,
    fixed,
    kept,
    kinds,
    mostly_slow,
    scalar,
    softmax,
    spread,
)
from support.only_variant import only_variant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Dimension,
    Reduce,
    Reshape,
    Scan,
)
from tilewright.shape import Expr, constant, product

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
LEVELS = ("x86-64", "avx2", "avx512")
EPSILON = 0.1
LARGEST = 4 / EPSILON**0.5  # of what values of about 4 become: errors are relative to that
Sizes = dict[str, int]


def named(names: str, *rows: tuple[int, ...]) -> list[Sizes]:
    return [dict(zip(names, row, strict=True)) for row in rows]


# Rows of 0, 1, 8 ± 1 elements; columns of one vector ± 1, of one block ± 1, and primes.
EDGES = named("abc", (2, 0, 3), (2, 3, 0), (0, 3, 3), (1, 1, 1), (2, 7, 15), (1, 8, 16), (3, 9, 17),
              (1, 2, 511), (1, 3, 513), (2, 19, 131), (1, 131, 19))  # fmt: skip


def normalise(x: Node, axes: Sequence[int]) -> Node:
    number = node(Cast(x.dtype), node(Dimension(product([x.shape[a] for a in axes]))))
    count = spread(number, x.shape)
    mean = apply("divide", kept(x, "sum", axes), count)
    centred = apply("subtract", x, mean)
    squares = kept(apply("multiply", centred, centred), "sum", axes)
    variance = apply("add", apply("divide", squares, count), scalar(EPSILON, x.dtype))
    return apply("divide", centred, apply("square_root", variance))


def swish(x: Node) -> Node:
    grown = apply("exponential", apply("negate", x))
    return apply("divide", x, apply("add", grown, spread(scalar(1.0), x.shape)))


def of_three(dtype: DType = F32) -> tuple[Space, Node]:
    space = Space()
    return space, space.input("x", dtype, *space.dimensions("a b c"))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2)])
def test_softmax_over_any_axes(axes: tuple[int, ...]) -> None:
    space, x = of_three()
    assert kinds(check(space.graph(softmax(x, axes)), EDGES, length=16)) == ["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2)])
def test_normalisation_over_any_axes(axes: tuple[int, ...]) -> None:
    space, x = of_three()
    compiled = check(space.graph(normalise(x, axes)), EDGES, length=150, scale=LARGEST)
    assert kinds(compiled) == ["rows"]


@pytest.mark.parametrize("make", [softmax, normalise])
@pytest.mark.parametrize("columns", mostly_slow([2, 3, 5, 7, 15, 17, 33], "3", "7", "17"))
def test_few_columns_of_known_number(
    make: Callable[[Node, Sequence[int]], Node], columns: int
) -> None:
    """Less than a vector of them, or a little more, with rows around the groups that are read."""
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"), constant(columns))
    cases = named("ab", (2, 0), (0, 3), (3, 1), (2, 7), (1, 8), (2, 9), (1, 35))
    check(space.graph(make(x, (1,))), cases, length=150, scale=LARGEST, levels=LEVELS)


@pytest.mark.parametrize("columns", [None, 3, 7])
def test_reductions_of_few_columns(columns: int | None) -> None:
    """Sums, extremes and their positions, running sums: of bytes, halves and wider elements."""
    space = Space()
    a, b, c = space.dimension("a", 0, 9), space.dimension("b", 1, 99), space.dimension("c", 1, 99)
    kinds = (F32, F64, DType.INT64, DType.UINT8)
    shape = (a, b, c if columns is None else constant(columns))
    given = [space.input(t.value, t, *shape) for t in kinds]
    half = node(Cast(F32), space.input("half", DType.FLOAT16, *shape))
    outputs = [node(Scan("sum", 1, way, way), x) for x in given[:3] for way in (False, True)]
    outputs += [node(Reduce("maximum", (1,)), x) for x in (*given, half)]
    outputs += [node(ArgReduce("maximum", 1, False), x) for x in (given[0], given[3], half)]
    rows = (1, 4, 8, 9, 10, 35)
    cases = [{"a": 2, "b": b, "c": c} for b, c in zip(rows, (7, 1, 8, 9, 17, 31), strict=True)]
    check(space.graph(*outputs), cases, length=40, levels=LEVELS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_slow(FLOATS, "float64"))
def test_columns_of_every_type(dtype: DType) -> None:
    space, x = of_three(dtype)
    wide = node(Cast(F32), x) if dtype.is_half else x
    made = softmax(wide, (1,))
    made = node(Cast(dtype), made) if dtype.is_half else made
    check(space.graph(made), EDGES, length=16)


def grouped(channels: int, groups: int) -> tuple[Space, Node]:
    """GroupNorm of [n, h, w, channels] with a scale and a bias of every channel, and swish."""
    space = Space()
    n, h, w = space.dimensions("n h w")
    each = channels // groups
    x = space.input("x", F32, n, h, w, groups, each)
    flat: tuple[Expr, ...] = (n, h, w, constant(channels))
    normal = node(Reshape(flat), normalise(x, (1, 2, 4)))
    numbers = np.linspace(0.5, 2, channels, dtype=np.float32)
    scaled = apply("multiply", normal, spread(fixed(numbers), flat))
    return space, swish(apply("add", scaled, spread(fixed(numbers - 1), flat)))


PIXELS = named("nhw", (1, 1, 1), (0, 2, 2), (2, 0, 2), (2, 3, 3), (1, 7, 5), (3, 4, 2), (1, 17, 8))


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "groups"), [(6, 2), (16, 2), (17, 1), (33, 3), (520, 40)])
def test_groups_of_channels_with_the_channels_last(channels: int, groups: int) -> None:
    space, result = grouped(channels, groups)
    assert kinds(check(space.graph(result), PIXELS, length=150, scale=LARGEST)) == ["rows"]


def test_short_rows_of_a_known_length() -> None:
    space = Space()
    (a,) = space.dimensions("a")
    x = space.input("x", F32, a, constant(9))
    cases = named("a", (0,), (1,), (7,), (8,), (55,), (57,), (59,), (1000,))
    assert kinds(check(space.graph(softmax(x, (1,))), cases, length=16)) == ["rows"]


@pytest.mark.slow
def test_a_number_for_some_axes_of_the_columns() -> None:
    """The columns are no single loop then: those of the last axis are."""
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    x, shift = space.input("x", F32, a, b, c, d), space.input("shift", F32, c)
    moved = apply("add", x, node(Broadcast(x.shape, (2,)), shift))
    cases = named("abcd", (1, 1, 1, 1), (2, 3, 5, 17), (1, 9, 3, 31), (2, 2, 0, 3), (2, 0, 2, 3))
    assert kinds(check(space.graph(softmax(moved, (1,))), cases, length=16)) == ["rows"]


@pytest.mark.slow
def test_statistics_and_elements_are_results_together() -> None:
    space, x = of_three()
    most = node(Reduce("maximum", (1,)), x)
    shifted = apply("subtract", x, node(Broadcast(x.shape, (0, 2)), most))
    total = node(Reduce("sum", (1,)), apply("exponential", shifted))
    cases = [case for case in EDGES if case["b"]]
    compiled = check(space.graph(shifted, total, most), cases, length=200)
    assert kinds(compiled) == ["rows"]


def test_sums_of_columns_alone_stay_sums_of_columns() -> None:
    space, x = of_three()
    assert kinds(check(space.graph(node(Reduce("sum", (1,)), x)), EDGES, length=200)) == ["window"]


def test_sums_over_two_axes_around_one_that_is_kept() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b, constant(4), constant(6))
    cases = named("ab", (0, 2), (2, 0), (1, 1), (2, 17), (3, 64))
    sums = node(Reduce("sum", (1, 3)), x)
    assert kinds(check(space.graph(sums), cases, length=400)) == ["rows"]


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2)])
def test_equal_values_have_no_differences(axes: tuple[int, ...]) -> None:
    """What is left of the mean is exact for them."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        return np.full(shape, 12345.678, dtype.numpy)

    space, x = of_three()
    number = node(Cast(F32), node(Dimension(product([x.shape[a] for a in axes]))))
    count = spread(number, x.shape)
    centred = apply("subtract", x, apply("divide", kept(x, "sum", axes), count))
    rest = apply("divide", kept(centred, "sum", axes), count)
    graph = space.graph(apply("subtract", centred, rest))
    compiled = Compiled(graph)
    for sizes in named("abc", (3, 5, 7), (67, 3, 33), (5, 131, 19)):
        shape = tuple(sizes.values())
        got = compiled.model.run({"x": fill("x", F32, shape)})
        assert not got["y0"].any()


@pytest.mark.slow
def test_divisors_without_a_normal_reciprocal_divide() -> None:
    """1e-42 has none, and 1e38 has one with fewer digits: both divide every element."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        return np.full(shape, 1e-42 if shape[0] == 2 else 3e37, np.float32)

    for axis in (1, 2):
        space, x = of_three()
        graph = space.graph(apply("divide", x, kept(x, "sum", (axis,))))
        check(graph, named("abc", (2, 3, 17), (3, 4, 4)), length=4, fill=fill)


# ---------------------------------------------------------------- parts that threads share


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row kernels are computed in parts."""
    only_variant(monkeypatch, "lower_rows", "parts")


LONG = named("abc", (1, 1, 1), (2, 0, 3), (2, 3, 0), (1, 7, 2), (2, 8, 16), (1, 9, 17),
             (1, 300, 19), (3, 67, 40))  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2)])
@pytest.mark.parametrize("make", [softmax, normalise])
def test_rows_in_parts(make: Callable[[Node, Sequence[int]], Node], axes: tuple[int, ...]) -> None:
    space, x = of_three()
    check(space.graph(make(x, axes)), LONG, length=300, scale=LARGEST)


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
def test_groups_of_channels_in_parts() -> None:
    space, result = grouped(24, 4)
    check(space.graph(result), PIXELS, length=150, scale=LARGEST)


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("axes", [(1,), (2,)])
def test_results_of_rows_in_parts(axes: tuple[int, ...]) -> None:
    space, x = of_three(F64)
    total = node(Reduce("sum", axes), x)
    shifted = apply("subtract", x, kept(x, "sum", axes))
    check(space.graph(shifted, total), LONG, length=400)


def test_parts_do_not_change_with_the_threads() -> None:
    space, x = of_three()
    compiled = Compiled(space.graph(softmax(x, (1, 2))))
    data = np.random.default_rng(5).standard_normal((1, 700, 300)).astype(np.float32)
    results = [compiled.model.run({"x": data})["y0"].tobytes() for _ in range(5)]
    assert len(set(results)) == 1
