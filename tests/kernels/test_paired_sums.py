"""Depthwise convolutions of bytes, whose sums are made in integers, two taps at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from support.graph_kit import (
    F32,
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
from support.tile_runs import TileRun
from support.window_cases import WindowCase
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, kernel_of
from tilewright.ir.primitives import Broadcast, Cast, Convolve
from tilewright.ir.tile import Loop, Statement, TransposeBlock
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant
from tilewright.target import Target, preset
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.windows.paired_sums import paired_sums

pytestmark = pytest.mark.sampled(8)

SPATIAL = ("h", "w")
ZERO = 131
TILED = tuple(dict.fromkeys(("avx2", host_level().name)))
CASES = (
    WindowCase("three", (3, 3), padding=1, after=1),
    WindowCase("three-stride", (3, 3), stride=2, padding=1, after=1),
    WindowCase("five-stride", (5, 5), stride=2, padding=2, after=1),
    WindowCase("valid", (4, 2)),
    WindowCase("far", (3, 3), stride=3, dilation=2, padding=1, after=3),
    WindowCase("dilated", (3, 3), stride=2, dilation=3, padding=3, after=3),
    WindowCase("beyond", (2, 3), padding=5, after=6),
    WindowCase("many-taps", (13, 9), stride=2, padding=4, after=4),
    WindowCase("long-line", (131,), padding=65, after=64),
    WindowCase("line", (7,), stride=2, padding=3, after=3),
)
EVERY = mostly_slow(CASES, "three-stride", "five-stride")


def rows(case: WindowCase) -> list[dict[str, int]]:
    """Maps without elements, smaller than a window, of a vector and of a task, and one off."""
    extents = [(1, 1), (0, 5), (3, 0), (2, 7), (7, 8), (17, 9), (2, 67), (16, 64), (5, 31)]
    names = ("n", *SPATIAL[: len(case.kernel)])
    return [dict(zip(names, (2, *e), strict=False)) for e in [*extents, (3, 519)]]


def quantised(
    space: Space, case: WindowCase, last: bool, kind: DType = DType.UINT8, channels: int = 19
) -> Node:
    """Rounded sums of bytes minus their zero point, twice as many channels as those of the data."""
    rank = len(case.kernel)
    sizes = [space.dimension(name) for name in SPATIAL[:rank]]
    shape = (*sizes, channels) if last else (channels, *sizes)
    x = node(Cast(DType.INT32), space.input("x", kind, space.dimension("n"), *shape))
    zero = ZERO if kind is DType.UINT8 else ZERO - 128
    centred = node(Cast(F32), apply("subtract", x, scalar(zero, DType.INT32)))
    weights = data(DType.INT32, (2 * channels, 1, *case.kernel), 3, low=-255, high=255)
    made = Convolve(
        (case.stride,) * rank, (case.dilation,) * rank, (1,) * rank,
        (constant(case.padding),) * rank, case.sizes(sizes), channels, last,
    )  # fmt: skip
    sums = node(Cast(DType.INT32), node(made, centred, fixed(weights.astype("float32"))))
    axis = sums.rank - 1 if last else 1
    bias = fixed(data(DType.INT32, (2 * channels,), 5, low=-900, high=900))
    total = apply("add", sums, node(Broadcast(sums.shape, (axis,)), bias))
    scaled = apply("multiply", node(Cast(F32), total), scalar(2.0**-12))
    moved = apply("add", apply("round_even", scaled), scalar(100.0))
    limited = apply("minimum", apply("maximum", moved, scalar(0.0)), scalar(255.0))
    return node(Cast(DType.UINT8), limited)


def always(kernel: Kernel, target: Target) -> bool:
    del kernel, target
    return True


@pytest.mark.parametrize("kind", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", EVERY)
def test_tiles_are_exact(
    case: WindowCase, last: bool, kind: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower, "is_surely_best", always)
    space = Space()
    graph = space.graph(quantised(space, case, last, kind))
    assert_words(check(graph, rows(case), levels=TILED))


@pytest.mark.parametrize("kind", [DType.UINT8, DType.INT8])
def test_planes_are_turned_in_one_piece(kind: DType) -> None:
    """All rows of a small image at once, on their way in and out, whose bytes may have a sign."""
    space = Space()
    graph = space.graph(quantised(space, CASES[0], False, kind))
    (kernel,) = plan_greedily(graph).kernels
    machine, tile = Machine(preset("zen3")), register_tile(LEVELS["avx2"])
    lowered = lower_kernel(kernel, graph.scope, tile, machine=machine)
    (tiles,) = (v for v in lowered.variants if v.name == "tiles")
    blocks = [*turned(tiles.steps[0].program.body)]
    assert [most_at_seven(size) for b in blocks for size in (b.columns, b.rows)] == [49, 8, 8, 49]


def turned(body: Iterable[Statement]) -> Iterator[TransposeBlock]:
    for statement in body:
        if isinstance(statement, Loop):
            yield from turned(statement.body)
        elif isinstance(statement, TransposeBlock):
            yield statement


def most_at_seven(size: Expr) -> int:
    """The size for maps of seven rows and columns, in whichever turn of one loop is the last."""
    names = set(size.free_symbols) - {"h", "w"}
    turns = [dict.fromkeys(names, 0)] + [{**dict.fromkeys(names, 0), name: 6} for name in names]
    return max(size.evaluate({"h": 7, "w": 7, **turn}) for turn in turns)


@pytest.mark.parametrize("kind", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("case", EVERY)
def test_bands_are_exact(case: WindowCase, kind: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "channel_tiles", lambda *_: None)
    space = Space()
    graph = space.graph(quantised(space, case, False, kind))
    compiled = check(graph, rows(case))
    if case.stride < 3:
        assert_words(compiled)


def assert_words(compiled: Compiled) -> None:
    (kernel,) = plan_greedily(compiled.graph).kernels
    assert paired_sums(kernel) is not None


@pytest.mark.parametrize("last", [False, True])
def test_every_variant_means_the_same(last: bool) -> None:
    """The numpy meaning of its program, with scratch memory that no one may use unwritten."""
    space = Space()
    graph: Graph = space.graph(quantised(space, CASES[1], last))
    (kernel,) = plan_greedily(graph).kernels
    machine, tile = Machine(preset("zen4")), register_tile(LEVELS["avx512"])
    lowered = lower_kernel(kernel, graph.scope, tile, machine=machine)
    sizes = {"n": 1, "h": 5, "w": 18}
    feeds, results = inputs_at(graph, sizes), []
    for number in range(len(lowered.variants)):
        run = TileRun(graph, [lowered])
        results.append(run.outputs(feeds, sizes, lambda _, number=number: number))
    first, *others = (next(iter(made.values())) for made in results)
    assert others
    assert all((first == other).all() for other in others)


def test_sums_that_float32_would_round_stay_floats() -> None:
    space = Space()
    case = WindowCase("wide", (33, 33))
    made = quantised(space, case, last=False)
    (kernel,) = plan_greedily(space.graph(made)).kernels
    assert paired_sums(kernel) is None


def test_floats_in_memory_are_no_bytes() -> None:
    """A kernel that reads what another one has made of the bytes sums that."""
    space = Space()
    (kernel,) = plan_greedily(space.graph(quantised(space, CASES[1], last=False))).kernels
    assert paired_sums(kernel) is not None
    floats, weights = kernel.seed.inputs
    apart = kernel_of(kernel.seeds, (kernel.seed,), {floats, weights}, lambda _: 0, "apart", {})
    assert floats in apart.reads
    assert paired_sums(apart) is None
