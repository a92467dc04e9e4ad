"""Convolutions and pooling of every rank, stride, dilation, group and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from support.graph_kit import F32, F64, WIDE, Space, apply, check, data, fixed, mostly_slow, scalar
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Convolve, Transpose, Window
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant, maximum
from tilewright.target import preset
from tilewright.tile.products.frame import Blocking
from tilewright.tile.products.variants import Choice, Way
from tilewright.tile.variants import THREADS, Variant

pytestmark = pytest.mark.sampled(20)

SPATIAL = ("h", "w", "d")


@dataclass(frozen=True)
class Case:
    """One geometry; sizes are those of the data's spatial axes."""

    name: str
    kernel: tuple[int, ...]
    channels: tuple[int, int] = (8, 12)
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    groups: int = 1
    spread: int = 1


CASES = (
    Case("pointwise", (1, 1)),
    Case("pointwise-stride", (1, 1), stride=2),
    Case("three", (3, 3), padding=1),
    Case("three-valid", (3, 3), (20, 12)),
    Case("three-stride", (3, 3), (20, 12), stride=2, padding=1),
    Case("three-stride-few", (3, 3), (5, 12), stride=2, padding=1),
    Case("seven", (7, 7), (3, 13), stride=2, padding=3),
    Case("dilated", (3, 3), dilation=2, padding=2),
    Case("uneven", (5, 2), padding=1),
    Case("groups", (3, 3), padding=1, groups=4),
    Case("depthwise", (3, 3), (8, 8), padding=1, groups=8),
    Case("depthwise-stride", (3, 3), (8, 8), stride=2, padding=1, groups=8),
    Case("depthwise-twice", (3, 3), (4, 8), padding=1, groups=4),
    Case("depthwise-dilated", (5, 5), (4, 4), dilation=2, padding=4, groups=4),
    Case("line", (5,), padding=2),
    Case("line-stride", (4,), stride=3),
    Case("line-many", (4,), (20, 3), stride=2, padding=1),
    Case("volume", (3, 2, 3), (2, 5), padding=1),
    Case("volume-many", (2, 2, 3), (18, 5), padding=1),
    Case("spread", (3, 3), padding=2, spread=2),
    Case("spread-line", (4,), padding=3, spread=3),
    Case("spread-groups", (2, 2), (4, 4), padding=1, groups=4, spread=2),
    Case("deep", (3, 3), (70, 7), padding=1),
    Case("patches", (4, 4), (3, 20), stride=4),
    Case("inside", (5, 3), (20, 12), stride=2),
    Case("inside-dilated", (3, 3), (20, 6), dilation=2),
    Case("inside-groups", (2, 3), groups=4),
    Case("inside-line", (7,), (20, 3), stride=3),
    Case("inside-volume", (2, 3, 2), (5, 18), stride=2),
    Case("one-channel", (5, 4), (1, 8), stride=2, padding=1),
    Case("prime-channels", (2, 2), (401, 4)),
)


