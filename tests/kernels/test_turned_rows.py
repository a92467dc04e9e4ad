"""Many short rows whose elements lie side by side: blocks of them are turned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from support.graph_kit import (
    F32,
    F64,
    Space,
    apply,
    check,
    kept,
    kinds,
    mostly_slow,
    scalar,
    softmax,
    spread,
)
from support.only_variant import only_variant
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Cast, Dimension, Reduce, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import product
from tilewright.target import preset
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS

EPSILON = 0.1
LARGEST = 4 / EPSILON**0.5  # of what values of about 4 become: errors are relative to that
Sizes = dict[str, int]


def named(names: str, *rows: tuple[int, ...]) -> list[Sizes]:
    return [dict(zip(names, row, strict=True)) for row in rows]


# Rows of 0, 1, a square of 4, 8 and 16 ± 1 elements; 0, 1, a vector ± 1, a block ± 1 of them.
EDGES = named("ab", (0, 3), (3, 0), (1, 1), (17, 1), (15, 2), (16, 3), (17, 4), (31, 5), (33, 7),
              (511, 2), (512, 8), (513, 9), (97, 15), (240, 17), (241, 16), (47, 33), (64, 61),
              (5, 300))  # fmt: skip


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row kernels are computed by tasks that turn their rows."""
    only_variant(monkeypatch, "lower_rows", "turned")


def normalise(x: Node, axes: Sequence[int]) -> Node:
    number = node(Cast(x.dtype), node(Dimension(product([x.shape[a] for a in axes]))))
    count = spread(number, x.shape)
    mean = apply("divide", kept(x, "sum", axes), count)
    centred = apply("subtract", x, mean)
    squares = kept(apply("multiply", centred, centred), "sum", axes)
    variance = apply("add", apply("divide", squares, count), scalar(EPSILON, x.dtype))
    return apply("divide", centred, apply("square_root", variance))


def of_two(dtype: DType = F32) -> tuple[Space, Node]:
    space = Space()
    return space, space.input("x", dtype, *space.dimensions("a b"))


@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("dtype", mostly_slow((F32, F64), "float32"))
def test_softmax_of_short_rows(dtype: DType) -> None:
    space, x = of_two(dtype)
    assert kinds(check(space.graph(softmax(x, (1,))), EDGES, length=16)) == ["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
def test_normalisation_of_short_rows() -> None:
    """The elements of a scale and a bias are shared by all rows."""
    space, x = of_two()
    scale = space.input("scale", F32, x.shape[1])
    scaled = apply("multiply", normalise(x, (1,)), spread(scale, x.shape))
    check(
        space.graph(scaled), EDGES, length=150, scale=9 * LARGEST,
        levels=("x86-64", "avx2"),
    )  # fmt: skip


@pytest.mark.usefixtures("turned")
def test_one_result_for_each_row() -> None:
    space, x = of_two()
    total = node(Reduce("sum", (1,)), apply("multiply", x, x))
    most = node(Reduce("maximum", (1,)), x)
    cases = [case for case in EDGES if case["b"]]
    check(space.graph(total, most), cases, length=300, scale=81)


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
def test_statistics_and_elements_are_results_together() -> None:
    space, x = of_two()
    most = node(Reduce("maximum", (1,)), x)
    shifted = apply("subtract", x, node(Broadcast(x.shape, (0,)), most))
    total = node(Reduce("sum", (1,)), apply("exponential", shifted))
    cases = [case for case in EDGES if case["b"]]
    check(space.graph(shifted, total, most), cases, length=300)


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
def test_two_operands_and_a_number_for_each_row() -> None:
    space, x = of_two()
    y, number = space.input("y", F32, *x.shape), space.input("number", F32, x.shape[0])
    made = apply("add", apply("multiply", x, y), node(Broadcast(x.shape, (0,)), number))
    check(space.graph(softmax(made, (1,))), EDGES, length=200)


SCORES = named("abc", (1, 1, 1), (0, 3, 3), (2, 0, 3), (2, 3, 0), (3, 5, 5), (2, 17, 9),
               (3, 11, 13), (2, 40, 8))  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("masked", [(), (0, 2), (2,)])
def test_rows_of_several_axes(masked: tuple[int, ...]) -> None:
    """A mask for the rows of each outer place: only these are taken together."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x = space.input("x", F32, a, b, c)
    if masked:
        mask = space.input("mask", F32, *[x.shape[axis] for axis in masked])
        x = apply("add", x, node(Broadcast(x.shape, masked), mask))
    check(space.graph(softmax(x, (2,))), SCORES, length=16)


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("axes", [(1, 2), (2,)])
def test_reductions_over_the_last_axes(axes: tuple[int, ...]) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b c"))
    check(space.graph(normalise(x, axes)), SCORES, length=400, scale=LARGEST)


def test_what_is_turned_follows_from_sizes() -> None:
    """Many short rows are; long ones, and a single one, are not."""
    space, x = of_two()
    (kernel,) = plan_greedily(space.graph(softmax(x, (1,)))).kernels
    machine = Machine(preset("zen4"))
    found = lower_rows(kernel, lambda: Lowering(kernel, space.scope), machine)

    def chosen(a: int, b: int) -> str:
        sizes = {"a": a, "b": b, THREADS: 1}
        return min(found, key=lambda variant: variant.cost.evaluate(sizes)).name

    assert [chosen(30011, b) for b in (2, 9, 17, 1003)] == ["turned", "turned", "turned", "rows"]
    assert chosen(1, 40) == "rows"


@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("length", mostly_slow((600, 1031), "600"))
def test_long_rows_across_memory_are_turned(length: int) -> None:
    """Neighbouring rows lie side by side in what is read, however long they are."""
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, length, b)
    graph = space.graph(normalise(node(Transpose((0, 2, 1)), x), (2,)))
    sizes = named("ab", (0, 2), (1, 0), (1, 1), (2, 15), (1, 17), (1, 65))
    check(graph, sizes, length=length, scale=LARGEST)


def test_long_rows_are_turned_only_from_across_memory() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, 600, b)
    y = space.input("y", F32, a, b, 600)
    for rows, names in ((node(Transpose((0, 2, 1)), x), {"rows", "turned"}), (y, {"rows"})):
        (kernel,) = plan_greedily(space.graph(softmax(rows, (2,)))).kernels
        lowering = partial(Lowering, kernel, space.scope)
        found = lower_rows(kernel, lowering, Machine(preset("zen4")))
        assert {variant.name for variant in found} - {"parts"} == names
