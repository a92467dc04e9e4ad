"""Which kernels of a plan with alternatives a call launches, as expressions.

Every choice between ways is a symbol of the program, the position of the least of their costs; the
cost of a way is that of its own kernels, each with the cheapest of its variants, and corrected as
the planner did where it was priced by measurement. Start with :class:`Launched`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.primitives import TensorType
from tilewright.shape import Expr, constant, equal, minimum, product, symbol, total
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.prices import with_costs
from tilewright.tile.variants import THREADS

Way = tuple[str, str, tuple[str, ...], tuple[Expr, ...]]


class Launched:
    """Whether kernels are launched: 1, or an expression that is 1 or 0.

    ``unused`` makes the name of a symbol of its own from one.
    """

    def __init__(self, plan: Plan, unused: Callable[[str], str]) -> None:
        self._plan = plan
        self._symbols = [symbol(unused(f"way_{n}")) for n in range(len(plan.alternatives))]
        self._shares: dict[Kernel, Expr] = {}
        for number, (group, ways) in plan.memberships().items():
            taken = [equal(self._symbols[group], way) for way in sorted(ways)]
            self._shares[plan.kernels[number]] = total(taken)
        self._writers: dict[Node, list[Kernel]] = {}
        for kernel in plan.kernels:
            for output in kernel.outputs:
                self._writers.setdefault(output, []).append(kernel)

    def by(self, kernel: Kernel) -> Expr:
        """Whether a kernel is launched."""
        return self._shares.get(kernel, constant(1))

    def stored(self, node: Node) -> TensorType:
        """The type of a tensor in memory: of no size in calls that have nobody write it."""
        writers = self._writers[node]
        if any(kernel not in self._shares for kernel in writers):
            return node.type
        groups = self._plan.memberships()
        numbers = [n for n, kernel in enumerate(self._plan.kernels) if kernel in writers]
        group = groups[numbers[0]][0]
        written = {way for number in numbers for way in groups[number][1]}
        if len(written) == len(self._plan.alternatives[group].ways):
            return node.type
        share = total(self._shares[kernel] for kernel in writers)
        return TensorType(node.dtype, (product(node.shape) * share,))

    def ways(self, lowered: Sequence[LoweredKernel], machine: Machine) -> Iterator[Way]:
        """For each of the alternatives its symbol, a label, what its ways are, and their costs."""
        variants = {made.kernel: made.variants for made in lowered}
        corrections = dict(self._plan.corrections)

        def price(number: int) -> Expr:
            own = with_costs(variants[self._plan.kernels[number]], machine)
            modelled = minimum(*(variant.cost for variant in own))
            correction = corrections.get(number)
            return modelled if correction is None else correction.of(modelled, symbol(THREADS))

        for chosen, alternatives in zip(self._symbols, self._plan.alternatives, strict=True):
            kernels = [[self._plan.kernels[n] for n in way] for way in alternatives.ways]
            names = [", ".join(kernel.label for kernel in way) for way in kernels]
            sums = [total(map(price, way)) for way in alternatives.ways]
            yield str(chosen), f"ways of {names[0]}", tuple(names), tuple(sums)


__all__ = ["Launched"]
