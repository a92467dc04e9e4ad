"""What is quantised: bytes minus a zero point, times a scale or not, and how they are read.

Start with :func:`quantised`, which finds that in a graph. Products are made of it by
``rewrite.integers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Node, expressions_of, node
from tilewright.ir.primitives import Broadcast, Cast, Map, Reshape, Shape, Slice, Transpose
from tilewright.rewrite.build import (
    Array,
    broadcast,
    contents,
    filled,
    is_map,
    is_one,
    literal,
    reshape,
)

BYTES = (DType.INT8, DType.UINT8)
OFFSET = 128  # between bytes with a sign and those without


@dataclass(frozen=True)
class Parameter:
    """A scale or zero point: ``value`` has the axes ``axes`` of the operand, the rest repeat it."""

    value: Node
    axes: tuple[int, ...]

    def spread(self, shape: Shape, places: Mapping[int, int]) -> Node:
        """It in ``shape``, an operand's axis being ``places[axis]`` there."""
        return broadcast(self.value, shape, [places[axis] for axis in self.axes])


@dataclass(frozen=True)
class Quantised:
    """(``data`` - ``zero``) * ``scale``; None for 0 and 1."""

    data: Node
    zero: Parameter | None
    scale: Parameter | None

    def varies_along(self, axes: Sequence[int]) -> bool:
        """Whether a parameter has another value elsewhere along one of these axes."""
        return any(axis in axes for parameter in self.parameters for axis in parameter.axes)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its zero point and its scale, if it has them."""
        return tuple(p for p in (self.zero, self.scale) if p is not None)


# ---------------------------------------------------------------- what operands are


def quantised(x: Node) -> Quantised | None:
    """``x`` as bytes with parameters, if it is that, or a view of it."""
    views: list[Node] = []
    while isinstance(x.primitive, Reshape | Slice | Transpose):
        views.append(x)
        x = x.inputs[0]
    found = _scaled(x)
    for view in reversed(views):
        found = None if found is None else _viewed(found, view)
    return found


def _viewed(q: Quantised, view: Node) -> Quantised | None:
    """A view of bytes whose parameters, if they vary along an axis, keep that axis."""
    made = node(view.primitive, q.data)
    array = contents(q.data)
    if array is not None and all(size.is_constant for size in expressions_of(view)):
        made = literal(evaluate_node(made, [array], {}, {}, None), q.data.dtype)
    primitive = view.primitive
    if not q.varies_along(range(q.data.rank)):
        return replace(q, data=made)
    if not isinstance(primitive, Transpose) or any(len(p.axes) > 1 for p in q.parameters):
        return None
    place = {axis: i for i, axis in enumerate(primitive.permutation)}
    zero, scale = (
        None if p is None else replace(p, axes=tuple(place[axis] for axis in p.axes))
        for p in (q.zero, q.scale)
    )
    return Quantised(made, zero, scale)


def _scaled(x: Node) -> Quantised | None:
    """Bytes minus a zero point, times a scale or not."""
    if is_map(x, "multiply") and x.dtype is DType.FLOAT32:
        for inner, factor in (x.inputs, x.inputs[::-1]):
            scale, found = _parameter(factor), _centred(inner)
            if scale is not None and found is not None:
                return replace(found, scale=scale)
        return None
    return _centred(x)


def _centred(x: Node) -> Quantised | None:
    """Bytes minus a zero point, in int32 or float32."""
    if is_map(x, "subtract"):
        data, zero = _widened(x.inputs[0]), _parameter(x.inputs[1])
        point = None if zero is None else known(zero.value)
        if data is None or zero is None or (point is not None and (point != np.rint(point)).any()):
            return None
        return _plainest(data, _whole(zero), x.rank)
    array = known(x) if x.dtype is DType.INT32 else None
    if array is not None:
        return of_array(array)
    data = _widened(x)
    return None if data is None else _plainest(data, None, x.rank)


def _widened(x: Node) -> Node | None:
    """The bytes that ``x`` holds in a wider type."""
    if not isinstance(x.primitive, Cast) or x.inputs[0].dtype not in BYTES:
        return None
    array = known(x.inputs[0])
    return x.inputs[0] if array is None else literal(array, x.inputs[0].dtype)


def _plainest(data: Node, zero: Parameter | None, rank: int) -> Quantised:
    """Bytes that are known minus zero points that are, if that is bytes; else as it is given."""
    point = None if zero is None else known(zero.value)
    if zero is None or (point is not None and not point.any()):
        return Quantised(data, None, None)
    array = contents(data)
    if array is None or point is None:
        return Quantised(data, zero, None)
    view = [1] * rank
    for axis, size in zip(zero.axes, point.shape, strict=True):
        view[axis] = size
    found = of_array(array.astype(np.int32) - point.reshape(view))
    return Quantised(data, zero, None) if found is None else found


def of_array(array: Array) -> Quantised | None:
    """Known integers as signed bytes, shifted by a number if they must be."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low >= -OFFSET and high < OFFSET:
        return Quantised(literal(array, DType.INT8), None, None)
    if high - low >= 2 * OFFSET:
        return None
    shift = -OFFSET - low
    zero = Parameter(literal(shift, DType.INT32), ())
    return Quantised(literal(array + shift, DType.INT8), zero, None)


