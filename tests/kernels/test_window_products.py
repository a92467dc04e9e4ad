"""A convolution and windows over its pixels in one kernel: band by band, and as two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest

from support.graph_kit import (
    F32,
    F64,
    Compiled,
    Space,
    apply,
    check,
    compare_outputs,
    data,
    fixed,
    inputs_at,
    kinds,
    mostly_slow,
    scalar,
)
from support.tile_runs import TileRun
from support.window_cases import WindowCase
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve, Transpose, Window
from tilewright.ir.window_product import window_product_of
from tilewright.shape import Scope, constant
from tilewright.tile import lower
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.stitched import window_variants
from tilewright.tile.variants import Variant

pytestmark = pytest.mark.sampled(8)

ROOM = 6000  # bytes of a band with its data: images of some rows are several bands
SIZES = ((1, 1, 1), (1, 0, 3), (1, 5, 0), (0, 7, 7), (2, 7, 9), (1, 13, 5), (3, 29, 4), (1, 3, 37))
CASES = [dict(zip("nhw", sizes, strict=True)) for sizes in SIZES]
FEW_PIXELS = 300  # for programs that are run element by element


@pytest.fixture(autouse=True)
def bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes small bands, in blocks of one panel of channels."""

    def only(kernel: Kernel, scope: Scope, tile: RegisterTile, *others: Any) -> tuple[Variant, ...]:
        machine = next(o for o in others if isinstance(o, Machine))
        parts = window_product_of(kernel)
        assert parts is not None
        small = replace(tile, room=ROOM)
        return (window_variants.banded_variant(parts, scope, small, machine, 1),)

    monkeypatch.setattr(lower, "window_product_variants", only)


@dataclass(frozen=True)
class Case(WindowCase):
    """A window over the pixels of a convolution of ``taps`` by ``taps`` from ``inputs`` channels.

    ``kind`` is that of pooling; depthwise convolutions have none.
    """

    kind: str = ""
    channels: int = 21
    taps: int = 1
    step: int = 1
    inputs: int = 9


WINDOWS = (
    Case("three", (3, 3), padding=1, after=1),
    Case("stride", (3, 3), stride=2, padding=1, after=1, channels=64),
    Case("valid", (3, 3), channels=150),
    Case("five", (5, 5), padding=2, after=2, channels=16),
    Case("seven-stride", (7, 7), stride=3, padding=3, after=3, channels=40),
    Case("dilated", (3, 3), dilation=3, padding=3, after=3),
    Case("shifted", (4, 5), padding=3, channels=33),
    Case("stem", (3, 3), padding=1, after=1, taps=3, step=2, inputs=3, channels=32),
    Case("deep", (3, 3), padding=1, after=1, taps=3, inputs=24, channels=32),
    Case("pooled", (3, 3), stride=2, padding=1, after=1, kind="maximum", taps=3, channels=64),
    Case("pooled-once", (2, 2), stride=2, kind="maximum"),
    Case("summed", (3, 2), stride=2, after=1, kind="sum", taps=5, step=2, inputs=20),
)


