"""Rules that move views and broadcasts towards the results.

A contraction's epilogue then ends before the view, and what a broadcast repeats is computed once.
May import ``shape`` and ``ir``. Start with :func:`view_after_map`.
"""

from __future__ import annotations

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Cast, Constant, Map, Reduce, Reshape, Transpose
from tilewright.ir.views import groups
from tilewright.rewrite.build import (
    broadcast,
    is_one,
    only_units_differ,
    reshape,
    squeezed,
    transpose,
)
from tilewright.rewrite.divisions import may_fail
from tilewright.rewrite.facts import Facts
from tilewright.shape import Truth


def view_after_map(x: Node, facts: Facts) -> Node | None:
    """f(V(a), V(b), c) → V(f(a, b, c)), V a Reshape or Transpose, c broadcast constants or scalars.

    Cast is such an f. A constant's axes must each be a whole axis before the view too. Where V only
    inserts or drops axes of size 1, c may be any Broadcast; other views would split the rows of a
    normalisation, whose statistics are broadcast, between two shapes.
    """
    assert isinstance(x.primitive, Map | Cast)
    view = next((i for i in x.inputs if isinstance(i.primitive, Reshape | Transpose)), None)
    if view is None:
        return None
    below = [_below(operand, view) for operand in x.inputs]
    operands = [b for b in below if b is not None]
    if len(operands) < len(below):
        return None
    return node(view.primitive, node(x.primitive, *operands))


def _below(operand: Node, view: Node) -> Node | None:
    """The node that ``view`` makes ``operand`` of, if there is one at no cost."""
    source = view.inputs[0]
    if operand.primitive == view.primitive:
        return operand.inputs[0] if operand.inputs[0].shape == source.shape else None
    if not isinstance(operand.primitive, Broadcast):
        return None
    base = operand.inputs[0]
    if base.rank == 0:
        return broadcast(base, source.shape, ())
    if not isinstance(base.primitive, Constant) and not only_units_differ(view):
        return None
    if any(is_one(s) for s in base.shape):
        return None
    places = [_place(axis, view) for axis in operand.primitive.axes]
    axes = [p for p in places if p is not None]
    if len(axes) < len(places) or axes != sorted(axes):
        return None
    return broadcast(base, source.shape, axes)


def _place(axis: int, view: Node) -> int | None:
    """The axis of the view's operand that is ``axis`` of the view."""
    if isinstance(view.primitive, Transpose):
        return view.primitive.permutation[axis]
    source = view.inputs[0].shape
    for left, right in groups(source, view.shape):
        if axis in right:
            wide = [a for a in left if not is_one(source[a])]
            alone = all(a == axis or is_one(view.shape[a]) for a in right)
            found = wide[0] if len(wide) == 1 else None
            same = found is not None and source[found] is view.shape[axis]
            return found if alone and same else None
    return None


def broadcast_after_map(x: Node, facts: Facts) -> Node | None:
    """f(Broadcast(a), Broadcast(b)) → Broadcast(f(a', b')), on the axes that a or b have.

    a' and b' are broadcasts to those axes alone. Cast is such an f. A division by 0 is reported, so
    it is made of no elements only that f has: not where an axis that a and b lack may be empty.
    """
    assert isinstance(x.primitive, Map | Cast)
    if not all(isinstance(i.primitive, Broadcast) for i in x.inputs):
        return None
    needed: set[int] = set()
    for operand in x.inputs:
        assert isinstance(operand.primitive, Broadcast)
        for size, axis in zip(operand.inputs[0].shape, operand.primitive.axes, strict=True):
            if not is_one(size):
                needed.add(axis)
    kept = sorted(needed)
    dropped = [size for axis, size in enumerate(x.shape) if axis not in needed]
    if not dropped:
        return None
    if may_fail(x) and any(facts.scope.is_less(0, size) is not Truth.YES for size in dropped):
        return None
    shape = tuple(x.shape[axis] for axis in kept)
    place = {axis: position for position, axis in enumerate(kept)}
    operands = [_narrowed(operand, place, shape) for operand in x.inputs]
    return broadcast(node(x.primitive, *operands), x.shape, kept)


def _narrowed(operand: Node, place: dict[int, int], shape: tuple[object, ...]) -> Node:
    """A broadcast operand on the axes in ``place`` only."""
    assert isinstance(operand.primitive, Broadcast)
    base, axes = operand.inputs[0], operand.primitive.axes
    kept = [i for i, axis in enumerate(axes) if axis in place]
    narrow = reshape(base, tuple(base.shape[i] for i in kept))
    target = tuple(operand.shape[axis] for axis in place)
    return broadcast(narrow, target, [place[axes[i]] for i in kept])


def unit_axes_after_reduce(x: Node, facts: Facts) -> Node | None:
    """Reduce(Reshape(a)) → Reshape(Reduce(a)), only axes of size 1 being reshaped, none reduced."""
    view = x.inputs[0]
    assert isinstance(x.primitive, Reduce)
    if not (isinstance(view.primitive, Reshape) and only_units_differ(view)):
        return None
    base = view.inputs[0]
    if any(is_one(view.shape[axis]) for axis in x.primitive.axes):
        return None
    wide = [axis for axis, size in enumerate(base.shape) if not is_one(size)]
    number = {axis: len(squeezed(view.shape[:axis])) for axis in x.primitive.axes}
    axes = tuple(wide[number[axis]] for axis in x.primitive.axes)
    return reshape(node(Reduce(x.primitive.kind, axes), base), x.shape)


def transpose_after_reduce(x: Node, facts: Facts) -> Node | None:
    """Reduce(Transpose(a)) → Transpose(Reduce(a)), nothing else reading the transposition.

    The reduction then goes over memory in its order, and what is moved is smaller.
    """
    view = x.inputs[0]
    assert isinstance(x.primitive, Reduce)
    if not isinstance(view.primitive, Transpose) or not facts.used_once(view):
        return None
    permutation = view.primitive.permutation
    axes = tuple(sorted(permutation[axis] for axis in x.primitive.axes))
    kept = [axis for axis in range(view.rank) if axis not in axes]
    order = [kept.index(source) for source in permutation if source not in axes]
    return transpose(node(Reduce(x.primitive.kind, axes), view.inputs[0]), order)
