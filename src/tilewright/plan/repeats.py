"""In how many places the elements of a light node are computed, if no memory holds them.

Two kernels that read one are two places. So are two operations of one kernel that read it at other
positions: the steps of a recurrence that is written out, each of which a concatenation wants, or
neighbours that a sum adds up. A chain of such readers would compute its first node once for every
way through it. What positions are picked by is no such place: what two picks of a row share is
computed once for the row (``tile.passes``). Start with :func:`repeats`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Concat, Pad, Slice, Transpose
from tilewright.shape import Scope, Truth, constant

MOVING = (Transpose, Slice, Pad, Concat)


def repeats(
    reader: Node,
    number: int,
    places: Collection[object],
    users: Mapping[Node, Sequence[Node]],
    scope: Scope,
) -> Collection[object]:
    """Where operand ``number`` of a node is computed that is itself computed at ``places``."""
    primitive = reader.primitive
    if not isinstance(primitive, MOVING):
        return places
    operand = reader.inputs[number]
    moved: object = (reader, number) if isinstance(primitive, Concat) else reader
    if isinstance(primitive, Slice) and _are_apart(operand, users[operand], scope):
        moved = (operand, "parts")
    return [(moved, again) for again in range(min(len(places), 2))]


def _are_apart(operand: Node, readers: Sequence[Node], scope: Scope) -> bool:
    """Whether slices are all that reads a node, and have no more elements than it together."""
    slices = [reader for reader in readers if isinstance(reader.primitive, Slice)]
    if len(slices) < len(readers):
        return False
    cut = [
        axis
        for axis, size in enumerate(operand.shape)
        if any(s.shape[axis] is not size for s in slices)
    ]
    if len(cut) != 1:
        return len(slices) < 2
    together = sum((s.shape[cut[0]] for s in slices), constant(0))
    return scope.is_less_equal(together, operand.shape[cut[0]]) is Truth.YES


__all__ = ["repeats"]