def _parameter(x: Node) -> Parameter | None:
    """What ``x`` repeats, without axes of size 1."""
    if x.rank == 0:
        return Parameter(x, ())
    if not isinstance(x.primitive, Broadcast):
        return None
    inner, axes = x.inputs[0], x.primitive.axes
    wide = [i for i, size in enumerate(inner.shape) if not is_one(size)]
    value = reshape(inner, tuple(inner.shape[i] for i in wide))
    return Parameter(value, tuple(axes[i] for i in wide))


def _whole(zero: Parameter) -> Parameter:
    """A zero point in int32."""
    array = known(zero.value)
    if array is not None:
        return replace(zero, value=literal(array, DType.INT32))
    is_whole = zero.value.dtype is DType.INT32
    return zero if is_whole else replace(zero, value=node(Cast(DType.INT32), zero.value))


def known(x: Node) -> Array | None:
    """What a constant, converted or reshaped, holds."""
    if isinstance(x.primitive, Cast | Reshape):
        inner = known(x.inputs[0])
        if inner is not None and all(size.is_constant for size in x.shape):
            return np.asarray(evaluate_node(x, [inner], {}, {}, None))
        return None
    return contents(x)


def single_number(x: Node) -> float | None:
    """The single number that ``x`` repeats."""
    array = known(x.inputs[0] if isinstance(x.primitive, Broadcast) else x)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


# ---------------------------------------------------------------- with a sign and without


def without_sign(q: Quantised) -> Quantised:
    """The same in uint8."""
    return q if q.data.dtype is DType.UINT8 else _shifted(q, OFFSET, DType.UINT8)


def with_sign(q: Quantised) -> Quantised:
    """The same in int8."""
    return q if q.data.dtype is DType.INT8 else _shifted(q, -OFFSET, DType.INT8)


def _shifted(q: Quantised, number: int, dtype: DType) -> Quantised:
    """The same with bytes that are larger by ``number``, in ``dtype``."""
    array = contents(q.data)
    if array is None:
        wide = node(Cast(DType.INT32), q.data)
        moved = node(Cast(dtype), node(Map("add"), wide, filled(number, wide)))
    else:
        moved = literal(array.astype(np.int32) + number, dtype)
    return replace(q, data=moved, zero=_moved(q.zero, number))


def _moved(zero: Parameter | None, number: int) -> Parameter:
    """The zero point of bytes that are larger by ``number``."""
    if zero is None:
        return Parameter(literal(number, DType.INT32), ())
    added = node(Map("add"), zero.value, filled(number, zero.value))
    return replace(zero, value=added)


__all__ = [
    "BYTES",
    "OFFSET",
    "Parameter",
    "Quantised",
    "known",
    "quantised",
    "single_number",
    "with_sign",
    "without_sign",
]
