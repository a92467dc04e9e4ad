"""Products of quantised tensors on register tiles of bytes: which, and what makes them exact.

An operand is *quantised* if it is bytes minus a zero point, times a scale or not: the operands of
MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv, and what DequantizeLinear gives. With
data a and weights b of depth K,

    Σ (a - za)(b - zb) = Σ a b  -  za Σ (b - zb)  -  zb Σ a,

in int32, exactly, as sums of integers wrap around alike in any order. Tiles multiply data without
sign by signed weights, so bytes of the other kind are shifted by 128, and their zero point with
them. Scales that do not vary along the depth are applied to the exact sum, which rounds once what
float32 would have rounded for every product. Sums over b are constants, or a reduction where b is
not known when compiling. Of a depth at which float32 sums could leave int32, the middle of what
they can be is taken off them before and added to the float. Start with :func:`integer_products`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import (
    Cast,
    Contract,
    Convolve,
    Dimension,
    Map,
    Pad,
    Reduce,
    Window,
)
from tilewright.rewrite.build import (
    Array,
    all_numbers,
    broadcast,
    contents,
    filled,
    label,
    literal,
    static_shape,
)
from tilewright.rewrite.quantised import (
    OFFSET,
    Parameter,
    Quantised,
    known,
    quantised,
    with_sign,
    without_sign,
)
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    less_equal,
    maximum,
    product,
    select,
)

WORD = 4  # bytes of an operand that a tile takes at a time
EXACT = {DType.FLOAT32: 1 << 24, DType.FLOAT64: 1 << 53}  # up to where all integers are numbers
LARGEST = 255 * 255  # product of two bytes minus their zero points
SUMS = 1 << 31  # that an int32 holds


def integer_products(graph: Graph) -> Graph:
    """The graph with its products of quantised tensors in types that have register tiles.

    They become narrow ones, see the module; float32 products only where both operands are quantised
    by constant scales and zero points, and all sums lie within the width of an int32. Products in
    int32 without tiles are computed in floats that hold every sum exactly.
    """

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        found = same(current, operands)
        if not isinstance(found.primitive, Contract | Convolve) or found.primitive.sums is not None:
            return found
        if found.dtype not in (DType.INT32, DType.FLOAT32):
            return found
        made = _rewritten(found, graph.scope)
        if made is not found and current in graph.labels:
            products[made] = graph.labels[current]
        return made

    products: dict[Node, str] = {}
    changed = mapped(graph, change)
    labels = dict(changed.labels)
    for made, text in products.items():
        label(made, text, labels)
    return replace(changed, labels=labels)


def has_integer_products(graph: Graph) -> bool:
    """Whether products of bytes are summed in int32."""
    kinds = (x.primitive for x in graph.nodes() if x.dtype is DType.INT32)
    return any(isinstance(p, Contract | Convolve) and p.sums is not None for p in kinds)


# ---------------------------------------------------------------- what products become


def _rewritten(x: Node, scope: Scope) -> Node:
    """A product of two quantised operands in types with tiles; any other one as it is."""
    left, right = (quantised(operand) for operand in x.inputs)
    if left is None or right is None:
        return x
    if _is_narrow(x, left, right, scope):
        return _narrow(x, left, right, scope)
    if x.dtype is DType.INT32:
        return _in_floats(x, right, scope)
    return _whole_in_groups(x, left, right)


def _is_narrow(x: Node, left: Quantised, right: Quantised, scope: Scope) -> bool:
    """Whether there are tiles of bytes for a product."""
    primitive = x.primitive
    if any(size is constant(0) for size in (*left.data.shape, *right.data.shape)):
        return False  # nothing is multiplied, and a depth of no elements has no words
    summed = _summed(x)
    if left.varies_along(summed[0]) or right.varies_along(summed[1]):
        return False
    if x.dtype is DType.FLOAT32:
        if not all(_is_finite(p) for p in (*left.parameters, *right.parameters)):
            return False
        if _middle_of_sums(x, left, right, scope) is None:
            return False
    if isinstance(primitive, Contract):
        return len(primitive.summed) == 1
    assert isinstance(primitive, Convolve)
    # What lies outside of the data has one zero point, and is one number.
    single = all(not p.axes for p in left.parameters)
    plain = primitive.groups == 1 and all(size == 1 for size in primitive.spread)
    shape = static_shape(right.data)
    wide = shape is not None and shape[1] > WORD // 2
    return single and plain and wide and _has_byte_for_zero(left)


def _has_byte_for_zero(q: Quantised) -> bool:
    """Whether 0 may be among the bytes, which a border is made of."""
    low, high = _ends(q)
    return low <= 0 <= high


def _is_finite(parameter: Parameter) -> bool:
    array = known(parameter.value)
    return array is not None and bool(np.isfinite(array).all())


def _summed(x: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of either operand that a product sums over; a pixel of data is one element."""
    if isinstance(x.primitive, Contract):
        pairs = x.primitive.summed
        return tuple(i for i, _ in pairs), tuple(j for _, j in pairs)
    return tuple(range(1, x.rank)), tuple(range(1, x.rank))


