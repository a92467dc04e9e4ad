"""Short questions about nodes, and short ways to make them, for rules.

Makers give back their operand where there is nothing to do, so that rules need not check. May
import ``shape`` and ``ir``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.make import (
    broadcast,
    is_number,
    is_one,
    reshape,
    slice_axis,
    transpose,
)
from tilewright.ir.primitives import Broadcast, Constant, Map, Reshape, Shape
from tilewright.shape import Expr, product

Array = np.ndarray[Any, Any]
__all__ = [
    "Array",
    "all_numbers",
    "broadcast",
    "contents",
    "filled",
    "function_of",
    "is_map",
    "is_number",
    "is_one",
    "label",
    "literal",
    "only_units_differ",
    "reshape",
    "single_value",
    "slice_axis",
    "spread_contents",
    "squeezed",
    "static_shape",
    "transpose",
]


def all_numbers(sizes: Sequence[Expr], value: int) -> bool:
    """Whether all expressions are this constant."""
    return all(is_number(s, value) for s in sizes)


def static_shape(x: Node) -> tuple[int, ...] | None:
    """The sizes as numbers, or None where one is not known when compiling."""
    if not all(s.is_constant for s in x.shape):
        return None
    return tuple(s.value for s in x.shape)


def contents(x: Node) -> Array | None:
    """The array of a constant; None for codes, with which rules do not compute."""
    primitive = x.primitive
    return primitive.array if isinstance(primitive, Constant) and primitive.codes is None else None


def spread_contents(x: Node) -> Array | None:
    """The array of a constant, or of a broadcast constant without its new axes' repetition."""
    if isinstance(x.primitive, Broadcast):
        return contents(x.inputs[0])
    return contents(x)


def single_value(x: Node) -> Any | None:
    """The numpy scalar that every element of ``x`` equals, where ``x`` is a constant of one."""
    array = spread_contents(x)
    if array is None or array.size != 1 or not x.dtype.is_native:
        return None
    return array.reshape(-1)[0]


def literal(value: Any, dtype: DType) -> Node:
    """A constant of rank 0 (or of an array's shape)."""
    return node(Constant.of(np.asarray(value).astype(dtype.numpy), dtype))


def filled(value: Any, like: Node) -> Node:
    """A tensor of the type and shape of ``like`` whose elements all are ``value``."""
    return broadcast(literal(value, like.dtype), like.shape, ())


def is_map(x: Node, *functions: str) -> bool:
    """Whether ``x`` is a Map of one of these functions."""
    return isinstance(x.primitive, Map) and x.primitive.function in functions


def function_of(x: Node) -> str:
    """The scalar function of a Map."""
    assert isinstance(x.primitive, Map)
    return x.primitive.function


def elements(shape: Shape, axes: Sequence[int]) -> Expr:
    """How many elements some axes of a shape have together."""
    return product([shape[axis] for axis in axes])


def squeezed(shape: Shape) -> Shape:
    """The shape without axes whose size is the constant 1."""
    return tuple(s for s in shape if not is_one(s))


def only_units_differ(view: Node) -> bool:
    """Whether a Reshape only inserts or drops axes of size 1."""
    wide = squeezed(view.shape)
    return isinstance(view.primitive, Reshape) and wide == squeezed(view.inputs[0].shape)


def label(made: Node, text: str, labels: dict[Node, str]) -> None:
    """Give a new node and those it is made of, down to ones that have it, a label."""
    stack = [made, *made.inputs]
    while stack:
        current = stack.pop()
        if current not in labels:
            labels[current] = text
            stack += current.inputs
