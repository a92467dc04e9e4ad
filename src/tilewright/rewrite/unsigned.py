"""Bytes with a sign that products want without one are made without it, for all who read them.

Register tiles multiply data without a sign, so a product of int8 shifts it by 128 (``integers``).
Where the bytes are rounded in this graph they are rounded with that shift at once: it becomes a
part of the zero point, which often vanishes with it, and a tensor that several kernels read is in
memory once. Numbers that may be NaN stay as they are: a NaN becomes the byte 0 of either type, and
that means something else. Start with :func:`without_signs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same, users
from tilewright.ir.primitives import Broadcast, Cast, Convolve, Map, Reshape, Slice, Transpose
from tilewright.rewrite.build import broadcast, filled, is_map, literal
from tilewright.rewrite.quantised import OFFSET, known, single_number

LARGEST = 1e38  # what float32 holds


def without_signs(graph: Graph) -> Graph:
    """int8 from rounding, with readers that want uint8 among others, is uint8 for all of them."""
    nodes = graph.nodes()
    readers, roots = users(nodes), set(graph.roots)
    found = [x for x in nodes if x not in roots and _is_rounded(x)]
    bounds: dict[Node, float | None] = {}
    chosen = {
        x for x in found if _may_change(x, readers) and _magnitude(x.inputs[0], bounds) is not None
    }

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        if current in chosen:
            return _unsigned(operands[0])
        source = _shifted(current)
        if source in chosen:  # what the operands of its operands became
            return operands[0].inputs[0].inputs[0].inputs[0]
        if isinstance(current.primitive, Cast) and current.inputs[0] in chosen:
            return _less(node(current.primitive, *operands), OFFSET)
        if _takes_zero(current) and current.inputs[0].inputs[0] in chosen:
            return _less(operands[0].inputs[0], OFFSET, current.inputs[1])
        return same(current, operands)

    return mapped(graph, change) if chosen else graph


def _is_rounded(x: Node) -> bool:
    """Whether ``x`` is int8 made of a rounded number, plus a whole zero point, within limits."""
    if not isinstance(x.primitive, Cast) or x.dtype is not DType.INT8:
        return False
    if x.inputs[0].dtype is not DType.FLOAT32:
        return False
    limits, inner = _limits(x.inputs[0])
    if limits.keys() != {"maximum", "minimum"}:
        return False
    if not -OFFSET <= limits["maximum"] <= limits["minimum"] < OFFSET:
        return False
    zero = single_number(inner.inputs[1]) if is_map(inner, "add") else None
    if zero is not None and zero.is_integer() and abs(zero) <= OFFSET:
        inner = inner.inputs[0]
    return is_map(inner, "round_even")


def _limits(x: Node) -> tuple[dict[str, float], Node]:
    """The number that each of a maximum and a minimum compares with, and what is within them."""
    limits: dict[str, float] = {}
    while is_map(x, "maximum", "minimum"):
        assert isinstance(x.primitive, Map)
        limit = single_number(x.inputs[1])
        if limit is None or not limit.is_integer() or x.primitive.function in limits:
            break
        limits[x.primitive.function] = limit
        x = x.inputs[0]
    return limits, x


def _may_change(x: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether all readers widen int8 ``x``, and one of them for uint8."""
    casts = readers[x]
    wide = all(isinstance(c.primitive, Cast) and c.dtype.bytes == 4 for c in casts)
    shifts = (user for c in casts for add in readers[c] for user in readers[add])
    return wide and any(_shifted(user) is x for user in shifts)


def _shifted(x: Node) -> Node | None:
    """The int8 of which ``x`` is the same in uint8."""
    if not isinstance(x.primitive, Cast) or x.dtype is not DType.UINT8:
        return None
    added = x.inputs[0]
    if not is_map(added, "add") or added.dtype is not DType.INT32:
        return None
    wide = added.inputs[0]
    shift = single_number(added.inputs[1])
    if shift != OFFSET or not isinstance(wide.primitive, Cast):
        return None
    return wide.inputs[0] if wide.inputs[0].dtype is DType.INT8 else None


def _takes_zero(x: Node) -> bool:
    """Whether ``x`` is a converted tensor minus a single number."""
    return (
        is_map(x, "subtract")
        and isinstance(x.inputs[0].primitive, Cast)
        and single_number(x.inputs[1]) is not None
    )


def _unsigned(limited: Node) -> Node:
    """uint8 of a rounded number within limits, all of it larger by the shift."""
    limits, inner = _limits(limited)
    zero = OFFSET
    if is_map(inner, "add"):
        zero += int(single_number(inner.inputs[1]) or 0)
        inner = inner.inputs[0]
    made = node(Map("add"), inner, filled(zero, inner)) if zero else inner
    for function in reversed(limits):
        made = node(Map(function), made, filled(limits[function] + OFFSET, made))
    return node(Cast(DType.UINT8), made)


def _less(wide: Node, shift: int, zero: Node | None = None) -> Node:
    """Converted bytes minus the shift, and minus a zero point, by one subtraction or none."""
    total = shift + (0 if zero is None else single_number(zero) or 0.0)
    if total == 0:
        return wide
    return node(Map("subtract"), wide, broadcast(literal(total, wide.dtype), wide.shape, ()))


def _magnitude(x: Node, bounds: dict[Node, float | None]) -> float | None:
    """A bound of the size of all elements, none of which is NaN then; None where there is none."""
    stack = [x]
    while stack:
        current = stack[-1]
        waiting = [i for i in _bounding(current) if i not in bounds]
        if waiting and current not in bounds:
            stack += waiting
            continue
        stack.pop()
        if current not in bounds:
            bounds[current] = _bound(current, [bounds[i] for i in _bounding(current)])
    return bounds[x]


def _bounding(x: Node) -> Sequence[Node]:
    """The operands whose bounds decide about that of ``x``."""
    if known(x) is not None or (isinstance(x.primitive, Cast) and x.inputs[0].dtype.is_integer):
        return ()
    kinds = Map | Cast | Broadcast | Reshape | Slice | Transpose
    if isinstance(x.primitive, kinds) and x.dtype is DType.FLOAT32:
        return x.inputs
    return x.inputs[:1] if isinstance(x.primitive, Convolve) else ()


def _bound(x: Node, operands: Sequence[float | None]) -> float | None:
    array = known(x)
    if array is not None:
        most = float(np.abs(array.astype(np.float64)).max(initial=0.0))
        return most if most < LARGEST else None
    primitive = x.primitive
    if isinstance(primitive, Cast) and x.inputs[0].dtype.is_integer:
        return 2.0 ** (8 * x.inputs[0].dtype.bytes)
    given = [b for b in operands if b is not None]
    if not given or len(given) < len(operands) or x.dtype is not DType.FLOAT32:
        return None
    most = _combined(x, given)
    return most if most is not None and most < LARGEST else None


def _combined(x: Node, given: Sequence[float]) -> float | None:
    """The bound of what is computed of float32 numbers with these bounds."""
    match x.primitive:
        case Convolve():
            weights = known(x.inputs[1])
            if weights is None or not weights.size:
                return None
            sums = np.abs(weights.astype(np.float64)).sum(tuple(range(1, weights.ndim)))
            return given[0] * float(sums.max())
        case Map(function="add" | "subtract"):
            return sum(given)
        case Map(function="multiply"):
            return math.prod(given)
        case Map(function="maximum" | "minimum"):
            return max(given)
        case Map(function="negate" | "absolute"):
            return given[0]
        case Map(function="round_even"):
            return given[0] + 1
        case Map():
            return None
        case _:
            return given[0]


__all__ = ["without_signs"]
