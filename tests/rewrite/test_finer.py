"""Finer axes between reshapes: what they are, and that nothing but the axes changes."""

from __future__ import annotations

import numpy as np
import pytest

from support.small_networks import BATCH, SPATIAL, Network, results
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Map, Reduce, Reshape
from tilewright.rewrite.finer import common_axes, finer_axes
from tilewright.shape import Expr, constant, symbol

N, C, H, W = map(symbol, "nchw")


def sizes(*values: Expr | int) -> tuple[Expr, ...]:
    return tuple(v if isinstance(v, Expr) else constant(v) for v in values)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (sizes(N, 64, H, W), sizes(N, 8, 8 * H * W), [(N,), (8,), (8, H, W)]),
        (sizes(N, 64, H, W), sizes(N, 1, 64 * H * W), [(N,), (1,), (64, H, W)]),
        (sizes(N, C, 1, H), sizes(N * C, H), [(N, C), (H,)]),
        (sizes(N, 6, 4), sizes(N, 4, 6), None),
        (sizes(N, 12), sizes(N, 3, 4), [(N,), (3,), (4,)]),
        (sizes(4, 6, H), sizes(8, 3 * H), [(4, 2), (3, H)]),
        (sizes(N, H), sizes(N * H), [(N, H)]),
        (sizes(N, C, H), sizes(N, H, C), None),
    ],
)
def test_axes_of_both_shapes(
    source: tuple[Expr, ...], target: tuple[Expr, ...], expected: list[tuple[Expr | int, ...]]
) -> None:
    wanted = None if expected is None else tuple(sizes(*pieces) for pieces in expected)
    assert common_axes(source, target) == wanted


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_sum_over_merged_axes_is_one_over_several(groups: int) -> None:
    net = Network(channels=8)
    net.normalised_groups(groups)
    graph = net.graph()
    after = finer_axes(graph)
    (total,) = (n for n in after.nodes() if isinstance(n.primitive, Reduce))
    assert total.inputs[0].shape == sizes(BATCH, groups, 8 // groups, *SPATIAL)
    assert total.primitive == Reduce("sum", (2, 3, 4))
    for batch, height, width in ((2, 3, 5), (0, 3, 5), (1, 0, 4), (1, 1, 1)):
        given = {"batch": batch, "height": height, "width": width}
        for name, wanted in results(graph, given).items():
            np.testing.assert_allclose(results(after, given)[name], wanted, rtol=1e-12, atol=1e-12)


def test_what_others_read_is_merged_for_them() -> None:
    net = Network(channels=8)
    net.normalised_groups()
    merged = net.map.inputs[0]
    graph = net.graph(merged)
    after = finer_axes(graph)
    assert [root.shape for root in after.roots] == [root.shape for root in graph.roots]
    given = {"batch": 2, "height": 3, "width": 5}
    for name, wanted in results(graph, given).items():
        np.testing.assert_allclose(results(after, given)[name], wanted, rtol=1e-12, atol=1e-12)


def test_axes_that_nobody_splits_again_stay_merged() -> None:
    net = Network(channels=8)
    rows = node(Reshape((BATCH, 8 * SPATIAL[0] * SPATIAL[1])), net.map)
    net.put(node(Reduce("sum", (1,)), rows))
    graph = net.graph()
    assert finer_axes(graph) is graph


def test_axes_stay_apart_through_a_softmax_of_merged_axes() -> None:
    """Of [2, 3] taps that are one axis, at places that are one."""
    net = Network(channels=6)
    places = SPATIAL[0] * SPATIAL[1]
    apart = node(Reshape((BATCH, constant(2), constant(3), *SPATIAL)), net.map)
    taps = node(Reshape((BATCH, constant(6), places)), apart)

    def for_all(x: Node) -> Node:
        return node(Broadcast(taps.shape, (0, 2)), x)

    shifted = node(Map("subtract"), taps, for_all(node(Reduce("maximum", (1,)), taps)))
    powers = node(Map("exponential"), shifted)
    shares = node(Map("divide"), powers, for_all(node(Reduce("sum", (1,)), powers)))
    first = node(Reshape((BATCH, constant(6), places)), net.convolution(6, 1))
    wide = node(Broadcast((BATCH, constant(6), constant(6), places), (0, 1, 3)), first)
    spread = node(Broadcast(wide.shape, (0, 2, 3)), shares)
    total = node(Reduce("sum", (2,)), node(Map("multiply"), spread, wide))
    net.put(node(Reshape((BATCH, constant(6), *SPATIAL)), total))
    graph = net.graph()
    after = finer_axes(graph)
    reduced = [n for n in after.nodes() if isinstance(n.primitive, Reduce)]
    assert len(reduced) == 3
    for x in reduced:
        assert x.inputs[0].shape[-4:] == sizes(2, 3, *SPATIAL)
    for batch, height, width in ((2, 3, 5), (0, 3, 5), (1, 0, 4), (1, 1, 1)):
        given = {"batch": batch, "height": height, "width": width}
        for name, wanted in results(graph, given).items():
            np.testing.assert_allclose(results(after, given)[name], wanted, rtol=1e-12, atol=1e-12)
