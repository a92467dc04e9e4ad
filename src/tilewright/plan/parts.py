"""A graph in parts that are planned one after the other, from the last to the first.

A part is a stretch of the anchors in their order, and never ends within a kernel of the plan that
is improved. What a part reads of earlier ones is then a result that these must write. Layers that
are alike give parts that are alike.

No kernel writes results on both sides of a cut, so that a cut may cost something: a kernel that did
would be divided there, with each tensor that it hands over inside written by the one half and read
by the other, and another launch. The price of a kernel that reads and writes such a tensor, and
does nothing else, is a bound for that; parts end where the sum of these prices is least, which
often is nothing, as no candidate reaches across. Start with :func:`parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.plan.anchors import Anchors

LEAST, MOST = 16, 64  # anchors of a part, where its ends can be chosen


@dataclass(frozen=True)
class Part:
    """The anchors of a part, and what is lost at most by the cut at its end, in unit of prices."""

    anchors: frozenset[Node]
    lost: float = 0.0


def parts(
    anchors: Anchors,
    kernels: Sequence[Kernel],
    others: Sequence[Kernel],
    moving: Callable[[Node], float],
) -> list[Part]:
    """The parts in order; the ``kernels`` write results of one part each.

    ``others`` are all candidates, and ``moving`` is the price of a tensor that is written and read.
    """
    count = len(anchors.nodes)
    ends = [0]
    lost = [0.0] * (count + 1)
    if count > MOST:
        allowed = _between(anchors, kernels, count)
        lost = _lost(anchors, others, moving)
        while count - ends[-1] > MOST:
            choices = [e for e in range(ends[-1] + LEAST, ends[-1] + MOST + 1) if allowed[e]]
            if not choices:
                choices = [e for e in range(ends[-1] + LEAST, count + 1) if allowed[e]][:1]
            ends.append(min(choices, key=lambda end: (lost[end], end)))
    if ends[-1] < count:
        ends.append(count)
    found = [Part(frozenset(anchors.nodes[a:end]), lost[end]) for a, end in pairwise(ends)]
    return found or [Part(frozenset())]


def _lost(
    anchors: Anchors, others: Sequence[Kernel], moving: Callable[[Node], float]
) -> list[float]:
    """What kernels that reach across each end save at most by it."""
    reach: dict[Node, dict[Node, None]] = {}  # readers of an anchor within some kernel
    for kernel in others:
        inside = {node for node in kernel.body if node in anchors.number}
        for node in inside:
            for operand in anchors.operands(node):
                if operand in inside:
                    reach.setdefault(operand, {})[node] = None
    lost = [0.0] * (len(anchors.nodes) + 1)
    for node, readers in reach.items():
        price = moving(node)
        for reader in readers:
            for end in range(anchors.number[node] + 1, anchors.number[reader] + 1):
                lost[end] += price
    return lost


def _between(anchors: Anchors, kernels: Sequence[Kernel], count: int) -> list[bool]:
    """Whether each end lies between kernels: what one computes and is an anchor is on one side."""
    crossing = [0] * (count + 2)
    for kernel in kernels:
        kept = {*kernel.seeds, *kernel.outputs}
        places = [anchors.number[a] for a in anchors.holding(kept)]
        if places:
            crossing[min(places) + 1] += 1
            crossing[max(places) + 1] -= 1
    allowed: list[bool] = []
    depth = 0
    for end in range(count + 1):
        depth += crossing[end]
        allowed.append(depth == 0)
    return allowed


__all__ = ["Part", "parts"]
