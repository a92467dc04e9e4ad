"""Divisions of integers whose results a selection discards.

A kernel reports a division by 0, and computes both sides of a selection. What is discarded is
therefore divided by 1: then nothing is reported whose result nobody sees, whichever kernel computes
it. Between the two may stand functions of elements, reductions and every view but gathers and
slices with steps; past those, and past products, a division by 0 is reported. May import ``shape``
and ``ir``. Start with :func:`guard_divisions`.
"""

from __future__ import annotations

from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Dimension,
    Map,
    Pad,
    Reduce,
    Reshape,
    Shape,
    Slice,
    Transpose,
)
from tilewright.ir.scalar import DIVISIONS
from tilewright.rewrite.build import (
    all_numbers,
    broadcast,
    is_one,
    literal,
    reshape,
    slice_axis,
    spread_contents,
    transpose,
)
from tilewright.shape import constant, minimum, total

_SELECT = Map("select")
_PASSED = Map | Cast | Reshape | Transpose | Broadcast | Slice | Pad | Concat | Reduce


def guard_divisions(graph: Graph) -> Graph:
    """select(c, a / b, z) → select(c, a / select(c, b, 1), z), of integers.

    A division that is read by several elements is made unless the selection discards them all.
    """
    dividing: set[Node] = set()
    for current in graph.nodes():
        inside = isinstance(current.primitive, _PASSED) and not dividing.isdisjoint(current.inputs)
        if inside or may_fail(current):
            dividing.add(current)

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        made = same(current, operands)
        if current in dividing:
            dividing.add(made)
        if current.primitive != _SELECT or dividing.isdisjoint(made.inputs[1:]):
            return made
        seen, chosen, otherwise = operands
        rest = node(Map("logical_not"), seen)
        sides = _guarded(chosen, seen, dividing), _guarded(otherwise, rest, dividing)
        made = node(_SELECT, seen, *sides)
        dividing.add(made)
        return made

    return mapped(graph, change) if dividing else graph


def may_fail(current: Node) -> bool:
    """Whether a node divides integers by something that may be 0, where it has elements."""
    if not isinstance(current.primitive, Map) or current.primitive.function not in DIVISIONS:
        return False
    divisor = current.inputs[1]
    array = spread_contents(divisor)
    return divisor.dtype.is_integer and (array is None or not array.all())


def _guarded(root: Node, seen: Node, dividing: set[Node]) -> Node:
    """``root`` without divisions by 0 for elements of it that are not ``seen``.

    ``dividing`` are the nodes that depend on divisions; those made here are added. A node that is
    read through several views is made once for each condition on its elements.
    """
    if root not in dividing:
        return root
    made: dict[tuple[Node, Node | None], Node] = {}
    stack: list[tuple[Node, Node]] = [(root, seen)]
    while stack:
        current, seen = stack[-1]
        pairs = [
            (operand, _below(current, seen, which) if operand in dividing else None)
            for which, operand in enumerate(current.inputs)
        ]
        waiting = [(i, s) for i, s in pairs if s is not None and (i, s) not in made]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        operands = tuple(made.get(pair, pair[0]) for pair in pairs)
        if may_fail(current):
            ones = broadcast(literal(1, operands[1].dtype), current.shape, ())
            operands = (operands[0], node(_SELECT, seen, operands[1], ones))
        made[current, seen] = same(current, operands)
        dividing.add(made[current, seen])
    return made[root, seen]


def _below(current: Node, seen: Node, which: int) -> Node | None:
    """Which elements of an operand are seen, where those of its reader are; None if not known."""
    operand = current.inputs[which]
    match current.primitive:
        case Map() | Cast():
            return seen
        case Reshape():
            return reshape(seen, operand.shape)
        case Transpose(permutation=permutation):
            return transpose(seen, [permutation.index(axis) for axis in range(current.rank)])
        case Broadcast():
            return _repeated(current, seen)
        case Reduce(axes=axes):
            kept = [axis for axis in range(operand.rank) if axis not in axes]
            return broadcast(seen, operand.shape, kept)
        case Slice(starts=low, sizes=sizes, steps=steps) if all_numbers(steps, 1):
            rows = zip(operand.shape, low, sizes, strict=True)
            return _padded(seen, low, tuple(wide - start - size for wide, start, size in rows))
        case Pad(low=low) if which == 0:
            return node(Slice(low, operand.shape, (constant(1),) * current.rank), seen)
        case Concat(axis=axis):
            before = total(other.shape[axis] for other in current.inputs[:which])
            return slice_axis(seen, axis, before, operand.shape[axis])
        case _:
            return None


def _repeated(view: Node, seen: Node) -> Node:
    """Which elements of a Broadcast's operand are seen: those of which any copy is."""
    assert isinstance(view.primitive, Broadcast)
    (operand,), axes = view.inputs, view.primitive.axes
    new = [axis for axis in range(view.rank) if axis not in axes]
    seen = node(Reduce("maximum", tuple(new)), seen) if new else seen
    for axis, size in enumerate(operand.shape):
        wide = seen.shape[axis]
        if size is wide:
            continue
        shape = (*seen.shape[:axis], size, *seen.shape[axis + 1 :])
        kept = tuple(other for other in range(seen.rank) if other != axis)
        once = broadcast(node(Reduce("maximum", (axis,)), seen), shape, kept)
        if is_one(size):
            seen = once
            continue
        # The size is 1 or that of the result, which is known in a call only.
        least = minimum(size, wide)
        low, high = [constant(0)] * seen.rank, [constant(0)] * seen.rank
        high[axis] = size - least
        own = _padded(slice_axis(seen, axis, constant(0), least), tuple(low), tuple(high))
        number = node(Dimension(size))
        is_repeated = node(Map("equal"), number, literal(1, number.dtype))
        seen = node(_SELECT, broadcast(is_repeated, shape, ()), once, own)
    return seen


def _padded(seen: Node, low: Shape, high: Shape) -> Node:
    """``seen`` with more elements at both ends of every axis, none of which is seen."""
    return node(Pad(low, high), seen, literal(False, seen.dtype))
