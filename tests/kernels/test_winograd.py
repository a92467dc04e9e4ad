"""Winograd's convolution: its matrices, its kernels at every edge, and when it is chosen."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
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
from support.tile_loops import innermost
from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.backend.cpu.program import build_program, lowering_of
from tilewright.cost import Machine
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope, constant, maximum
from tilewright.target import preset
from tilewright.tile import alike
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.convolutions.winograd import (
    winograd_band,
    winograd_forms,
    winograd_steps,
    winograd_variants,
)
from tilewright.tile.convolutions.winograd_bands import BandSizes
from tilewright.tile.convolutions.winograd_tiles import Tiles
from tilewright.tile.convolutions.winograd_transforms import Form, transforms
from tilewright.tile.lower import LoweredKernel, lower_kernel
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, Accuracy, PackedConstant, Variant

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
# How much larger than a plain sum's the greatest error and the root of the mean square may be, as
# measured (see tile/convolutions/winograd.py).
GROWTH = {
    Form(2, 3, 1): (1.0, 0.8),
    Form(4, 3, 1): (2.5, 2.2),
    Form(2, 5, 1): (1.5, 1.6),
    Form(4, 3, 2): (1.5, 1.4),
    Form(4, 5, 2): (1.5, 1.4),
}


def named(form: Form) -> str:
    return f"{form.size}-{form.taps}-{form.stride}"


EACH_FORM = pytest.mark.parametrize("form", GROWTH, ids=named)
# The same, one of them in the quick suite.
MOSTLY_SLOW = pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, id=named(form), marks=() if form == Form(4, 3, 2) else pytest.mark.slow)
        for form in GROWTH
    ],
)
SMALL = Form(2, 3, 1)
MACHINE = Machine(preset("zen4"))


def convolution(
    space: Space,
    channels: tuple[int, int],
    form: Form = SMALL,
    padding: tuple[int, int] = (1, 1),
    constant_weights: bool = True,
    channels_first: bool = False,
    groups: int = 1,
) -> Node:
    n, h, w = (space.dimension(name) for name in ("n", "h", "w"))
    if channels_first:
        x = node(Transpose((0, 2, 3, 1)), space.input("x", F32, n, channels[0], h, w))
    else:
        x = space.input("x", F32, n, h, w, channels[0])
    shape = (channels[1], channels[0] // groups, form.taps, form.taps)
    weights = fixed(data(F32, shape, 3)) if constant_weights else space.input("k", F32, *shape)
    reached = [maximum(0, s + sum(padding) - form.taps + form.stride) for s in (h, w)]
    low, strides = (constant(padding[0]),) * 2, (form.stride,) * 2
    sizes = tuple(size // form.stride for size in reached)
    return node(Convolve(strides, (1, 1), (1, 1), low, sizes, groups, True), x, weights)


def biased(made: Node) -> Node:
    bias = fixed(data(F32, (made.shape[-1].value,), 5))
    return apply("add", made, node(Broadcast(made.shape, (made.rank - 1,)), bias))


def rectified(made: Node) -> Node:
    return apply("maximum", made, scalar(0.0))


@pytest.fixture(params=["in three steps", "in bands"])
def only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Form], None]:
    """Makes every convolution take a form, in one of both ways."""

    def choose(form: Form) -> None:
        def lower(
            kernel: Kernel, scope: Scope, tile: RegisterTile, *others: Any
        ) -> LoweredKernel:  # fmt: skip
            if not (kernel.seeds and isinstance(kernel.seed.primitive, Convolve)):
                return lower_kernel(kernel, scope, tile, *others)
            given = kernel, lambda: Lowering(kernel, scope), tile, form, MACHINE
            if request.param == "in bands":
                return LoweredKernel(kernel, (replace(winograd_band(*given), cost=constant(0)),))
            return LoweredKernel(
                kernel, (Variant("winograd", winograd_steps(*given), constant(0)),)
            )

        monkeypatch.setattr(alike, "lower_kernel", lower)

    return choose


def length(form: Form, channels: int) -> int:
    """A number of roundings whose tolerance is larger by the measured growth."""
    return round(form.taps**2 * channels * GROWTH[form][0] ** 2)


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


@EACH_FORM
def test_a_line_is_exact_in_rational_arithmetic(form: Form) -> None:
    made = transforms(form)
    generator = random.Random(form.size)
    (d,), (g,) = drawn(generator, 1, form.products), drawn(generator, 1, form.taps)
    products = [
        a * b for a, b in zip(multiplied(made.taps, g), multiplied(made.data, d), strict=True)
    ]
    want = [
        sum((d[i * form.stride + k] * g[k] for k in range(form.taps)), Fraction(0))
        for i in range(form.size)
    ]
    assert multiplied(made.result, products) == want


@EACH_FORM
def test_a_tile_is_exact_in_rational_arithmetic(form: Form) -> None:
    made = transforms(form)
    generator = random.Random(10 + form.size)
    d = drawn(generator, form.products, form.products)
    g = drawn(generator, form.taps, form.taps)
    left, right = sandwiched(made.taps, g), sandwiched(made.data, d)
    products = [
        [a * b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)
    ]
    taps = [(i, j) for i in range(form.taps) for j in range(form.taps)]
    places = range(0, form.step, form.stride)
    want = [
        [sum((d[y + i][x + j] * g[i][j] for i, j in taps), Fraction(0)) for x in places]
        for y in places
    ]
    assert sandwiched(made.result, products) == want


@EACH_FORM
def test_the_transforms_of_data_and_results_are_float32_numbers(form: Form) -> None:
    made = transforms(form)
    for row in (*made.data, *made.result):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


# ---------------------------------------------------------------- the kernels


def edges(form: Form) -> list[dict[str, int]]:
    """Maps of every height and width up to two tiles and one more, in a few batches."""
    most = 2 * form.step + 1
    cases = [{"n": 1, "h": 1 + i, "w": most - i} for i in range(most)]
    cases += [{"n": 3, "h": i, "w": i} for i in (1, 2, form.step, form.step + 1, most)]
    return [*cases, {"n": 0, "h": 5, "w": 5}, {"n": 2, "h": 0, "w": 4}, {"n": 2, "h": 4, "w": 0}]


@MOSTLY_SLOW
def test_every_edge_with_bias_residual_and_two_results(
    form: Form, only: Callable[[Form], None]
) -> None:
    only(form)
    space = Space()
    total = biased(convolution(space, (5, 19), form))
    residual = space.input("residual", F32, *total.shape)
    graph = space.graph(rectified(apply("add", total, residual)), total)
    compiled = check(graph, edges(form), length=length(form, 5))
    assert len(compiled.plan.kernels) == 1


@pytest.mark.slow
@MOSTLY_SLOW
@pytest.mark.parametrize("padding", mostly_slow([(0, 2), (7, 6), (0, 0), (2, 1)], "(0,2)", "(7,6)"))
def test_paddings(form: Form, padding: tuple[int, int], only: Callable[[Form], None]) -> None:
    only(form)
    space = Space()
    graph = space.graph(convolution(space, (8, 8), form, padding))
    check(graph, edges(form)[:: form.size], length=length(form, 8), levels=BOTH_LEVELS[-1:])


@pytest.mark.slow
@EACH_FORM
@pytest.mark.parametrize("channels", [(1, 64), (129, 3), (40, 272)], ids=str)
def test_channels(form: Form, channels: tuple[int, int], only: Callable[[Form], None]) -> None:
    only(form)
    space = Space()
    graph = space.graph(rectified(biased(convolution(space, channels, form))))
    cases = [{"n": 2, "h": 7, "w": 9}, {"n": 1, "h": 3, "w": 50}, {"n": 0, "h": 1, "w": 1}]
    check(graph, cases, length=length(form, channels[0]), levels=(BOTH_LEVELS[-1], WIDE))


@pytest.mark.parametrize("form", [SMALL, Form(4, 3, 1)], ids=named)
def test_channels_that_fill_no_vectors_end_under_masks(form: Form) -> None:
    """Without masks, LLVM computes all of nine channels one by one for AVX2."""
    space = Space()
    graph = space.graph(rectified(biased(convolution(space, (9, 12), form))))
    (kernel,) = plan_greedily(graph).kernels
    machine, tile = usual_machine(LEVELS["avx2"]), register_tile(LEVELS["avx2"])
    steps = winograd_steps(kernel, lambda: Lowering(kernel, graph.scope), tile, form, machine)
    loops = [loop for step in (steps[0], steps[2]) for loop in innermost(step.program.body)]
    assert len(loops) > 4
    assert all(loop.masked for loop in loops)


@MOSTLY_SLOW
@pytest.mark.parametrize(("channels", "groups"), [((34, 38), 2), ((48, 192), 3)])
def test_groups_of_channels(
    form: Form, channels: tuple[int, int], groups: int, only: Callable[[Form], None]
) -> None:
    only(form)
    space = Space()
    graph = space.graph(rectified(biased(convolution(space, channels, form, groups=groups))))
    cases = [{"n": 2, "h": 7, "w": 9}, {"n": 1, "h": 3, "w": 20}, {"n": 0, "h": 1, "w": 1}]
    check(graph, cases, length=length(form, channels[0] // groups), levels=(BOTH_LEVELS[-1], WIDE))


@MOSTLY_SLOW
@pytest.mark.parametrize("channels", mostly_slow([(6, 10), (37, 24)], "(6,10)"))
def test_data_and_results_with_the_channels_first(
    form: Form, channels: tuple[int, int], only: Callable[[Form], None]
) -> None:
    only(form)
    space = Space()
    made = rectified(biased(convolution(space, channels, form, channels_first=True)))
    graph = space.graph(node(Transpose((0, 3, 1, 2)), made))
    compiled = check(graph, edges(form), length=length(form, channels[0]), levels=BOTH_LEVELS[-1:])
    assert len(compiled.plan.kernels) == 1


@MOSTLY_SLOW
@pytest.mark.parametrize("channels_first", mostly_slow([False, True], "True"))
def test_a_wide_map_takes_several_blocks_of_tiles(
    form: Form, channels_first: bool, only: Callable[[Form], None]
) -> None:
    only(form)
    space = Space()
    made = convolution(space, (130, 140), form, channels_first=channels_first)
    graph = space.graph(node(Transpose((0, 3, 1, 2)), made) if channels_first else made)
    check(graph, [{"n": 1, "h": 4, "w": 101}], length=length(form, 130), levels=BOTH_LEVELS[-1:])


@MOSTLY_SLOW
def test_what_is_not_finite_stays_in_its_tiles(form: Form, only: Callable[[Form], None]) -> None:
    only(form)
    space = Space()
    graph = space.graph(convolution(space, (4, 8), form))
    level = host_level().name
    compiled = Compiled(graph, (level,))
    sizes = {"n": 1, "h": 4 * form.step, "w": 4 * form.step}
    inputs = inputs_at(graph, sizes)
    (clean,) = compiled.guarded(level, inputs, sizes).values()
    touched = np.zeros(clean.shape, bool)
    reading: list[slice] = []
    for place, value in ((0, np.nan), (form.step + form.step // 2, np.inf)):
        inputs["x"][0, place, place, 1] = value
        tiles = met(place, form.step, form.products)
        area = slice(tiles.start * form.size, tiles.stop * form.size)
        touched[:, area, area] = True
        reading.append(met(place, form.stride, form.taps))
    (got,) = compiled.guarded(level, inputs, sizes).values()
    assert np.isfinite(clean).all()
    for outputs in reading:
        assert not np.isfinite(got[0, outputs, outputs]).any()
    np.testing.assert_array_equal(got[~touched], clean[~touched])


def met(place: int, step: int, width: int) -> slice:
    """Which of the ranges of ``width`` that begin every ``step``, the first at -1, hold a place."""
    found = [i for i in range(place + 2) if 0 <= place + 1 - i * step < width]
    return slice(found[0], found[-1] + 1)


# ---------------------------------------------------------------- the error


@MOSTLY_SLOW
def test_the_error_grows_as_measured(form: Form, only: Callable[[Form], None]) -> None:
    """The root of the mean square error of several thousand sums over 128 channels."""
    sizes = {"n": 1, "h": 20, "w": 20}
    errors: list[float] = []
    for winograd in (False, True):
        if winograd:
            only(form)
        space = Space()
        graph = space.graph(convolution(space, (128, 32), form))
        level = host_level().name
        made = build_program(graph, plan_greedily(graph), LEVELS[level], lowering=strictly(graph))
        compiled = Compiled(graph, ())
        compiled.levels[level] = made
        inputs = inputs_at(graph, sizes)
        (got,) = compiled.guarded(level, inputs, sizes).values()
        errors.append(float(np.sqrt(np.mean((got - summed(graph, inputs, form)) ** 2))))
    assert errors[1] <= errors[0] * GROWTH[form][1]


def summed(graph: Graph, inputs: dict[str, Array], form: Form) -> Array:
    """The convolution in float64."""
    weights = graph.outputs[0][1].inputs[1].primitive.array.astype(np.float64)  # type: ignore[union-attr]
    x = np.pad(inputs["x"].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weights.shape[2:], axis=(1, 2))
    windows = windows[:, :: form.stride, :: form.stride]
    return np.einsum("nhwcij,ocij->nhwo", windows, weights, optimize=True)


# ---------------------------------------------------------------- the choice


def strictly(graph: Graph) -> LoweringOnce:
    return lowering_of(graph, LEVELS[host_level().name], Accuracy.STRICT)


def variants(graph: Graph, accuracy: Accuracy = Accuracy.STANDARD) -> tuple[Variant, ...]:
    plan = plan_greedily(graph)
    (kernel,) = plan.kernels
    tile, machine = register_tile(LEVELS["avx2"]), Machine(preset("zen3"))
    return lower_kernel(kernel, graph.scope, tile, accuracy, machine).variants


def chosen(found: tuple[Variant, ...], **sizes: int) -> str:
    return min(found, key=lambda variant: variant.cost.evaluate({**sizes, THREADS: 1})).name


@pytest.mark.slow
def test_strict_accuracy_never_takes_it() -> None:
    space = Space()
    graph = space.graph(convolution(space, (64, 64)))
    assert [variant.name for variant in variants(graph, Accuracy.STRICT)] == ["gathered"]
    level = LEVELS[host_level().name]
    made = build_program(graph, plan_greedily(graph), level, lowering=strictly(graph))
    assert not made.program.choices


def test_layers_that_are_alike_share_programs_and_keep_their_weights() -> None:
    space = Space()
    made = convolution(space, (64, 64))
    other = fixed(data(F32, (64, 64, 3, 3), 4))
    graph = space.graph(made, node(made.primitive, made.inputs[0], other))
    lowering = lowering_of(graph, LEVELS["avx2"], machine=MACHINE)
    kernels = plan_greedily(graph).kernels
    steps = [lowering.lowered(kernel).variants[-1].steps[0] for kernel in kernels]
    assert steps[0].program is steps[1].program
    weights = [read for step in steps for read in step.reads if isinstance(read, PackedConstant)]
    assert [packed.node for packed in weights] == [k.seed.inputs[1] for k in kernels]
    assert [size.value for size in weights[0].type.shape] == [36, 64, 1, 64]


def test_the_shape_decides() -> None:
    space = Space()
    found = variants(space.graph(convolution(space, (64, 64))))
    assert [variant.name for variant in found] == ["gathered", "winograd4, in bands"]
    assert chosen(found, n=1, h=2, w=2) == "gathered"
    assert chosen(found, n=1, h=56, w=56) == "winograd4, in bands"


@pytest.mark.parametrize(
    ("channels", "names"), [(64, {"in bands"}), (128, {"", "in bands"}), (512, {""})]
)
def test_many_weights_may_be_read_once_for_all_images(channels: int, names: set[str]) -> None:
    """Of few, bands move less at every shape; those that no cache has are read once at all."""
    space = Space()
    (kernel,) = plan_greedily(space.graph(convolution(space, (channels, channels)))).kernels
    tile = register_tile(LEVELS["avx2"])
    made = winograd_variants(kernel, lambda: Lowering(kernel, space.scope), tile, MACHINE)
    found = {variant.name for variant in made if variant.name.startswith("winograd4")}
    assert {name.partition(", ")[2] for name in found} == names


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("sizes", [(1, 14, 14), (1, 28, 28), (3, 5, 1000), (2, 0, 7)], ids=str)
def test_bands_cover_a_map_and_are_enough_for_all_threads(
    sizes: tuple[int, int, int], threads: int
) -> None:
    space = Space()
    tiles = Tiles.of(convolution(space, (64, 64)), Form(4, 3, 1))
    n, h, w = sizes
    known = {"n": n, "h": h, "w": w, THREADS: threads}
    bands = BandSizes.of(tiles, register_tile(LEVELS["avx2"]))
    down, across, tall, wide = (
        e.evaluate(known) for e in (bands.down, bands.across, bands.tall, bands.wide)
    )
    rows, columns = -(-h // 4), -(-w // 4)
    assert (tall - 1) * down <= max(rows - 1, 0) and rows <= tall * down
    assert (wide - 1) * across <= max(columns - 1, 0) and columns <= wide * across
    assert n * tall * wide >= min(threads, n * rows * columns) // 2


@pytest.mark.slow
def test_large_weights_are_worth_their_bytes_for_many_tiles() -> None:
    space = Space()
    found = variants(space.graph(convolution(space, (512, 512))))
    assert chosen(found, n=1, h=2, w=2) == "gathered"
    assert chosen(found, n=1, h=7, w=7) == "winograd2"
    assert chosen(found, n=8, h=14, w=14) == "winograd4"


def test_of_sizes_that_are_known_only_the_best_variant_stays() -> None:
    for size, name in ((2, "gathered"), (112, "winograd4, in bands")):
        space = Space()
        x = space.input("x", F32, 1, size, size, 64)
        weights = fixed(data(F32, (64, 64, 3, 3)))
        sizes = (constant(size),) * 2
        low = (constant(1),) * 2
        made = node(Convolve((1, 1), (1, 1), (1, 1), low, sizes, 1, True), x, weights)
        assert [variant.name for variant in variants(space.graph(made))] == [name]


@pytest.mark.slow
def test_no_way_to_convolve_is_slower_with_more_threads() -> None:
    space = Space()
    for variant in variants(space.graph(convolution(space, (512, 512)))):
        assert set(variant.cost.free_symbols) <= {"n", "h", "w", THREADS}
        sizes = {"n": 4, "h": 28, "w": 28}
        alone, both = (variant.cost.evaluate({**sizes, THREADS: count}) for count in (1, 2))
        assert 0 < both < alone


@pytest.mark.parametrize(
    "change",
    [
        {"strides": (2, 1)},
        {"strides": (3, 3)},
        {"dilations": (1, 2)},
        {"spread": (2, 1)},
        {"channels_last": False},
    ],
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
    assert not winograd_forms(node(Convolve(**(fields | change)), x, weights))


@pytest.mark.parametrize(("channels", "groups"), [((32, 32), 4), ((64, 32), 4), ((16, 16), 16)])
def test_groups_of_few_channels_are_left_alone(channels: tuple[int, int], groups: int) -> None:
    assert not winograd_forms(convolution(Space(), channels, groups=groups))


def test_weights_that_are_inputs_are_left_alone() -> None:
    space = Space()
    assert not winograd_forms(convolution(space, (8, 8), constant_weights=False))
