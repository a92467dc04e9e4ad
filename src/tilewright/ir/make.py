"""Short ways to make the layout primitives, for rules of operators and of the rewriter alike.

Makers give back their operand where there is nothing to do, so that rules need not check. May
import ``shape``. Start with :func:`reshape`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Concat, Reshape, Shape, Slice, Transpose
from tilewright.shape import Expr, constant

MOST_PARTS = 128  # of one concatenation: each is a loop, and LLVM takes long for many in a function


def is_number(size: Expr, value: int) -> bool:
    """Whether an expression is this constant."""
    return size.is_constant and size.value == value


def is_one(size: Expr) -> bool:
    """Whether a size is the constant 1."""
    return is_number(size, 1)


def broadcast(x: Node, shape: Shape, axes: Sequence[int]) -> Node:
    """``x`` repeated to ``shape``; itself where nothing is repeated."""
    if shape == x.shape and tuple(axes) == tuple(range(x.rank)):
        return x
    return node(Broadcast(shape, tuple(axes)), x)


def reshape(x: Node, shape: Shape) -> Node:
    """``x`` under another shape."""
    return x if shape == x.shape else node(Reshape(shape), x)


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Axis i of the result is axis ``permutation[i]`` of ``x``."""
    if tuple(permutation) == tuple(range(x.rank)):
        return x
    return node(Transpose(tuple(permutation)), x)


def concat(parts: Sequence[Node], axis: int) -> Node:
    """Parts one after another; of many, the joins of some each."""
    joined = list(parts)
    while len(joined) > 1:
        groups = [joined[i : i + MOST_PARTS] for i in range(0, len(joined), MOST_PARTS)]
        joined = [g[0] if len(g) == 1 else node(Concat(axis), *g) for g in groups]
    return joined[0]


def slice_axis(x: Node, axis: int, start: Expr, size: Expr, step: int = 1) -> Node:
    """``size`` elements of one axis."""
    starts, sizes, steps = [constant(0)] * x.rank, list(x.shape), [constant(1)] * x.rank
    starts[axis], sizes[axis], steps[axis] = start, size, constant(step)
    if sizes[axis] is x.shape[axis] and is_number(start, 0) and step == 1:
        return x
    return node(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)
