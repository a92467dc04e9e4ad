"""Forms of a graph as the kernels of their greedy plans, and what these cost at many shapes.

What is common to deciding by price between graphs of the same meaning: forms that have the same
kernels so many times cost the same, and of two forms only the kernels by which they differ count.
Start with :class:`Form` and :class:`FormPrices`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant
from tilewright.plan.choosing import WORTH, Array
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prices import KEPT, KernelPrices, points_of
from tilewright.plan.quick import QuickPrices, is_product
from tilewright.shape import product
from tilewright.target import Target
from tilewright.tile.alike import LoweringOnce, outline_key
from tilewright.tile.variants import THREADS

MOST_LOSS = 1e-2  # of the kernels that change, at any shape


class FormPrices:
    """Prices of kernels at the points of all machines, side by side.

    A product takes no less than its weights from the level of the memory that holds those of the
    whole graph: by the price of a kernel alone, three small ones would be nearer than a large one.
    """

    def __init__(self, graph: Graph, lowerings: Sequence[LoweringOnce], shapes: int = KEPT) -> None:
        """Prices at so many ``shapes`` of a graph at most; for fewer, the ones of less work."""
        units = [lowering.machine.target.units for lowering in lowerings]
        points = [points_of(graph, own, shapes) for own in units]
        pairs = list(zip(lowerings, points, strict=True))
        self._prices = [KernelPrices(*pair) for pair in pairs]
        self._quick = [QuickPrices(lowering.machine, own) for lowering, own in pairs]
        self._known: dict[object, Array] = {}
        weights = {w for current in graph.nodes() for w in _weights_of(current)}
        held = sum(_bytes(weight) for weight in weights)
        self._byte = np.array(
            [
                1e12 / target.bytes_per_second(_level(target, held), point[THREADS])
                for target, own in zip(
                    [low.machine.target for low in lowerings], points, strict=True
                )
                for point in own
            ]
        )

    def of(self, kernels: Mapping[object, Kernel], counts: Counter[object]) -> Array:
        """The price of kernels, given by their keys, so many of each."""
        return self._sum(counts, {key: self._price(key, kernels[key]) for key in counts})

    def bound(self, kernels: Mapping[object, Kernel], counts: Counter[object]) -> Array:
        """What they take at least."""
        found = {
            key: self._known[key] if key in self._known else self._least(kernels[key])
            for key in counts
        }
        return self._sum(counts, found)

    def change(self, before: Form, after: Form) -> Array:
        """By which share the kernels that are not in both become cheaper at every point."""
        old = self.of(before.kernels, before.counts - after.counts)
        new = self.of(after.kernels, after.counts - before.counts)
        return 1.0 - new / np.maximum(old, 1.0)

    def _sum(self, counts: Counter[object], prices: Mapping[object, Array]) -> Array:
        none = np.zeros(sum(len(own.points) for own in self._prices))
        return sum((prices[key] * number for key, number in counts.items()), none)

    def _price(self, key: object, kernel: Kernel) -> Array:
        if key not in self._known:
            weights = {w for current in kernel.body for w in _weights_of(current)}
            least = sum(_bytes(weight) for weight in weights) * self._byte
            price = np.concatenate([own.of(kernel) for own in self._prices])
            self._known[key] = np.maximum(price, least)
        return self._known[key]

    def _least(self, kernel: Kernel) -> Array:
        return np.concatenate([own.of(kernel) for own in self._quick])


@dataclass(frozen=True)
class Form:
    """One form of a small graph: how it was made, and its kernels by key."""

    graph: Graph
    steps: tuple[tuple[str, int], ...]
    kernels: Mapping[object, Kernel]
    counts: Counter[object]

    @staticmethod
    def of(graph: Graph, steps: tuple[tuple[str, int], ...] = ()) -> Form:
        """The form that a graph is, with the kernels of its plan."""
        return Form.of_kernels(graph, steps, plan_greedily(graph).kernels)

    @staticmethod
    def of_kernels(
        graph: Graph, steps: tuple[tuple[str, int], ...], kernels: Sequence[Kernel]
    ) -> Form:
        """The form that a graph is, with these kernels."""
        listed = [(outline_key(kernel), kernel) for kernel in kernels]
        return Form(graph, steps, dict(listed), Counter(key for key, _ in listed))


def summary_of(change: Array) -> tuple[float, float, float]:
    """The share that is saved in the mean over the points, and the least and the greatest one."""
    return float(np.mean(change)), float(np.min(change)), float(np.max(change))


def summary_text(saves: float, least: float, most: float) -> str:
    """What kernels save by another form, for users; see :func:`summary_of`."""
    return f"saves {saves:.1%} of the kernels that change ({least:.1%} to {most:.1%})"


def is_worth_it(change: Array) -> bool:
    """Whether kernels become cheaper by more than the error of prices, and nowhere dearer."""
    return bool(np.mean(change) >= WORTH and np.min(change) >= -MOST_LOSS)


def _weights_of(current: Node) -> list[Node]:
    """The constant operands of a product."""
    operands = current.inputs if is_product(current) else ()
    return [operand for operand in operands if isinstance(operand.primitive, Constant)]


def _bytes(weight: Node) -> int:
    return product(weight.shape).value * weight.dtype.bytes


def _level(target: Target, held: int) -> str:
    """The nearest level of the memory that holds so many bytes."""
    levels = target.levels
    return next((level for level in levels if held <= level.capacity), levels[-1]).name


__all__ = ["Form", "FormPrices", "is_worth_it", "summary_of", "summary_text"]
