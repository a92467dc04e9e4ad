"""Whether reading a value means finding out, element by element, where it lies.

Start with :func:`places_along`.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Cast, Gather, GatherElements, GatherND, Map, Pad
from tilewright.ir.views import Index, declare_index, is_view, linear, looked_up, pull_back
from tilewright.shape import Expr, Scope, symbol
from tilewright.shape.table import Operation

DIVISIONS = (Operation.FLOORDIV, Operation.MOD)
_ANYWHERE = symbol("_found")  # a position that is read from data


def places_along(node: Node, axes: Collection[int], memory: Collection[Node], scope: Scope) -> bool:
    """Whether positions that change along ``axes`` are read from data, or divided by what only a
    call knows, to compute ``node``.

    What is in ``memory`` is not looked into. An embedding does not look up along its last axis: one
    position serves a whole row.
    """
    facts = scope.copy()
    index = tuple(declare_index(facts, f"_x{a}", size) for a, size in enumerate(node.shape))
    moving = {f"_x{axis}" for axis in axes}
    waiting: list[tuple[Node, Index]] = [(node, index)]
    seen: set[tuple[Node, Index]] = set()
    while waiting:
        current, at = waiting.pop()
        if (current, at) in seen:
            continue
        seen.add((current, at))
        if current in memory:
            if _divides(facts.resolve(linear(at, current.shape)), moving):
                return True
            continue
        place, further = _read(current, at, facts)
        if any(not moving.isdisjoint(i.free_symbols) for i in place):
            return True
        waiting += further
    return False


def _divides(position: Expr, moving: set[str]) -> bool:
    """Whether something that moves is divided by a size that is not known when compiling."""
    if moving.isdisjoint(position.free_symbols):
        return False
    for atom in dict.fromkeys(a for monomial, _ in position.terms for a in monomial.atoms):
        if any(_divides(operand, moving) for operand in atom.operands):
            return True
        divides = atom.operation in DIVISIONS and not atom.operands[1].is_constant
        if divides and not moving.isdisjoint(atom.operands[0].free_symbols):
            return True
    return False


def _read(node: Node, at: Index, scope: Scope) -> tuple[Index, list[tuple[Node, Index]]]:
    """By what position element ``at`` of a node is looked up, and the elements that it is from."""
    if is_view(node):
        return (), [(node.inputs[0], pull_back(node, at, scope))]
    match node.primitive:
        case Gather() | GatherElements() | GatherND():
            data, indices = node.inputs
            places: list[Index] = []

            def find(place: Index, _: Expr) -> Expr:
                places.append(place)
                return _ANYWHERE

            found = looked_up(node, at, find)
            positions = tuple(i for place in places for i in place)
            return positions, [(data, found), *((indices, place) for place in places)]
        case Map() | Cast():
            return (), [(operand, at) for operand in node.inputs]
        case Pad(low=low):
            return (), [(node.inputs[0], tuple(i - d for i, d in zip(at, low, strict=True)))]
        case _:
            return (), []
