"""Exponentials of what is not positive: of the distance of elements below the greatest of them.

They are at most 1, and beside the 1 of the greatest element what is no normal number counts for
nothing. A function that gives 0 there takes two thirds of the instructions of one for all numbers.
Start with :func:`decays`.
"""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Broadcast, Map, Reduce

DECAY = "decay"  # the scalar function: exp(x) for x <= 0


def decays(node: Node) -> bool:
    """Whether a node is exp(x - m), with m the maximum of x over some axes."""
    return greatest_of(node) is not None


def greatest_of(node: Node) -> Node | None:
    """The maximum of x over some axes, of a node that is exp(x - that); None of another."""
    if node.primitive != Map("exponential") or node.inputs[0].primitive != Map("subtract"):
        return None
    elements, below = node.inputs[0].inputs
    if not isinstance(below.primitive, Broadcast):
        return None
    greatest = below.inputs[0]
    match greatest.primitive:
        case Reduce(kind="maximum", axes=axes) if greatest.inputs[0] is elements:
            kept = tuple(axis for axis in range(elements.rank) if axis not in axes)
            return greatest if below.primitive.axes == kept else None
        case _:
            return None
