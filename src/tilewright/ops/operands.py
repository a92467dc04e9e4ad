"""Preparing operands: precision, and operands that must fit the shape of another one.

Shared by the families that compute with mixed types or with one parameter per channel. May import
what rules import. Start with :func:`numeric`.
"""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Shape
from tilewright.ops.build import Builder, cast
from tilewright.ops.record import RuleContext
from tilewright.ops.types import require_native
from tilewright.shape import Truth, equal, logical_or
from tilewright.support.errors import InvalidModelError
from tilewright.support.text import format_count


def numeric(context: RuleContext) -> tuple[Builder, Node]:
    """A builder and operand 0, after all operands have been checked to be of native types."""
    require_native(context)
    return Builder(context), context.operand(0)


def widen(x: Node) -> Node:
    """``x`` in float32 if it is a 16-bit float, else itself."""
    return cast(x, DType.FLOAT32) if x.dtype.is_half else x


def require_same_shape(context: RuleContext, a: Shape, b: Shape, message: str) -> None:
    """Demand equal shapes: an error now if their ranks differ, else as for each pair of sizes."""
    if len(a) != len(b):
        raise InvalidModelError(f"{message}: {len(a)} and {len(b)} axes", where=context.where)
    for own, other in zip(a, b, strict=True):
        context.require_equal(own, other, message)


def expand_to(builder: Builder, x: Node, shape: Shape, what: str) -> Node:
    """``x`` broadcast to ``shape``, which must not grow by it (unidirectional broadcasting)."""
    context = builder.context
    if x.rank > len(shape):
        message = (
            f"{what} has {format_count(x.rank, 'axis', 'axes')}, but its target has {len(shape)}"
        )
        raise InvalidModelError(message, where=context.where)
    for size, target in zip(x.shape, shape[len(shape) - x.rank :], strict=True):
        one = builder.scope.is_equal(size, 1)
        if one is Truth.NO:
            context.require_equal(target, size, f"{what} does not fit its target")
        elif one is Truth.UNKNOWN and builder.scope.is_equal(size, target) is not Truth.YES:
            fits = logical_or(equal(size, 1), equal(size, target))
            context.require(fits, f"{what} of size {size} cannot be repeated to {target}")
    return builder.expand(x, shape)


def along(builder: Builder, x: Node, shape: Shape, axis: int, what: str) -> Node:
    """A vector ``x`` repeated to ``shape``, its elements lying along ``axis``."""
    context = builder.context
    if x.rank != 1:
        raise InvalidModelError(f"{what} must have 1 axis, not {x.rank}", where=context.where)
    context.require_equal(shape[axis], x.shape[0], f"{what} does not fit axis {axis}")
    return builder.broadcast(x, shape, (axis,))
