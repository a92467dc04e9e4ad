"""Windows before several axes that they do not span, along all of which vectors run."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space, apply, check, kinds, mostly_slow, spread
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Window
from tilewright.plan.greedy import plan_greedily
from tilewright.rewrite import simplify
from tilewright.shape import constant
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.kept_axes import lower_kept_axes

pytestmark = pytest.mark.sampled(4)

WRITTEN_OUT = 9  # taps: more are a loop of their own, in which the axes stay apart
PLANES = [(1, 1), (0, 5), (3, 5), (4, 4), (1, 17), (5, 3), (7, 9), (15, 17), (16, 16), (1, 257)]
SIZES = [{"n": n, "h": h, "w": w} for n, (h, w) in zip((1, 2, 3, 0, 2) * 2, PLANES, strict=True)]


def images(space: Space, channels: int, dtype: DType = F32) -> Node:
    return space.input("x", dtype, space.dimension("n"), channels, *space.dimensions("h w"))


def near_channels(x: Node, taps: int, kind: str = "sum", stride: int = 1) -> Node:
    """What ``taps`` neighbouring channels have together, written with all axes of an image."""
    ones, results = (1,) * 2, -(-x.shape[1].value // stride)
    low = (constant(taps // 2), constant(0), constant(0))
    sizes = (constant(results), *x.shape[2:])
    return node(Window(kind, (taps, *ones), (stride, *ones), (1, *ones), low, sizes), x)


def joined(graph: Graph) -> bool:
    """Whether the axes after the windows of the only kernel are one."""
    (kernel,) = plan_greedily(graph).kernels
    return lower_kept_axes(kernel, lambda: Lowering(kernel, graph.scope)) is not None


@pytest.mark.parametrize("taps", mostly_slow([2, 3, 4, 9, 11], "3"))
@pytest.mark.parametrize("channels", mostly_slow([1, 2, 7, 19, 64], "7"))
def test_sums_over_neighbouring_channels(channels: int, taps: int) -> None:
    space = Space()
    x = images(space, channels)
    graph = simplify(space.graph(apply("divide", x, near_channels(apply("multiply", x, x), taps))))
    assert joined(graph) is (taps <= WRITTEN_OUT)
    compiled = check(graph, SIZES, length=taps + 2, scale=64.0)
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.INT8])
def test_extremes_of_every_other_channel(dtype: DType, kind: str) -> None:
    space = Space()
    graph = simplify(space.graph(near_channels(images(space, 13, dtype), 3, kind, stride=2)))
    assert joined(graph)
    check(graph, SIZES)


def test_what_differs_from_row_to_row_keeps_the_axes_apart() -> None:
    space = Space()
    x = images(space, 7)
    rows = space.input("rows", F32, x.shape[2])
    moved = apply("add", near_channels(x, 3), spread(rows, x.shape, (2,)))
    graph = simplify(space.graph(moved))
    assert not joined(graph)
    check(graph, SIZES, length=4)


def test_one_term_for_each_channel_leaves_them_as_one() -> None:
    space = Space()
    x = images(space, 7)
    terms = space.input("terms", F32, 7)
    graph = simplify(space.graph(apply("add", near_channels(x, 3), spread(terms, x.shape, (1,)))))
    assert joined(graph)
    check(graph, SIZES, length=4)


def test_a_row_of_many_outputs_is_shared_out_among_tasks() -> None:
    space = Space()
    made = near_channels(images(space, 700), 5)
    check(simplify(space.graph(made)), [SIZES[2], SIZES[6], SIZES[8]], length=5)
