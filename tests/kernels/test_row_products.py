"""A product and reductions over its rows in one kernel: what is found, edge sizes, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from support.graph_kit import (
    F32,
    F64,
    WIDE,
    Compiled,
    Space,
    apply,
    check,
    compare_outputs,
    data,
    fixed,
    inputs_at,
    kept,
    kinds,
    mostly_slow,
    scalar,
    softmax,
    spread,
)
from support.tile_runs import TileRun
from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Contract, Reduce, Reshape
from tilewright.plan.greedy import plan_greedily
from tilewright.policy import POLICIES
from tilewright.shape import constant
from tilewright.tile import lower
from tilewright.tile.products.frame import Blocking
from tilewright.tile.products.variants import needed
from tilewright.tile.stitched import variants
from tilewright.tile.stitched.row_product import RowBlocking
from tilewright.tile.variants import THREADS, Variant

pytestmark = pytest.mark.sampled(8)

# Blocks of two register tiles of most levels, and of more rows than are turned at a time.
TOGETHER = {
    "along": RowBlocking(Blocking(12)),
    "deep": RowBlocking(Blocking(12, None, 16)),
    "turned": RowBlocking(Blocking(36), turned=True),
}
EDGES = [{"m": m} for m in (0, 1, 2, 5, 11, 12, 13, 24, 35, 36, 37, 79)]


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes one step with whole rows, or the first two steps if a test says "apart"."""

    def only(*arguments: Any) -> tuple[Variant, ...]:
        writer = variants.RowProductVariants(*arguments[:5])
        if getattr(request, "param", "along") == "apart":
            return writer.apart()[:1]
        return (writer.together(TOGETHER[getattr(request, "param", "along")]),)

    monkeypatch.setattr(lower, "row_product_variants", only)


def product(space: Space, n: int, k: int = 24, dtype: DType = F32) -> Node:
    """[m, k] by constant weights [k, n]."""
    m = space.dimension("m")
    x = space.input("x", dtype, m, k)
    weights = fixed(data(dtype, (k, n), 3))
    return node(Contract((), ((1, 0),)), x, weights)


def count(x: Node) -> Node:
    return scalar(float(x.shape[-1].value), x.dtype)


def normalised(x: Node) -> Node:
    """A layer normalisation without its gain."""
    axes = (x.rank - 1,)
    centred = apply("subtract", x, apply("divide", kept(x, "sum", axes), spread(count(x), x.shape)))
    squares = kept(apply("multiply", centred, centred), "sum", axes)
    variance = apply("divide", squares, spread(count(x), x.shape))
    least = spread(scalar(1e-5, x.dtype), x.shape)
    return apply("divide", centred, apply("square_root", apply("add", variance, least)))


def projection(space: Space, n: int, k: int = 24, dtype: DType = F32) -> Node:
    """A product with its bias and a residual."""
    sums = product(space, n, k, dtype)
    biased = apply("add", sums, fixed(data(dtype, (n,), 5)))
    return apply("add", biased, space.input("residual", dtype, *sums.shape))


@pytest.mark.parametrize("way", ["along", "turned", "deep", "apart"], indirect=True)
@pytest.mark.parametrize("n", mostly_slow([5, 7, 15, 16, 17, 64, 100, 257], "17"))
def test_a_normalisation_behind_a_projection(n: int) -> None:
    space = Space()
    shown = projection(space, n)
    gain = fixed(data(F32, (n,), 9))
    graph = space.graph(apply("multiply", normalised(shown), gain))
    assert kinds(check(graph, EDGES, length=300, scale=16)) == ["row product"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["along", "turned", "deep"], indirect=True)
@pytest.mark.parametrize("levels", [("avx2",), (WIDE,)])
def test_tiles_of_other_levels(levels: tuple[str, ...]) -> None:
    space = Space()
    graph = space.graph(normalised(projection(space, 67)))
    check(graph, EDGES, length=300, scale=16, levels=levels)


