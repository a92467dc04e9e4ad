"""Parts of one tensor as a sequence: what takes it apart again reads the tensor, however many.

Such a sequence is a call of SplitToSequence, whose number of parts a call may tell. An element of
it is a slice of the tensor, and all of them together the tensor with its axes moved. Start with
:class:`Parts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Opaque
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.build import Builder, cast, dimension
from tilewright.ops.contributed import standard
from tilewright.ops.sizes import scalar_of
from tilewright.shape import Expr

SPLIT = "SplitToSequence"


@dataclass(frozen=True)
class Parts:
    """``source`` in parts along ``axis``.

    They are ``size`` long, the last one perhaps shorter, or as long as the integers ``lengths``;
    where there is neither, each is one long, and loses its axis unless it ``keeps`` it.
    """

    source: Node
    axis: int
    size: int | None
    lengths: Node | None
    keeps: bool

    @property
    def is_single(self) -> bool:
        """Whether every part is one place of the axis."""
        return self.size is None and self.lengths is None

    def count(self, b: Builder) -> Node:
        """How many there are."""
        return dimension(self._count(b))

    def _count(self, b: Builder) -> Expr:
        length = self.source.shape[self.axis] if self.lengths is None else self.lengths.shape[0]
        step = self.size or 1
        return b.scope.resolve((length + (step - 1)) // step)

    def at(self, b: Builder, place: Node) -> Node:
        """The part at a place, which may count from the end."""
        index = scalar_of(b, place)
        if self.is_single:
            index = b.unsqueeze(index, [0]) if self.keeps else index
            return _taken(b, self.source, index, self.axis)
        row = b.unsqueeze(index, [0])
        if self.lengths is None:
            starts = b.multiply(b.iota([self._count(b)], 0), self.size or 1)
            first = _taken(b, starts, row, 0)
            last = b.add(first, self.size or 1)
        else:
            lengths = cast(self.lengths, DType.INT64)
            (ends,) = standard(b.context, "CumSum", [lengths, dimension(0)], {})
            last = _taken(b, ends, row, 0)
            first = b.subtract(last, _taken(b, lengths, row, 0))
        axes = b.unsqueeze(dimension(self.axis), [0])
        (made,) = standard(b.context, "Slice", [self.source, first, last, axes], {})
        return made

    def together(self, b: Builder, axis: int, is_new: bool) -> Node | None:
        """All of them along an axis, which is a new one or not; None where that needs copies."""
        x = self.source
        if not self.is_single:
            own = b.axis(axis, x.rank + is_new)
            is_whole = self.size is not None and not is_new and own == self.axis
            return x if is_whole else None
        order = [self.axis, *(a for a in range(x.rank) if a != self.axis)]
        moved = transpose(x, order)
        inner = [*moved.shape[1:]]
        if self.keeps:
            inner.insert(self.axis, b.shape([1])[0])
        moved = b.reshape(moved, [moved.shape[0], *inner])
        own = b.axis(axis, len(inner) + is_new)
        order = [*range(1, own + 1), 0, *range(own + 1, moved.rank)]
        made = transpose(moved, order)
        if is_new:
            return made
        merged = made.shape[own] * made.shape[own + 1]
        return b.reshape(made, [*made.shape[:own], merged, *made.shape[own + 2 :]])


def parts_of(sequence: Node | None) -> Parts | None:
    """What a sequence is a part of, if one operator made it of a tensor."""
    if sequence is None or not isinstance(sequence.primitive, Opaque):
        return None
    if sequence.primitive.operator != SPLIT:
        return None
    (item,) = onnx.load_model_from_string(sequence.primitive.payload).graph.node
    given = {a.name: a.i for a in item.attribute}
    source, *split = sequence.inputs
    axis = given.get("axis", 0) % max(source.rank, 1)
    if not split:
        return Parts(source, axis, None, None, bool(given.get("keepdims", 1)))
    if split[0].rank > 0:
        return Parts(source, axis, None, split[0], True)
    size = known_size(split[0])
    return None if size is None else Parts(source, axis, size, None, True)


def known_size(split: Node) -> int | None:
    """The length of all parts, where it is known."""
    contents = integer_contents(split)
    size = None if contents is None else contents.reshape(-1)[0]
    return size.value if size is not None and size.is_constant and size.value > 0 else None


def _taken(b: Builder, x: Node, index: Node, axis: int) -> Node:
    """Entries of an axis, whose number is checked."""
    (made,) = standard(b.context, "Gather", [x, index], {"axis": axis})
    return made
