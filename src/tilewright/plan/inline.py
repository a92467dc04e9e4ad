"""Which nodes can be evaluated in place inside a kernel, and what that costs.

A *light* node has no reduction and no order: its elements can be computed one by one wherever they
are needed. A *simple* one is light all the way down to memory and reads positions that do not
depend on data, so that it can stand in the epilogue of a register tile.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.graph import Node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Input,
    Iota,
    Map,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.ir.scalar import DIVISIONS, SCALAR_FUNCTIONS

SOURCES = (Input, Constant, Dimension, Iota)
LIGHT = (
    *SOURCES, Map, Cast, Broadcast, Reshape, Transpose, Slice, Pad, Gather, GatherElements, GatherND
)  # fmt: skip
SIMPLE = (*SOURCES, Map, Cast, Broadcast, Reshape, Transpose, Slice)


def is_light(node: Node) -> bool:
    """Whether elements of ``node`` can be computed one by one."""
    return isinstance(node.primitive, LIGHT)


def is_simple(node: Node, memory: Collection[Node]) -> bool:
    """Whether ``node`` can be evaluated in the epilogue of a register tile."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if current in memory:
            continue
        if not isinstance(current.primitive, SIMPLE):
            return False
        if divides_integers(current) or current.dtype.is_half:
            return False
        for operand in current.inputs:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return True


def divides_integers(node: Node) -> bool:
    """Whether ``node`` looks for a divisor of 0, for which the epilogue of a tile has no place."""
    primitive = node.primitive
    divides = isinstance(primitive, Map) and primitive.function in DIVISIONS
    return divides and not node.dtype.is_float


def is_known(node: Node) -> bool:
    """Whether ``node`` is a constant, repeated or not."""
    inner = node.inputs[0] if isinstance(node.primitive, Broadcast) else node
    return isinstance(inner.primitive, Constant)


def cost(node: Node, memory: Collection[Node]) -> int:
    """Operations to compute one element of a light node, with one per load."""
    total, stack, seen = 0, [node], {node}
    while stack:
        current = stack.pop()
        if current in memory or isinstance(current.primitive, SOURCES):
            total += 1
            continue
        match current.primitive:
            case Map(function=function):
                total += SCALAR_FUNCTIONS[function].cost
            case Gather() | GatherElements() | GatherND() | Pad():
                total += 4
            case _:
                pass
        for operand in current.inputs:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return total
