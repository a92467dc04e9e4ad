"""Storage orders: how a node is computed when its operands are stored with permuted axes.

The *order* of a tensor lists its axes as they are stored: ``Transpose(x, order)`` is what is in
memory. For every primitive that does not care, :func:`arrangement` says which orders of the
operands lead to an order of the result, :func:`arrangement_after` which order of the result follows
from one of an operand, and :func:`arranged` makes the node. May import ``shape`` and ``ir``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Contract,
    Convolve,
    Gather,
    Map,
    Pad,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Shape,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.views import groups
from tilewright.rewrite.build import broadcast, is_number, is_one, reshape, transpose
from tilewright.rewrite.windows import spans, window_over

Order = tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """The order of a node's result, and those in which it takes its operands."""

    order: Order
    operands: tuple[Order, ...]


def identity(rank: int) -> Order:
    """The order of a tensor whose axes are stored as they are."""
    return tuple(range(rank))


def inverse(order: Order) -> Order:
    """The permutation that undoes ``Transpose(order)``."""
    return tuple(order.index(axis) for axis in range(len(order)))


def channels_last(rank: int) -> Order:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return (0, *range(2, rank), 1)


def moves_data(shape: Shape, permutation: Order) -> bool:
    """Whether a transposition of a tensor moves more than axes of size 1."""
    wide = [p for p in permutation if not is_one(shape[p])]
    return wide != sorted(wide)


def reordered(x: Node, permutation: Order) -> Node:
    """Transpose(x), or a Reshape where only axes of size 1 move."""
    if moves_data(x.shape, permutation):
        return transpose(x, permutation)
    return reshape(x, tuple(x.shape[p] for p in permutation))


# ---------------------------------------------------------------- which orders fit


def arrangement(x: Node, order: Order) -> Arrangement | None:
    """How to compute ``x`` in ``order``, or None where only a copy can change its order."""
    operands = _operand_orders(x, order)
    return None if operands is None else Arrangement(order, operands)


def _operand_orders(x: Node, order: Order) -> tuple[Order, ...] | None:
    match x.primitive:
        case Map() | Cast() | Concat() | Slice() | Window() | Scan():
            return (order,) * len(x.inputs)
        case Pad():
            return order, ()
        case Transpose(permutation=permutation):
            return (tuple(permutation[axis] for axis in order),)
        case Broadcast(axes=axes):
            sources = range(x.inputs[0].rank)
            return (tuple(sorted(sources, key=lambda source: order.index(axes[source]))),)
        case Reshape():
            found = _through_reshape(x.shape, x.inputs[0].shape, order)
            return None if found is None else (found,)
        case Gather(axis=axis):
            rank = x.inputs[1].rank
            found = _before_gather(order, axis, rank)
            return None if found is None else (found, identity(rank))
        case Convolve(channels_last=already):
            fits = order == channels_last(x.rank) and not already
            return (order, identity(x.rank)) if fits else None
        case Contract(sums=sums):
            swapped = sums is None and order == _swapped_result(x)
            return (identity(x.inputs[0].rank), identity(x.inputs[1].rank)) if swapped else None
        case _:
            return None


def arrangement_after(x: Node, position: int, order: Order) -> Arrangement | None:
    """How ``x`` follows from its operand ``position`` stored in ``order``, if it does."""
    match x.primitive:
        case Map() | Cast() | Concat() | Slice() | Window() | Scan():
            return arrangement(x, order)
        case Pad() | Convolve():
            return arrangement(x, order) if position == 0 else None
        case Transpose(permutation=permutation):
            place = inverse(permutation)
            return Arrangement(tuple(place[axis] for axis in order), (order,))
        case Broadcast(axes=axes):
            return Arrangement(_after_broadcast(order, axes, x.rank), (order,))
        case Reshape():
            found = _through_reshape(x.inputs[0].shape, x.shape, order)
            return None if found is None else Arrangement(found, (order,))
        case Reduce(axes=axes):
            return Arrangement(_without(order, axes), (order,))
        case ArgReduce(axis=axis):
            return Arrangement(_without(order, (axis,)), (order,))
        case Gather(axis=axis):
            if position != 0:
                return None
            rank = x.inputs[1].rank
            return Arrangement(_after_gather(order, axis, rank), (order, identity(rank)))
        case _:
            return None


def _without(order: Order, axes: tuple[int, ...]) -> Order:
    """The order of what is left when ``axes`` disappear."""
    kept = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(kept.index(axis) for axis in order if axis not in axes)


