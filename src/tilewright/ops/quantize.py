"""Rules of QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

A scale is one number, one per element of an axis, or one per block along an axis. Computed in
float32; results saturate before they are converted. Start with :func:`quantize_linear`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Constant
from tilewright.ops.build import Builder, array, cast
from tilewright.ops.onnx_types import element_type
from tilewright.ops.operands import along, numeric, require_same_shape, widen
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.shape import Truth, ceil_div, constant

BYTES_OF = {
    DType.INT4: DType.INT8,
    DType.INT2: DType.INT8,
    DType.UINT4: DType.UINT8,
    DType.UINT2: DType.UINT8,
}
QUANTISED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def _spread(builder: Builder, parameter: Node, x: Node, what: str) -> Node:
    """A scale or zero point (any of the three granularities) in the shape of ``x``."""
    context = builder.context
    if parameter.rank == 0:
        return builder.expand(parameter, x.shape)
    block = context.integer("block_size", 0)
    if block == 0 and builder.scope.is_equal(parameter.shape[0], 1) is Truth.YES:
        return builder.expand(builder.reshape(parameter, ()), x.shape)
    axis = builder.axis(context.integer("axis", 1 if x.rank > 1 else 0), x.rank)
    if block == 0:
        return along(builder, parameter, x.shape, axis, what)
    return _repeat_blocks(builder, parameter, x, axis, block)


def _repeat_blocks(builder: Builder, parameter: Node, x: Node, axis: int, block: int) -> Node:
    """Every element ``block`` times along ``axis``, cut to the size of ``x``."""
    blocks = ceil_div(x.shape[axis], block)
    expected = (*x.shape[:axis], blocks, *x.shape[axis + 1 :])
    message = "the blocks do not fit the data"
    require_same_shape(builder.context, parameter.shape, expected, message)
    tall = builder.unsqueeze(parameter, [axis + 1])
    sizes = [*parameter.shape[: axis + 1], constant(block), *parameter.shape[axis + 1 :]]
    repeated = builder.broadcast(tall, sizes, range(tall.rank))
    count = parameter.shape[axis] * block
    flat = builder.reshape(repeated, [*x.shape[:axis], count, *x.shape[axis + 1 :]])
    return builder.slice_axis(flat, axis, 0, x.shape[axis])


def saturate(builder: Builder, x: Node, dtype: DType) -> Node:
    """Whole numbers in float32, clipped to the range of ``dtype`` and converted."""
    bits = 8 * dtype.bytes
    least = -(2 ** (bits - 1)) if dtype.is_signed else 0
    greatest = least + 2**bits - 1
    return cast(builder.minimum(builder.maximum(x, float(least)), float(greatest)), dtype)


def _quantised_type(context: RuleContext) -> DType:
    """The result type: that of the zero point, or the attribute's, or uint8."""
    zero, number = context.optional(2), context.integer("output_dtype", 0)
    if zero is not None:
        found = zero.dtype
    else:
        found = element_type(number, where=context.where) if number else DType.UINT8
    if found not in QUANTISED:
        raise NoRule(f"the result has type {found.value}", where=context.where)
    return found


@operator("QuantizeLinear", computes=False)
def quantize_linear(context: RuleContext) -> Sequence[Node]:
    """saturate(round(x / scale) + zero point), rounding to even."""
    builder, x = numeric(context)
    dtype = _quantised_type(context)
    scale = context.operand(1)
    quotient = _quotient(builder, x, scale)
    rounded = builder.map("round_even", quotient)
    zero = context.optional(2)
    if zero is not None:
        wide = cast(zero, rounded.dtype)
        rounded = builder.add(rounded, _spread(builder, wide, x, "the zero point"))
    return [saturate(builder, rounded, dtype)]


def _quotient(builder: Builder, x: Node, scale: Node) -> Node:
    """x / scale as precise as the type of the scale (or the attribute) says, in float32.

    A quotient of 16-bit floats that is rounded from float32 is the one of a 16-bit division.
    """
    context = builder.context
    number = context.integer("precision", 0)
    precision = element_type(number, where=context.where) if number else scale.dtype
    work = DType.FLOAT64 if precision is DType.FLOAT64 else DType.FLOAT32
    divisor = _spread(builder, cast(scale, work), x, "the scale")
    quotient = builder.divide(cast(x, work), divisor)
    return widen(cast(quotient, precision)) if precision.is_half else quotient


def _few_bits(context: RuleContext) -> tuple[Builder, Node, Node | None]:
    """A builder, the data and its zero point; constants of 2 or 4 bits as bytes."""
    x, zero = context.operand(0), context.optional(2)
    whole = BYTES_OF.get(x.dtype)
    if whole is None or not isinstance(x.primitive, Constant):
        builder, x = numeric(context)
        return builder, x, zero
    if zero is not None and not isinstance(zero.primitive, Constant):
        raise NoRule("the zero point is not constant", where=context.where)
    data, point = context.constant(0), context.constant(2)
    assert data is not None
    zero = None if point is None else array(point.astype(whole.numpy), whole)
    return Builder(context), array(data.astype(whole.numpy), whole), zero


@operator("DequantizeLinear", computes=False)
def dequantize_linear(context: RuleContext) -> Sequence[Node]:
    """(x - zero point) * scale."""
    builder, x, zero = _few_bits(context)
    scale = context.operand(1)
    number = context.integer("output_dtype", 0)
    dtype = element_type(number, where=context.where) if number else scale.dtype
    difference = cast(x, DType.FLOAT32)
    if zero is not None:
        wide = cast(zero, DType.FLOAT32)
        difference = builder.subtract(difference, _spread(builder, wide, x, "the zero point"))
    factor = _spread(builder, cast(scale, DType.FLOAT32), x, "the scale")
    return [cast(builder.multiply(difference, factor), dtype)]


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(context: RuleContext) -> Sequence[Node]:
    """uint8 by the data's own range (extended to 0): the data, its scale and its zero point."""
    builder, x = numeric(context)
    high = builder.maximum(_extreme(builder, "maximum", x), 0.0)
    low = builder.minimum(_extreme(builder, "minimum", x), 0.0)
    spread = builder.subtract(high, low)
    width = builder.select(builder.map("equal", spread, 0.0), 1.0, spread)
    scale = builder.divide(width, 255.0)
    offset = builder.map("negate", builder.divide(low, scale))
    offset = builder.map("round_even", builder.minimum(builder.maximum(offset, 0.0), 255.0))
    rounded = builder.map("round_even", builder.divide(x, scale))
    data = saturate(builder, builder.add(rounded, offset), DType.UINT8)
    return [data, scale, cast(offset, DType.UINT8)][: context.output_count]


def _extreme(builder: Builder, kind: str, x: Node) -> Node:
    """The largest or smallest element of ``x``: of every row, which threads share, then of all."""
    lead = range(max(x.rank - (2 if x.rank > 3 else 1), 0))
    rows = builder.reduce(kind, x, range(len(lead), x.rank))
    return builder.reduce(kind, rows, lead)
