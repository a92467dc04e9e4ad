"""Pooling of many small images with the channels first: blocks of them are turned."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from support.graph_kit import F32, F64, Space, apply, check, kinds, mostly_slow, scalar, spread
from support.window_cases import WindowCase
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Window
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.target import preset
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.prices import priced
from tilewright.tile.variants import THREADS, Variant

CASES = (
    WindowCase("three", (3, 3), padding=1, after=1),
    WindowCase("three-stride", (3, 3), stride=2, padding=1, after=1),
    WindowCase("valid", (3, 2)),
    WindowCase("no-taps-between", (2, 1), stride=2),
    WindowCase("four-stride", (3, 4), stride=4, padding=1),
    WindowCase("far", (3, 3), stride=6, padding=1, after=3),
    WindowCase("gaps", (1, 1), stride=2, padding=1),
    WindowCase("beyond", (2, 3), padding=5, after=6),
    WindowCase("dilated", (3, 3), stride=2, dilation=3, padding=3, after=3),
    WindowCase("seven", (7, 7), padding=3, after=3),
    WindowCase("many-taps", (13, 9), stride=2, padding=4, after=4),
)

# Images without elements, of one pixel, and of a band of rows ± 1; 0, 1, a vector ± 1 of images.
SIZES = [
    dict(zip("nchw", sizes, strict=True))
    for sizes in ((0, 3, 4, 4), (1, 0, 4, 4), (2, 3, 0, 5), (2, 3, 5, 0), (1, 1, 1, 1),
                  (3, 5, 7, 7), (1, 16, 3, 5), (1, 17, 13, 11), (2, 9, 16, 16), (1, 3, 17, 31),
                  (1, 2, 40, 63), (1, 1, 5, 300))
]  # fmt: skip


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are turned wherever that is possible."""

    def last(variants: Iterable[Variant], machine: Machine) -> tuple[Variant, ...]:
        (chosen,) = (variant for variant in variants if variant.name == "turned")
        return priced((chosen,), machine)

    monkeypatch.setattr(lower, "priced", last)


def pooling(space: Space, case: WindowCase, kind: str, dtype: DType = F32) -> Node:
    n, c, h, w = space.dimensions("n c h w")
    low = (constant(case.padding),) * 2
    strides, dilations = (case.stride,) * 2, (case.dilation,) * 2
    made = Window(kind, case.kernel, strides, dilations, low, case.sizes([h, w]))
    return node(made, space.input("x", dtype, n, c, h, w))


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("kind", mostly_slow(["sum", "maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("case", mostly_slow(CASES, "three-stride"))
def test_pooling_of_small_images(case: WindowCase, kind: str) -> None:
    space = Space()
    compiled = check(space.graph(pooling(space, case, kind)), SIZES, length=117)
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
@pytest.mark.parametrize("dtype", [F64, DType.INT32])
def test_other_types(dtype: DType) -> None:
    space = Space()
    check(space.graph(pooling(space, CASES[1], "maximum", dtype)), SIZES)


@pytest.mark.slow
@pytest.mark.usefixtures("turned")
def test_what_follows_is_done_for_all_images_alike() -> None:
    space = Space()
    made = pooling(space, CASES[0], "sum")
    scaled = apply("multiply", made, spread(scalar(1 / 9), made.shape))
    check(space.graph(scaled), SIZES, length=12, levels=("x86-64", "avx2"))


def variants(result: Node, space: Space) -> tuple[Variant, ...]:
    """The variants of the only kernel of a graph."""
    graph = space.graph(result)
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset("zen4"))
    made = lower_kernel(kernel, graph.scope, register_tile(LEVELS["avx512"]), machine=machine)
    return made.variants


def test_a_number_for_each_channel_is_not_the_same_for_all_images() -> None:
    space = Space()
    made = pooling(space, CASES[0], "sum")
    number = spread(space.input("number", F32, made.shape[1]), made.shape, (1,))
    found = variants(apply("multiply", made, number), space)
    assert [variant.name for variant in found] == ["loops"]


def test_what_is_turned_follows_from_sizes() -> None:
    """Many small images are; large ones, and a single one, are not."""
    space = Space()
    found = variants(pooling(space, CASES[0], "maximum"), space)

    def chosen(channels: int, side: int) -> str:
        sizes = {"n": 1, "c": channels, "h": side, "w": side, THREADS: 1}
        return min(found, key=lambda variant: variant.cost.evaluate(sizes)).name

    assert [chosen(193, side) for side in (7, 14, 20, 224)] == ["turned"] * 3 + ["loops"]
    assert chosen(1, 28) == "loops"
