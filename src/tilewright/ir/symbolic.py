"""Integer contents of nodes as shape expressions.

Shape arithmetic in a model (Shape, Gather, Concat, Mul, … on small integer tensors) is ordinary
primitives here; :func:`integer_contents` reads it back as expressions, so that a Reshape by a
computed shape gets symbolic sizes. None means: known only when the data is. Floats on the way (a
size times 0.5, rounded down) are followed where they are exact; ``ratio`` holds those in between.
Integers wrap as those of their type do; where an expression may leave its type, that is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

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
from tilewright.ir.ratio import Element, ratio_of, ratio_result
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    exact_quotient,
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
# Of a product: a size of all axes of a tensor has some eight, and what is multiplied out again and
# again soon overflows.
_MOST_FACTORS = 12
_LONGEST = 1024  # factors of a sum of products
_MAY_OVERFLOW = ("add", "subtract", "multiply", "negate", "absolute", "divide")
_cache: WeakKeyDictionary[Node, Contents | None] = WeakKeyDictionary()


def integer_contents(node: Node) -> Contents | None:
    """The elements of a small node as an object array of ``Expr``; None if unknown or not whole."""
    elements = known_elements(node)
    return elements if elements is not None and are_whole(elements) else None


def are_whole(elements: Contents) -> bool:
    """Whether all elements are expressions (and none a :class:`Ratio`)."""
    return all(isinstance(e, Expr) for e in elements.reshape(-1))


def known_elements(node: Node) -> Contents | None:
    """As :func:`integer_contents`, but elements of float nodes may be fractions (``Ratio``)."""
    stack = [node]
    while stack:
        current = stack[-1]
        waiting = [] if current in _cache else _unknown_yet(current)
        if current not in _cache and not waiting:
            _cache[current] = _contents(current)
        if current in _cache:
            stack.pop()
        else:
            stack += waiting
    return _cache[node]


def _unknown_yet(node: Node) -> list[Node]:
    """Operands that must be looked at first; none where the node cannot be known anyway."""
    if not _may_be_known(node) or any(_cache.get(i, node) is None for i in node.inputs):
        return []
    return [i for i in node.inputs if i not in _cache]


def _may_be_known(node: Node) -> bool:
    return (
        (node.dtype.is_integer or node.dtype in (DType.BOOL, DType.FLOAT32, DType.FLOAT64))
        and all(size.is_constant for size in node.shape)
        and product(node.shape).value <= LARGEST
    )


def _filled(shape: tuple[int, ...]) -> Contents:
    return np.empty(shape, dtype=object)


def _contents(node: Node) -> Contents | None:
    if not _may_be_known(node):
        return None
    operands = [_cache.get(i) for i in node.inputs]
    known = [o for o in operands if o is not None]
    return elements_from(node, known) if len(known) == len(operands) else None


def elements_from(node: Node, operands: Sequence[Contents]) -> Contents | None:
    """The elements of ``node`` (of constant shape) from those of its operands, or None."""
    shape = tuple(size.value for size in node.shape)
    if 0 in shape:
        return _filled(shape)
    match node.primitive:
        case Constant(codes=None, array=array):
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
            return _apply(node, operands, shape) if operands else None


def _of_constant(array: np.ndarray[Any, Any]) -> Contents | None:
    out = _filled(array.shape)
    for index in np.ndindex(*array.shape):
        number = array[index]
        whole = array.dtype.kind != "f" or float(number).is_integer()
        element = constant(int(number)) if whole else ratio_of(float(number))
        if element is None:
            return None
        out[index] = element
    return out


def _apply(node: Node, operands: Sequence[Contents], shape: tuple[int, ...]) -> Contents | None:
    match node.primitive:
        case Map(function=function):
            results = _apply_map(function, operands, shape, node.inputs[0].dtype)
            return _wrapped(results, node.dtype) if function in _MAY_OVERFLOW else results
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
            return _wrapped(_reduce(kind, operands[0], axes, shape), node.dtype)
        case _:
            return None


def _cast(node: Node, operand: Contents) -> Contents | None:
    if node.dtype.is_float:
        return operand
    function = "is_not_zero" if node.dtype is DType.BOOL else "truncate"
    cast = _apply_map(function, [operand], operand.shape, node.inputs[0].dtype)
    narrower = not _holds(node.dtype, node.inputs[0].dtype)
    return _wrapped(cast, node.dtype) if narrower else cast


def _holds(dtype: DType, other: DType) -> bool:
    """Whether a type holds all integers of another one."""
    (low, high), (least, most) = _limits(dtype), _limits(other)
    return low <= least and most <= high


def _limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type; those of int64 for floats."""
    if dtype is DType.BOOL:
        return 0, 1
    bits = 64 if dtype.is_float else dtype.bytes * 8
    return (0, (1 << bits) - 1) if dtype.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _wrapped(contents: Contents | None, dtype: DType) -> Contents | None:
    """Contents as a type holds them; None where that cannot be said in integers of 64 bits."""
    if contents is None or not dtype.is_integer:
        return contents
    out = _filled(contents.shape)
    low, high = _limits(dtype)
    count = high - low + 1
    for index in np.ndindex(*contents.shape):
        element: Expr = contents.item(index)
        if element.is_constant:
            out[index] = constant((element.value - low) % count + low)
        elif dtype is DType.UINT64:
            return None
        else:
            out[index] = element if dtype is DType.INT64 else (element - low) % count + low
    return out


