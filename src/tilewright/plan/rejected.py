"""What a plan could have done instead: for each of its kernels the cheapest choice without it.

The kernel is taken out of the plan, alone and with each of those whose results it reads or which
read its own, and the binary program of the optimal planner is solved for what they compute: among
all candidates but the kernel itself. That covers a kernel that is divided, one that is joined with
a neighbour, and work that is computed again instead of read, whichever planner made the plan. Start
with :class:`Rejected`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import candidates
from tilewright.plan.choosing import NEAR, Choosing, Part
from tilewright.plan.prices import KernelPrices
from tilewright.plan.problem import made_by, orchestration
from tilewright.plan.quick import QuickPrices
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.library import is_computed


@dataclass(frozen=True)
class Instead:
    """Another choice: ``added`` kernels in the place of ``removed`` ones.

    ``more`` is how many picoseconds it takes longer, by the model; below 0 where it is faster.
    """

    removed: tuple[Kernel, ...]
    added: tuple[Kernel, ...]
    more: float


class Rejected:
    """The best choices that a plan does not make, at one point: sizes and threads."""

    def __init__(
        self, graph: Graph, lowering: LoweringOnce, point: Mapping[str, int],
        launched: Iterable[Kernel],
    ) -> None:  # fmt: skip
        """``launched`` are the kernels that a call at this point runs."""
        machine = lowering.machine
        apart = partial(is_computed, scope=graph.scope, machine=machine)
        self._launched = tuple(launched)
        self._candidates = candidates(Anchors(graph, apart=apart))
        self._choosing = Choosing(
            graph, KernelPrices(lowering, [point]), QuickPrices(machine, [point])
        )
        self._roots = {made_by(root) for root in graph.roots}
        self._writers: dict[Node, Kernel] = {}
        self._readers: dict[Node, list[Kernel]] = {}
        for kernel in self._launched:
            self._writers |= dict.fromkeys(kernel.outputs, kernel)
            for source in dict.fromkeys(map(made_by, kernel.reads)):
                self._readers.setdefault(source, []).append(kernel)
        self._known: dict[object, tuple[int, ...] | None] = {}

    def beside(self, kernel: Kernel) -> Instead | None:
        """The cheapest choice without a kernel of the plan; None where there is no other.

        A kernel is divided, or joined with a neighbour. One that cannot be divided may also share
        its work with a neighbour in another way.
        """
        best = self._without(kernel, (kernel,), math.inf)
        is_divided = best is not None
        for other in self._neighbours(kernel):
            # What changes a neighbour as well has to be worth it.
            pair = (kernel, other)
            below = math.inf if best is None else best.more - NEAR * self._price(pair)
            found = self._without(kernel, pair, below, as_one=is_divided)
            if found is not None and found.more < below:
                best = found
        return best

    def _neighbours(self, kernel: Kernel) -> list[Kernel]:
        """The kernels that write what one reads, or that read what it writes."""
        beside = [self._writers[s] for s in map(made_by, kernel.reads) if s in self._writers]
        for output in kernel.outputs:
            beside += self._readers.get(output, ())
        return [k for k in dict.fromkeys(beside) if k.kind is not KernelKind.OPAQUE]

    def _without(
        self, kernel: Kernel, own: Sequence[Kernel], below: float, as_one: bool = False
    ) -> Instead | None:
        """The cheapest choice for what some kernels compute that does without one of them.

        One that takes not less than ``below`` more need not be the cheapest. It is a single kernel
        if it has to be ``as_one``.
        """
        others = [k for k in self._launched if k not in own]
        part = self._part(kernel, own, others, as_one)
        place = {k: number for number, k in enumerate(part.problem.kernels)}
        signature = (part.keys, part.problem.rows, tuple(place.get(k) for k in own))
        if signature not in self._known:  # layers that are alike have it once
            limit = self._price(own) + below
            found = None
            if part.problem.kernels:
                found = self._choosing.cheapest(part, np.ones(1), others, limit)
            self._known[signature] = None if found is None else found.chosen
        chosen = self._known[signature]
        if chosen is None:
            return None
        made = [part.problem.kernels[number] for number in chosen]
        removed = tuple(k for k in own if k not in made)
        added = tuple(k for k in made if k not in own)
        return Instead(removed, added, self._price(added) - self._price(removed))

    def _part(
        self, kernel: Kernel, own: Sequence[Kernel], others: Sequence[Kernel], as_one: bool
    ) -> Part:
        """The choice of what computes what some kernels do, of which one is not to be chosen."""
        given = {output for other in others for output in other.outputs}
        inside = {node for k in own for node in k.body} - given
        read = {source for other in others for source in map(made_by, other.reads)}
        needed = {o: None for k in own for o in k.outputs if o in read or o in self._roots}
        kernels = dict.fromkeys(
            k for k in (*own, *self._candidates)
            if k != kernel and inside.issuperset(k.outputs)
            and (not as_one or needed.keys() == set(k.outputs))
        )  # fmt: skip
        return Part.of(orchestration(kernels, needed, given.__contains__))

    def _price(self, kernels: Iterable[Kernel]) -> float:
        return float(sum(self._choosing.price(kernel)[0] for kernel in kernels))


__all__ = ["Instead", "Rejected"]
