"""Rules that compute what is known when compiling.

Weights may be transposed, cast and scaled; small constants are never blown up into large ones. May
import ``shape`` and ``ir``. Start with :func:`fold_constants`.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Node, expressions_of, node
from tilewright.ir.primitives import Broadcast, Constant, Dimension, Iota, Map, Transpose
from tilewright.ir.symbolic import LARGEST, integer_contents
from tilewright.rewrite.build import broadcast, contents, is_one, literal, static_shape
from tilewright.rewrite.facts import Facts
from tilewright.shape import product

SMALL = 4096  # elements that a folded constant may have whatever it is made of
GROWTH = 2  # times the elements of the operands that it may have otherwise
INT64 = (-(2**63), 2**63 - 1)  # the least and the greatest of the type


def fold_constants(x: Node, facts: Facts) -> Node | None:
    """p(constants) → constant, unless much larger than the constants.

    Broadcasts stay, they are free; so do large transposed constants that have other users, which
    would be stored twice. A Map takes broadcasts of constants for constants.
    """
    shape = static_shape(x)
    if shape is None or min(shape, default=0) < 0 or not _numeric(x):
        return None
    if not all(e.is_constant for e in expressions_of(x)):
        return None  # where a constant is cut may be a size
    if all(isinstance(i.primitive, Broadcast) for i in x.inputs):
        return None
    elements = math.prod(shape)
    read = sum(array.size for array in map(contents, x.inputs) if array is not None)
    if elements > max(SMALL, GROWTH * read):
        return None
    operands = [_foldable(i, isinstance(x.primitive, Map)) for i in x.inputs]
    arrays = [o for o in operands if o is not None]
    if len(arrays) < len(operands):
        return None
    shared = not all(facts.used_once(i) for i in x.inputs)
    if isinstance(x.primitive, Transpose) and shared and elements > SMALL:
        return None
    value = evaluate_node(x, list(arrays), {}, {}, None)
    return node(Constant.of(value, x.dtype))


def _foldable(operand: Node, spread: bool) -> np.ndarray | None:
    found = contents(operand)
    if found is None and spread and isinstance(operand.primitive, Broadcast):
        inner, shape = contents(operand.inputs[0]), static_shape(operand)
        if inner is not None and shape is not None:
            view = [1] * len(shape)
            for axis, size in zip(operand.primitive.axes, inner.shape, strict=True):
                view[axis] = size
            return np.broadcast_to(inner.reshape(view), shape)
    return found


def _numeric(x: Node) -> bool:
    return x.dtype.is_native and all(i.dtype.is_native for i in x.inputs)


def dimension_to_constant(x: Node, facts: Facts) -> Node | None:
    """Dimension(n) → Constant n, where n resolves to a number; else Dimension(resolved)."""
    assert isinstance(x.primitive, Dimension)
    value = facts.scope.resolve(x.primitive.value)
    if value.is_constant:
        return literal(value.value, DType.INT64) if INT64[0] <= value.value <= INT64[1] else None
    return None if value is x.primitive.value else node(Dimension(value))


def iota_along_one_axis(x: Node, facts: Facts) -> Node | None:
    """Iota(shape, axis) → Broadcast(Iota([n], 0)), n the size of the axis."""
    assert isinstance(x.primitive, Iota)
    if x.rank == 1:
        return None
    axis = x.primitive.axis
    line = node(Iota((x.shape[axis],), 0))
    return broadcast(line, x.shape, (axis,))


def iota_of_one_element(x: Node, facts: Facts) -> Node | None:
    """Iota([1]) → 0."""
    return literal(np.zeros(1), DType.INT64) if x.rank == 1 and is_one(x.shape[0]) else None


def known_integers(x: Node, facts: Facts) -> Node | None:
    """Integers computed from sizes → Constant; a scalar of them → Dimension.

    Only for the types that shape arithmetic is done in; a value outside of the type stays.
    """
    if x.dtype not in (DType.INT64, DType.INT32, DType.BOOL) or x.rank > 1 or not x.inputs:
        return None
    if isinstance(x.primitive, Broadcast) and x.inputs[0].rank == 0:
        return None
    if not (all(s.is_constant for s in x.shape) and product(x.shape).value <= LARGEST):
        return None
    known = integer_contents(x)
    if known is None:
        return None
    values = [facts.scope.resolve(known.item(i)) for i in np.ndindex(*known.shape)]
    if all(v.is_constant for v in values):
        numbers = [v.value for v in values]
        low, high = _range(x.dtype)
        if not all(low <= number <= high for number in numbers):
            return None
        return literal(np.array(numbers, dtype=object).reshape(known.shape), x.dtype)
    if x.rank == 0 and x.dtype is DType.INT64 and not isinstance(x.primitive, Dimension):
        return node(Dimension(values[0]))
    return None


def _range(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    information = np.iinfo(dtype.value)
    return int(information.min), int(information.max)


def uniform_constant(x: Node, facts: Facts) -> Node | None:
    """Constant of equal integers or truth values → Broadcast(scalar).

    Not for floats: those are weights, and a plan should not depend on what training gave them.
    """
    assert isinstance(x.primitive, Constant)
    if x.dtype.is_float or not x.dtype.is_native or x.primitive.array.size < 2:
        return None
    array = x.primitive.array
    first = array.reshape(-1)[0]
    if array.reshape(-1)[-1] != first or not bool(np.all(array == first)):
        return None
    return broadcast(literal(first, x.dtype), x.shape, ())
