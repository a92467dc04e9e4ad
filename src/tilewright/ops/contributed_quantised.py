"""Elementwise work, pooling and softmax of bytes with scales, of the domain com.microsoft.

Data are (byte - zero point) * scale. Results are bytes again: whether the zero point is added
before rounding or after, which differs where halves are rounded to even, is ONNX Runtime's choice
for each operator. Start with :func:`_stored`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.contributed import (
    DOMAIN,
    channels_first,
    channels_last,
    contributed,
    standard,
)
from tilewright.ops.quantize import dequantize_linear, quantize_linear, saturate
from tilewright.ops.record import RuleContext, operator
from tilewright.ops.sizes import scalar_of
from tilewright.ops.softmax import soft_maximum
from tilewright.ops.types import require_native
from tilewright.shape import product
from tilewright.support.errors import InvalidModelError

# Here ``axis`` has no default: without it there is one scale, which the standard rules see too.
operator("QuantizeLinear", domain=DOMAIN, computes=False)(quantize_linear)
operator("DequantizeLinear", domain=DOMAIN, computes=False)(dequantize_linear)


@dataclass(frozen=True)
class _Form:
    """How a tensor is stored: its scale and zero point as float32 numbers."""

    scale: Node
    zero: Node


def _form(b: Builder, scale: int) -> _Form:
    """The form whose scale is operand ``scale``; the zero point, which may be missing, follows."""
    zero = b.context.optional(scale + 1)
    found = scalar(0.0, DType.FLOAT32)
    if zero is not None:
        found = cast(scalar_of(b, zero), DType.FLOAT32)
    return _Form(cast(scalar_of(b, b.context.operand(scale)), DType.FLOAT32), found)


def _centred(b: Builder, x: Node, form: _Form) -> Node:
    """The whole numbers that the scale counts, in float32."""
    return b.subtract(cast(x, DType.FLOAT32), form.zero)


def _numbers(b: Builder, x: Node, form: _Form) -> Node:
    return b.multiply(_centred(b, x, form), form.scale)


def _stored(b: Builder, x: Node, form: _Form, dtype: DType) -> Node:
    """Numbers as bytes: the zero point is added to the rounded quotient."""
    return _shifted(b, b.divide(x, form.scale), form, dtype)


def _shifted(b: Builder, quotient: Node, form: _Form, dtype: DType) -> Node:
    return saturate(b, b.add(b.map("round_even", quotient), form.zero), dtype)


def _rounded_last(b: Builder, quotient: Node, form: _Form, dtype: DType) -> Node:
    """Quotients as bytes: rounded with the zero point added."""
    return saturate(b, b.map("round_even", b.add(quotient, form.zero)), dtype)


def _begin(context: RuleContext) -> Builder:
    require_native(context)
    return Builder(context)


# ---------------------------------------------------------------- elementwise


@contributed("QLinearAdd")
def _add(context: RuleContext) -> Sequence[Node]:
    """What zero points contribute is a number, as in ONNX Runtime, not taken off each element."""
    b = _begin(context)
    result = _form(b, 6)
    forms = [_form(b, 1), _form(b, 4)]
    factors = [b.divide(form.scale, result.scale) for form in forms]
    taken = [b.multiply(f, form.zero) for f, form in zip(factors, forms, strict=True)]
    fixed = b.subtract(result.zero, b.add(*taken))
    left, right = (
        b.multiply(cast(context.operand(i), DType.FLOAT32), f)
        for i, f in zip((0, 3), factors, strict=True)
    )
    whole = b.map("round_even", b.add(left, b.add(right, fixed)))
    return [saturate(b, whole, context.operand(0).dtype)]


@contributed("QLinearMul")
def _multiply(context: RuleContext) -> Sequence[Node]:
    b = _begin(context)
    left, right, result = _form(b, 1), _form(b, 4), _form(b, 6)
    whole = b.multiply(
        _centred(b, context.operand(0), left), _centred(b, context.operand(3), right)
    )
    factor = b.divide(b.multiply(left.scale, right.scale), result.scale)
    return [_rounded_last(b, b.multiply(whole, factor), result, context.operand(0).dtype)]


def _activation(context: RuleContext, name: str) -> Sequence[Node]:
    """A standard operator of one operand, on the numbers that bytes stand for."""
    b = _begin(context)
    x = context.operand(0)
    (made,) = standard(context, name, [_numbers(b, x, _form(b, 1))])
    return [_stored(b, made, _form(b, 3), x.dtype)]


@contributed("QLinearSigmoid")
def _sigmoid(context: RuleContext) -> Sequence[Node]:
    return _activation(context, "Sigmoid")


@contributed("QLinearLeakyRelu")
def _leaky_rectifier(context: RuleContext) -> Sequence[Node]:
    return _activation(context, "LeakyRelu")


@contributed("QLinearConcat")
def _concat(context: RuleContext) -> Sequence[Node]:
    """Operands are the form of the result, then data and form of each part."""
    b = _begin(context)
    result, dtype = _form(b, 0), context.operand(1).dtype
    if len(context.inputs) < 5 or len(context.inputs) % 3 != 2:
        message = f"{len(context.inputs)} operands are no parts with a scale and a zero point"
        raise InvalidModelError(message, where=context.where)
    starts = range(2, len(context.inputs), 3)
    parts = [
        _stored(b, _numbers(b, context.operand(i), _form(b, i + 1)), result, dtype) for i in starts
    ]
    return [b.concat(parts, b.axis(context.integer("axis"), parts[0].rank))]


@contributed("QLinearWhere")
def _where(context: RuleContext) -> Sequence[Node]:
    b = _begin(context)
    result, dtype = _form(b, 7), context.operand(1).dtype
    chosen = [
        _stored(b, _numbers(b, context.operand(i), _form(b, i + 1)), result, dtype) for i in (1, 4)
    ]
    return [b.select(context.operand(0), *chosen)]


# ---------------------------------------------------------------- along axes


@contributed("QLinearSoftmax")
def _softmax(context: RuleContext) -> Sequence[Node]:
    """Before opset 13, which an attribute tells, an axis meant itself and all after it."""
    b = _begin(context)
    x = context.operand(0)
    axis = b.axis(context.integer("axis", -1), x.rank)
    last = axis + 1 if context.integer("opset") >= 13 else x.rank
    made = soft_maximum(b, _numbers(b, x, _form(b, 1)), tuple(range(axis, last)))
    return [_stored(b, made, _form(b, 3), x.dtype)]


@contributed("QLinearReduceMean")
def _reduce_mean(context: RuleContext) -> Sequence[Node]:
    b = _begin(context)
    x = context.operand(0)
    given = context.integer_list("axes", range(x.rank))
    axes = sorted({b.axis(a, x.rank) for a in given})
    made = b.mean(_numbers(b, x, _form(b, 1)), axes, keep=bool(context.integer("keepdims", 1)))
    return [_stored(b, made, _form(b, 3), x.dtype)]


@contributed("QLinearGlobalAveragePool")
def _global_average_pool(context: RuleContext) -> Sequence[Node]:
    """Sums are exact, and scaled once by what a mean and the change of the form divide by."""
    b = _begin(context)
    x, given, result = context.operand(0), _form(b, 1), _form(b, 3)
    first = 1 if context.integer("channels_last", 0) else 2
    axes = range(first, x.rank + first - 2)
    whole = b.subtract(cast(x, DType.INT32), cast(given.zero, DType.INT32))
    count = cast(dimension(product([x.shape[a] for a in axes])), DType.FLOAT32)
    factor = b.divide(given.scale, b.multiply(result.scale, count))
    summed = cast(b.reduce("sum", whole, axes, keep=True), DType.FLOAT32)
    return [_shifted(b, b.multiply(summed, factor), result, x.dtype)]


@contributed("QLinearAveragePool")
def _average_pool(context: RuleContext) -> Sequence[Node]:
    b = _begin(context)
    x, given, result = context.operand(0), _form(b, 1), _form(b, 3)
    data, is_last = _numbers(b, x, given), context.integer("channels_last", 0) != 0
    (made,) = standard(context, "AveragePool", [channels_first(data) if is_last else data])
    made = channels_last(made) if is_last else made
    return [_rounded_last(b, b.divide(made, result.scale), result, x.dtype)]


@contributed("NhwcMaxPool", computes=False)
def _max_pool(context: RuleContext) -> Sequence[Node]:
    """Maxima of bytes, which need no scale, with the channels last."""
    b = _begin(context)
    (made,) = standard(b.context, "MaxPool", [channels_first(context.operand(0))])
    return [channels_last(made)]
