"""Small convolutional networks as primitive graphs, channels first, in float64.

A :class:`Network` keeps the current feature map [batch, C, height, width] (or [batch, C, length])
and adds layers to it; weights come from its seed. Start with :class:`Network`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from support.rewrite_harness import apply, shape, spread, tensor, value
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import (
    Broadcast,
    Concat,
    Contract,
    Convolve,
    Gather,
    Input,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    Window,
)
from tilewright.shape import Expr, Scope, constant, product, symbol

F64 = DType.FLOAT64
BATCH, SPATIAL = symbol("batch"), (symbol("height"), symbol("width"))


class Network:
    """``map`` is the current feature map; every layer replaces it and gives it back."""

    def __init__(
        self, channels: int = 3, spatial: tuple[Expr | int, ...] = SPATIAL, seed: int = 0
    ) -> None:
        self.generator = np.random.default_rng(seed)
        self.input = tensor("image", BATCH, channels, *spatial, dtype=F64)
        self.map = self.input

    def weights(self, *sizes: int) -> Node:
        """A random constant whose products keep the size of what they are multiplied with."""
        depth = max(1, int(np.prod(sizes[1:])))
        return value(self.generator.standard_normal(sizes) / depth**0.5, F64)

    @property
    def channels(self) -> int:
        return self.map.shape[1].value

    @property
    def spatial(self) -> tuple[Expr, ...]:
        return self.map.shape[2:]

    def scaled(self, function: str, channel: Node) -> Node:
        """A Map with a vector over the channels."""
        return self.put(apply(function, self.map, spread(channel, self.map.shape, 1)))

    def with_number(self, function: str, number: float) -> Node:
        return self.put(apply(function, self.map, spread(value(number, F64), self.map.shape)))

    def put(self, x: Node) -> Node:
        self.map = x
        return x

    # ------------------------------------------------------------ convolutional layers

    def convolution(
        self, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
    ) -> Node:
        """With a bias and a rectifier; padding keeps the sizes where the stride is 1."""
        rank = len(self.spatial)
        low = (kernel - 1) * dilation // 2
        sizes = tuple((size - 1) // stride + 1 for size in self.spatial)
        weights = self.weights(outputs, self.channels // groups, *[kernel] * rank)
        primitive = Convolve(
            (stride,) * rank, (dilation,) * rank, (1,) * rank, shape(*[low] * rank), sizes, groups
        )
        self.put(node(primitive, self.map, weights))
        self.scaled("add", self.weights(outputs))
        return self.with_number("maximum", 0.0)

    def depthwise(self, stride: int = 1) -> Node:
        return self.convolution(self.channels, 3, stride, self.channels)

    def pooling(self, kind: str = "maximum", kernel: int = 3, stride: int = 2) -> Node:
        rank = len(self.spatial)
        sizes = tuple((size - 1) // stride + 1 for size in self.spatial)
        low = shape(*[kernel // 2] * rank)
        window = Window(kind, (kernel,) * rank, (stride,) * rank, (1,) * rank, low, sizes)
        return self.put(node(window, self.map))

    def response_normalisation(self) -> Node:
        """x / sqrt(1 + sum of the squares of three neighbouring channels)."""
        x, rank = self.map, self.map.rank - 1
        rest = (1,) * rank
        low = shape(1, *[0] * (rank - 1))
        window = Window("sum", (3, *rest[1:]), rest, rest, low, x.shape[1:])
        base = node(window, apply("multiply", x, x))
        base = apply("add", base, spread(value(1.0, F64), base.shape))
        return self.put(apply("divide", x, apply("square_root", base)))

    def squeeze_and_excite(self) -> Node:
        """Every channel scaled by a function of the means of all."""
        channels, x = self.channels, self.map
        mean = node(Reduce("sum", tuple(range(2, x.rank))), x)
        mixed = node(Contract((), ((1, 0),)), mean, self.weights(channels, channels))
        factor = apply("error_function", mixed)
        return self.put(apply("multiply", x, spread(factor, x.shape, 0, 1)))

    def softmax(self) -> Node:
        """Over the channels."""
        x, others = self.map, [a for a in range(self.map.rank) if a != 1]
        highest = spread(node(Reduce("maximum", (1,)), x), x.shape, *others)
        power = apply("exponential", apply("subtract", x, highest))
        total = spread(node(Reduce("sum", (1,)), power), x.shape, *others)
        return self.put(apply("divide", power, total))

    def upsampled(self) -> Node:
        """The last axis twice as long, by reading elements; the one before by repeating them."""
        last = self.map.rank - 1
        size = self.map.shape[last]
        positions = node(Iota((size * 2,), 0))
        index = apply("divide", positions, spread(value(2, DType.INT64), positions.shape))
        x = node(Gather(last), self.map, index)
        lead = x.shape[: last - 1]
        axes = (*range(last), last + 1)
        wide = node(Broadcast((*lead, x.shape[last - 1], constant(2), x.shape[last]), axes), x)
        merged = (*lead, x.shape[last - 1] * 2, x.shape[last])
        return self.put(node(Reshape(merged), wide))

    def shuffled(self, groups: int = 2) -> Node:
        """Channels [groups, C / groups] as [C / groups, groups]."""
        lead, tail = self.map.shape[:1], self.map.shape[2:]
        split = (*lead, constant(groups), constant(self.channels // groups), *tail)
        x = node(Reshape(split), self.map)
        x = node(Transpose((0, 2, 1, *range(3, x.rank))), x)
        return self.put(node(Reshape(self.map.shape), x))

    def normalised_groups(self, groups: int = 2) -> Node:
        """Groups of channels less their means, in one axis with the pixels, as exporters do it."""
        groups = groups if self.channels % groups == 0 else 1
        size = product(self.spatial) * (self.channels // groups)
        x = node(Reshape((BATCH, constant(groups), size)), self.map)
        total = spread(node(Reduce("sum", (2,)), x), x.shape, 0, 1)
        centred = apply("subtract", x, apply("multiply", total, spread(value(0.01, F64), x.shape)))
        return self.put(node(Reshape(self.map.shape), centred))

    def attention(self) -> Node:
        """Pixels as tokens [batch, pixels, C], mixed by their own products, and back again."""
        pixels = product(self.spatial)
        x = node(Reshape((BATCH, constant(self.channels), pixels)), self.map)
        x = node(Transpose((0, 2, 1)), x)
        scores = node(Contract(((0, 0),), ((2, 2),)), x, x)
        scores = apply("multiply", scores, spread(value(0.01, F64), scores.shape))
        mixed = node(Contract(((0, 0),), ((2, 1),)), scores, x)
        back = node(Transpose((0, 2, 1)), mixed)
        return self.put(node(Reshape(self.map.shape), back))

    def padded(self, low: int = 1, high: int = 2, number: float = 0.0) -> Node:
        rest = [constant(0)] * (self.map.rank - 1)
        pad = Pad((*rest, constant(low)), (*rest, constant(high)))
        return self.put(node(pad, self.map, value(number, F64)))

    def without_first(self) -> Node:
        """All pixels but those at position 0 of the first spatial axis."""
        starts, sizes = [constant(0)] * self.map.rank, list(self.map.shape)
        starts[2], sizes[2] = constant(1), sizes[2] - 1
        return self.put(
            node(Slice(tuple(starts), tuple(sizes), shape(*[1] * len(sizes))), self.map)
        )

    def some_channels(self) -> Node:
        """Every second channel, from the last on."""
        starts, sizes = [constant(0)] * self.map.rank, list(self.map.shape)
        steps = [constant(1)] * self.map.rank
        starts[1], sizes[1], steps[1] = sizes[1] - 1, (sizes[1] + 1) // 2, constant(-2)
        return self.put(node(Slice(tuple(starts), tuple(sizes), tuple(steps)), self.map))

    def joined(self, *others: Node) -> Node:
        return self.put(node(Concat(1), *others, self.map))

    def added(self, other: Node) -> Node:
        return self.put(apply("add", self.map, other))

    # ------------------------------------------------------------ heads

    def global_average(self) -> Node:
        """[batch, C]; the sum is as good."""
        return self.put(node(Reduce("sum", tuple(range(2, self.map.rank))), self.map))

    def flat(self) -> Node:
        """[batch, C * pixels]."""
        return self.put(node(Reshape((BATCH, product(self.map.shape[1:]))), self.map))

    def linear(self, outputs: int, depth: int | None = None) -> Node:
        """``depth`` where the size of a row is known from the model only."""
        size = self.map.shape[1].value if depth is None else depth
        x = node(Reshape((BATCH, constant(size))), self.map) if depth is not None else self.map
        return self.put(node(Contract((), ((1, 1),)), x, self.weights(outputs, size)))

    def graph(self, *outputs: Node) -> Graph:
        """The graph of some nodes, the current feature map last; sizes are 0 to 64."""
        facts = Scope()
        for name in ("batch", "height", "width"):
            facts.declare(name, 0, 64)
        roots = tuple((f"out{i}", x) for i, x in enumerate((*outputs, self.map)))
        return Graph("network", (self.input,), roots, facts)


def results(graph: Graph, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """The outputs for a random image."""
    (image,) = graph.inputs
    assert isinstance(image.primitive, Input)
    dims = tuple(size.evaluate(sizes) for size in image.shape)
    drawn = np.random.default_rng(seed).standard_normal(dims)
    return evaluate(graph, {image.primitive.name: drawn}, sizes)
