"""Winograd's convolution: its matrices, its kernels at every edge, and when it is chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from graph_kit import (
    BOTH_LEVELS,
    F32,
    WIDE,
    Compiled,
    Space,
    apply,
    check,
    data,
    fixed,
    inputs_at,
    mostly_slow,
    scalar,
)

from tilewright.backend.cpu import program
from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.backend.cpu.program import build_program
from tilewright.cost import Machine
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope, constant, maximum
from tilewright.target import preset
from tilewright.tile.frame import RegisterTile
from tilewright.tile.lower import LoweredKernel, lower_kernel
from tilewright.tile.lowering import Lowering
from tilewright.tile.ways import Accuracy, Way
from tilewright.tile.winograd import is_winograd, winograd_steps
from tilewright.tile.winograd_transforms import transforms

Array = np.ndarray[Any, Any]
SIZES = (2, 4)
# How much larger than a plain sum's the error may be, as measured (see tile/winograd.py).
GROWTH = {2: 1.0, 4: 2.5}


def convolution(
    space: Space,
    channels: tuple[int, int],
    padding: tuple[int, int] = (1, 1),
    constant_weights: bool = True,
) -> Node:
    n, h, w = (space.dimension(name) for name in ("n", "h", "w"))
    x = space.input("x", F32, n, h, w, channels[0])
    shape = (channels[1], channels[0], 3, 3)
    weights = fixed(data(F32, shape, 3)) if constant_weights else space.input("k", F32, *shape)
    sizes = tuple(maximum(0, s + sum(padding) - 2) for s in (h, w))
    low = (constant(padding[0]),) * 2
    return node(Convolve((1, 1), (1, 1), (1, 1), low, sizes, 1, True), x, weights)


def biased(made: Node) -> Node:
    bias = fixed(data(F32, (made.shape[-1].value,), 5))
    return apply("add", made, node(Broadcast(made.shape, (made.rank - 1,)), bias))


def rectified(made: Node) -> Node:
    return apply("maximum", made, scalar(0.0))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes every convolution take tiles of a size."""

    def choose(size: int) -> None:
        def lower(
            kernel: Kernel, materialised: Collection[Node], scope: Scope, tile: RegisterTile,
            *others: Any,
        ) -> LoweredKernel:  # fmt: skip
            if not isinstance(kernel.backbone.primitive, Convolve):
                return lower_kernel(kernel, materialised, scope, tile, *others)
            steps = winograd_steps(
                kernel, lambda: Lowering(materialised, scope, kernel.label), tile, size
            )
            return LoweredKernel(kernel, (Way("winograd", steps, constant(0)),))

        monkeypatch.setattr(program, "lower_kernel", lower)

    return choose


def length(size: int, channels: int) -> int:
    """A number of roundings whose tolerance is larger by the measured growth."""
    return round(9 * channels * GROWTH[size] ** 2)


# ---------------------------------------------------------------- the matrices


