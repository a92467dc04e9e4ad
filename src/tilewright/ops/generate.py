"""Rules for tensors that come from little or no data: ConstantOfShape, Range, EyeLike, ….

Read ``_range`` for how a length that only data knows becomes a run-time symbol.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.onnx_types import element_type
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import (
    data_operand,
    integers_of,
    not_zero,
    scalar_of,
    size_of,
)
from tilewright.ops.types import require_native
from tilewright.shape import Expr, ceil_div, equal, logical_not, maximum


@operator("ConstantOfShape", since=9, computes=False)
def _constant_of_shape(context: RuleContext) -> Sequence[Node]:
    sizes = [size_of(context, s, "a size") for s in context.integers(0)]
    value = np.zeros(1, dtype=np.float32)
    if context.has("value"):
        value = np.asarray(context.attributes["value"])
    fill = node(Constant.of(value.reshape(())))
    if not fill.dtype.is_native:
        raise NoRule(f"elements of type {fill.dtype.value}", where=context.where)
    return [Builder(context).broadcast(fill, sizes, ())]


@operator("Range", since=11, computes=False)
def _range(context: RuleContext) -> Sequence[Node]:
    require_native(context)
    builder = Builder(context)
    start, limit, delta = (scalar_of(builder, context.operand(i)) for i in range(3))
    if all(integer_contents(x) is not None for x in (start, limit, delta)) or (
        start.dtype.is_integer
    ):
        first, last, step = (integers_of(context, x)[0] for x in (start, limit, delta))
        return [_stepped(context, start.dtype, first, last, step)]
    return [_range_of_floats(context, start, limit, delta)]


def _stepped(context: RuleContext, dtype: DType, first: Expr, last: Expr, step: Expr) -> Node:
    context.require(logical_not(equal(step, 0)), "the delta of Range must not be 0")
    builder = Builder(context)
    count = context.scope.resolve(maximum(ceil_div(last - first, not_zero(step)), 0))
    offsets = builder.multiply(builder.iota([count], 0), dimension(context.scope.resolve(step)))
    return cast(builder.add(offsets, dimension(context.scope.resolve(first))), dtype)


def _range_of_floats(context: RuleContext, start: Node, limit: Node, delta: Node) -> Node:
    """The number of elements is computed in the operands' type (halves in float32)."""
    builder = Builder(context)
    wide = DType.FLOAT32 if start.dtype.is_half else start.dtype
    first, last, step = (cast(x, wide) for x in (start, limit, delta))
    known = [context.constant(index) for index in range(3)]
    if all(value is not None for value in known):
        a, b, c = (float(value.reshape(-1)[0]) for value in known if value is not None)
        size: Expr | int = max(int(np.ceil((b - a) / c)), 0)
    else:
        exact = [cast(x, DType.FLOAT64) for x in (first, last, step)]
        quotient = builder.divide(builder.subtract(exact[1], exact[0]), exact[2])
        count = builder.maximum(builder.map("ceil", quotient), 0.0)
        size = size_of(context, integers_of(context, cast(count, DType.INT64))[0], "the length")
    offsets = builder.multiply(cast(builder.iota([size], 0), wide), step)
    return cast(builder.add(offsets, first), start.dtype)


@operator("EyeLike", since=9, computes=False)
def _eye_like(context: RuleContext) -> Sequence[Node]:
    operand = context.operand(0)
    builder = Builder(context)
    dtype = operand.dtype
    if context.has("dtype"):
        dtype = element_type(context.integer("dtype"), where=context.where)
    if not dtype.is_native:
        raise NoRule(f"elements of type {dtype.value}", where=context.where)
    row, column = (builder.iota(operand.shape, axis) for axis in (0, 1))
    return [cast(builder.map("equal", builder.add(row, context.integer("k", 0)), column), dtype)]


@operator("Trilu", since=14, computes=False)
def _trilu(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    given = context.optional(1)
    diagonal = scalar(0, DType.INT64) if given is None \
        else cast(scalar_of(builder, given), DType.INT64)  # fmt: skip
    rows, columns = data.shape[-2:]
    row, column = (builder.iota([rows, columns], axis) for axis in (0, 1))
    shifted = builder.add(row, diagonal)
    if context.integer("upper", 1):
        kept = builder.map("less_equal", shifted, column)
    else:
        kept = builder.map("less_equal", column, shifted)
    return [builder.select(kept, data, scalar(0, data.dtype))]
