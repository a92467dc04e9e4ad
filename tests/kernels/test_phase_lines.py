"""Convolutions with the channels first whose taps share lines, whatever their price."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, mostly_slow, scalar
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Broadcast, Convolve
from tilewright.shape import constant, maximum
from tilewright.tile.convolutions import convolution
from tilewright.tile.convolutions.phase_lines import shares_lines
from tilewright.tile.variants import Variant

# Taps, strides, dilations and padding along every axis; the channels of data and results.
FORMS = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), (3, 16)),
    "3x3 by 2": ((3, 3), (2, 2), (1, 1), (1, 1), (3, 40)),
    "5x5 by 2": ((5, 5), (2, 2), (1, 1), (2, 2), (3, 13)),
    "7x7 by 2": ((7, 7), (2, 2), (1, 1), (3, 3), (1, 5)),
    "4x4 by 4": ((4, 4), (4, 4), (1, 1), (0, 0), (3, 7)),
    "inside": ((3, 4), (1, 3), (1, 1), (0, 0), (2, 6)),
    "dilated": ((2, 3), (2, 2), (2, 3), (1, 5), (2, 6)),
    "far outside": ((1, 3), (1, 2), (1, 1), (0, 7), (2, 3)),
    "lines of one tap": ((1, 5), (1, 2), (1, 1), (0, 2), (4, 17)),
    "volume": ((2, 3, 3), (1, 2, 1), (1, 1, 1), (1, 0, 1), (2, 5)),
}
WIDTHS = (1, 2, 5, 13, 16, 23, 24, 25, 31, 48, 63, 64, 65, 94, 131, 299)


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last variant is the one of shared lines."""

    def last(made: Sequence[Variant], *_: object) -> tuple[Variant, ...]:
        (chosen,) = [variant for variant in made if variant.name == "packed lines"]
        return (chosen,)

    monkeypatch.setattr(convolution, "needed", last)


def first_layer(name: str, dtype: DType = F32, groups: int = 1) -> tuple[Graph, int]:
    """A convolution with a bias and an activation behind it, and the depth of its sums."""
    taps, strides, dilations, padding, (given, taken) = FORMS[name]
    space, rank = Space(), len(taps)
    sizes = [space.dimension(axis) for axis in "hwd"[:rank]]
    x = space.input("x", dtype, space.dimension("n"), constant(groups * given), *sizes)
    weights = fixed(data(dtype, (groups * taken, given, *taps), 3))
    results = [
        maximum(0, (size + 2 * pad - (tap - 1) * dilation - 1) // stride + 1)
        for size, tap, stride, dilation, pad in zip(
            sizes, taps, strides, dilations, padding, strict=True
        )
    ]
    low = tuple(constant(pad) for pad in padding)
    primitive = Convolve(strides, dilations, (1,) * rank, low, tuple(results), groups)
    made = node(primitive, x, weights)
    assert shares_lines(made)
    bias = node(Broadcast(made.shape, (1,)), fixed(data(dtype, (groups * taken,), 5)))
    finished = apply("maximum", apply("add", made, bias), scalar(0.0, dtype))
    return space.graph(finished), given * len(data(dtype, taps, 0).ravel())


def shapes(name: str) -> list[dict[str, int]]:
    """Lines around whole vectors and tiles, and none at all."""
    rank = len(FORMS[name][0])
    found = [dict(zip("nhwd", (1, *(9,) * (rank - 1), wide), strict=False)) for wide in WIDTHS]
    found += [dict(zip("nhwd", row, strict=False)) for row in ((0, 9, 9, 9), (3, 7, 40, 11))]
    return [*found, dict(zip("nhwd", (2, 130, 61, 5), strict=False))]


@pytest.mark.parametrize("name", mostly_slow(tuple(FORMS), "3x3 by 2", "dilated", "volume"))
def test_lines_of_any_length(name: str) -> None:
    graph, depth = first_layer(name)
    check(graph, shapes(name), length=depth)


def test_groups_and_other_types() -> None:
    graph, depth = first_layer("5x5 by 2", F64, groups=2)
    check(graph, shapes("5x5 by 2")[::4], length=depth)


def test_what_shares_no_lines() -> None:
    """A stride beyond the taps, phases that no tap reads, sums deeper than a block."""

    def made(taps: int, stride: int, dilation: int, channels: int) -> Node:
        space = Space()
        x = space.input("x", F32, space.dimension("n"), channels, 99, 99)
        result = constant((99 - (taps - 1) * dilation - 1) // stride + 1)
        primitive = Convolve(
            (1, stride), (1, dilation), (1, 1), (constant(0),) * 2, (constant(99), result), 1
        )
        return node(primitive, x, fixed(data(F32, (2, channels, 1, taps), 3)))

    assert shares_lines(made(3, 2, 1, 8))
    assert not shares_lines(made(2, 3, 1, 8))
    assert not shares_lines(made(3, 2, 2, 8))
    assert not shares_lines(made(3, 1, 1, 800))
