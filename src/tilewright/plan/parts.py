"""A graph in parts that are planned one after the other, from the last to the first.

A part is a stretch of the anchors in their order. Parts end where the fewest tensors pass to later
ones, and never within a kernel of the plan that is improved. What a part reads of earlier ones is
then a result that these must write. Layers that are alike give parts that are alike. Start with
:func:`parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.plan.anchors import Anchors

LEAST, MOST = 16, 64  # anchors of a part, where its ends can be chosen


def parts(anchors: Anchors, kernels: Sequence[Kernel]) -> list[frozenset[Node]]:
    """The anchors of each part, in order; the ``kernels`` write results of one part each."""
    count = len(anchors.nodes)
    passing = [0] * (count + 1)  # tensors that are read behind an end
    for place, node in enumerate(anchors.nodes):
        last = max((anchors.number[r] for r in anchors.readers(node)), default=place)
        for end in range(place + 1, last + 1):
            passing[end] += 1
    allowed = _between(anchors, kernels, count)
    ends = [0]
    while count - ends[-1] > MOST:
        choices = [e for e in range(ends[-1] + LEAST, ends[-1] + MOST + 1) if allowed[e]]
        if not choices:
            choices = [e for e in range(ends[-1] + LEAST, count + 1) if allowed[e]][:1]
        ends.append(min(choices, key=lambda end: (passing[end], end)))
    if ends[-1] < count:
        ends.append(count)
    found = [frozenset(anchors.nodes[first:end]) for first, end in pairwise(ends)]
    return found or [frozenset()]


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


__all__ = ["parts"]
