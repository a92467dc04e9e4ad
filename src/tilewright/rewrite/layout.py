"""Rules of Reshape, Transpose and Broadcast: fewer of them, and in one normal form.

In the normal form a Broadcast stands above (after) reshapes that insert or drop axes of size 1, and
chains are one node. May import ``shape`` and ``ir``.
"""

from __future__ import annotations

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Constant, Reshape, Shape, Slice, Transpose
from tilewright.ir.views import groups
from tilewright.rewrite.build import (
    broadcast,
    is_one,
    reshape,
    squeezed,
    transpose,
)
from tilewright.rewrite.facts import Facts
from tilewright.shape import Expr, constant


def reshape_to_own_shape(x: Node, facts: Facts) -> Node | None:
    """Reshape(a, shape of a) → a."""
    return x.inputs[0] if x.shape == x.inputs[0].shape else None


def reshape_of_reshape(x: Node, facts: Facts) -> Node | None:
    """Reshape(Reshape(a), s) → Reshape(a, s)."""
    operand = x.inputs[0]
    if not isinstance(operand.primitive, Reshape):
        return None
    return reshape(operand.inputs[0], x.shape)


def transpose_by_identity(x: Node, facts: Facts) -> Node | None:
    """Transpose(a, 0 1 2 …) → a."""
    assert isinstance(x.primitive, Transpose)
    return x.inputs[0] if x.primitive.permutation == tuple(range(x.rank)) else None


def transpose_of_transpose(x: Node, facts: Facts) -> Node | None:
    """Transpose(Transpose(a, p), q) → Transpose(a, p[q])."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Transpose) and isinstance(x.primitive, Transpose)):
        return None
    inner = operand.primitive.permutation
    return transpose(operand.inputs[0], [inner[q] for q in x.primitive.permutation])


def transpose_of_unit_axes(x: Node, facts: Facts) -> Node | None:
    """Transpose(a) that only moves axes of size 1 → Reshape(a)."""
    assert isinstance(x.primitive, Transpose)
    moved = [p for p in x.primitive.permutation if not is_one(x.inputs[0].shape[p])]
    return reshape(x.inputs[0], x.shape) if moved == sorted(moved) else None


def transpose_of_broadcast(x: Node, facts: Facts) -> Node | None:
    """Transpose(Broadcast(a)) → Broadcast(a), where the axes of a keep their order."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Broadcast) and isinstance(x.primitive, Transpose)):
        return None
    place = {source: axis for axis, source in enumerate(x.primitive.permutation)}
    axes = [place[a] for a in operand.primitive.axes]
    return broadcast(operand.inputs[0], x.shape, axes) if axes == sorted(axes) else None


def broadcast_to_own_shape(x: Node, facts: Facts) -> Node | None:
    """Broadcast(a, shape of a) → a."""
    return x.inputs[0] if x.shape == x.inputs[0].shape else None


