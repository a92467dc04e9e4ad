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
from tilewright.ir.primitives import Broadcast, Constant, Map, Reshape, Shape, Slice, Transpose
from tilewright.shape import Expr, constant, product

Array = np.ndarray[Any, Any]


def is_number(size: Expr, value: int) -> bool:
    """Whether an expression is this constant."""
    return size.is_constant and size.value == value


def is_one(size: Expr) -> bool:
    """Whether a size is the constant 1."""
    return is_number(size, 1)


def all_numbers(sizes: Sequence[Expr], value: int) -> bool:
    """Whether all expressions are this constant."""
    return all(is_number(s, value) for s in sizes)


def static_shape(x: Node) -> tuple[int, ...] | None:
    """The sizes as numbers, or None where one is not known when compiling."""
    if not all(s.is_constant for s in x.shape):
        return None
    return tuple(s.value for s in x.shape)


def contents(x: Node) -> Array | None:
    """The array of a constant."""
    return x.primitive.array if isinstance(x.primitive, Constant) else None


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


def broadcast(x: Node, shape: Shape, axes: Sequence[int]) -> Node:
    """``x`` repeated to ``shape``; itself where nothing is repeated."""
    if shape == x.shape and tuple(axes) == tuple(range(x.rank)):
        return x
    return node(Broadcast(shape, tuple(axes)), x)


def reshape(x: Node, shape: Shape) -> Node:
    """``x`` under another shape."""
    return x if shape == x.shape else node(Reshape(shape), x)


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Axis i of the result is axis ``permutation[i]`` of ``x``."""
    if tuple(permutation) == tuple(range(x.rank)):
        return x
    return node(Transpose(tuple(permutation)), x)


def slice_axis(x: Node, axis: int, start: Expr, size: Expr, step: int = 1) -> Node:
    """``size`` elements of one axis."""
    starts, sizes, steps = [constant(0)] * x.rank, list(x.shape), [constant(1)] * x.rank
    starts[axis], sizes[axis], steps[axis] = start, size, constant(step)
    if sizes[axis] is x.shape[axis] and is_number(start, 0) and step == 1:
        return x
    return node(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


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