@pytest.mark.slow
def test_doubles() -> None:
    space = Space()
    graph = space.graph(normalised(projection(space, 33, dtype=F64)))
    check(graph, EDGES, length=300, scale=16)


@pytest.mark.parametrize("way", ["along", "turned", "apart"], indirect=True)
def test_a_residual_stream_that_is_a_result_too(way: None) -> None:
    """What others read of the product is one more result; so is what there is one of for a row."""
    space = Space()
    shown = projection(space, 40)
    squares = node(Reduce("sum", (1,)), apply("multiply", shown, shown))
    length = apply("square_root", squares)
    scaled = apply("divide", shown, spread(length, shown.shape, (0,)))
    made = check(space.graph(scaled, shown, length), EDGES, length=300, scale=16)
    assert kinds(made) == ["row product"]


def test_a_softmax_of_several_axes_of_rows_and_columns() -> None:
    space = Space()
    b, m = space.dimensions("b m")
    x = space.input("x", F32, b, m, 20)
    weights = fixed(data(F32, (20, 3, 7), 3))
    scores = node(Contract((), ((2, 0),)), x, weights)
    graph = space.graph(softmax(apply("multiply", scores, scalar(0.3)), (2, 3)))
    cases = [{"b": b, "m": m} for b, m in ((0, 3), (1, 1), (3, 5), (2, 13), (5, 5))]
    assert kinds(check(graph, cases, length=100, scale=16)) == ["row product"]


@pytest.mark.slow
def test_a_product_with_a_batch() -> None:
    """Its right operand is packed block by block, and the mask differs from row to row."""
    space = Space()
    b, m, n = space.dimension("b"), space.dimension("m"), space.dimension("n", 1)
    left, right = space.input("l", F32, b, m, 20), space.input("r", F32, b, n, 20)
    scores = node(Contract(((0, 0),), ((2, 2),)), left, right)
    mask = space.input("mask", F32, m, n)
    graph = space.graph(softmax(apply("add", scores, mask)))
    sizes = ((0, 3, 4), (1, 1, 1), (2, 13, 17), (3, 12, 65), (2, 0, 5))
    cases = [dict(zip("bmn", case, strict=True)) for case in sizes]
    assert kinds(check(graph, cases, length=100, scale=16)) == ["row product"]


def test_rows_behind_a_reshape() -> None:
    space = Space()
    b, m = space.dimensions("b m")
    x = space.input("x", F32, b * m, 20)
    space.carry(b, m)
    sums = node(Contract((), ((1, 0),)), x, fixed(data(F32, (20, 30), 3)))
    whole = node(Reshape((b, m, constant(30))), sums)
    gain = space.input("gain", F32, b, m, 30)
    graph = space.graph(apply("multiply", softmax(whole), gain))
    cases = [{"b": b, "m": m} for b, m in ((0, 3), (1, 1), (3, 5), (2, 13), (5, 5))]
    assert kinds(check(graph, cases, length=100, scale=16)) == ["row product"]


@pytest.mark.parametrize("way", ["along", "turned", "deep", "apart"], indirect=True)
def test_the_programs_mean_what_the_machine_code_does() -> None:
    space = Space()
    shown = projection(space, 19)
    graph = space.graph(normalised(shown), shown)
    compiled = Compiled(graph, ("x86-64",))
    run = TileRun(graph, compiled.levels["x86-64"].lowered)
    for sizes in EDGES:
        inputs = inputs_at(graph, sizes)
        want = run.outputs(inputs, sizes, lambda _: 0)
        got = compiled.guarded("x86-64", inputs, sizes)
        compare_outputs(graph, got, want, (300, 16.0), f"{sizes}")


# ---------------------------------------------------------------- what stays apart


def _plan(space: Space, *outputs: Node) -> list[str]:
    return kinds(Compiled(space.graph(*outputs), ("x86-64",)))


