"""Which values of its inputs a graph can use, from what it does with them.

An index into ten rows is below ten. :func:`value_ranges` starts at what needs values in a range
(indices, divisors, sizes that are data) and goes back through what only moves values, or shifts
them by something known, to the inputs. It serves to make test inputs: a range may be narrower than
what is allowed (indices may be negative, too), and an input without one may still be misused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Input,
    Iota,
    Map,
    Pad,
    Project,
    Reduce,
    Reshape,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
)
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum

# A size that is data, and an exponent: large ones take memory, or leave the range of the type.
MOST_AS_SIZE, MOST_AS_EXPONENT = 16, 3
_MOVES = (Broadcast, Concat, Project, Reshape, Slice, Transpose)


@dataclass(frozen=True)
class ValueRange:
    """The least and the greatest value, both included; None: not limited."""

    low: Expr | None
    high: Expr | None

    def and_also(self, other: ValueRange) -> ValueRange:
        """What lies in both."""
        return ValueRange(
            _either(self.low, other.low, maximum), _either(self.high, other.high, minimum)
        )

    def is_empty(self) -> bool:
        """Whether it is certain that no value lies in it."""
        low, high = self.low, self.high
        if low is None or high is None or not (low.is_constant and high.is_constant):
            return False
        return low.value > high.value


def value_ranges(graph: Graph) -> dict[str, ValueRange]:
    """The range of each input that has one, by name."""
    found: dict[Node, ValueRange] = {}
    for binding in graph.bindings:
        _demand(found, binding.source, ValueRange(constant(0), constant(MOST_AS_SIZE)))
    for current in reversed(graph.nodes()):
        for operand, needed in _needs(current):
            _demand(found, operand, needed)
        own = found.get(current)
        if own is not None:
            for operand, needed in _passed_on(current, own):
                _demand(found, operand, needed)
    return {
        current.primitive.name: found[current]
        for current in graph.inputs
        if isinstance(current.primitive, Input) and current in found
    }


def range_texts(graph: Graph) -> dict[str, tuple[str, str]]:
    """:func:`value_ranges` as text: expressions over the dimensions, "" for an open end."""
    return {name: (_text(r.low), _text(r.high)) for name, r in value_ranges(graph).items()}


def _text(end: Expr | None) -> str:
    return "" if end is None else str(end)


def _demand(found: dict[Node, ValueRange], operand: Node, needed: ValueRange) -> None:
    """Narrow the range of a node, unless nothing would be left: the first demand stays then."""
    both = found[operand].and_also(needed) if operand in found else needed
    if not both.is_empty():
        found[operand] = both


def _needs(current: Node) -> list[tuple[Node, ValueRange]]:
    """What a node wants its operands to be, whatever becomes of its result."""
    operands = current.inputs
    match current.primitive:
        case Gather(axis=axis) | GatherElements(axis=axis) | ScatterElements(axis=axis):
            return [(operands[1], _below(operands[0].shape[axis]))]
        case GatherND(batch=batch):
            return [(operands[1], _addresses(operands[0], operands[1], batch))]
        case ScatterND():
            return [(operands[1], _addresses(operands[0], operands[1], 0))]
        case Map(function="divide" | "remainder" | "truncated_remainder"):
            is_whole = current.dtype.is_integer
            return [(operands[1], ValueRange(constant(1), None))] if is_whole else []
        case Map(function="power"):
            exponent = ValueRange(constant(0), constant(MOST_AS_EXPONENT))
            return [(operands[1], exponent)] if operands[1].dtype.is_integer else []
        case Map(function="shift_left" | "shift_right"):
            last = constant(8 * current.dtype.bytes - 1)
            return [(operands[1], ValueRange(constant(0), last))]
        case Map(function="equal"):
            # A class beside the numbers of all classes, as in one-hot coding.
            one, other = operands
            pairs = [(one, _counted(other)), (other, _counted(one))]
            return [(x, among) for x, among in pairs if among is not None]
        case _:
            return []


def _passed_on(current: Node, own: ValueRange) -> list[tuple[Node, ValueRange]]:
    """What the operands of a node must be for its result to lie in ``own``."""
    operands, primitive = current.inputs, current.primitive
    if isinstance(primitive, _MOVES) or _is_extreme(current):
        return [(operand, own) for operand in operands]
    match primitive:
        case Pad():
            return [(operands[0], own)]
        case Gather() | GatherElements() | GatherND():
            return [(operands[0], own)]
        case ScatterElements() | ScatterND():
            return [(operands[0], own), (operands[2], own)]
        case Cast() if current.dtype is not DType.BOOL:
            return [(operands[0], own)]
        case Map(function="select"):
            return [(x, own) for x in _branches(*operands[1:])]
        case Map(function="add"):
            return [(x, _shifted(own, y, 1)) for x, y in (operands, operands[::-1])]
        case Map(function="subtract"):
            return [(operands[0], _shifted(own, operands[1], -1))]
        case Map(function="multiply"):
            return [(x, _divided(own, y)) for x, y in (operands, operands[::-1])]
        case Map(function="maximum"):
            return [(x, ValueRange(None, own.high)) for x in operands]
        case Map(function="minimum"):
            return [(x, ValueRange(own.low, None)) for x in operands]
        case _:
            return []


def _branches(one: Node, other: Node) -> tuple[Node, ...]:
    """What a selection may yield; where one is made of the other, as for negative indices, that."""
    if one in other.inputs:
        return (one,)
    return (other,) if other in one.inputs else (one, other)


def _is_extreme(current: Node) -> bool:
    primitive = current.primitive
    return isinstance(primitive, Reduce) and primitive.kind in ("maximum", "minimum")


def _below(size: Expr) -> ValueRange:
    """Indices into so many elements, from the first on."""
    return ValueRange(constant(0), size - 1)


def _addresses(data: Node, indices: Node, batch: int) -> ValueRange:
    """Indices whose last axis addresses several axes: they fit the smallest of those."""
    depth = indices.shape[-1]
    if not depth.is_constant or not depth.value:
        return ValueRange(None, None)
    sizes = data.shape[batch : batch + depth.value]
    least = sizes[0]
    for size in sizes[1:]:
        least = minimum(least, size)
    return _below(least)


def _counted(current: Node) -> ValueRange | None:
    """The numbers of an iota that a node shows, moved or not."""
    while isinstance(current.primitive, Broadcast | Reshape | Transpose | Cast):
        current = current.inputs[0]
    if not isinstance(current.primitive, Iota):
        return None
    return _below(current.shape[current.primitive.axis])


def _known(current: Node) -> tuple[Expr, Expr] | None:
    """The least and the greatest value of a node, where no input decides them."""
    while isinstance(current.primitive, Broadcast | Reshape | Transpose | Cast):
        current = current.inputs[0]
    match current.primitive:
        case Dimension(value=value):
            return value, value
        case Iota(axis=axis):
            return constant(0), current.shape[axis] - 1
        case Constant(codes=None, array=array) if array.size and array.dtype.kind in "iuf":
            ends = float(array.min()), float(array.max())
            if all(np.isfinite(end) and end == int(end) for end in ends):
                return constant(int(ends[0])), constant(int(ends[1]))
        case _:
            pass
    return None


def _shifted(own: ValueRange, by: Node, sign: int) -> ValueRange:
    """``x`` for which ``x + by`` (sign 1) or ``x - by`` (sign -1) lies in ``own``."""
    known = _known(by)
    if known is None:
        return ValueRange(None, None)
    least, most = known if sign == 1 else (-known[1], -known[0])
    low = None if own.low is None else own.low - least
    return ValueRange(low, None if own.high is None else own.high - most)


def _divided(own: ValueRange, by: Node) -> ValueRange:
    """``x`` for which ``x * by`` lies in ``own``, for a positive ``by``."""
    known = _known(by)
    if known is None or not known[0].is_constant or known[0].value < 1:
        return ValueRange(None, None)
    low = None if own.low is None else ceil_div(own.low, known[0])
    return ValueRange(low, None if own.high is None else own.high // known[1])


def _either(
    one: Expr | None, other: Expr | None, both: Callable[[Expr, Expr], Expr]
) -> Expr | None:
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)
