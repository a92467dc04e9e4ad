"""What kernels take at representative shapes of a graph, by the model of the machine.

A kernel is lowered to its variants, as for a compiled program, and each of them has a modelled time
over the sizes and the number of threads; the runtime takes the cheapest at every shape, and so does
the price. Nothing is measured here: :func:`corrected` puts what was measured in its place. Kernels
that are alike have one price. Start with :class:`KernelPrices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir.correction import Correction
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.policy.prices import (
    LONGEST,
    evaluated_at,
    range_of,
    spread_shapes,
    thread_counts,
)
from tilewright.shape import symbol
from tilewright.tile.alike import LoweringOnce, OutlineKey, outline_key
from tilewright.tile.prices import with_costs
from tilewright.tile.variants import THREADS

Prices = tuple[float, ...]

# Shapes, of which those of less work stay: most of a box is larger than what is computed.
TRIED, KEPT = 25, 12
_PRICE = "price"


class KernelPrices:
    """Picoseconds of kernels of one graph at each of several points: sizes and threads."""

    def __init__(self, lowering: LoweringOnce, points: Sequence[Mapping[str, int]]) -> None:
        self.points = points
        self._lowering = lowering
        self._known: dict[OutlineKey, Prices] = {}

    def of(self, kernel: Kernel) -> Prices:
        """The price of a kernel at every point."""
        key = outline_key(kernel)
        if key not in self._known:
            self._known[key] = self._found(kernel)
        return self._known[key]

    def of_plan(self, plan: Plan) -> Prices:
        """The price of a plan at every point, where calls take the cheapest of several ways.

        Kernels that were priced by measurement count as such.
        """
        optional = plan.memberships()
        corrections = dict(plan.corrections)

        def priced(numbers: Iterable[int]) -> Prices:
            none = (0.0,) * len(self.points)
            own = [self._corrected(plan.kernels[n], corrections.get(n)) for n in numbers]
            return tuple(map(sum, zip(none, *own, strict=True)))

        found = priced(number for number in range(len(plan.kernels)) if number not in optional)
        for alternatives in plan.alternatives:
            ways = [priced(way) for way in alternatives.ways]
            found = tuple(map(sum, zip(found, map(min, zip(*ways, strict=True)), strict=True)))
        return found

    def _corrected(self, kernel: Kernel, correction: Correction | None) -> Prices:
        own = self.of(kernel)
        return own if correction is None else corrected(correction, own, self.points)

    def _found(self, kernel: Kernel) -> Prices:
        if kernel.kind is KernelKind.OPAQUE:
            return (0.0,) * len(self.points)  # the same in every plan
        variants = with_costs(self._lowering.lowered(kernel).variants, self._lowering.machine)
        costs = evaluated_at([variant.cost for variant in variants], self.points)
        return tuple(min(values) for values in zip(*costs, strict=True))


def corrected(
    correction: Correction, prices: Sequence[float], points: Sequence[Mapping[str, int]]
) -> Prices:
    """Prices at points as measurements correct them: by the expression that a call evaluates."""
    expression = correction.of(symbol(_PRICE), symbol(THREADS))
    pairs = zip(prices, points, strict=True)
    own = [{_PRICE: round(price), THREADS: point[THREADS]} for price, point in pairs]
    return tuple(evaluated_at([expression], own)[0])


def points_of(graph: Graph, machine_units: int, kept: int = KEPT) -> list[Mapping[str, int]]:
    """Shapes of a graph with one thread and with all of them, spread over the declared ranges.

    Of those that are spread, so many are ``kept``, which are of less work than the others.
    """
    names = sorted(graph.scope.independent)
    ranges = [range_of(graph.scope, name) for name in names]
    shapes = sorted(spread_shapes(ranges, TRIED), key=_size)[:kept]
    threads = sorted({1, max(n for n in thread_counts(machine_units) if n <= machine_units)})
    return [
        {**graph.scope.completed(dict(zip(names, shape, strict=True))), THREADS: count}
        for shape in shapes
        for count in threads
    ]


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


__all__ = ["KEPT", "LONGEST", "TRIED", "KernelPrices", "Prices", "corrected", "points_of"]
