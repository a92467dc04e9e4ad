"""What a graph must look like before it is planned.

Outputs are nodes of their own, neither inputs nor constants nor shared by two names; the left
operand of a contraction has its axes in the order batch, rows, depth, so that in memory it can
always be read by a register tile; what a selection discards divides by 1, so that no kernel reports
a division by 0 whose result nobody sees. Start with :func:`prepare`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Cast, Constant, Contract, Input, Transpose
from tilewright.rewrite.divisions import guard_divisions


def prepare(graph: Graph) -> Graph:
    """The graph in the form that the planner takes."""
    return separate_outputs(order_contractions(guard_divisions(graph)))


def order_contractions(graph: Graph) -> Graph:
    """Put a Transpose before left operands whose axes are in another order."""

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        primitive = current.primitive
        if isinstance(primitive, Contract):
            return _ordered(primitive, *operands)
        return same(current, operands)

    return mapped(graph, change)


def _ordered(primitive: Contract, left: Node, right: Node) -> Node:
    batch, summed = [i for i, _ in primitive.batch], [i for i, _ in primitive.summed]
    free = [a for a in range(left.rank) if a not in batch + summed]
    order = (*batch, *free, *summed)
    if order == tuple(range(left.rank)):
        return node(primitive, left, right)
    place = {axis: position for position, axis in enumerate(order)}
    moved = replace(
        primitive,
        batch=tuple((place[i], j) for i, j in primitive.batch),
        summed=tuple((place[i], j) for i, j in primitive.summed),
    )
    return node(moved, node(Transpose(order), left), right)


def separate_outputs(graph: Graph) -> Graph:
    """Every output its own node, neither an input nor a constant: those are copied."""
    taken: set[Node] = set()
    outputs: list[tuple[str, Node]] = []
    for name, root in graph.outputs:
        while root.dtype.is_native and (
            isinstance(root.primitive, Input | Constant) or root in taken
        ):
            root = node(Cast(root.dtype), root)
        taken.add(root)
        outputs.append((name, root))
    return replace(graph, outputs=tuple(outputs))
