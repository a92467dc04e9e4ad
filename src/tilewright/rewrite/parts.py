"""Rules of Slice, Concat, Pad and Gather: taking parts of parts.

May import ``shape`` and ``ir``. Start with :func:`slice_of_slice`.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.graph import Node, node
from tilewright.ir.make import MOST_PARTS
from tilewright.ir.primitives import (
    Broadcast,
    Concat,
    Constant,
    Dimension,
    Gather,
    GatherND,
    Iota,
    Map,
    Pad,
    Reshape,
    Shape,
    Slice,
)
from tilewright.ir.views import pull_back
from tilewright.rewrite.build import (
    Array,
    all_numbers,
    broadcast,
    contents,
    is_number,
    is_one,
    reshape,
    slice_axis,
)
from tilewright.rewrite.facts import Facts
from tilewright.shape import Expr, Truth, constant


def slice_of_all(x: Node, facts: Facts) -> Node | None:
    """Slice(a) of every element, forwards → a."""
    assert isinstance(x.primitive, Slice)
    cut = x.primitive
    whole = x.shape == x.inputs[0].shape and all_numbers(cut.starts, 0)
    return x.inputs[0] if whole and all_numbers(cut.steps, 1) else None


def slice_of_slice(x: Node, facts: Facts) -> Node | None:
    """Slice(Slice(a, s, d), t, e) → Slice(a, s + t·d, d·e)."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Slice) and isinstance(x.primitive, Slice)):
        return None
    first, second = operand.primitive, x.primitive
    resolve = facts.scope.resolve
    rows = list(zip(first.starts, first.steps, second.starts, second.steps, strict=True))
    starts = tuple(resolve(s + t * d) for s, d, t, _ in rows)
    steps = tuple(resolve(d * e) for _, d, _, e in rows)
    return node(Slice(starts, second.sizes, steps), operand.inputs[0])


def slice_of_pad(x: Node, facts: Facts) -> Node | None:
    """Slice(Pad(a, low, high), low, sizes of a) → a."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Pad) and isinstance(x.primitive, Slice)):
        return None
    cut, padded = x.primitive, operand.inputs[0]
    if x.shape != padded.shape or not all_numbers(cut.steps, 1):
        return None
    low = operand.primitive.low
    return padded if all(map(facts.same, cut.starts, low)) else None


def slice_of_concat(x: Node, facts: Facts) -> Node | None:
    """Slice(Concat(a, b, …)) within b → Slice(b), the steps along the axis being 1."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Concat) and isinstance(x.primitive, Slice)):
        return None
    cut, axis = x.primitive, operand.primitive.axis
    if not is_number(cut.steps[axis], 1):
        return None
    start, size, offset = cut.starts[axis], cut.sizes[axis], constant(0)
    for part in operand.inputs:
        following = offset + part.shape[axis]
        inside = facts.is_less_equal(offset, start)
        if inside and facts.is_less_equal(start + size, following):
            starts = list(cut.starts)
            starts[axis] = facts.scope.resolve(start - offset)
            return node(Slice(tuple(starts), cut.sizes, cut.steps), part)
        offset = following
    return None


def concat_of_one(x: Node, facts: Facts) -> Node | None:
    """Concat(a) → a; operands without elements (of constant size 0) are left out before."""
    assert isinstance(x.primitive, Concat)
    axis = x.primitive.axis
    kept = [i for i in x.inputs if not is_number(i.shape[axis], 0)] or [x.inputs[0]]
    if len(kept) == 1:
        return kept[0]
    return node(x.primitive, *kept) if len(kept) < len(x.inputs) else None


def concat_of_concat(x: Node, facts: Facts) -> Node | None:
    """Concat(a, Concat(b, c)) → Concat(a, b, c), along one axis, if nothing else reads the inner.

    An inner one that stays is one part to copy; its own parts would be many, again and again. One
    of a few of very many parts stays as well.
    """
    parts: list[Node] = []
    for operand in x.inputs:
        inner = operand.primitive == x.primitive and facts.used_once(operand)
        parts += operand.inputs if inner else (operand,)
    return node(x.primitive, *parts) if len(x.inputs) < len(parts) <= MOST_PARTS else None


