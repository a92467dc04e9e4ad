"""Convolutions whose windows lie apart and are copied into rows of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, mostly_slow, scalar
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve, Transpose
from tilewright.shape import constant, maximum
from tilewright.tile import lower
from tilewright.tile.convolutions.whole_windows import lower_windows
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant

SPATIAL = ("h", "w", "d")


@dataclass(frozen=True)
class Case:
    """Windows of ``taps`` whose first elements lie ``strides`` apart."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    channels: tuple[int, int]

    def __str__(self) -> str:
        return "x".join(map(str, self.taps)) + f" of {self.channels[0]}"


CASES = (
    Case((4, 4), (4, 4), (3, 20)),
    Case((16, 16), (16, 16), (3, 33)),
    Case((2, 2), (2, 3), (40, 17)),
    Case((3, 2), (3, 5), (1, 7)),
    Case((32, 8), (32, 8), (4, 18)),  # rows of 1,024 elements, copied a line farther apart
    Case((7,), (9,), (5, 40)),
    Case((2, 4, 4), (2, 4, 4), (3, 12)),
)


def convolution(case: Case, *, turned: bool, dtype: DType = F32) -> Graph:
    """With a bias and an activation behind it; if ``turned``, data has its channels first."""
    space, (given, taken), rank = Space(), case.channels, len(case.taps)
    n, *sizes = space.dimensions(" ".join(("n", *SPATIAL[:rank])))
    if turned:
        x = space.input("x", dtype, n, constant(given), *sizes)
        x = node(Transpose((0, *range(2, rank + 2), 1)), x)
    else:
        x = space.input("x", dtype, n, *sizes, constant(given))
    weights = fixed(data(dtype, (taken, given, *case.taps), 3))
    each = zip(sizes, case.taps, case.strides, strict=True)
    results = tuple(maximum((size - taps) // stride + 1, 0) for size, taps, stride in each)
    ones, low = (1,) * rank, (constant(0),) * rank
    made = node(Convolve(case.strides, ones, ones, low, results, 1, channels_last=True), x, weights)
    bias = node(Broadcast(made.shape, (rank + 1,)), fixed(data(dtype, (taken,), 5)))
    return space.graph(apply("maximum", apply("add", made, bias), scalar(0.0, dtype)))


def shapes(case: Case) -> list[dict[str, int]]:
    """Nothing, one window, one element less and more, blocks that end inside of lines."""

    def windows(images: int, counts: Sequence[int], more: int = 0) -> dict[str, int]:
        each = zip(counts, case.strides, case.taps, strict=False)
        sizes = [(count - 1) * stride + taps + more for count, stride, taps in each]
        return {"n": images, **dict(zip(SPATIAL, sizes, strict=False))}

    return [
        windows(0, (2, 2, 2)), windows(1, (1, 1, 1)), windows(1, (1, 1, 1), -1),
        windows(2, (3, 5, 2), 1), windows(3, (1, 13, 3)), windows(1, (7, 11, 5), 3),
    ]  # fmt: skip


def forced(blocking: Blocking | None) -> Callable[..., tuple[Variant, ...]]:
    """Convolutions are computed in this way, whatever its price."""

    def variants(
        kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, *_: object
    ) -> tuple[Variant, ...]:
        return (Variant("forced", (lower_windows(kernel, fresh(), tile, blocking),), constant(0)),)

    return variants


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "case",
    mostly_slow(CASES, "4x4of3", "3x2of1", "7of5"),
)
def test_every_window_is_copied(case: Case, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "lower_convolution", forced(None))
    length = case.channels[0]
    for taps in case.taps:
        length *= taps
    check(convolution(case, turned=turned), shapes(case), length=length)


@pytest.mark.parametrize("blocking", [Blocking(12, 16, 24), Blocking(6, 64, 1024)])
def test_blocks_of_windows(blocking: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows, of columns and of the depth."""
    monkeypatch.setattr(lower, "lower_convolution", forced(blocking))
    check(convolution(CASES[0], turned=True, dtype=F64), shapes(CASES[0]), length=48)