def broadcast_of_broadcast(x: Node, facts: Facts) -> Node | None:
    """Broadcast(Broadcast(a)) → Broadcast(a)."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Broadcast) and isinstance(x.primitive, Broadcast)):
        return None
    outer = x.primitive.axes
    return broadcast(operand.inputs[0], x.shape, [outer[a] for a in operand.primitive.axes])


def broadcast_without_unit_axes(x: Node, facts: Facts) -> Node | None:
    """Broadcast(Reshape(a)) → Broadcast(a), only axes of size 1 being reshaped, or else
    Broadcast(Reshape(a, [m, 1, n])) → Broadcast(Reshape(a, [m, n])); likewise of constants."""
    operand = x.inputs[0]
    assert isinstance(x.primitive, Broadcast)
    if not isinstance(operand.primitive, Constant | Reshape):
        return None
    shape = squeezed(operand.shape)
    pairs = zip(operand.shape, x.primitive.axes, strict=True)
    axes = [axis for size, axis in pairs if not is_one(size)]
    base = operand.inputs[0] if operand.inputs else operand
    if operand.inputs and squeezed(base.shape) == shape:
        placed = _with_unit_axes(base.shape, axes, x.rank)
        if placed is not None:
            return broadcast(base, x.shape, placed)
    return None if shape == operand.shape else broadcast(reshape(base, shape), x.shape, axes)


def _with_unit_axes(shape: Shape, axes: list[int], rank: int) -> list[int] | None:
    """Axes for every size of ``shape``, ``axes`` being those of the sizes other than 1."""
    out: list[int] = []
    waiting = list(axes)
    for size in shape:
        following = waiting.pop(0) if not is_one(size) else (out[-1] + 1 if out else 0)
        if out and following <= out[-1]:
            return None
        out.append(following)
    return out if not out or out[-1] < rank else None


def reshape_of_broadcast(x: Node, facts: Facts) -> Node | None:
    """Reshape(Broadcast(a)) → Broadcast(a), where a is a scalar or only axes of size 1 change."""
    operand = x.inputs[0]
    if not isinstance(operand.primitive, Broadcast):
        return None
    base = operand.inputs[0]
    if base.rank == 0:
        return broadcast(base, x.shape, ())
    if squeezed(x.shape) != squeezed(operand.shape):
        return None
    wide = [axis for axis, size in enumerate(operand.shape) if not is_one(size)]
    place = dict(
        zip(wide, [axis for axis, size in enumerate(x.shape) if not is_one(size)], strict=True)
    )
    if any(axis not in place for axis in operand.primitive.axes):
        return None
    return broadcast(base, x.shape, [place[a] for a in operand.primitive.axes])


def slice_of_broadcast(x: Node, facts: Facts) -> Node | None:
    """Slice(Broadcast(a)) → Broadcast(Slice(a)), repeated axes not being sliced."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Broadcast) and isinstance(x.primitive, Slice)):
        return None
    base, cut = operand.inputs[0], x.primitive
    starts: list[Expr] = []
    sizes: list[Expr] = []
    steps: list[Expr] = []
    for size, axis in zip(base.shape, operand.primitive.axes, strict=True):
        whole = is_one(size)
        if not whole and size is not operand.shape[axis]:
            return None
        starts.append(constant(0) if whole else cut.starts[axis])
        sizes.append(size if whole else cut.sizes[axis])
        steps.append(constant(1) if whole else cut.steps[axis])
    inner = node(Slice(tuple(starts), tuple(sizes), tuple(steps)), base) if base.rank else base
    return broadcast(inner, x.shape, operand.primitive.axes)


def broadcast_of_unit_axes(x: Node, facts: Facts) -> Node | None:
    """Broadcast(a) that only inserts axes of size 1 → Reshape(a)."""
    operand = x.inputs[0]
    assert isinstance(x.primitive, Broadcast)
    kept = x.primitive.axes
    if any(operand.shape[i] is not x.shape[axis] for i, axis in enumerate(kept)):
        return None
    new = [size for axis, size in enumerate(x.shape) if axis not in kept]
    return reshape(operand, x.shape) if all(map(is_one, new)) else None


def transpose_of_merge(x: Node, facts: Facts) -> Node | None:
    """Transpose(Reshape(a)) → Reshape(Transpose(a)), the reshape only merging axes (a b → ab)."""
    operand = x.inputs[0]
    if not (isinstance(operand.primitive, Reshape) and isinstance(x.primitive, Transpose)):
        return None
    base = operand.inputs[0]
    merged: dict[int, list[int]] = {}
    for left, right in groups(base.shape, operand.shape):
        wide = [axis for axis in right if not is_one(operand.shape[axis])]
        if len(wide) > 1 or not right:
            return None
        merged |= {axis: left if axis == (wide or right)[0] else [] for axis in right}
    permutation = [source for axis in x.primitive.permutation for source in merged[axis]]
    if len(permutation) != base.rank:
        return None
    return reshape(transpose(base, permutation), x.shape)
