"""Integer contents of nodes as shape expressions.

Shape arithmetic in a model (Shape, Gather, Concat, Mul, … on small integer tensors) is ordinary
primitives here; :func:`integer_contents` reads it back as expressions, so that a Reshape by a
computed shape gets symbolic sizes. None means: known only when the data is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Dimension,
    Gather,
    Iota,
    Map,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    product,
    select,
    total,
)

Contents = np.ndarray[Any, np.dtype[np.object_]]
LARGEST = 256  # elements; shape vectors are short, and larger tables are data
_cache: dict[Node, Contents | None] = {}


def integer_contents(node: Node) -> Contents | None:
    """The elements of an integer or bool node as an object array of ``Expr``, or None if unknown."""
    if not (node.dtype.is_integer or node.dtype in (DType.BOOL, DType.FLOAT32, DType.FLOAT64)):
        return None
    if not all(size.is_constant for size in node.shape):
        return None
    if product(node.shape).value > LARGEST:
        return None
    if node not in _cache:
        _cache[node] = _contents(node)
    return _cache[node]


def _filled(shape: tuple[int, ...]) -> Contents:
    return np.empty(shape, dtype=object)


def _contents(node: Node) -> Contents | None:
    primitive = node.primitive
    shape = tuple(size.value for size in node.shape)
    if 0 in shape:
        return _filled(shape)
    match primitive:
        case Constant(array=array):
            return _of_constant(array)
        case Dimension(value=value):
            out = _filled(())
            out[()] = value
            return out
        case Iota(axis=axis):
            out = _filled(shape)
            for index in np.ndindex(*shape):
                out[index] = constant(index[axis])
            return out
        case _:
            operands = [integer_contents(i) for i in node.inputs]
            known = [o for o in operands if o is not None]
            if len(known) != len(operands):
                return None
            return _apply(node, known, shape)


def _of_constant(array: np.ndarray[Any, Any]) -> Contents | None:
    out = _filled(array.shape)
    for index in np.ndindex(*array.shape):
        number = array[index]
        if array.dtype.kind == "f" and not float(number).is_integer():
            return None
        out[index] = constant(int(number))
    return out


def _apply(node: Node, operands: list[Contents], shape: tuple[int, ...]) -> Contents | None:
    match node.primitive:
        case Map(function=function):
            return _apply_map(function, operands, shape, node.inputs[0].dtype)
        case Cast():
            return _cast(node, operands[0])
        case Reshape():
            return operands[0].reshape(shape)
        case Transpose(permutation=permutation):
            return operands[0].transpose(permutation)
        case Broadcast(axes=axes):
            view = [1] * len(shape)
            for axis, size in zip(axes, operands[0].shape, strict=True):
                view[axis] = size
            return np.broadcast_to(operands[0].reshape(view), shape)
        case Concat(axis=axis):
            return np.concatenate(operands, axis=axis)
        case Slice(starts=starts, sizes=sizes, steps=steps):
            return _slice(operands[0], starts, sizes, steps)
        case Gather(axis=axis):
            return _gather(operands[0], operands[1], axis)
        case Reduce(kind=kind, axes=axes):
            return _reduce(kind, operands[0], axes, shape)
        case _:
            return None


def _cast(node: Node, operand: Contents) -> Contents | None:
    if node.dtype is DType.BOOL:
        out = _filled(operand.shape)
        for index in np.ndindex(*operand.shape):
            out[index] = logical_not(equal(operand[index], 0))
        return out
    return operand


def _apply_map(
    function: str, operands: list[Contents], shape: tuple[int, ...], dtype: DType
) -> Contents | None:
    out = _filled(shape)
    for index in np.ndindex(*shape):
        result = _scalar(function, [o[index] for o in operands], dtype)
        if result is None:
            return None
        out[index] = result
    return out


def _scalar(function: str, x: list[Expr], dtype: DType) -> Expr | None:
    match function:
        case "add":
            return x[0] + x[1]
        case "subtract":
            return x[0] - x[1]
        case "multiply":
            return x[0] * x[1]
        case "negate":
            return -x[0]
        case "absolute":
            return maximum(x[0], -x[0])
        case "divide":
            return _divide(x[0], x[1], dtype)
        case "remainder":
            return None if x[1].is_constant and x[1].value == 0 else x[0] % x[1]
        case "maximum":
            return maximum(*x)
        case "minimum":
            return minimum(*x)
        case "equal":
            return equal(*x)
        case "less":
            return less(*x)
        case "less_equal":
            return less_equal(*x)
        case "logical_and":
            return logical_and(*x)
        case "logical_or":
            return logical_or(*x)
        case "logical_not":
            return logical_not(x[0])
        case "select":
            return select(*x)
        case "floor" | "ceil" | "round_even" | "truncate":
            return _rounded(function, x[0])
        case _:
            return None


def _divide(a: Expr, b: Expr, dtype: DType) -> Expr | None:
    """Truncating division of integers; a float quotient is known only where it is exact."""
    if not b.is_constant or b.value == 0:
        return None
    if dtype.is_float:
        exact = a // b
        return exact if exact * b is a else None
    forward = select(less(a, 0), ceil_div(a, b), a // b)
    backward = select(less(a, 0), a // b, ceil_div(a, b))
    return forward if b.value > 0 else backward


def _rounded(function: str, x: Expr) -> Expr:
    del function  # known contents are whole numbers: every rounding keeps them
    return x


def _slice(
    operand: Contents, starts: tuple[Expr, ...], sizes: tuple[Expr, ...], steps: tuple[Expr, ...]
) -> Contents | None:
    if not all(e.is_constant for e in starts + sizes + steps):
        return None
    picks = [
        [start.value + i * step.value for i in range(size.value)]
        for start, size, step in zip(starts, sizes, steps, strict=True)
    ]
    return operand[np.ix_(*picks)] if picks else operand


def _gather(data: Contents, indices: Contents, axis: int) -> Contents | None:
    flat = [indices[i] for i in np.ndindex(*indices.shape)]
    if not all(e.is_constant for e in flat):
        return None
    size = data.shape[axis]
    if not all(-size <= e.value < size for e in flat):
        return None
    positions = np.array([e.value for e in flat], dtype=np.int64).reshape(indices.shape)
    return np.take(data, positions, axis=axis)


def _reduce(
    kind: str, operand: Contents, axes: tuple[int, ...], shape: tuple[int, ...]
) -> Contents | None:
    moved = np.moveaxis(operand, axes, range(len(axes)))
    rows = moved.reshape(-1, *shape) if moved.size else np.empty((0, *shape), dtype=object)
    out = _filled(shape)
    for index in np.ndindex(*shape):
        column = [rows[(r, *index)] for r in range(rows.shape[0])]
        match kind:
            case "sum":
                out[index] = total(column)
            case "product":
                out[index] = product(column)
            case "maximum" if column:
                out[index] = maximum(*column)
            case "minimum" if column:
                out[index] = minimum(*column)
            case _:
                return None
    return out
