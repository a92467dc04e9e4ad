"""Convolutions of one tap that read the pixels of channels-first data where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, mostly_slow, scalar
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve
from tilewright.shape import ceil_div, constant
from tilewright.target.core_model import LISTED
from tilewright.tile import lower
from tilewright.tile.convolutions.pointwise import lower_listed
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant

# Images, lines and columns: nothing, one, tiles of six and seven and one more or less, primes.
EDGES = [
    dict(zip("nhw", row, strict=True))
    for row in ((0, 3, 5), (2, 0, 5), (1, 1, 1), (1, 2, 3), (3, 1, 7), (1, 4, 4), (2, 5, 13),
                (3, 7, 7), (1, 31, 9))
]  # fmt: skip


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are computed in this way, whatever their price."""

    def variants(
        kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, *_: object
    ) -> tuple[Variant, ...]:
        step = lower_listed(kernel, fresh, replace(tile, rows=min(tile.rows, LISTED)))
        assert step is not None, f"{kernel.label} cannot be computed in this way"
        return (Variant("forced", (step,), constant(0)),)

    monkeypatch.setattr(lower, "lower_convolution", variants)


def convolution(channels: tuple[int, int], strides: Sequence[int], dtype: DType = F32) -> Graph:
    """With a bias and an activation behind it."""
    space, (given, taken) = Space(), channels
    n, *sizes = space.dimensions("n h w")
    x = space.input("x", dtype, n, constant(given), *sizes)
    weights = fixed(data(dtype, (taken, given, 1, 1), 3))
    steps = tuple(strides)
    results = tuple(ceil_div(size, step) for size, step in zip(sizes, steps, strict=True))
    made = node(Convolve(steps, (1, 1), (1, 1), (constant(0),) * 2, results, 1), x, weights)
    shifted = apply("add", made, node(Broadcast(made.shape, (1,)), fixed(data(dtype, (taken,), 5))))
    return space.graph(apply("maximum", shifted, scalar(0.0, dtype)))


@pytest.mark.parametrize("strides", mostly_slow([(1, 1), (2, 2), (1, 3), (5, 1)], "(2,2)"))
@pytest.mark.parametrize("channels", mostly_slow([(1, 70), (40, 33), (97, 130)], "(40,33)"))
def test_every_pixel_is_read_where_it_lies(
    channels: tuple[int, int], strides: tuple[int, int]
) -> None:
    check(convolution(channels, strides), EDGES, length=channels[0])


@pytest.mark.parametrize("channels", [1100, 2060, 2062])
def test_runs_of_channels(channels: int) -> None:
    """Two and four runs, in as many blocks of the depth, and one that does not divide."""
    check(convolution((channels, 70), (2, 1)), EDGES[:6], length=channels)


def test_float64() -> None:
    check(convolution((33, 9), (2, 2), F64), EDGES[:6], length=33)