def pad_by_nothing(x: Node, facts: Facts) -> Node | None:
    """Pad(a, 0, 0) → a."""
    assert isinstance(x.primitive, Pad)
    return x.inputs[0] if all_numbers(x.primitive.low + x.primitive.high, 0) else None


def pad_of_pad(x: Node, facts: Facts) -> Node | None:
    """Pad(Pad(a, v, p), v, q) → Pad(a, v, p + q)."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Pad) and isinstance(x.primitive, Pad)):
        return None
    if operand.inputs[1] is not x.inputs[1]:
        return None
    inner, outer = operand.primitive, x.primitive
    low = tuple(a + b for a, b in zip(inner.low, outer.low, strict=True))
    high = tuple(a + b for a, b in zip(inner.high, outer.high, strict=True))
    return node(Pad(low, high), operand.inputs[0], x.inputs[1])


def gather_of_one(x: Node, facts: Facts) -> Node | None:
    """Gather(a, i) → Reshape(Slice(a, i, 1)), i being a number or a size proved to be in range."""
    data, indices = x.inputs
    assert isinstance(x.primitive, Gather)
    axis = x.primitive.axis
    if indices.rank == 0:
        index = element(indices, (), facts)
        start = None if index is None else _in_range(index, data.shape[axis], facts)
        if start is not None:
            return reshape(slice_axis(data, axis, start, constant(1)), x.shape)
    return None


def gather_of_run(x: Node, facts: Facts) -> Node | None:
    """Gather(a, [s, s + d, …]) → Slice(a, s, d), d > 0, all proved to be in range.

    Other axes of the indices may have size 1.
    """
    data, indices = x.inputs
    assert isinstance(x.primitive, Gather)
    axis = x.primitive.axis
    wide = [a for a, size in enumerate(indices.shape) if not is_one(size)]
    if len(wide) > 1 or indices.rank == 0:
        return None
    along = wide[0] if wide else 0
    count, size = indices.shape[along], data.shape[axis]
    if is_number(count, 0):
        return None
    position = facts.position(along, count)
    index = [position if a == along else constant(0) for a in range(indices.rank)]
    value = element(indices, tuple(index), facts)
    if value is None:
        return None
    first = value.substitute({str(position): 0})
    difference = value.substitute({str(position): 1}) - first
    affine = difference.is_constant and value is first + position * difference
    step = difference.value if affine else 0
    if step < 1 and not is_one(count):
        return None
    start = _in_range(first, size, facts)
    last = None if start is None else start + (count - 1) * step
    if start is None or last is None or not facts.is_less(last, size):
        return None
    if first is not start and not facts.is_less(first + (count - 1) * step, constant(0)):
        return None
    return reshape(slice_axis(data, axis, start, count, max(step, 1)), x.shape)


def _in_range(index: Expr, size: Expr, facts: Facts) -> Expr | None:
    """``index`` counted from the start, if it is proved to be one of ``size``."""
    if index.is_constant and index.value < 0:
        index = size + index
    inside = facts.is_less_equal(constant(0), index) and facts.is_less(index, size)
    return facts.scope.resolve(index) if inside else None


def gather_by_view(x: Node, facts: Facts) -> Node | None:
    """Gather(a, V(i)) → V(Gather(a, i)), V being a Broadcast or a Reshape.

    An index out of bounds is an error, so i must be known to be within, or V(i) to have elements.
    """
    data, indices = x.inputs
    assert isinstance(x.primitive, Gather)
    axis, view = x.primitive.axis, indices.primitive
    if not isinstance(view, Broadcast | Reshape) or any(is_number(s, 0) for s in data.shape):
        return None
    inner = indices.inputs[0]
    if isinstance(view, Reshape):
        return reshape(node(x.primitive, data, inner), x.shape)
    if not _are_occupied(indices.shape, facts) and not _are_within(inner, data.shape[axis], facts):
        return None
    gathered = node(x.primitive, data, inner)
    tail = data.rank - axis - 1
    new_axes = [axis + a for a in view.axes]
    last = range(axis + indices.rank, axis + indices.rank + tail)
    return broadcast(gathered, x.shape, [*range(axis), *new_axes, *last])


def _are_occupied(shape: Shape, facts: Facts) -> bool:
    """Whether a tensor is proved to have elements."""
    return all(facts.is_less(constant(0), size) for size in shape)


def _are_within(indices: Node, size: Expr, facts: Facts) -> bool:
    """Whether all indices are proved to be within an axis of ``size``, counted from either end."""
    array = contents(indices)
    if array is not None and array.size:
        least, most = int(array.min()), int(array.max())
        return facts.is_less_equal(constant(-least), size) and facts.is_less(constant(most), size)
    index = tuple(facts.position(axis, s) for axis, s in enumerate(indices.shape))
    value = element(indices, index, facts)
    if value is None:
        return False
    below = facts.indexed.is_less(value, size) is Truth.YES
    return below and facts.indexed.is_less_equal(0, value) is Truth.YES


def gather_from_one_row(x: Node, facts: Facts) -> Node | None:
    """Gather(Constant, Constant) is folded elsewhere; Gather(a, zeros) of a whole axis of 1 → a."""
    data, indices = x.inputs
    assert isinstance(x.primitive, Gather)
    if x.shape != data.shape or not is_number(data.shape[x.primitive.axis], 1):
        return None
    array = contents(indices)
    return data if array is not None and not array.any() else None


def element(x: Node, index: tuple[Expr, ...], facts: Facts) -> Expr | None:
    """The integer at ``index`` of a node made of positions and sizes alone, else None."""
    match x.primitive:
        case Dimension(value=value):
            return value
        case Constant(codes=None, array=array) if array.size == 1 and x.dtype.is_integer:
            return constant(int(array.reshape(-1)[0]))
        case Constant(codes=None, array=array) if x.dtype.is_integer:
            return _affine(array, index)
        case Iota(axis=axis):
            return index[axis]
        case Broadcast() | Reshape() | Slice():
            return element(x.inputs[0], pull_back(x, index, facts.indexed), facts)
        case Map(function=function) if function in ("add", "subtract", "multiply", "negate"):
            values = [element(i, index, facts) for i in x.inputs]
            known = [v for v in values if v is not None]
            return _combined(function, known) if len(known) == len(values) else None
        case _:
            return None


def _affine(array: Array, index: tuple[Expr, ...]) -> Expr | None:
    """s + d * index[k] where an array counts along its only axis longer than 1, else None."""
    wide = [axis for axis, size in enumerate(array.shape) if size > 1]
    if len(wide) != 1 or array.size != array.shape[wide[0]]:
        return None
    line = array.reshape(-1)
    first, step = int(line[0]), int(line[1]) - int(line[0])
    counted = first + step * np.arange(line.size, dtype=np.int64)
    return first + step * index[wide[0]] if np.array_equal(line, counted) else None


def _combined(function: str, values: list[Expr]) -> Expr:
    match function:
        case "add":
            return values[0] + values[1]
        case "subtract":
            return values[0] - values[1]
        case "multiply":
            return values[0] * values[1]
        case _:
            return -values[0]


def gather_nd_of_positions(x: Node, facts: Facts) -> Node | None:
    """GatherND(a, [position of axis k, …]) → Broadcast(a): result axes that count through a's."""
    data, indices = x.inputs
    assert isinstance(x.primitive, GatherND)
    columns = _columns(indices)
    if columns is None or x.primitive.batch != 0 or any(is_number(s, 0) for s in x.shape):
        return None
    lead = indices.rank - 1
    index = tuple(facts.position(axis, x.shape[axis]) for axis in range(lead))
    axes: list[int] = []
    for column, size in zip(columns, data.shape, strict=False):
        value = element(column, (*index, constant(0)), facts)
        counted = [a for a in range(lead) if index[a] is value and x.shape[a] is size]
        if not counted or (axes and counted[0] <= axes[-1]):
            return None
        axes.append(counted[0])
    return broadcast(data, x.shape, [*axes, *range(lead, x.rank)])


def _columns(indices: Node) -> tuple[Node, ...] | None:
    """The parts that index one data axis each."""
    last = indices.rank - 1
    if isinstance(indices.primitive, Concat) and indices.primitive.axis == last:
        whole = all(is_number(part.shape[last], 1) for part in indices.inputs)
        return indices.inputs if whole else None
    return (indices,) if is_number(indices.shape[last], 1) else None
