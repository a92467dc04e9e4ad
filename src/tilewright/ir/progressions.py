"""Integers that a graph computes of indices alone: progressions and their sums.

Windows reach a model as lookups at positions like i + k, of which neither is data. Where the
position is known as an expression, looking up is reading at another index. Start with
:func:`known_integer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Cast, Constant, Dimension, Iota, Map
from tilewright.ir.views import Index, declare_index, is_view, pull_back
from tilewright.shape import Expr, Scope, Truth, as_expr

LARGEST = 1 << 31  # so that sums stay within 64 bits; positions are smaller


def known_integer(node: Node, index: Sequence[Expr], scope: Scope) -> Expr | None:
    """Element ``index`` of an int64 node as an expression over the index and sizes, or None.

    Sums of whole numbers are those of mathematics: one that leaves 64 bits means something else.
    """
    if not node.dtype.is_integer:
        return None
    if is_view(node):
        return known_integer(node.inputs[0], pull_back(node, tuple(index), scope), scope)
    match node.primitive:
        case Constant():
            return _of_constant(node, tuple(index))
        case Dimension(value=value):
            return value
        case Iota(axis=axis):
            return index[axis]
        case Cast() if _holds(node):
            return known_integer(node.inputs[0], index, scope)
        case Map(function="add" | "subtract" | "multiply" as function):
            return _combined(node, function, index, scope)
        case _:
            return None


def is_known_below(node: Node, limit: Expr, scope: Scope) -> bool:
    """Whether all elements are known, and lie in [0, ``limit``)."""
    facts = scope.copy()
    index = [declare_index(facts, f"_x{axis}", size) for axis, size in enumerate(node.shape)]
    found = known_integer(node, index, facts)
    if found is None or facts.is_less(found, limit) is not Truth.YES:
        return False
    return facts.is_less_equal(0, found) is Truth.YES


def _holds(cast: Node) -> bool:
    """Whether a conversion keeps every integer."""
    operand = cast.inputs[0].dtype
    return operand.is_integer and operand.bytes <= cast.dtype.bytes and cast.dtype.bytes == 8


def _combined(node: Node, function: str, index: Sequence[Expr], scope: Scope) -> Expr | None:
    left = known_integer(node.inputs[0], index, scope)
    right = None if left is None else known_integer(node.inputs[1], index, scope)
    if left is None or right is None:
        return None
    if function == "add":
        return left + right
    if function == "subtract":
        return left - right
    # A product of two indices is no position that anything reads in order.
    return left * right if left.is_constant or right.is_constant else None


def _of_constant(node: Node, index: Index) -> Expr | None:
    found = progression(node)
    if found is None:
        return None
    made = as_expr(found[0])
    for i, step in zip(index, found[1], strict=True):
        made = made + i * step
    return made


@lru_cache(maxsize=1024)
def progression(node: Node) -> tuple[int, tuple[int, ...]] | None:
    """The first of a constant's integers and what they grow by along each axis, if they do."""
    assert isinstance(node.primitive, Constant)
    array = node.primitive.array
    if array.dtype != np.int64 or array.size == 0:
        return None
    if array.min() < -LARGEST or array.max() > LARGEST:
        return None
    first = int(array.flat[0])
    steps: list[int] = []
    expected = np.asarray(first)
    for axis, size in enumerate(array.shape):
        place = tuple(int(a == axis) for a in range(array.ndim))
        steps.append(int(array[place]) - first if size > 1 else 0)
        along = [-1 if a == axis else 1 for a in range(array.ndim)]
        expected = expected + (np.arange(size) * steps[-1]).reshape(along)
    return (first, tuple(steps)) if bool((array == expected).all()) else None


__all__ = ["is_known_below", "known_integer", "progression"]
