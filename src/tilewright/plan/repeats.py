"""In how many places the elements of a light node are computed, if no memory holds them.

Two kernels that read one are two places. So are two operations of one kernel that read it at other
positions: the steps of a recurrence that is written out, each of which a concatenation wants, or
neighbours that a sum adds up. A chain of such readers would compute its first node once for every
way through it. What positions are picked by is no such place: what two picks of a row share is
computed once for the row (``tile.passes``). Start with :class:`Repeats`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Concat, Pad, Slice, Transpose
from tilewright.shape import Scope, Truth, constant

MOVING = (Transpose, Slice, Pad, Concat)


class Repeats:
    """The places of the nodes of one graph. Which slices are apart is found once for each node."""

    def __init__(self, users: Mapping[Node, Sequence[Node]], scope: Scope) -> None:
        self._users = users
        self._scope = scope
        self._apart: dict[Node, bool] = {}

    def places(
        self, reader: Node, number: int, of_reader: Collection[object]
    ) -> Collection[object]:
        """Where operand ``number`` of a node is computed that is itself computed ``of_reader``.

        What moves elements is one place of its own, or two, which stand for any number of them.
        """
        primitive = reader.primitive
        if not isinstance(primitive, MOVING):
            return of_reader
        moved: object = (reader, number) if isinstance(primitive, Concat) else reader
        if isinstance(primitive, Slice) and self._is_in_parts(reader.inputs[0]):
            moved = (reader.inputs[0], "parts")
        return [(moved, again) for again in range(min(len(of_reader), 2))]

    def _is_in_parts(self, operand: Node) -> bool:
        if operand not in self._apart:
            self._apart[operand] = _are_apart(operand, self._users[operand], self._scope)
        return self._apart[operand]


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


__all__ = ["Repeats"]