def extents(case: Case, sizes: list[Expr]) -> tuple[Expr, ...]:
    """Output sizes for equal padding at both ends."""
    if case.stride == case.spread == 1 and case.padding == 0 and set(case.kernel) == {1}:
        return tuple(sizes)
    made: list[Expr] = []
    for size, taps in zip(sizes, case.kernel, strict=True):
        wide = (size - 1) * case.spread + 1 + 2 * case.padding - (taps - 1) * case.dilation
        made.append(maximum(0, (wide - 1) // case.stride + 1))
    return tuple(made)


def convolution(space: Space, case: Case, weights: Node | None = None, dtype: DType = F32) -> Node:
    rank, (taken, given) = len(case.kernel), case.channels
    reach = max(case.dilation * (k - 1) + 1 - 2 * case.padding for k in case.kernel)
    sizes = [space.dimension(name, max(1, reach)) for name in SPATIAL[:rank]]
    x = space.input("x", dtype, space.dimension("n"), taken, *sizes)
    if weights is None:
        shape = (given, taken // case.groups, *case.kernel)
        weights = fixed(data(F32, shape, 3).astype(dtype.numpy))
    made = Convolve(
        (case.stride,) * rank, (case.dilation,) * rank, (case.spread,) * rank,
        (constant(case.padding),) * rank, extents(case, sizes), case.groups,
    )  # fmt: skip
    return node(made, x, weights)


def with_channels_last(space: Space, first: Node) -> Node:
    """The same convolution of another input, which has its channels last."""
    assert isinstance(first.primitive, Convolve)
    x, weights = first.inputs
    last = space.input("y", F32, x.shape[0], *x.shape[2:], x.shape[1])
    return node(replace(first.primitive, channels_last=True), last, weights)


def turned(first: Node) -> Node:
    """The same convolution with the channels last between two transpositions."""
    assert isinstance(first.primitive, Convolve)
    x, weights = first.inputs
    rank = x.rank
    last = node(Transpose((0, *range(2, rank), 1)), x)
    made = node(replace(first.primitive, channels_last=True), last, weights)
    return node(Transpose((0, rank - 1, *range(1, rank - 1))), made)


def shapes(case: Case) -> list[dict[str, int]]:
    low = max(1, *(case.dilation * (k - 1) + 1 - 2 * case.padding for k in case.kernel))
    rows = [(1, low, low, low), (0, 9, 9, 9), (2, low + 6, low + 11, low + 1)]
    if len(case.kernel) == 2:
        rows += [(1, 30, low, 1), (1, low, 33, 1)]
    if len(case.kernel) == 1:
        rows += [(1, 300, 0, 0)]
    return [dict(zip(("n", *SPATIAL[: len(case.kernel)]), row, strict=False)) for row in rows]


@pytest.mark.parametrize("case", mostly_slow(CASES, "three-stride", "depthwise"))
def test_with_bias_and_activation(case: Case) -> None:
    space = Space()
    made = convolution(space, case)
    bias = fixed(data(F32, (case.channels[1],), 5))
    shifted = apply("add", made, node(Broadcast(made.shape, (1,)), bias))
    taps = case.channels[0] // case.groups
    for size in case.kernel:
        taps *= size
    graph = space.graph(apply("maximum", shifted, scalar(0.0)))
    check(graph, shapes(case), length=taps)


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_slow(CASES, "three-stride-few", "depthwise"))
def test_channels_last(case: Case) -> None:
    space = Space()
    made = with_channels_last(space, convolution(space, case))
    bias = fixed(data(F32, (case.channels[1],), 5))
    shifted = apply("add", made, node(Broadcast(made.shape, (made.rank - 1,)), bias))
    taps = case.channels[0] // case.groups
    for size in case.kernel:
        taps *= size
    graph = space.graph(apply("maximum", shifted, scalar(0.0)))
    check(graph, shapes(case), length=taps)


TURNED = (
    "three-stride", "three-stride-few", "seven", "dilated", "uneven", "line", "line-stride",
    "line-many", "volume", "groups", "deep", "patches", "inside", "inside-line", "one-channel",
    "prime-channels",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(TURNED, "seven", "uneven"))
def test_channels_last_between_data_and_results_with_the_channels_first(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    space = Space()
    compiled = check(space.graph(turned(convolution(space, case))), shapes(case), length=700)
    copied = name not in ("dilated", "volume", "groups")
    assert len(compiled.plan.kernels) == (1 if copied else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sizes",
    [
        ("seven", (5, 33, 40)),
        ("seven", (1, 9, 1300)),
        ("uneven", (3, 41, 31)),
        ("uneven", (2, 7, 3000)),
        ("deep", (2, 4, 900)),
        ("line", (3, 15000)),
        ("line-many", (2000, 7)),
        ("prime-channels", (2, 11, 130)),
    ],
)
def test_blocks_of_copied_lines(name: str, sizes: tuple[int, ...]) -> None:
    """Many lines in a block, or less than one."""
    case = next(c for c in CASES if c.name == name)
    space = Space()
    graph = space.graph(turned(convolution(space, case, dtype=F64)))
    check(graph, [dict(zip(("n", *SPATIAL), sizes, strict=False))], length=2000)


LINED = {
    "seven": (2, 33, 140), "three": (1, 67, 61), "three-stride-few": (2, 95, 64),
    "uneven": (1, 130, 9), "dilated": (1, 40, 50), "patches": (1, 130, 129), "line": (2, 3000),
    "volume": (1, 9, 20, 33), "one-channel": (1, 4, 2000), "deep": (1, 31, 33),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_slow(tuple(LINED), "seven", "one-channel"))
def test_blocks_of_lines_with_the_channels_first(name: str) -> None:
    """Blocks that begin and end inside lines, and share the lines around them."""
    case = next(c for c in CASES if c.name == name)
    space = Space()
    graph = space.graph(convolution(space, case, dtype=F64))
    check(graph, [dict(zip(("n", *SPATIAL), LINED[name], strict=False))], length=700)


@pytest.mark.parametrize("blocking", [Blocking(12, 16, 3), Blocking(1020, 32, 24, packed=True)])
@pytest.mark.parametrize("stride", mostly_slow([1, 2]))
@pytest.mark.parametrize("groups", mostly_slow([1, 2]))
def test_every_variant_of_a_pointwise_convolution(
    blocking: Blocking, groups: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forced(_: Choice, ways: Sequence[Way]) -> tuple[Variant, ...]:
        way = next((w for w in ways if w.packed == blocking.packed), ways[0])
        return (Variant("forced", way.lower(blocking), constant(0)),)

    monkeypatch.setattr(Choice, "blocked_variants", forced)
    case = Case("pointwise", (1, 1), (52, 20), stride, groups=groups)
    space = Space()
    graph = space.graph(apply("maximum", convolution(space, case), scalar(0.0)))
    check(graph, [*shapes(case), {"n": 2, "h": 7, "w": 7}, {"n": 1, "h": 16, "w": 3}], length=52)


@pytest.mark.parametrize("groups", mostly_slow([1, 2], "1"))
def test_pixels_of_several_images_together(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def forced(_: Choice, ways: Sequence[Way]) -> tuple[Variant, ...]:
        (way,) = [way for way in ways if way.name.endswith("joined")]
        return (Variant("forced", way.lower(Blocking(12, 64, 24, packed=True)), constant(0)),)

    monkeypatch.setattr(Choice, "blocked_variants", forced)
    space = Space()
    made = convolution(space, Case("pointwise", (1, 1), (52, 20), groups=groups))
    graph = space.graph(apply("maximum", made, scalar(0.0)))
    sizes = [(0, 7, 7), (1, 1, 1), (9, 7, 7), (33, 3, 5), (2, 16, 9)]
    check(graph, [dict(zip(("n", "h", "w"), each, strict=True)) for each in sizes], length=52)


def priced(space: Space, made: Node) -> tuple[Variant, ...]:
    """The variants of one convolution on Zen 4, with their prices."""
    graph = space.graph(made)
    (kernel,) = plan_greedily(graph).kernels
    lowering = lowering_of(graph, LEVELS["avx512"], machine=Machine(preset("zen4")))
    return lowering.lowered(kernel).variants


@pytest.mark.parametrize(("pixels", "packs"), [(56, True), (14, False)])
def test_strided_pixels_are_packed_where_lines_are_long(pixels: int, packs: bool) -> None:
    """Picking from long lines costs little; many short ones are turned as a whole."""
    space = Space()
    variants = priced(space, convolution(space, Case("pointwise", (1, 1), (64, 128), 2)))
    sizes = {"n": 4, "h": pixels, "w": pixels, THREADS: 1}
    best = min(variants, key=lambda variant: variant.cost.evaluate(sizes))
    assert best.name.endswith("packed") == packs, best.name


@pytest.mark.parametrize("channels_last", [False, True])
def test_every_way_has_a_price_that_threads_share(channels_last: bool) -> None:
    space = Space()
    made = convolution(space, Case("square", (3, 3), (20, 24), padding=1))
    variants = priced(space, with_channels_last(space, made) if channels_last else made)
    sizes = {"n": 4, "h": 56, "w": 56}
    for variant in variants:
        alone, both = (variant.cost.evaluate({**sizes, THREADS: t}) for t in (1, 2))
        assert 0 < both < 0.7 * alone, variant.name


@pytest.mark.parametrize(("pixels", "least", "most"), [(64, 1.05, 2.0), (1, 0.02, 0.7)])
def test_runs_of_few_channels_cost_more_than_one_run(
    pixels: int, least: float, most: float
) -> None:
    """The same sums, but tables are filled, and every tile comes to 25 runs.

    Of single pixels 24 of them lie outside and are left out.
    """
    prices: list[int] = []
    for case in (
        Case("taps", (5, 5), (17, 8), padding=2),
        Case("one tap", (1, 1), (17 * 25, 8)),
    ):
        space = Space()
        variants = priced(space, with_channels_last(space, convolution(space, case)))
        direct = [v for v in variants if not v.name.startswith("winograd")]
        sizes = {"n": 2 * 64**2 // pixels**2, "h": pixels, "w": pixels, THREADS: 1}
        prices.append(min(variant.cost.evaluate(sizes) for variant in direct))
    assert least < prices[0] / prices[1] < most


@pytest.mark.parametrize("dtype", mostly_slow([F32, F64]))
@pytest.mark.parametrize("stride", mostly_slow([1, 2, 3], "1", "2"))
def test_one_tap_through_a_copy_with_channels_last(
    stride: int, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(_: Choice, ways: Sequence[Way]) -> tuple[Variant, ...]:
        return (Variant("forced", ways[-1].lower(Blocking()), constant(0)),)

    monkeypatch.setattr(Choice, "blocked_variants", turned)
    case = Case("one tap", (1, 1), (37, 21), stride)
    space = Space()
    made = convolution(space, case, dtype=dtype)
    bias = fixed(data(F32, (21,), 5).astype(dtype.numpy))
    graph = space.graph(apply("add", made, node(Broadcast(made.shape, (1,)), bias)))
    check(graph, [*shapes(case), {"n": 3, "h": 7, "w": 7}, {"n": 1, "h": 64, "w": 3}], length=37)


@pytest.mark.parametrize("name", mostly_slow(["three", "groups", "depthwise", "spread"]))
def test_weights_known_only_at_run_time(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    space = Space()
    taken, given = case.channels
    weights = space.input("weights", F32, given, taken // case.groups, *case.kernel)
    made = convolution(space, case, weights)
    check(space.graph(made), shapes(case), length=100)


@pytest.mark.slow
def test_weights_of_unknown_size() -> None:
    space = Space()
    n, c, o, h, w, r, s = (space.dimension(name, low) for name, low in
                           zip("ncohwrs", (0, 1, 0, 1, 1, 1, 1), strict=True))  # fmt: skip
    x, weights = space.input("x", F32, n, c, h, w), space.input("weights", F32, o, c, r, s)
    one, zero = (1, 1), (constant(0), constant(0))
    sizes = (maximum(0, h - r + 1), maximum(0, w - s + 1))
    made = node(Convolve(one, one, one, zero, sizes, 1), x, weights)
    cases = [dict(zip("ncohwrs", row, strict=True)) for row in
             ((1, 1, 1, 1, 1, 1, 1), (2, 3, 5, 7, 9, 3, 2), (0, 3, 2, 5, 5, 3, 3))]  # fmt: skip
    check(space.graph(made), cases, length=20)


@pytest.mark.slow
def test_float64() -> None:
    space = Space()
    case = CASES[2]
    made = convolution(space, case, dtype=F64)
    check(space.graph(made), shapes(case), length=100)


@pytest.mark.slow
def test_residual_and_second_output() -> None:
    space = Space()
    case = CASES[2]
    made = convolution(space, case)
    residual = space.input("residual", F32, *made.shape)
    total = apply("add", made, residual)
    check(space.graph(apply("maximum", total, scalar(0.0)), total), shapes(case), length=72)


@pytest.mark.slow
def test_activation_before_a_convolution() -> None:
    space = Space()
    h, w = space.dimension("h", 1), space.dimension("w", 1)
    x = space.input("x", F32, space.dimension("n"), 8, h, w)
    active = apply("maximum", x, scalar(0.0))
    weights = fixed(data(F32, (5, 8, 3, 3)))
    one = (constant(1), constant(1))
    made = node(Convolve((1, 1), (1, 1), (1, 1), one, (h, w), 1), active, weights)
    cases = [{"n": n, "h": h, "w": w} for n, h, w in ((1, 1, 1), (2, 7, 19), (0, 3, 3))]
    check(space.graph(made, active), cases, length=72)


WINDOWS = [(3, 2, 1, 1), (2, 2, 1, 0), (3, 1, 2, 1), (2, 3, 1, 1)]  # taps, stride, dilation, pad


@pytest.mark.parametrize("kind", mostly_slow(["sum", "maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("geometry", mostly_slow(WINDOWS, "(3,2,1,1)"))
def test_pooling(kind: str, geometry: tuple[int, int, int, int]) -> None:
    taps, stride, dilation, padding = geometry
    space = Space()
    case = Case("", (taps, taps), stride=stride, dilation=dilation, padding=padding)
    low = max(1, dilation * (taps - 1) + 1 - 2 * padding)
    h, w = space.dimension("h", low), space.dimension("w", low)
    x = space.input("x", F32, space.dimension("n"), 3, h, w)
    sizes = extents(case, [h, w])
    made = Window(
        kind, (taps,) * 2, (stride,) * 2, (dilation,) * 2, (constant(padding),) * 2, sizes
    )
    cases = [{"n": n, "h": h, "w": w} for n, h, w in
             ((1, low, low), (0, 9, 9), (2, low + 5, low + 12), (1, low, 40))]  # fmt: skip
    check(space.graph(node(made, x)), cases, length=taps * taps)


LINES = [  # taps, dilation, low, how much longer the result is than the operand
    (5, 1, 2, 0), (3, 1, 0, -2), (4, 3, 8, 0), (2, 1, 1, 3), (3, 2, 1, -7)
]  # fmt: skip


@pytest.mark.parametrize("kind", mostly_slow(["sum", "maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("line", mostly_slow(LINES, "(4,3,8,0)", "(3,2,1,-7)"))
def test_windows_along_the_last_axis(kind: str, line: tuple[int, int, int, int]) -> None:
    """Rows are copied with neutral elements around them; the epilogue reads row and windows."""
    taps, dilation, low, longer = line
    space = Space()
    x = space.input("x", F32, space.dimension("n"), space.dimension("w"), space.dimension("c"))
    size = maximum(x.shape[-1] + longer, 1) if longer else x.shape[-1]
    found = node(Window(kind, (taps,), (1,), (dilation,), (constant(low),), (size,)),
                 apply("multiply", x, x))  # fmt: skip
    outputs = [found] if longer else [found, apply("add", x, apply("minimum", found, scalar(9.0)))]
    cases = [{"n": n, "w": w, "c": c} for n, w, c in
             ((1, 1, 1), (2, 3, 8), (0, 2, 4), (1, 2, 37), (3, 1, 64))]  # fmt: skip
    check(space.graph(*outputs), cases, length=taps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_slow([DType.INT32, DType.UINT8, F64], "uint8"))
def test_pooling_of_other_types_along_a_line(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, space.dimension("n"), space.dimension("w", 2))
    low, size = (constant(1),), (x.shape[1] // 2,)
    outputs = [
        node(Window(k, (3,), (2,), (1,), low, size), x) for k in ("maximum", "minimum", "sum")
    ]
    cases = [{"n": n, "w": w} for n, w in ((1, 2), (3, 31), (0, 5))]
    check(space.graph(*outputs), cases, length=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three-stride", "groups", "pointwise", "spread", "deep"])
def test_tiles_of_avx512_on_other_machines(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    space = Space()
    graph = space.graph(apply("maximum", convolution(space, case), scalar(0.0)))
    check(graph, shapes(case), length=700, levels=(WIDE,))


@pytest.mark.parametrize("name", mostly_slow(["three", "groups", "deep", "seven"]))
def test_channels_last_with_weights_known_only_at_run_time(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    space = Space()
    taken, given = case.channels
    weights = space.input("weights", F32, given, taken // case.groups, *case.kernel)
    made = with_channels_last(space, convolution(space, case, weights))
    check(space.graph(made), shapes(case), length=700)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sizes",
    [
        ("seven", (5, 33, 40)),
        ("three-valid", (3, 21, 31)),
        ("line", (3, 1500)),
        ("volume", (4, 7, 9, 11)),
        ("volume", (2500, 1, 1, 1)),
        ("inside-volume", (7, 9, 13, 11)),
    ],
)
def test_blocks_of_pixels_end_inside_images(name: str, sizes: tuple[int, ...]) -> None:
    case = next(c for c in CASES if c.name == name)
    space = Space()
    made = with_channels_last(space, convolution(space, case))
    shape = dict(zip(("n", *SPATIAL), sizes, strict=False))
    check(space.graph(made), [shape], length=700)
