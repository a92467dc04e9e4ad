"""Products of quantised tensors: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.

Zero points are subtracted in int32, the product is exact in int32, and the QLinear forms scale it
to the result's quantisation in float32. Start with :func:`requantised`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.build import Builder, cast
from tilewright.ops.convolution import direct_convolution, with_bias
from tilewright.ops.linear import matmul
from tilewright.ops.record import RuleContext, operator
from tilewright.ops.sizes import scalar_of
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant


@operator("MatMulInteger", since=10)
def _matmul_integer(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    left = centred(b, context.operand(0), _per_row(b, 0, context.optional(2)))
    right = centred(b, context.operand(1), context.optional(3))
    return [matmul(b, left, right)]


@operator("ConvInteger", since=10)
def _conv_integer(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    data, weights = context.operand(0), context.operand(1)
    zero_point = context.optional(2)
    zero_point = None if zero_point is None else scalar_of(b, zero_point)
    left = centred(b, data, zero_point)
    filters = centred(b, weights, _along(b, context.optional(3), weights.rank - 1))
    return [direct_convolution(b, left, filters)]


@operator("QLinearMatMul", since=10)
def _qlinear_matmul(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    left = centred(b, context.operand(0), _per_row(b, 0, context.operand(2)))
    right = centred(b, context.operand(3), context.operand(5))
    row_scale = _per_row(b, 0, context.operand(1))
    assert row_scale is not None
    scale = b.multiply(row_scale, context.operand(4))
    return [requantised(b, matmul(b, left, right), scale, context.operand(6), context.operand(7))]


@operator("QLinearConv", since=10)
def _qlinear_conv(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    data, weights = context.operand(0), context.operand(3)
    left = centred(b, data, scalar_of(b, context.operand(2)))
    filters = centred(b, weights, _along(b, context.operand(5), weights.rank - 1))
    product = with_bias(b, direct_convolution(b, left, filters), context.optional(8))
    channel_scale = _along(b, context.operand(4), product.rank - 2)
    data_scale = scalar_of(b, context.operand(1))
    assert channel_scale is not None
    scale = b.multiply(data_scale, channel_scale)
    return [requantised(b, product, scale, context.operand(6), context.operand(7))]


def centred(b: Builder, x: Node, zero_point: Node | None) -> Node:
    """``x`` minus its zero point (already shaped to broadcast) in int32."""
    wide = cast(x, DType.INT32)
    if zero_point is None:
        return wide
    point = cast(zero_point, DType.INT32)
    return b.subtract(wide, b.expand(_without_leading_ones(b, point, x.rank), wide.shape))


def _without_leading_ones(b: Builder, x: Node, rank: int) -> Node:
    """``x`` without axes of size 1 in front that exceed ``rank``."""
    while x.rank > rank and b.scope.is_equal(x.shape[0], 1) is Truth.YES:
        x = b.reshape(x, x.shape[1:])
    return x


def _along(b: Builder, x: Node | None, trailing: int) -> Node | None:
    """A parameter per tensor or channel, with ``trailing`` axes of size 1 behind the channel."""
    if x is None or x.rank == 0:
        return x
    sizes: list[Expr] = [x.shape[0], *[constant(1)] * trailing]
    return b.reshape(x, sizes)


def _per_row(b: Builder, operand: int, x: Node | None) -> Node | None:
    """A parameter per tensor or per row of the matrix ``operand``, shaped to broadcast with it."""
    if x is None or x.rank != 1 or b.context.operand(operand).rank < 2:
        return x
    return b.unsqueeze(x, [1])


def requantised(b: Builder, product: Node, scale: Node, y_scale: Node, zero_point: Node) -> Node:
    """Round(product * scale / y_scale) + zero point, limited to the zero point's type."""
    dtype = zero_point.dtype
    factor = b.divide(cast(scale, DType.FLOAT32), cast(y_scale, DType.FLOAT32))
    factor = _without_leading_ones(b, factor, product.rank)
    scaled = b.multiply(cast(product, DType.FLOAT32), factor)
    shifted = b.add(b.map("round_even", scaled), cast(zero_point, DType.FLOAT32))
    limits = np.iinfo(dtype.value)
    clipped = b.minimum(b.maximum(shifted, float(limits.min)), float(limits.max))
    return cast(clipped, dtype)