def multiplied(matrix: Any, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


def sandwiched(matrix: Any, square: list[list[Fraction]]) -> list[list[Fraction]]:
    """matrix x square x its transpose."""
    half = [multiplied(matrix, list(column)) for column in zip(*square, strict=True)]
    return [multiplied(matrix, list(row)) for row in zip(*half, strict=True)]


def drawn(generator: random.Random, rows: int, columns: int) -> list[list[Fraction]]:
    return [
        [Fraction(generator.randint(-99, 99), generator.randint(1, 9)) for _ in range(columns)]
        for _ in range(rows)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_a_line_is_exact_in_rational_arithmetic(size: int) -> None:
    made = transforms(size)
    generator = random.Random(size)
    (d,), (g,) = drawn(generator, 1, size + 2), drawn(generator, 1, 3)
    products = [
        a * b for a, b in zip(multiplied(made.taps, g), multiplied(made.data, d), strict=True)
    ]
    want = [sum((d[i + k] * g[k] for k in range(3)), Fraction(0)) for i in range(size)]
    assert multiplied(made.result, products) == want


@pytest.mark.parametrize("size", SIZES)
def test_a_tile_is_exact_in_rational_arithmetic(size: int) -> None:
    made = transforms(size)
    generator = random.Random(10 + size)
    d, g = drawn(generator, size + 2, size + 2), drawn(generator, 3, 3)
    left, right = sandwiched(made.taps, g), sandwiched(made.data, d)
    products = [
        [a * b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)
    ]
    want = [
        [
            sum((d[y + i][x + j] * g[i][j] for i in range(3) for j in range(3)), Fraction(0))
            for x in range(size)
        ]
        for y in range(size)
    ]
    assert sandwiched(made.result, products) == want


@pytest.mark.parametrize("size", SIZES)
def test_the_transforms_of_data_and_results_are_float32_numbers(size: int) -> None:
    made = transforms(size)
    for row in (*made.data, *made.result):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


# ---------------------------------------------------------------- the kernels


def edges(size: int) -> list[dict[str, int]]:
    """Maps of every height and width up to two tiles and one more, in a few batches."""
    most = 2 * size + 1
    cases = [{"n": 1, "h": 1 + i, "w": most - i} for i in range(most)]
    cases += [{"n": 3, "h": i, "w": i} for i in (1, 2, size, size + 1, most)]
    return [*cases, {"n": 0, "h": 5, "w": 5}, {"n": 2, "h": 0, "w": 4}, {"n": 2, "h": 4, "w": 0}]


@pytest.mark.parametrize("size", SIZES)
def test_every_edge_with_bias_residual_and_two_results(
    size: int, only: Callable[[int], None]
) -> None:
    only(size)
    space = Space()
    total = biased(convolution(space, (5, 19)))
    residual = space.input("residual", F32, *total.shape)
    graph = space.graph(rectified(apply("add", total, residual)), total)
    compiled = check(graph, edges(size), length=length(size, 5))
    assert len(compiled.plan.kernels) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("padding", mostly_slow([(0, 2), (7, 6), (0, 0), (2, 1)], "(0,2)", "(7,6)"))
def test_paddings(size: int, padding: tuple[int, int], only: Callable[[int], None]) -> None:
    only(size)
    space = Space()
    graph = space.graph(convolution(space, (8, 8), padding))
    check(graph, edges(size)[::size], length=length(size, 8), levels=BOTH_LEVELS[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [(1, 1), (3, 64), (64, 3), (129, 31), (40, 272)], ids=str)
def test_channels(size: int, channels: tuple[int, int], only: Callable[[int], None]) -> None:
    only(size)
    space = Space()
    graph = space.graph(rectified(biased(convolution(space, channels))))
    cases = [{"n": 2, "h": 7, "w": 9}, {"n": 1, "h": 3, "w": 50}, {"n": 0, "h": 1, "w": 1}]
    check(graph, cases, length=length(size, channels[0]), levels=(*BOTH_LEVELS, WIDE))


@pytest.mark.parametrize("size", mostly_slow(SIZES, "4"))
def test_a_result_in_another_order(size: int, only: Callable[[int], None]) -> None:
    only(size)
    space = Space()
    made = rectified(convolution(space, (6, 10)))
    graph = space.graph(node(Transpose((0, 3, 1, 2)), made))
    cases = [{"n": 2, "h": 5, "w": 6}, {"n": 1, "h": 9, "w": 4}]
    check(graph, cases, length=length(size, 6), levels=BOTH_LEVELS[-1:])


@pytest.mark.parametrize("size", mostly_slow(SIZES, "4"))
def test_a_wide_map_takes_several_blocks_of_tiles(size: int, only: Callable[[int], None]) -> None:
    only(size)
    space = Space()
    graph = space.graph(convolution(space, (130, 140)))
    check(graph, [{"n": 1, "h": 4, "w": 101}], length=length(size, 130), levels=BOTH_LEVELS[-1:])


@pytest.mark.parametrize("size", SIZES)
def test_what_is_not_finite_stays_in_its_tiles(size: int, only: Callable[[int], None]) -> None:
    only(size)
    space = Space()
    graph = space.graph(convolution(space, (4, 8)))
    level = host_level().name
    compiled = Compiled(graph, (level,))
    sizes = {"n": 1, "h": 4 * size, "w": 4 * size}
    inputs = inputs_at(graph, sizes)
    (clean,) = compiled.guarded(level, inputs, sizes).values()
    place = size + size // 2  # in the middle of the second tile, and read by no other
    inputs["x"][0, place, place, 1] = np.inf
    inputs["x"][0, 0, 0, 0] = np.nan
    (got,) = compiled.guarded(level, inputs, sizes).values()
    assert np.isfinite(clean).all()
    touched = np.zeros(got.shape, bool)
    for tile in (slice(0, size), slice(size, 2 * size)):
        touched[:, tile, tile] = True
    first, last = place - 1, place + 2  # the outputs that read the infinity
    if size == 2:
        touched[:, : 2 * size + 2, : 2 * size + 2] = True
    assert not np.isfinite(got[0, first:last, first:last]).any()
    assert np.isnan(got[0, :2, :2]).all()
    np.testing.assert_array_equal(got[~touched], clean[~touched])


# ---------------------------------------------------------------- the error


@pytest.mark.parametrize("size", SIZES)
def test_the_error_grows_as_measured(size: int, only: Callable[[int], None]) -> None:
    """Of several thousand sums of 9 x 128 products: the root of the mean square error."""
    sizes = {"n": 1, "h": 20, "w": 20}
    errors: list[float] = []
    for winograd in (False, True):
        if winograd:
            only(size)
        space = Space()
        graph = space.graph(convolution(space, (128, 32)))
        level = host_level().name
        made = build_program(graph, plan_greedily(graph), LEVELS[level], accuracy=Accuracy.STRICT)
        compiled = Compiled(graph, ())
        compiled.levels[level] = made
        inputs = inputs_at(graph, sizes)
        (got,) = compiled.guarded(level, inputs, sizes).values()
        errors.append(float(np.sqrt(np.mean((got - summed(graph, inputs)) ** 2))))
    assert errors[1] <= errors[0] * {2: 0.8, 4: 2.2}[size]


def summed(graph: Graph, inputs: dict[str, Array]) -> Array:
    """The convolution in float64."""
    weights = graph.outputs[0][1].inputs[1].primitive.array.astype(np.float64)  # type: ignore[union-attr]
    x = np.pad(inputs["x"].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,ocij->nhwo", windows, weights, optimize=True)


# ---------------------------------------------------------------- the choice


def ways(graph: Graph, accuracy: Accuracy = Accuracy.STANDARD) -> tuple[Way, ...]:
    plan = plan_greedily(graph)
    (kernel,) = plan.kernels
    tile, machine = program.REGISTER_TILES["avx2"], Machine(preset("zen3"))
    return lower_kernel(kernel, plan.materialised, graph.scope, tile, accuracy, machine).ways


def chosen(found: tuple[Way, ...], **sizes: int) -> str:
    return min(found, key=lambda way: way.cost.evaluate(sizes)).name


def test_strict_accuracy_never_takes_it() -> None:
    space = Space()
    graph = space.graph(convolution(space, (64, 64)))
    assert [way.name for way in ways(graph, Accuracy.STRICT)] == ["gathered"]
    made = build_program(
        graph, plan_greedily(graph), LEVELS[host_level().name], accuracy=Accuracy.STRICT
    )
    assert not made.program.choices


def test_the_shape_decides() -> None:
    space = Space()
    found = ways(space.graph(convolution(space, (64, 64))))
    assert [way.name for way in found] == ["gathered", "winograd4"]
    assert chosen(found, n=1, h=2, w=2) == "gathered"
    assert chosen(found, n=1, h=56, w=56) == "winograd4"


def test_large_weights_are_worth_their_bytes_for_many_tiles() -> None:
    space = Space()
    found = ways(space.graph(convolution(space, (512, 512))))
    assert chosen(found, n=1, h=2, w=2) == "gathered"
    assert chosen(found, n=1, h=7, w=7) == "winograd2"
    assert chosen(found, n=8, h=14, w=14) == "winograd4"


def test_of_sizes_that_are_known_only_the_best_way_stays() -> None:
    for size, name in ((2, "gathered"), (28, "winograd4")):
        space = Space()
        x = space.input("x", F32, 1, size, size, 64)
        weights = fixed(data(F32, (64, 64, 3, 3)))
        sizes = (constant(size),) * 2
        low = (constant(1),) * 2
        made = node(Convolve((1, 1), (1, 1), (1, 1), low, sizes, 1, True), x, weights)
        assert [way.name for way in ways(space.graph(made))] == [name]


def test_the_number_of_threads_decides_nothing() -> None:
    space = Space()
    for way in ways(space.graph(convolution(space, (512, 512)))):
        assert set(way.cost.free_symbols) <= {"n", "h", "w"}


@pytest.mark.parametrize(
    "change",
    [{"strides": (2, 2)}, {"dilations": (1, 2)}, {"spread": (2, 1)}, {"channels_last": False}],
    ids=lambda change: next(iter(change)),
)
def test_other_geometries_are_left_alone(change: dict[str, Any]) -> None:
    space = Space()
    n, h, w = space.dimensions("n h w")
    fields: dict[str, Any] = {
        "strides": (1, 1), "dilations": (1, 1), "spread": (1, 1), "low": (constant(0),) * 2,
        "sizes": (h, w), "groups": 1, "channels_last": True,
    }  # fmt: skip
    shape = (n, h, w, 8) if change.get("channels_last", True) else (n, 8, h, w)
    x = space.input("x", F32, *shape)
    weights = fixed(data(F32, (8, 8, 3, 3)))
    assert not is_winograd(node(Convolve(**(fields | change)), x, weights))


def test_weights_that_are_inputs_are_left_alone() -> None:
    space = Space()
    assert not is_winograd(convolution(space, (8, 8), constant_weights=False))