def _depth(weights: Array, summed: Sequence[int]) -> int:
    return math.prod(weights.shape[axis] for axis in summed)


def _places(x: Node) -> tuple[dict[int, int], dict[int, int]]:
    """The axis of the product that each axis of either operand becomes, if it does."""
    if isinstance(x.primitive, Convolve):
        return {0: 0}, {0: x.primitive.channel_axis}
    assert isinstance(x.primitive, Contract)
    left, right = x.inputs
    along_left, along_right = _summed(x)
    batch = x.primitive.batch
    first, second = [i for i, _ in batch], [j for _, j in batch]
    rows = [axis for axis in range(left.rank) if axis not in (*first, *along_left)]
    columns = [axis for axis in range(right.rank) if axis not in (*second, *along_right)]
    own = {axis: len(batch) + len(rows) + place for place, axis in enumerate(columns)}
    return (
        {axis: place for place, axis in enumerate((*first, *rows))},
        {axis: place for place, axis in enumerate(second)} | own,
    )


def _middle_of_sums(x: Node, left: Quantised, right: Quantised, scope: Scope) -> Expr | None:
    """What to take off the sums of a product, at any of its sizes, so that an int32 holds them.

    That is 0 at all depths at which it holds them as they are. None: nothing is enough.
    """
    summed = product([x.inputs[1].shape[axis] for axis in _summed(x)[1]])
    deepest = scope.bounds(summed).high
    if deepest is None:
        return None
    ends = [a * b for a in _ends(left) for b in _ends(right)]
    low, high = min(ends), max(ends)
    most = max(-low, high, 1)
    if deepest * most < SUMS:
        return constant(0)
    middle = (low + high) // 2
    if deepest * max(high - middle, middle - low) >= SUMS:
        return None
    return select(less_equal(summed, (SUMS - 1) // most), 0, summed * middle)


def _ends(q: Quantised) -> tuple[int, int]:
    """The least and the largest of bytes minus zero points that are known."""
    zero = None if q.zero is None else known(q.zero.value)
    point = np.zeros(1) if zero is None or not zero.size else zero
    limits = contents(q.data)
    if limits is None or not limits.size:
        limits = np.array([-OFFSET, OFFSET - 1] if q.data.dtype is DType.INT8 else [0, 255])
    return int(limits.min()) - int(point.max()), int(limits.max()) - int(point.min())


def _narrow(x: Node, left: Quantised, right: Quantised, scope: Scope) -> Node:
    """The product of bytes, what zero points take off it, and scales."""
    middle = _middle_of_sums(x, left, right, scope) if x.dtype is DType.FLOAT32 else constant(0)
    assert middle is not None, "a sum might leave int32"
    left, right = without_sign(left), with_sign(right)
    rows, columns = _places(x)
    data, weights, primitive = _in_words(x, left, right)
    exact = node(replace(primitive, sums=DType.INT32), data, weights)
    if left.zero is not None:
        taken = _column_sums(right, _summed(x)[1]).spread(x.shape, columns)
        exact = _less(exact, left.zero.spread(x.shape, rows), taken)
    if right.zero is not None:
        # The words that a product's depth is filled up with are 0: the sums need no copy of them.
        summed = left.data if isinstance(primitive, Contract) else data
        exact = _less(exact, right.zero.spread(x.shape, columns), _row_sums(x, summed, primitive))
    if x.dtype is DType.INT32:
        return exact
    scaled = _in_float32(exact, middle)
    for scale in _scales(left.scale, right.scale, rows, columns):
        scaled = node(Map("multiply"), scaled, scale.spread(x.shape, {a: a for a in scale.axes}))
    return scaled


def _in_float32(exact: Node, middle: Expr) -> Node:
    """Sums as float32; where integers wrapped around, the ones near ``middle`` are meant."""
    if middle is constant(0):
        return node(Cast(DType.FLOAT32), exact)
    taken = node(Cast(DType.INT32), node(Dimension(middle)))
    near = node(Map("subtract"), exact, broadcast(taken, exact.shape, ()))
    added = node(Cast(DType.FLOAT32), taken)
    wide = node(Cast(DType.FLOAT32), near)
    return node(Map("add"), wide, broadcast(added, exact.shape, ()))


def _column_sums(right: Quantised, along: Sequence[int]) -> Parameter:
    """Σ (b - zb): the sums of the second operand along some axes, less its zero point."""
    array, whole = contents(right.data), right.data.shape
    free = tuple(axis for axis in range(right.data.rank) if axis not in along)
    if array is None:
        wide = node(Cast(DType.INT32), right.data)
        if right.zero is not None:
            zero = right.zero.spread(whole, {axis: axis for axis in free})
            wide = node(Map("subtract"), wide, zero)
        return Parameter(node(Reduce("sum", tuple(along)), wide), free)
    taken = literal(array.sum(along, dtype=np.int32), DType.INT32)
    if right.zero is not None:
        at = {axis: place for place, axis in enumerate(free)}
        zero = right.zero.spread(taken.shape, at)
        centre = node(Map("multiply"), zero, filled(_depth(array, along), zero))
        taken = node(Map("subtract"), taken, centre)
    return Parameter(taken, free)


def _scales(
    left: Parameter | None, right: Parameter | None, rows: dict[int, int], columns: dict[int, int]
) -> list[Parameter]:
    """The constant scales of both operands on the axes of a product, one if either is a number."""
    given = [(left, rows), (right, columns)]
    found = [
        (known(scale.value), tuple(places[axis] for axis in scale.axes))
        for scale, places in given
        if scale is not None
    ]
    arrays = [(array, axes) for array, axes in found if array is not None]
    if len(arrays) == 2 and not (arrays[0][1] and arrays[1][1]):
        arrays = [(arrays[0][0] * arrays[1][0], arrays[0][1] + arrays[1][1])]
    return [Parameter(literal(array, DType.FLOAT32), axes) for array, axes in arrays]


def _less(x: Node, a: Node, b: Node) -> Node:
    """x - a * b."""
    return node(Map("subtract"), x, node(Map("multiply"), a, b))


# ---------------------------------------------------------------- operands in words


def _in_words(x: Node, left: Quantised, right: Quantised) -> tuple[Node, Node, Contract | Convolve]:
    """Data, weights and product, the depth (of a tap: the channels) filled up to whole words.

    Of a convolution whose zero is not the byte 0, data also has the border that is read.
    """
    primitive, data, weights = x.primitive, left.data, right.data
    fill = literal(0, data.dtype)
    assert isinstance(primitive, Contract | Convolve)
    if isinstance(primitive, Contract):
        ((own, other),) = primitive.summed
    else:
        own, other = primitive.channel_axis, 1
        if left.zero is not None:
            zero = node(Cast(data.dtype), left.zero.value)
            taps = [size.value for size in weights.shape[2:]]
            data, primitive = bordered(data, taps, primitive, zero)
            if right.zero is None:  # else what is read is summed, too
                # Channels that are added meet weights of 0: with the border's number they are
                # a part of it, and no other copy.
                fill = zero
    return (
        _filled_up(data, own, fill),
        _filled_up(weights, other, literal(0, weights.dtype)),
        primitive,
    )


def _filled_up(x: Node, axis: int, fill: Node) -> Node:
    """``x`` with ``fill`` (0 for constants) at the end of an axis, up to whole words."""
    size = x.shape[axis]
    missing = ceil_div(size, WORD) * WORD - size
    if missing is constant(0):
        return x
    nothing = [constant(0)] * x.rank
    high = (*nothing[:axis], missing, *nothing[axis + 1 :])
    array = contents(x)
    if array is None:
        return node(Pad(tuple(nothing), high), x, fill)
    return literal(np.pad(array, [(0, width.value) for width in high]), x.dtype)


def bordered(
    data: Node, taps: Sequence[int], primitive: Convolve, fill: Node
) -> tuple[Node, Convolve]:
    """Data with what a convolution reads outside of it, ``fill``, and the one that stays inside."""
    low, high = [constant(0)] * data.rank, [constant(0)] * data.rank
    spatial = range(data.rank)[primitive.spatial]
    rows = zip(
        spatial, taps, primitive.strides, primitive.dilations, primitive.low, primitive.sizes,
        strict=True,
    )  # fmt: skip
    for axis, count, stride, dilation, before, made in rows:
        end: Expr = (made - 1) * stride + (count - 1) * dilation + 1
        low[axis], high[axis] = before, maximum(end - before - data.shape[axis], 0)
    if all_numbers((*low, *high), 0):
        return data, primitive
    inside = replace(primitive, low=tuple(constant(0) for _ in primitive.low))
    return node(Pad(tuple(low), tuple(high)), data, fill), inside


def _row_sums(x: Node, data: Node, primitive: Contract | Convolve) -> Node:
    """The sums of what every element of a product reads of its data, in its shape."""
    wide = node(Cast(DType.INT32), data)
    if isinstance(primitive, Contract):
        along = _summed(x)[0]
        rows = tuple(axis for axis in range(data.rank) if axis not in along)
        return Parameter(node(Reduce("sum", along), wide), rows).spread(x.shape, _places(x)[0])
    lines = node(Reduce("sum", (primitive.channel_axis,)), wide)
    taps = tuple(size.value for size in x.inputs[1].shape[2:])
    sums = node(
        Window("sum", taps, primitive.strides, primitive.dilations, primitive.low, primitive.sizes),
        lines,
    )
    axes = (axis for axis in range(x.rank) if axis != primitive.channel_axis)
    return broadcast(sums, x.shape, tuple(axes))


# ---------------------------------------------------------------- sums in floats


def _whole_in_groups(x: Node, left: Quantised, right: Quantised) -> Node:
    """A float32 convolution in groups as one of whole numbers, with the scales behind it.

    Its sums are exact, and data is converted by every tap only.
    """
    weights = contents(right.data)
    if not isinstance(x.primitive, Convolve) or x.primitive.groups == 1 or weights is None:
        return x
    alone = left.scale is None or not left.scale.axes
    parameters = (*left.parameters, *right.parameters)
    if not alone or not all(_is_finite(p) for p in parameters) or weights.size == 0:
        return x
    summed = _summed(x)[1]
    exact = _depth(weights, summed) * LARGEST <= EXACT[x.dtype]
    if not exact or right.varies_along(summed):
        return x
    made = node(x.primitive, _centred(_plain(left), x.dtype), _centred(right, x.dtype))
    for scale in _scales(left.scale, right.scale, *_places(x)):
        made = node(Map("multiply"), made, scale.spread(x.shape, {a: a for a in scale.axes}))
    return made


def _plain(q: Quantised) -> Quantised:
    """Bytes without a zero point, where a shift to those without a sign takes it away."""
    if q.data.dtype is DType.UINT8 or q.zero is None:
        return q
    array = known(q.zero.value)
    return q if array is None or (array != -OFFSET).any() else replace(without_sign(q), zero=None)


def _centred(q: Quantised, dtype: DType) -> Node:
    """Bytes minus their zero point, in a type that holds that."""
    array, point = contents(q.data), None if q.zero is None else known(q.zero.value)
    if array is not None and (q.zero is None or point is not None):
        whole = array.astype(np.int32)
        if q.zero is not None and point is not None:
            view = [1] * array.ndim
            for axis, size in zip(q.zero.axes, point.shape, strict=True):
                view[axis] = size
            whole -= point.astype(np.int32).reshape(view)
        return literal(whole, dtype)
    wide = node(Cast(dtype), q.data)
    if q.zero is None:
        return wide
    value = literal(point, dtype) if point is not None else node(Cast(dtype), q.zero.value)
    zero = replace(q.zero, value=value).spread(wide.shape, {a: a for a in q.zero.axes})
    return node(Map("subtract"), wide, zero)


def _in_floats(x: Node, right: Quantised, scope: Scope) -> Node:
    """A product in int32 of numbers of nine bits, computed in floats that hold all its sums."""
    summed = _summed(x)
    depth = scope.bounds(product([x.inputs[1].shape[axis] for axis in summed[1]])).high
    largest = None if depth is None else depth * LARGEST
    array = contents(right.data)
    if array is not None and right.zero is None and array.size:
        largest = 255 * int(np.abs(array.astype(np.int64)).sum(summed[1]).max())
    fits = largest is not None and largest < EXACT[DType.FLOAT32]
    wide = DType.FLOAT32 if fits else DType.FLOAT64
    assert isinstance(x.primitive, Contract | Convolve)
    made = node(x.primitive, *(node(Cast(wide), operand) for operand in x.inputs))
    if largest is None or largest >= SUMS:
        made = node(Cast(DType.INT64), made)  # whose lower half is what wraps around
    return node(Cast(DType.INT32), made)


__all__ = ["bordered", "has_integer_products", "integer_products"]
