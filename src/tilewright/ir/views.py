"""Index maps of the layout primitives: where an element of a view lies in its operand.

``pull_back`` maps an index of the result to one of the operand; ``push_forward`` the other way for
views that are bijective. Reshape splits both shapes into groups of equal products, so that an axis
kept by the reshape keeps its index and only merged axes need a division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.primitives import (
    Broadcast,
    Gather,
    GatherElements,
    GatherND,
    Reshape,
    Shape,
    Slice,
    Transpose,
)
from tilewright.shape import Expr, Scope, constant, equal, exact_quotient, product, select

Index = tuple[Expr, ...]


def declare_index(scope: Scope, name: str, size: Expr) -> Expr:
    """An index variable in [0, size); of an axis without elements nothing but 0 is assumed."""
    empty = size.is_constant and size.value <= 0
    return scope.declare(name, 0, 0 if empty else size - 1)


def strides(shape: Shape) -> tuple[Expr, ...]:
    """Row-major strides in elements."""
    out: list[Expr] = []
    running = constant(1)
    for size in reversed(shape):
        out.append(running)
        running = running * size
    return tuple(reversed(out))


def linear(index: Sequence[Expr], shape: Shape) -> Expr:
    """Row-major position of ``index``."""
    position = constant(0)
    for i, stride in zip(index, strides(shape), strict=True):
        position = position + i * stride
    return position


def unflatten(position: Expr, axes: Sequence[tuple[str, Expr]]) -> list[Expr]:
    """Indices along named ``axes`` of a row-major position."""
    out: list[Expr] = []
    inner = constant(1)
    for place, (_, size) in enumerate(reversed(list(axes))):
        shifted = position // inner
        out.append(shifted if place == len(axes) - 1 else shifted % size)
        inner = inner * size
    return out[::-1]


def groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of one element count into smallest runs of axes with equal products.

    Where they are not equal as expressions (in one run, as a rule the last), they are equal only
    if all other axes have elements: an equality of positions, but not of sizes.
    """
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [i] if i < len(source) else [], [j] if j < len(target) else []
        i, j = i + len(left), j + len(right)
        while True:
            a, b = product([source[x] for x in left]), product([target[x] for x in right])
            if a is b:
                break
            if i < len(source) and (j >= len(target) or _grow_left(a, b)):
                left.append(i)
                i += 1
            elif j < len(target):
                right.append(j)
                j += 1
            elif i < len(source):
                left.append(i)
                i += 1
            else:
                break
        out.append((left, right))
    return out


def _grow_left(a: Expr, b: Expr) -> bool:
    """Whether the product ``a`` looks like the smaller one: fewer factors, or a lesser constant."""
    if a.is_constant and b.is_constant:
        return a.value < b.value
    return len(a.free_symbols) <= len(b.free_symbols) if not _divides(b, a) else False


def _divides(divisor: Expr, value: Expr) -> bool:
    return exact_quotient(value, divisor) is not None and divisor is not value


def reshape_index(index: Index, source: Shape, target: Shape, scope: Scope) -> Index:
    """The index in ``target`` of the element at ``index`` of ``source`` (same row-major order)."""
    if constant(0) in (*source, *target):  # no element, and no quotient
        return (constant(0),) * len(target)
    out: list[Expr] = [constant(0)] * len(target)
    for left, right in groups(source, target):
        kept_left = [a for a in left if not _is_one(source[a])]
        kept_right = [a for a in right if not _is_one(target[a])]
        if len(kept_left) == 1 and len(kept_right) == 1:
            out[kept_right[0]] = index[kept_left[0]]
            continue
        position = linear([index[a] for a in left], tuple(source[a] for a in left))
        inner = constant(1)
        for place, axis in enumerate(reversed(kept_right)):
            outermost = place == len(kept_right) - 1
            shifted = scope.resolve(position // inner)
            out[axis] = shifted if outermost else scope.resolve(shifted % target[axis])
            inner = inner * target[axis]
    return tuple(out)


def _is_one(size: Expr) -> bool:
    return size.is_constant and size.value == 1


def pull_back(view: Node, index: Index, scope: Scope) -> Index:
    """The operand's index for ``index`` of a Reshape, Transpose, Broadcast or Slice."""
    operand = view.inputs[0]
    match view.primitive:
        case Reshape():
            return reshape_index(index, view.shape, operand.shape, scope)
        case Transpose(permutation=permutation):
            out = [constant(0)] * len(index)
            for axis, source in enumerate(permutation):
                out[source] = index[axis]
            return tuple(out)
        case Broadcast(shape=shape, axes=axes):
            return tuple(
                _broadcast_index(size, shape[axis], index[axis])
                for size, axis in zip(operand.shape, axes, strict=True)
            )
        case Slice(starts=starts, steps=steps):
            return tuple(s + i * d for s, i, d in zip(starts, index, steps, strict=True))
        case _:
            raise AssertionError(f"{view!r} is not a view")


def _broadcast_index(size: Expr, wanted: Expr, index: Expr) -> Expr:
    if _is_one(size):
        return constant(0)
    if size is wanted:
        return index
    return select(equal(size, 1), 0, index)


def push_forward(view: Node, index: Index, scope: Scope) -> Index:
    """The view's index of the operand's element ``index``; for Reshape and Transpose."""
    match view.primitive:
        case Reshape():
            return reshape_index(index, view.inputs[0].shape, view.shape, scope)
        case Transpose(permutation=permutation):
            return tuple(index[p] for p in permutation)
        case _:
            raise AssertionError(f"{view!r} is not bijective")


def looked_up(node: Node, index: Index, find: Callable[[Index, Expr], Expr]) -> Index:
    """The element of the data that is element ``index`` of a Gather, GatherElements or GatherND.

    ``find`` gives the position that an element of the indices holds, on an axis of that size.
    """
    data, indices = node.inputs
    match node.primitive:
        case Gather(axis=axis):
            behind = axis + indices.rank
            found = find(index[axis:behind], data.shape[axis])
            return (*index[:axis], found, *index[behind:])
        case GatherElements(axis=axis):
            found = find(index, data.shape[axis])
            return (*index[:axis], found, *index[axis + 1 :])
        case GatherND(batch=batch):
            lead, depth = indices.rank - 1, indices.shape[-1].value
            places = [(*index[:lead], constant(d)) for d in range(depth)]
            found = [find(place, data.shape[batch + d]) for d, place in enumerate(places)]
            return (*index[:batch], *found, *index[lead:])
        case _:
            raise AssertionError(f"{node!r} looks nothing up")


def is_view(candidate: Node) -> bool:
    """Whether a node only renames elements of its operand."""
    return isinstance(candidate.primitive, Reshape | Transpose | Broadcast | Slice)
