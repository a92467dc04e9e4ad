"""Divisions of all elements of a row by one number: a division for each row, and multiplications.

A quotient is then rounded twice, which is at most 1.5 units in the last place off. That holds only
if the reciprocal is neither infinite nor of fewer digits, so it has to follow from what the divisor
is made of: a sum of exponentials one of which is 1, or the root of what is positive. Start with
:func:`divisions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.ir.decay import greatest_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import RowSpace
from tilewright.ir.primitives import Broadcast, Cast, Constant, Dimension, Map, Reduce, Reshape

_MOVES = Broadcast | Reshape
LEAST_ADDED = 1e-30  # to what is not negative: its root and the reciprocal of that are normal


def divisions(nodes: Iterable[Node], space: RowSpace) -> list[tuple[Node, Node]]:
    """Quotients of elements of rows by numbers of which there is one for each, with these."""
    found: list[tuple[Node, Node]] = []
    for current in nodes:
        if not isinstance(current.primitive, Map) or current.primitive.function != "divide":
            continue
        divisor = current.inputs[1]
        shared = isinstance(divisor.primitive, Broadcast)
        shared = shared and space.holds_rows(divisor.inputs[0].shape)
        is_element = current.shape == divisor.shape == space.shape
        if shared and is_element and current.dtype in (DType.FLOAT32, DType.FLOAT64):
            found += [(current, divisor)] if _is_moderate(divisor) else []
    return found


def _is_moderate(divisor: Node) -> bool:
    """Whether a number, if it is one, and its reciprocal are normal."""
    current = _below_moves(divisor)
    match current.primitive:
        case Reduce(kind="sum", axes=axes):
            return _has_one(current.inputs[0], axes)
        case Map(function="square_root"):
            return _is_positive(current.inputs[0])
        case _:
            return False


def _has_one(elements: Node, axes: tuple[int, ...]) -> bool:
    """Whether elements are exp(x - m) with m the maximum of x over ``axes``."""
    greatest = greatest_of(elements)
    return greatest is not None and greatest.primitive == Reduce("maximum", axes)


def _is_positive(node: Node) -> bool:
    if node.primitive != Map("add"):
        return False
    pairs = (node.inputs, node.inputs[::-1])
    return any(_number(b) >= LEAST_ADDED and _is_not_negative(a) for a, b in pairs)


def _is_not_negative(node: Node) -> bool:
    """Whether a node has no negative element; NaN is none."""
    stack = [node]
    while stack:
        current = stack.pop()
        match current.primitive:
            case Broadcast() | Reshape() | Cast() | Reduce(kind="sum"):
                stack += current.inputs
            case Map(function="divide" | "add"):
                stack += current.inputs
            case Map(function="multiply") if current.inputs[0] is current.inputs[1]:
                pass
            case Map(function="exponential" | "absolute" | "square_root") | Dimension():
                pass
            case Map(function="maximum") if any(_number(i) >= 0 for i in current.inputs):
                pass
            case Constant(codes=None, array=array) if _none_negative(array):
                pass
            case _:
                return False
    return True


def _none_negative(array: np.ndarray[Any, Any]) -> bool:
    return bool(np.all(np.asarray(array, np.float64) >= 0))


def _number(node: Node) -> float:
    """The one value of a constant; NaN of anything else."""
    inner = _below_moves(node)
    held = inner.primitive
    if isinstance(held, Constant) and held.codes is None and held.array.size == 1:
        return float(held.array.reshape(())[()])
    return float("nan")


def _below_moves(node: Node) -> Node:
    while isinstance(node.primitive, _MOVES):
        node = node.inputs[0]
    return node
