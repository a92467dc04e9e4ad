"""Channels last: every result stays, and feature maps are transposed at the edges only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.rewrite_harness import apply, tensor, value
from support.small_networks import BATCH, F64, SPATIAL, Network, results
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, node
from tilewright.ir.primitives import (
    Cast,
    Contract,
    Convolve,
    Pad,
    Reduce,
    Reshape,
    Scan,
    Transpose,
    Window,
)
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.rewrite.orders import moves_data
from tilewright.shape import Guard, constant, product, symbol

SIZES = {"batch": 2, "height": 5, "width": 6}


def transposed(graph: Graph) -> list[Node]:
    """What the graph transposes, more than axes of size 1."""
    return [
        n.inputs[0]
        for n in graph.nodes()
        if isinstance(n.primitive, Transpose)
        and moves_data(n.inputs[0].shape, n.primitive.permutation)
    ]


def convolutions(graph: Graph) -> list[bool]:
    """For every convolution whether its channels are last."""
    return [n.primitive.channels_last for n in graph.nodes() if isinstance(n.primitive, Convolve)]


def assert_same_results(before: Graph, after: Graph, sizes: dict[str, int]) -> None:
    """Sums of at most a few thousand terms in another order, layer after layer, in float64."""
    expected, found = results(before, sizes), results(after, sizes)
    assert list(expected) == list(found)
    for name, wanted in expected.items():
        assert wanted.shape == found[name].shape
        scale = float(np.abs(wanted).max(initial=1.0))
        tolerance = 4096 * float(np.finfo(np.float64).eps) * scale
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=tolerance)


def converted(graph: Graph) -> Graph:
    """The graph after the pass, checked for its meaning, its edges and as a fixed point."""
    before = simplify(graph)
    after = prefer_channels_last(before)
    assert (after.name, after.inputs, after.guards) == (graph.name, graph.inputs, graph.guards)
    assert after.scope is graph.scope
    kinds = [(name, root.type) for name, root in after.outputs]
    assert kinds == [(name, root.type) for name, root in graph.outputs]
    again = prefer_channels_last(after)
    assert again.roots == after.roots
    for sizes in (SIZES, SIZES | {"batch": 1, "width": 9}, SIZES | {"batch": 0}):
        assert_same_results(graph, after, sizes)
    return after


# ---------------------------------------------------------------- whole networks


def residual_network() -> Network:
    """A stem with pooling, two bottlenecks, the second of which halves, and a linear head."""
    net = Network()
    net.convolution(8, 7, 2)
    net.pooling()
    for stride in (1, 2):
        start = net.map
        net.convolution(4, 1)
        net.convolution(4, 3, stride)
        main = net.convolution(16, 1)
        net.put(start)
        net.convolution(16, 1, stride)
        net.added(main)
        net.with_number("maximum", 0.0)
    net.global_average()
    net.linear(5)
    return net


def mobile_network() -> Network:
    """Inverted residuals with depthwise convolutions and excited channels."""
    net = Network()
    start = net.convolution(8, 3, 2)
    for stride in (1, 2):
        net.convolution(16, 1)
        net.depthwise(stride)
        net.squeeze_and_excite()
        net.convolution(8, 1)
        if stride == 1:
            net.added(start)
    net.global_average()
    net.linear(5)
    return net


def inception_network() -> Network:
    """Response normalisation, and branches joined along the channels."""
    net = Network()
    net.convolution(8, 7, 2)
    net.pooling()
    net.response_normalisation()
    start = net.convolution(8, 3)
    one = net.convolution(4, 1)
    net.put(start)
    net.convolution(4, 1)
    three = net.convolution(6, 3)
    net.put(start)
    net.pooling("maximum", 3, 1)
    net.convolution(2, 1)
    net.joined(one, three)
    net.global_average()
    net.linear(5)
    return net


def plain_network(spatial: int = 9) -> Network:
    """Response normalisation, pooling, and a flattened image before the linear layers."""
    net = Network(spatial=(spatial, spatial))
    net.convolution(8, 5, 2)
    net.response_normalisation()
    net.pooling()
    net.convolution(6)
    net.pooling()
    net.flat()
    net.linear(7)
    net.linear(5)
    return net


def sequence_network() -> Network:
    """Convolutions along one axis."""
    net = Network(spatial=(SPATIAL[0],))
    net.convolution(8, 5, 2)
    net.convolution(8, 3, groups=4, dilation=2)
    net.depthwise()
    net.global_average()
    return net


NETWORKS = [
    residual_network, mobile_network, inception_network, plain_network, sequence_network
]  # fmt: skip


@pytest.mark.parametrize("build", NETWORKS)
def test_only_the_image_is_transposed(build: object) -> None:
    assert callable(build)
    net = build()
    after = converted(net.graph())
    assert transposed(after) == [net.input]
    assert all(convolutions(after))


def test_feature_maps_that_are_outputs_are_transposed_once() -> None:
    net = Network(channels=16)
    net.convolution(8)
    middle = net.convolution(8)
    net.convolution(8)
    net.with_number("multiply", 2.0)
    net.convolution(4)
    after = converted(net.graph(middle))
    assert len(transposed(after)) == 3
    assert transposed(after).count(net.input) == 1


def test_pooling_keeps_the_channels_behind_its_windows() -> None:
    windows = [n for n in converted(residual_network().graph()).nodes() if _is_window(n)]
    assert [(w.primitive.kernel, w.primitive.trailing) for w in windows] == [((3, 3), 1)]  # type: ignore[union-attr]


def test_response_normalisation_runs_along_the_last_axis() -> None:
    windows = [n for n in converted(plain_network().graph()).nodes() if _is_window(n)]
    kinds = {(w.primitive.kernel, w.primitive.trailing) for w in windows}  # type: ignore[union-attr]
    assert kinds == {((3,), 0), ((3, 3), 1)}


def _is_window(x: Node) -> bool:
    return isinstance(x.primitive, Window)


def test_padding_and_unit_axes_of_a_decomposed_response_normalisation_disappear() -> None:
    """As PyTorch exports it: [N, 1, C, H, W] padded and pooled."""
    net = Network()
    net.convolution(8)
    x = net.map
    cube = node(Reshape((BATCH, constant(1), *x.shape[1:])), apply("multiply", x, x))
    zero, two = constant(0), constant(2)
    pads = (zero, zero, two, zero, zero)
    cube = node(Pad(pads, pads), cube, value(0.0, F64))
    ones = (1, 1, 1)
    window = Window("sum", (5, 1, 1), ones, ones, (zero,) * 3, x.shape[1:])
    net.put(apply("add", x, node(Reshape(x.shape), node(window, cube))))
    net.convolution(4)
    net.global_average()
    after = converted(net.graph())
    assert transposed(after) == [net.input]
    assert not any(isinstance(n.primitive, Pad | Reshape) for n in after.nodes())


def test_global_pooling_sums_the_middle_axes() -> None:
    after = converted(sequence_network().graph())
    assert [n.primitive.axes for n in after.nodes() if isinstance(n.primitive, Reduce)] == [(1,)]


# ---------------------------------------------------------------- the model's own transpositions


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_normalised_groups_of_channels_keep_them_last(groups: int) -> None:
    net = Network()
    net.convolution(8)
    net.normalised_groups(groups)
    net.convolution(8)
    after = converted(net.graph())
    assert [x.shape[1].value for x in transposed(after)[:1]] == [3]
    assert len(transposed(after)) == 2  # the image and the result
    (total,) = (n for n in after.nodes() if isinstance(n.primitive, Reduce))
    assert total.inputs[0].shape[1:3] == SPATIAL


def test_a_patch_embedding_takes_the_transposition_after_it() -> None:
    net = Network()
    net.convolution(8, 4, 4)
    tokens = node(Reshape((BATCH, constant(8), product(net.spatial))), net.map)
    net.put(node(Transpose((0, 2, 1)), tokens))
    after = converted(net.graph())
    assert transposed(after) == [net.input]
    assert convolutions(after) == [True]


def test_a_network_of_tokens_and_images_has_none_left() -> None:
    net = Network()
    net.convolution(8, 3, 2)
    for _ in range(2):
        net.attention()
        net.convolution(8)
    net.upsampled()
    net.convolution(4)
    net.global_average()
    after = converted(net.graph())
    assert transposed(after) == [net.input]


def test_channel_shuffling_is_one_transposition() -> None:
    net = Network()
    net.convolution(8)
    net.shuffled()
    net.convolution(8, groups=2)
    net.global_average()
    after = converted(net.graph())
    assert len(transposed(after)) == 2


# ---------------------------------------------------------------- where it does not pay


def test_a_single_convolution_of_several_taps_is_worth_both_conversions() -> None:
    net = Network(channels=8)
    net.convolution(8)
    after = converted(net.graph())
    assert convolutions(after) == [True]
    assert len(transposed(after)) == 2


def test_a_single_pointwise_convolution_stays() -> None:
    net = Network(channels=8)
    net.convolution(8, kernel=1)
    graph = simplify(net.graph())
    assert prefer_channels_last(graph) is graph


@pytest.mark.parametrize("stride", [1, 2])
def test_a_single_pointwise_convolution_to_many_channels_stays(stride: int) -> None:
    net = Network(channels=8)
    net.convolution(128, kernel=1, stride=stride)
    graph = simplify(net.graph())
    assert prefer_channels_last(graph) is graph


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (7, 2)])
def test_a_single_convolution_of_a_few_channels_stays(kernel: int, stride: int) -> None:
    net = Network(channels=3)
    net.convolution(64, kernel=kernel, stride=stride)
    graph = simplify(net.graph())
    assert prefer_channels_last(graph) is graph


@pytest.mark.parametrize(("kernel", "stride"), [(16, 16), (11, 4), (4, 4)])
def test_a_convolution_whose_windows_share_little_is_worth_it(kernel: int, stride: int) -> None:
    net = Network(channels=3)
    net.convolution(64, kernel=kernel, stride=stride)
    assert convolutions(converted(net.graph())) == [True]


def test_pooling_alone_stays() -> None:
    net = Network()
    net.pooling()
    net.pooling()
    graph = simplify(net.graph())
    assert prefer_channels_last(graph) is graph


def test_half_precision_stays() -> None:
    net = Network()
    net.put(node(Cast(DType.FLOAT16), net.input))
    weights = value(np.ones((3, 3, 1, 1)), DType.FLOAT16)
    for _ in range(3):
        primitive = Convolve((1, 1), (1, 1), (1, 1), (constant(0),) * 2, net.spatial, 1)
        net.put(node(primitive, net.map, weights))
    graph = simplify(net.graph())
    assert prefer_channels_last(graph) is graph


def test_one_region_may_pay_where_another_does_not() -> None:
    """Three convolutions before, one behind a feature map that must be in its own order."""
    net = Network()
    for _ in range(3):
        net.convolution(8)
    net.put(node(Reshape((BATCH, product(net.map.shape[1:]))), net.map))
    net.put(node(Scan("sum", 1, False, False), net.map))
    net.put(node(Reshape((BATCH, constant(8), *SPATIAL)), net.map))
    net.convolution(8, kernel=1)
    after = converted(net.graph())
    assert convolutions(after) == [True] * 3 + [False]


# ---------------------------------------------------------------- flattened images


def test_weights_are_permuted_instead_of_the_image() -> None:
    net = plain_network()
    after = converted(net.graph())
    flat = [n for n in after.nodes() if isinstance(n.primitive, Contract)]
    assert [isinstance(f.inputs[0].primitive, Reshape) for f in flat] == [True, False]


def test_weights_are_permuted_where_only_the_row_is_known() -> None:
    net = Network()
    net.convolution(8)
    net.convolution(4)
    net.flat()
    net.linear(5, depth=4 * 5 * 6)
    before = simplify(net.graph())
    after = prefer_channels_last(before)
    assert transposed(after) == [net.input]
    assert_same_results(before, after, SIZES)


def test_rows_that_others_read_are_copied_in_their_order() -> None:
    net = plain_network()
    flat = next(n for n in net.graph().nodes() if isinstance(n.primitive, Contract)).inputs[0]
    after = converted(net.graph(flat))
    assert len(transposed(after)) == 2


# ---------------------------------------------------------------- what stays with the graph


def test_labels_bindings_and_guards_stay() -> None:
    net = residual_network()
    graph = net.graph()
    labels = {n: f"made by {type(n.primitive).__name__}" for n in graph.nodes()}
    count = node(Reduce("sum", (0, 1)), net.map)
    source = node(Cast(value(0).dtype), count)
    guard = Guard(symbol("batch") + 1, "The batch must not be -1.")
    scope = graph.scope
    scope.declare("counted", 0, 10)
    graph = replace(
        graph, labels=labels, guards=(guard,), bindings=(Binding(source, ("counted",)),)
    )
    after = prefer_channels_last(simplify(graph))
    assert after.guards == (guard,)
    assert [b.symbols for b in after.bindings] == [("counted",)]
    assert after.bindings[0].source.type == source.type
    made = {after.label(n) for n in after.nodes() if isinstance(n.primitive, Convolve)}
    assert made == {"made by Convolve"}
    assert set(after.labels) <= set(after.nodes())


def test_it_is_deterministic() -> None:
    first, second = (prefer_channels_last(simplify(mobile_network().graph())) for _ in range(2))
    assert first.roots == second.roots


# ---------------------------------------------------------------- random networks

LAYERS = (
    "convolution", "strided", "pointwise", "grouped", "dilated", "depthwise", "maximum", "average",
    "response_normalisation", "squeeze_and_excite", "softmax", "upsampled", "shuffled", "attention",
    "padded", "without_first", "some_channels", "residual", "joined", "output", "normalised_groups",
)  # fmt: skip


def _grow(net: Network, layer: str, outputs: list[Node]) -> None:
    before = net.map
    match layer:
        case "convolution":
            net.convolution(4)
        case "strided":
            net.convolution(8, 3, 2)
        case "pointwise":
            net.convolution(8, 1)
        case "grouped" | "shuffled" if net.channels % 2:
            net.convolution(4, 1)
        case "grouped":
            net.convolution(8, 3, groups=2)
        case "dilated":
            net.convolution(4, 3, dilation=2)
        case "maximum":
            net.pooling()
        case "average":
            net.pooling("sum", 2, 1)
        case "residual":
            net.convolution(net.channels, 3)
            net.added(before)
        case "joined":
            net.depthwise()
            net.joined(before, before)
        case "output":
            outputs.append(before)
        case "without_first" if net.map.shape[2].evaluate(SIZES) == 0:
            pass  # no pixel is left to be left out
        case _:
            getattr(net, layer)()


def between_transpositions(layer: str) -> Graph:
    """One layer of a network that is given channels last and computed with them first."""
    net = Network(channels=6)
    first, last = (0, 3, 1, 2), (0, 2, 3, 1)
    image = tensor("image", BATCH, *SPATIAL, 6, dtype=F64)
    net.input = image
    net.map = node(Transpose(first), image)
    getattr(net, layer)()
    net.map = node(Transpose(last), net.map)
    return net.graph()


@pytest.mark.parametrize("layer", ["pooling", "softmax", "normalised_groups"])
def test_a_layer_between_two_transpositions_needs_neither(layer: str) -> None:
    assert not transposed(converted(between_transpositions(layer)))


def test_one_transposition_stays_where_it_is() -> None:
    net = Network(channels=6)
    net.pooling()
    net.map = node(Transpose((0, 2, 3, 1)), net.map)
    graph = net.graph()
    assert len(transposed(converted(graph))) == 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    layers=st.lists(st.sampled_from(LAYERS), min_size=2, max_size=8),
    head=st.sampled_from(["none", "average", "flat", "linear"]),
    seed=st.integers(0, 100),
)
@example(["joined", "strided", "softmax", "maximum", "strided", "without_first"], "linear", 67)
def test_random_networks_keep_their_results(layers: list[str], head: str, seed: int) -> None:
    fixed = head == "linear"
    net = Network(spatial=(6, 7) if fixed else SPATIAL, seed=seed)
    outputs: list[Node] = []
    for layer in layers:
        _grow(net, layer, outputs)
    if head == "average":
        net.global_average()
    elif head in ("flat", "linear"):
        net.flat()
    if head in ("average", "linear"):
        net.linear(3)
    converted(net.graph(*dict.fromkeys(outputs)))
