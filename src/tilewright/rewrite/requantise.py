"""Sums of integers that are scaled, and divided by the scale of bytes again: one scale for both.

A division takes as long as a dozen multiplications, and every result of a quantised product has
one. Where what is divided is made of converted integers and constants, the constants are divided
when compiling: as many roundings as before, in another order. May import ``shape`` and ``ir``.
Start with :func:`quotients_into_scales`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Broadcast, Cast, Convolve, Map
from tilewright.rewrite.build import Array, broadcast, is_map, label, literal
from tilewright.rewrite.quantised import known

Once = Callable[[Node], bool]


def quotients_into_scales(graph: Graph) -> Graph:
    """(p * s + b) / c → p * (s / c) + b / c, p converted integers, s, b and c constant.

    c is a number above 0. There may be limits between the sum and the division.
    """
    counts = Counter(i for x in graph.nodes() for i in x.inputs)
    counts.update(graph.roots)
    uses: dict[Node, int] = {}  # of what nodes have become

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        made = same(current, operands)
        if is_map(made, "divide") and made.dtype is DType.FLOAT32:
            made = _quotient(made, lambda x: uses.get(x) == 1, replaced)
        uses[made] = counts[current]
        return made

    replaced: dict[Node, Node] = {}
    changed = mapped(graph, change)
    labels = dict(changed.labels)
    for made, before in replaced.items():
        if before in labels:
            label(made, labels[before], labels)
    return replace(changed, labels=labels)


def _quotient(x: Node, once: Once, replaced: dict[Node, Node]) -> Node:
    """A division with its divisor in the scales of what it divides, where that can be.

    ``replaced`` is told what each new node stands for, operands first.
    """
    dividend, divisor = x.inputs
    array = spread_array(divisor)
    if array is None or array.size != 1 or spread_array(dividend) is not None:
        return x
    value = array.reshape(())
    if not 0 < value < np.inf:
        return x
    return _divided(dividend, value, once, replaced) or x


def _divided(x: Node, divisor: Array, once: Once, replaced: dict[Node, Node]) -> Node | None:
    """``x`` / ``divisor`` without a division, where it is made of integers and constants."""
    if spread_array(x) is not None:
        return _divided_constant(x, divisor)
    if not once(x):
        return None
    if is_map(x, "multiply"):
        for inner, scale in (x.inputs, x.inputs[::-1]):
            if spread_array(scale) is not None and _is_whole(inner):
                factor = _divided_constant(scale, divisor)
                if factor is None:
                    return None
                return _noted(node(Map("multiply"), inner, factor), x, replaced)
    if not is_map(x, "add", "maximum", "minimum"):
        return None
    parts = [_divided(operand, divisor, once, replaced) for operand in x.inputs]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return _noted(node(x.primitive, *found), x, replaced)


def _noted(made: Node, before: Node, replaced: dict[Node, Node]) -> Node:
    """``made``, which stands for ``before``."""
    replaced.setdefault(made, before)
    return made


def _divided_constant(x: Node, divisor: Array) -> Node | None:
    """A repeated constant divided; None beyond the range of its type."""
    array = spread_array(x)
    assert array is not None
    with np.errstate(over="ignore"):
        quotient = array / divisor
    if not np.isfinite(quotient).all():
        return None
    made = literal(quotient, x.dtype)
    axes = x.primitive.axes if isinstance(x.primitive, Broadcast) else tuple(range(x.rank))
    return broadcast(made, x.shape, axes)


def _is_whole(x: Node) -> bool:
    """Whether ``x`` is an integer converted, minus a zero point or not, or made of such alone."""
    array = spread_array(x)
    if array is not None:
        return bool((array == np.rint(array)).all())
    if is_map(x, "subtract") and spread_array(x.inputs[1]) is not None:
        x = x.inputs[0]
    if isinstance(x.primitive, Convolve):
        return all(_is_whole(operand) for operand in x.inputs)
    return isinstance(x.primitive, Cast) and x.inputs[0].dtype.is_integer


def spread_array(x: Node) -> Array | None:
    """What a constant or a broadcast one repeats, on the axes of the broadcast's operand."""
    return known(x.inputs[0] if isinstance(x.primitive, Broadcast) else x)


__all__ = ["quotients_into_scales"]