def convolved(x: Node, case: Case, rank: int = 2) -> Node:
    """The convolution with a bias and a lower limit."""
    dtype, low = x.dtype, case.taps // 2
    weights = fixed(data(dtype, (case.channels, case.inputs, *(case.taps,) * rank), 3))
    sizes = tuple((size + 2 * low - case.taps) // case.step + 1 for size in x.shape[1:-1])
    made = node(
        Convolve((case.step,) * rank, (1,) * rank, (1,) * rank, (constant(low),) * rank, sizes, 1,
                 True), x, weights,
    )  # fmt: skip
    bias = fixed(data(dtype, (case.channels,), 5))
    biased = apply("add", made, node(Broadcast(made.shape, (made.rank - 1,)), bias))
    return apply("maximum", biased, scalar(0.0, dtype))


def windows(shown: Node, case: Case) -> Node:
    rank = len(case.kernel)
    sizes = case.sizes(list(shown.shape[1:-1]))
    strides, dilations = (case.stride,) * rank, (case.dilation,) * rank
    low = (constant(case.padding),) * rank
    if case.kind:
        return node(Window(case.kind, case.kernel, strides, dilations, low, sizes, 1), shown)
    weights = fixed(data(shown.dtype, (case.channels, 1, *case.kernel), 7))
    made = Convolve(strides, dilations, (1,) * rank, low, sizes, case.channels, True)
    return node(made, shown, weights)


def image(space: Space, case: Case, dtype: DType = F32, names: str = "nhw") -> Node:
    return space.input("x", dtype, *space.dimensions(" ".join(names)), case.inputs)


def network(case: Case, dtype: DType = F32) -> Graph:
    space = Space()
    made = windows(convolved(image(space, case, dtype), case), case)
    return space.graph(apply("minimum", made, scalar(4.0, dtype)))


def length(case: Case) -> int:
    taps = 1
    for size in case.kernel:
        taps *= size
    return case.inputs * case.taps * case.taps + taps


@pytest.mark.parametrize("case", mostly_slow(WINDOWS, "stride", "stem", "pooled"))
def test_bands_of_an_image(case: Case) -> None:
    made = check(network(case), CASES, length=length(case), scale=64)
    assert kinds(made) == ["window product"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three", "deep", "pooled"])
def test_bands_of_float64(name: str) -> None:
    case = next(case for case in WINDOWS if case.name == name)
    check(network(case, F64), CASES, length=length(case), scale=64)


@pytest.mark.slow
def test_data_with_its_channels_first() -> None:
    case = next(case for case in WINDOWS if case.name == "stem")
    space = Space()
    n, h, w = space.dimensions("n h w")
    first = space.input("x", F32, n, case.inputs, h, w)
    shown = convolved(node(Transpose((0, 2, 3, 1)), first), case)
    made = check(space.graph(windows(shown, case)), CASES, length=length(case), scale=64)
    assert kinds(made) == ["window product"]


@pytest.mark.slow
def test_volumes_and_results_that_read_others() -> None:
    """Bands go along the first axis; a residual is added to what the windows make."""
    case = Case("volume", (3, 3, 3), padding=1, after=1, channels=12)
    space = Space()
    made = windows(convolved(image(space, case, names="ndhw"), case, rank=3), case)
    total = apply("add", made, space.input("residual", F32, *made.shape))
    names = ("n", "d", "h", "w")
    sizes = ((1, 1, 1, 1), (2, 5, 3, 4), (1, 9, 4, 1), (1, 0, 2, 2), (2, 3, 1, 7))
    cases = [dict(zip(names, size, strict=True)) for size in sizes]
    plan = check(space.graph(total), cases, length=length(case), scale=64)
    assert kinds(plan) == ["window product"]


@pytest.mark.parametrize("name", ["stride", "stem", "pooled-once"])
def test_the_programs_mean_what_the_machine_code_does(name: str) -> None:
    case = next(case for case in WINDOWS if case.name == name)
    graph = network(case)
    compiled = Compiled(graph, ("x86-64",))
    run = TileRun(graph, compiled.levels["x86-64"].lowered)
    for sizes in (few for few in CASES if prod(few.values()) <= FEW_PIXELS):
        inputs = inputs_at(graph, sizes)
        want = run.outputs(inputs, sizes, lambda _: 0)
        got = compiled.guarded("x86-64", inputs, sizes)
        compare_outputs(graph, got, want, (length(case), 64.0), f"{sizes}")


def test_windows_that_may_lie_outside_stay_apart() -> None:
    """They have results even for images without pixels, for which no task has a pixel to make."""
    graph = network(Case("beyond", (2, 3), padding=4, after=3))
    made = check(graph, CASES, length=24, scale=64)
    assert kinds(made) == ["contraction", "window"]