def _apply_map(
    function: str, operands: Sequence[Contents], shape: tuple[int, ...], dtype: DType
) -> Contents | None:
    out = _filled(shape)
    for index in np.ndindex(*shape):
        result = _element(function, [o.item(index) for o in operands], dtype)
        if result is None or (isinstance(result, Expr) and _is_long(result)):
            return None
        out[index] = result
    return out


def _is_long(element: Expr) -> bool:
    """Whether steps of a computation have been multiplied out too often.

    Such a size is one of the values that a call computes, as an Expand by any other value is.
    """
    factors = [len(monomial.atoms) for monomial, _ in element.terms]
    return sum(factors) > _LONGEST or max(factors, default=0) > _MOST_FACTORS


def _element(function: str, x: list[Element], dtype: DType) -> Element | None:
    whole = [e for e in x if isinstance(e, Expr)]
    if len(whole) < len(x) or (function == "divide" and dtype.is_float):
        return ratio_result(function, x)
    return _scalar(function, whole)


def _scalar(function: str, x: list[Expr]) -> Expr | None:
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
            return _divide(x[0], x[1])
        case "truncated_remainder":
            quotient = _divide(x[0], x[1])
            return None if quotient is None else x[0] - quotient * x[1]
        case "remainder":
            divisor = _divisor(x[1])
            # As a difference, which cancels where a model rounds sizes up to a multiple.
            return None if divisor is None else x[0] - x[0] // divisor * divisor
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
            return x[0]
        case "is_not_zero":
            return logical_not(equal(x[0], 0))
        case _:
            return None


def _divisor(b: Expr) -> Expr | None:
    """``b`` as a divisor. Dividing by 0 has no meaning in the model; it must not fail here."""
    if b.is_constant:
        return b if b.value else None
    return select(equal(b, 0), 1, b)


def _divide(a: Expr, b: Expr) -> Expr | None:
    """Division of integers, truncating."""
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact
    divisor = _divisor(b)
    if divisor is None:
        return None
    # Where the quotient is proved to be 0 or more, the second term vanishes.
    return maximum(a // divisor, 0) + minimum(ceil_div(a, divisor), 0)


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
    flat: list[Expr] = [indices.item(i) for i in np.ndindex(*indices.shape)]
    if not all(e.is_constant for e in flat):
        return None
    size = data.shape[axis]
    if not all(-size <= e.value < size for e in flat):
        return None
    positions = np.array([e.value for e in flat], dtype=np.int64).reshape(indices.shape)
    # Taking one element of a vector gives the bare expression; contents are always an array.
    return np.asarray(np.take(data, positions, axis=axis), dtype=object)


def _reduce(
    kind: str, operand: Contents, axes: tuple[int, ...], shape: tuple[int, ...]
) -> Contents | None:
    if not are_whole(operand):
        return None
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
