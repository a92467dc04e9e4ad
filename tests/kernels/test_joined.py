"""Concatenation of planes into pixels: by strips through register squares, beside other parts."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, F64, Space, apply, check
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Concat, Slice, Transpose
from tilewright.ir.tile import Loop, Statement, TransposeBlock
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.tile.loops.joined import lower_concat
from tilewright.tile.moves.transposes import STRIP
from tilewright.tile.values.lowering import Lowering

# Images, pixels and planes: nothing, one, blocks and strips ± 1, primes.
EDGES = [
    dict(zip("npk", row, strict=True))
    for row in ((0, 3, 5), (2, 0, 5), (2, 7, 0), (1, 1, 1), (2, 63, STRIP + 1), (1, 64, STRIP),
                (1, 65, STRIP - 1), (1, 131, 2 * STRIP + 1), (3, 321, 2))
]  # fmt: skip


def squares(graph: Graph) -> int:
    """How many strips the only kernel turns."""
    (kernel,) = plan_greedily(graph).kernels
    return _count(lower_concat(kernel, Lowering(kernel, graph.scope)).body)


def _count(body: tuple[Statement, ...]) -> int:
    inside = sum(_count(part.body) for part in body if isinstance(part, Loop))
    return inside + sum(isinstance(part, TransposeBlock) for part in body)


@pytest.mark.parametrize("dtype", [F32, F64, DType.INT16])
def test_planes_of_any_number_beside_pixels(dtype: DType) -> None:
    space = Space()
    n, p, k = space.dimensions("n p k")
    few = node(Transpose((0, 2, 1)), space.input("x", dtype, n, constant(3), p))
    many = node(Transpose((0, 2, 1)), space.input("y", dtype, n, k, p))
    pixels = space.input("z", dtype, n, p, constant(2))
    graph = space.graph(node(Concat(2), few, apply("negate", few), pixels, many, few))
    assert squares(graph) == 3  # of six planes together, of many by strips, and of three
    check(graph, EDGES)


def test_every_second_pixel() -> None:
    """Pixels of four images, each a quarter of one image, as detectors begin."""
    space = Space()
    n, h, w = space.dimensions("n h w")
    image = node(Transpose((0, 2, 3, 1)), space.input("x", F32, n, constant(3), 2 * h, 2 * w))
    sizes, steps = (n, h, w, constant(3)), (1, 2, 2, 1)
    places = [(0, down, along, 0) for along in (0, 1) for down in (0, 1)]
    parts = [
        node(Slice(tuple(map(constant, place)), sizes, tuple(map(constant, steps))), image)
        for place in places
    ]
    graph = space.graph(node(Concat(3), *parts))
    assert squares(graph) == 1
    rows = ((0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1), (2, 3, 17), (1, 2, 331))
    check(graph, [dict(zip("nhw", row, strict=True)) for row in rows])


@pytest.mark.parametrize("widths", [(3, 1), (2, 2), (16, 1), (17, 5)])
def test_short_runs(widths: tuple[int, int]) -> None:
    space = Space()
    n = space.dimension("n")
    x, y = (space.input(name, F32, n, constant(w)) for name, w in zip("xy", widths, strict=True))
    check(space.graph(node(Concat(1), x, y, x)), [{"n": n} for n in (0, 1, 2, 63, 1031)])


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_tokens_beside_turned_pixels(along: int, dtype: DType) -> None:
    """Parts that follow each other along pixels, or along images."""
    space = Space()
    n, p, k = space.dimensions("n p k")
    pixels = node(Transpose((0, 2, 1)), space.input("x", dtype, n, k, p))
    others = apply("negate", node(Transpose((0, 2, 1)), space.input("y", dtype, n, k, p)))
    shape = (n, constant(1), k) if along else (constant(1), p, k)
    token = space.input("t", dtype, *shape)
    graph = space.graph(node(Concat(along), token, pixels, token, others))
    assert squares(graph) == 2
    check(graph, EDGES)


@pytest.mark.parametrize("pixels", [1, 3, 64])
def test_turned_pixels_of_few_known_channels(pixels: int) -> None:
    space = Space()
    n, p = space.dimensions("n p")
    turned = node(Transpose((0, 2, 1)), space.input("x", F32, n, constant(3), p))
    some = space.input("t", F32, n, constant(pixels), constant(3))
    graph = space.graph(node(Concat(1), turned, some))
    check(graph, [{"n": n, "p": p} for n, p in ((0, 1), (1, 0), (2, 63), (1, 65), (3, 1365))])
