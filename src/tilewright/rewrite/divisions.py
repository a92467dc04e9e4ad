"""Divisions of integers whose results a selection discards.

A kernel reports a division by 0, and computes both sides of a selection. What is discarded is
therefore divided by 1: then nothing is reported whose result nobody sees, whichever kernel computes
it. May import ``shape`` and ``ir``. Start with :func:`guard_divisions`.
"""

from __future__ import annotations

from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Cast, Map, Reshape, Transpose
from tilewright.ir.scalar import DIVISIONS
from tilewright.rewrite.build import broadcast, literal, spread_contents

_SELECT = Map("select")


def guard_divisions(graph: Graph) -> Graph:
    """select(c, a / b, z) → select(c, a / select(c, b, 1), z), of integers.

    Between the selection and the division may stand functions of elements and changes of shape.
    """
    dividing: set[Node] = set()
    for current in graph.nodes():
        inside = _keeps_elements(current) and not dividing.isdisjoint(current.inputs)
        if inside or _may_fail(current):
            dividing.add(current)

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        if current.primitive != _SELECT or dividing.isdisjoint(current.inputs[1:]):
            return same(current, operands)
        condition, chosen, otherwise = operands
        sides = _guarded(chosen, condition, True), _guarded(otherwise, condition, False)
        return node(_SELECT, condition, *sides)

    return mapped(graph, change) if dividing else graph


def _may_fail(current: Node) -> bool:
    """Whether a node divides integers by something that may be 0."""
    if not isinstance(current.primitive, Map) or current.primitive.function not in DIVISIONS:
        return False
    divisor = current.inputs[1]
    array = spread_contents(divisor)
    return divisor.dtype.is_integer and (array is None or not array.all())


def _keeps_elements(current: Node) -> bool:
    """Whether every element of a node is made of one element of each operand, and only that."""
    return isinstance(current.primitive, Map | Cast | Reshape | Transpose)


def _guarded(root: Node, condition: Node, wanted: bool) -> Node:
    """``root`` without divisions by 0 where ``condition`` is not as ``wanted``.

    A node that is read through several views is made once for each condition on its elements.
    """
    made: dict[tuple[Node, Node], Node] = {}
    stack = [(root, condition)]
    while stack:
        current, holds = stack[-1]
        below = _before(current, holds)
        pairs = [(i, below) for i in current.inputs] if _keeps_elements(current) else []
        waiting = [pair for pair in pairs if pair not in made]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        operands = tuple(made[pair] for pair in pairs) or current.inputs
        if _may_fail(current):
            ones = broadcast(literal(1, operands[1].dtype), current.shape, ())
            rows = (operands[1], ones) if wanted else (ones, operands[1])
            operands = (operands[0], node(_SELECT, holds, *rows))
        made[current, holds] = same(current, operands)
    return made[root, condition]


def _before(view: Node, condition: Node) -> Node:
    """The condition on elements of ``view`` as one on those of its operand."""
    match view.primitive:
        case Reshape():
            return node(Reshape(view.inputs[0].shape), condition)
        case Transpose(permutation=permutation):
            back = tuple(permutation.index(axis) for axis in range(view.rank))
            return node(Transpose(back), condition)
        case _:
            return condition
