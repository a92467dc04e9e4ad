"""Sizes that agree wherever a tensor has an element at all.

Models compute sizes by truncating division, max(n, 1) in place of n, and infer others from the
number of elements: the same as the operand's sizes but where one of them is 0. What is done to no
elements is nothing, so views between such shapes are identities. May import ``shape`` and ``ir``.
Start with :func:`keeps_wide_axes`.
"""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Broadcast, Reshape
from tilewright.rewrite.build import squeezed
from tilewright.rewrite.facts import Facts
from tilewright.shape import Truth


def keeps_wide_axes(view: Node, facts: Facts) -> bool:
    """Whether a Reshape only inserts or drops axes of size 1 wherever it has elements."""
    if not isinstance(view.primitive, Reshape):
        return False
    before, after = squeezed(view.inputs[0].shape), squeezed(view.shape)
    if len(before) != len(after):
        return False
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not b]
    if any(a.is_constant and b.is_constant for a, b in pairs):
        return False
    occupied = facts.scope.occupied(before)
    # A tensor without elements is reshaped to none, whatever the sizes.
    return occupied is None or all(occupied.is_equal(a, b) is Truth.YES for a, b in pairs)


def broadcast_back(x: Node, facts: Facts) -> Node | None:
    """Broadcast(Reshape(a)) to the shape of a → a, the sizes between agreeing where a has any
    element."""
    view = x.inputs[0]
    if not (isinstance(view.primitive, Reshape) and isinstance(x.primitive, Broadcast)):
        return None
    base = view.inputs[0]
    if x.shape != base.shape or view.rank != base.rank:
        return None
    aligned = all(
        (a.is_constant and a.value == 1) == (b.is_constant and b.value == 1)
        for a, b in zip(base.shape, view.shape, strict=True)
    )
    return base if aligned and keeps_wide_axes(view, facts) else None
