"""Where long chains of operations end: how much one kernel computes, one of the other, is limited.

Kernels are lowered, priced and written down by functions that call themselves for operands, so a
chain of thousands of operations cannot be one kernel: some 200 reach Python's usual limit of 1,000
calls, and the deepest kernel has fewer. Nor would it gain: beside what so many operations take,
storing one result is nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.graph import Node
from tilewright.plan.inline import is_light

LONGEST_CHAIN = 48  # light operations, one made of the other, before one is stored
LONGEST_GROWTH = 2 * LONGEST_CHAIN  # operations, with those that a kernel grows over from its seed
DEEPEST_KERNEL = 3 * LONGEST_CHAIN  # with those of a kernel that it is stitched to
MOST_REDUCTIONS = 8  # of one kernel: each may be a sweep of its own, over what others have kept


def ends_of_chains(nodes: Sequence[Node]) -> tuple[dict[Node, int], frozenset[Node]]:
    """How long the chain of light operations up to each node is, and which nodes end one.

    ``nodes`` are in their order. What ends a chain is to be in memory; the next begins there.
    """
    lengths: dict[Node, int] = {}
    ends: set[Node] = set()
    for node in nodes:
        lengths[node] = _next(node, lengths) if is_light(node) else 0
        if lengths[node] == LONGEST_CHAIN:
            lengths[node] = 0
            ends.add(node)
    return lengths, frozenset(ends)


def depth(body: Sequence[Node], reads: Collection[Node]) -> int:
    """Operations, one made of the other, of a kernel that computes ``body``, which is in order."""
    lengths = dict.fromkeys(reads, 0)
    for node in body:
        lengths[node] = _next(node, lengths)
    return max(lengths.values(), default=0)


def _next(node: Node, lengths: Mapping[Node, int]) -> int:
    return 1 + max((lengths[i] for i in node.inputs), default=-1)


__all__ = ["DEEPEST_KERNEL", "LONGEST_GROWTH", "MOST_REDUCTIONS", "depth", "ends_of_chains"]