def _after_broadcast(order: Order, axes: Order, rank: int) -> Order:
    """New axes are stored behind the mapped axis that they follow, leading ones first."""
    limits = (*axes, rank)
    out = list(range(limits[0]))
    for source in order:
        out += range(limits[source], limits[source + 1])
    return tuple(out)


def _after_gather(order: Order, axis: int, rank: int) -> Order:
    out: list[int] = []
    for source in order:
        if source == axis:
            out += range(axis, axis + rank)
        else:
            out.append(source if source < axis else source + rank - 1)
    return tuple(out)


def _before_gather(order: Order, axis: int, rank: int) -> Order | None:
    """The order of the data, if the axes of the indices stay together."""
    new = tuple(range(axis, axis + rank))
    if rank == 0:
        return None
    start = order.index(axis)
    if order[start : start + rank] != new:
        return None
    kept = [a for a in order if a not in new[1:]]
    return tuple(a if a <= axis else a - rank + 1 for a in kept)


def _through_reshape(source: Shape, target: Shape, order: Order) -> Order | None:
    """The order of ``target`` if each run of merged or split axes is stored together, in order."""
    if any(is_number(size, 0) for size in source + target):
        return None
    stored = [axis for axis in order if not is_one(source[axis])]
    parts: list[tuple[int, list[int]]] = []
    lone: list[int] = []
    for left, right in groups(source, target):
        wide = [axis for axis in left if not is_one(source[axis])]
        if not wide:
            if any(not is_one(target[axis]) for axis in right):
                return None
            # Axes of size 1 take the place behind the axis that they follow.
            (parts[-1][1] if parts else lone).extend(right)
            continue
        start = stored.index(wide[0])
        if stored[start : start + len(wide)] != wide or not right:
            return None
        parts.append((start, right))
    parts.sort(key=lambda part: part[0])
    return (*lone, *(axis for _, right in parts for axis in right))


def _swapped_result(x: Node) -> Order:
    """The order in which a contraction with its operands exchanged gives its result."""
    assert isinstance(x.primitive, Contract)
    shared = len(x.primitive.batch)
    free = x.inputs[0].rank - shared - len(x.primitive.summed)
    return (*range(shared), *range(shared + free, x.rank), *range(shared, shared + free))


# ---------------------------------------------------------------- making nodes


def arranged(x: Node, plan: Arrangement, operands: tuple[Node, ...]) -> Node:
    """``x`` stored in ``plan.order``, of operands stored in ``plan.operands``."""
    shape = tuple(x.shape[axis] for axis in plan.order)
    match x.primitive:
        case Transpose():
            return operands[0]
        case Reshape():
            return reshape(operands[0], shape)
        case Broadcast(axes=axes):
            places = [plan.order.index(axes[source]) for source in plan.operands[0]]
            return broadcast(operands[0], shape, places)
        case Contract(batch=batch, summed=summed):
            pairs = [tuple((right, left) for left, right in row) for row in (batch, summed)]
            return node(Contract(pairs[0], pairs[1]), operands[1], operands[0])
        case primitive:
            return node(_permuted(primitive, x, plan), *operands)


def _permuted(primitive: Primitive, x: Node, plan: Arrangement) -> Primitive:
    order = plan.order

    def by_axis(sizes: Shape) -> Shape:
        return tuple(sizes[axis] for axis in order)

    match primitive:
        case Concat(axis=axis):
            return Concat(order.index(axis))
        case Slice(starts=starts, sizes=sizes, steps=steps):
            return Slice(by_axis(starts), by_axis(sizes), by_axis(steps))
        case Pad(low=low, high=high):
            return Pad(by_axis(low), by_axis(high))
        case Scan(axis=axis):
            return replace(primitive, axis=order.index(axis))
        case Gather(axis=axis):
            return Gather(plan.operands[0].index(axis))
        case Reduce(kind=kind, axes=axes):
            return Reduce(kind, tuple(sorted(plan.operands[0].index(axis) for axis in axes)))
        case ArgReduce(axis=axis):
            return replace(primitive, axis=plan.operands[0].index(axis))
        case Convolve():
            return replace(primitive, channels_last=True)
        case Window():
            return _permuted_window(primitive, x.inputs[0].shape, order)
        case _:
            return primitive


def _permuted_window(window: Window, shape: Shape, order: Order) -> Window:
    """The window over the stored axes, without those at either end that no window spans."""
    found = spans(window, shape)
    spanned = [place for place, axis in enumerate(order) if not found[axis].keeps(shape[axis])]
    first, last = (spanned[0], spanned[-1]) if spanned else (len(order) - 1, len(order) - 1)
    axes = [found[axis] for axis in order[first : last + 1]]
    return window_over(window.kind, axes, len(order) - 1 - last)