def test_rows_along_another_axis_are_not_those_of_the_product() -> None:
    space = Space()
    sums = product(space, 20)
    assert "row product" not in _plan(space, softmax(sums, (0,)))


def test_a_reader_between_both_keeps_them_apart() -> None:
    """What is made of the product by another kernel is needed by the rows."""
    space = Space()
    sums = product(space, 24)
    again = node(Contract((), ((1, 0),)), sums, fixed(data(F32, (24, 24), 4)))
    assert _plan(space, softmax(apply("add", sums, again))).count("contraction") == 1


def test_rows_that_may_have_no_columns_stay_apart() -> None:
    """No task would write what there is of such rows."""
    space = Space()
    m, n = space.dimensions("m n")
    left, right = space.input("l", F32, m, 20), space.input("r", F32, 20, n)
    sums = node(Contract((), ((1, 0),)), left, right)
    assert _plan(space, node(Reduce("sum", (1,)), apply("exponential", sums))) != ["row product"]


# ---------------------------------------------------------------- which ways are kept


def _ways(space: Space, *outputs: Node, policy: str = "auto") -> variants.RowProductVariants:
    graph = space.graph(*outputs)
    (kernel,) = plan_greedily(graph).kernels
    level = LEVELS["avx512"]
    tile, machine = register_tile(level), usual_machine(level)
    return variants.RowProductVariants(kernel, graph.scope, tile, machine, POLICIES[policy])


def test_rows_of_a_few_elements_are_steps_of_their_own() -> None:
    """Vectors had better take many of them together."""
    space = Space()
    ways = _ways(space, normalised(projection(space, 3)))
    assert ways.together_as_chosen(ways.apart()) == ()


def test_whole_rows_are_taken_where_threads_would_meet() -> None:
    """For very many rows both take about equally long; for few, two steps if one thread has all."""
    space = Space()
    b, m = space.dimensions("b m")
    x = space.input("x", F32, b, m, 512)
    sums = node(Contract((), ((2, 0),)), x, fixed(data(F32, (512, 100), 3)))
    ways = _ways(space, softmax(sums))
    apart = ways.apart()
    kept = needed(
        (*apart, *ways.together_as_chosen(apart)), ways.scope, ways.machine, variants.CLOSE
    )
    assert len(kept) <= 12

    def chosen(rows: int, threads: int) -> int:
        sizes = {"b": 4, "m": rows // 4, THREADS: threads}
        costs = [variant.cost.evaluate(sizes) for variant in kept]
        return len(kept[costs.index(min(costs))].steps)

    def least(rows: int, threads: int, steps: int) -> float:
        sizes = {"b": 4, "m": rows // 4, THREADS: threads}
        return min(v.cost.evaluate(sizes) for v in kept if len(v.steps) == steps)

    assert 0.9 < least(1 << 20, 2, 1) / least(1 << 20, 2, 2) < 1.1
    assert chosen(8, 1) == chosen(24, 1) == 2
    assert chosen(4, 4) == chosen(24, 4) == 1


def test_prices_are_those_of_sizes_alone() -> None:
    """What a row of one batch waits for is asked where the batch is no loop of the program."""
    space = Space()
    b, m, n = space.dimension("b"), space.dimension("m"), space.dimension("n", 1)
    left, right = space.input("l", F32, b, m, 20), space.input("r", F32, b, n, 20)
    scores = node(Contract(((0, 0),), ((2, 2),)), left, right)
    ways = _ways(space, softmax(apply("add", scores, space.input("mask", F32, m, n))))
    every = (
        *ways.apart(),
        *(ways.together(RowBlocking(Blocking(12), turned)) for turned in (False, True)),
    )
    for variant in every:
        assert set(variant.cost.free_symbols) <= {"b", "m", "n", THREADS}, variant.name


def test_policies_with_scores_of_their_own_have_two_steps() -> None:
    space = Space()
    ways = _ways(space, softmax(product(space, 100, 512)), policy="dietcode")
    assert ways.together_as_chosen(ways.apart()) == ()
