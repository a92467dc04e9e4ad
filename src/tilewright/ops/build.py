"""Short names for building primitives inside fission rules.

Functions take nodes (or Python numbers, which become constants of the other operand's type) and
resolve shapes through the scope. Broadcasting follows ONNX. Start with :class:`Builder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir import make
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    Cast,
    Constant,
    Dimension,
    Gather,
    Iota,
    Map,
    Pad,
    Reduce,
    Shape,
)
from tilewright.ops.record import RuleContext
from tilewright.shape import Expr, Truth, as_expr, constant, equal, logical_or, product, select
from tilewright.support.text import format_count

Operand = Node | float | int | bool


def array(values: Any, dtype: DType) -> Node:
    """A constant tensor."""
    return node(Constant.of(np.asarray(values).astype(dtype.numpy), dtype))


def scalar(value: float | int | bool, dtype: DType) -> Node:
    """A constant of rank 0."""
    return array(value, dtype)


def dimension(value: Expr | int) -> Node:
    """A scalar int64 holding a shape expression."""
    return node(Dimension(as_expr(value)))


def cast(x: Node, dtype: DType) -> Node:
    """``x`` converted; itself if it has the type already."""
    return x if x.dtype is dtype else node(Cast(dtype), x)


class Builder:
    """Builds primitives with shapes resolved in the scope of one rule context."""

    def __init__(self, context: RuleContext) -> None:
        self.context = context
        self.scope = context.scope

    def shape(self, sizes: Sequence[Expr | int]) -> Shape:
        """Sizes as resolved expressions, or symbols for long ones."""
        return tuple(self.context.facts.size(as_expr(s)) for s in sizes)

    def reshape(self, x: Node, sizes: Sequence[Expr | int]) -> Node:
        """``x`` under another shape; the caller has made sure that the element counts agree."""
        return make.reshape(x, self.shape(sizes))

    def broadcast(self, x: Node, sizes: Sequence[Expr | int], axes: Sequence[int]) -> Node:
        """``x`` repeated to ``sizes``, its axis i becoming ``axes[i]``."""
        return make.broadcast(x, self.shape(sizes), axes)

    def expand(self, x: Node, sizes: Sequence[Expr | int]) -> Node:
        """``x`` broadcast to ``sizes`` with its axes aligned to the last ones."""
        return self.broadcast(x, sizes, range(len(sizes) - x.rank, len(sizes)))

    def joint_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The ONNX broadcast of several shapes; undecided axes become guards."""
        rank = max((len(s) for s in shapes), default=0)
        out: list[Expr] = []
        for axis in range(rank):
            sizes = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
            out.append(self._joint_size([self.scope.resolve(s) for s in sizes]))
        return tuple(out)

    def _joint_size(self, sizes: list[Expr]) -> Expr:
        joint = constant(1)
        for size in sizes:
            if self.scope.is_equal(size, 1) is Truth.YES or size is joint:
                continue
            if self.scope.is_equal(joint, 1) is Truth.YES:
                joint = size
                continue
            joint = self._agree(joint, size)
        return joint

    def _agree(self, a: Expr, b: Expr) -> Expr:
        """The broadcast of two sizes neither of which is known to be 1."""
        message = f"operands cannot be broadcast together: sizes {a.brief} and {b.brief}"
        a_is_one, b_is_one = self.scope.is_equal(a, 1), self.scope.is_equal(b, 1)
        if a_is_one is Truth.NO and b_is_one is Truth.NO:
            self.context.require_equal(a, b, "operands cannot be broadcast together")
            return self.scope.resolve(a)
        if self.scope.is_equal(a, b) is Truth.YES:
            return a
        self.context.require(logical_or(equal(a, b), logical_or(equal(a, 1), equal(b, 1))), message)
        if a_is_one is Truth.NO:
            return a
        if b_is_one is Truth.NO:
            return b
        return self.context.facts.size(select(equal(a, 1), b, a))

    def together(self, *operands: Operand) -> list[Node]:
        """Operands (numbers take the type of the first node) broadcast to their joint shape."""
        given = [o for o in operands if isinstance(o, Node)]
        like = next((o for o in given if o.dtype is not DType.BOOL), given[0])
        nodes = [o if isinstance(o, Node) else scalar(o, like.dtype) for o in operands]
        shape = self.joint_shape([n.shape for n in nodes])
        return [self.expand(n, shape) for n in nodes]

    def map(self, function: str, *operands: Operand) -> Node:
        """A scalar function of broadcast operands; numbers become constants."""
        return node(Map(function), *self.together(*operands))

    def add(self, a: Operand, b: Operand) -> Node:
        return self.map("add", a, b)

    def subtract(self, a: Operand, b: Operand) -> Node:
        return self.map("subtract", a, b)

    def multiply(self, a: Operand, b: Operand) -> Node:
        return self.map("multiply", a, b)

    def divide(self, a: Operand, b: Operand) -> Node:
        return self.map("divide", a, b)

    def maximum(self, a: Operand, b: Operand) -> Node:
        return self.map("maximum", a, b)

    def minimum(self, a: Operand, b: Operand) -> Node:
        return self.map("minimum", a, b)

    def select(self, condition: Node, a: Operand, b: Operand) -> Node:
        """Elementwise choice, ``a`` where ``condition``."""
        return self.map("select", condition, a, b)

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool = False) -> Node:
        """Reduction over ``axes`` (any order, not negative); ``keep`` leaves sizes of 1."""
        ordered = tuple(sorted(axes))
        out = node(Reduce(kind, ordered), x) if ordered else x
        return self.unsqueeze(out, ordered) if keep else out

    def mean(self, x: Node, axes: Sequence[int], keep: bool = False) -> Node:
        """Sum over ``axes`` divided by the number of elements."""
        count = cast(dimension(product([x.shape[a] for a in axes])), x.dtype)
        return self.divide(self.reduce("sum", x, axes, keep), count)

    def unsqueeze(self, x: Node, axes: Sequence[int]) -> Node:
        """``x`` with axes of size 1 inserted at ``axes`` (positions in the result)."""
        sizes: list[Expr] = list(x.shape)
        for axis in sorted(axes):
            sizes.insert(axis, constant(1))
        return self.reshape(x, sizes)

    def slice_axis(self, x: Node, axis: int, start: Expr | int, size: Expr | int) -> Node:
        """``size`` elements of one axis from ``start`` on."""
        first, count = self.shape([start, size])
        # What is as long as the axis begins where it begins.
        return make.slice_axis(x, axis, constant(0) if count is x.shape[axis] else first, count)

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """Parts one after another; other axes must agree (guarded where not known)."""
        first = parts[0]
        for part in parts[1:]:
            for a in range(first.rank):
                if a != axis:
                    message = f"concatenated operands differ on axis {a}"
                    self.context.require_equal(first.shape[a], part.shape[a], message)
        # Equalities that were just demanded may have renamed sizes of any operand.
        common = self._common_sizes(parts)
        aligned = [
            self.reshape(p, [*common[:axis], p.shape[axis], *common[axis + 1 :]]) for p in parts
        ]
        return make.concat(aligned, axis)

    def _common_sizes(self, parts: Sequence[Node]) -> list[Expr]:
        """One way to write the sizes that ``parts`` share: a constant where one of them has it."""
        columns = zip(*(self.shape(p.shape) for p in parts), strict=True)
        return [next((s for s in column if s.is_constant), column[0]) for column in columns]

    def pad(self, x: Node, low: Sequence[Expr | int], high: Sequence[Expr | int],
            value: Operand = 0) -> Node:  # fmt: skip
        """``x`` with ``low`` and ``high`` more elements of ``value`` per axis (not negative)."""
        fill = value if isinstance(value, Node) else scalar(value, x.dtype)
        lows, highs = self.shape(low), self.shape(high)
        if all(e.is_constant and e.value == 0 for e in lows + highs):
            return x
        return node(Pad(lows, highs), x, fill)

    def iota(self, sizes: Sequence[Expr | int], axis: int) -> Node:
        """int64 indices along ``axis``."""
        return node(Iota(self.shape(sizes), axis))

    def gather(self, data: Node, indices: Node, axis: int) -> Node:
        """ONNX Gather; integer indices of any width."""
        return node(Gather(axis), data, cast(indices, DType.INT64))

    def axis(self, value: int, rank: int) -> int:
        """A possibly negative axis as one in 0..rank-1; raises InvalidModelError outside."""
        from_end = value + rank if value < 0 else value
        message = f"there is no axis {value} in a tensor of {format_count(rank, 'axis', 'axes')}"
        self.context.require(constant(int(0 <= from_end < max(rank, 1))), message)
        return from_end
