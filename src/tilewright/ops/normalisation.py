"""Rules of normalisations: statistics by reductions, then elementwise arithmetic.

The variance is the mean of squared differences from the mean, or from what a rounded sum says that
the mean is, corrected; never a difference of means of what may be far from 0. 16-bit floats are
computed in float32. Start with :func:`standardise`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Window
from tilewright.ops.build import Builder, cast
from tilewright.ops.onnx_types import element_type
from tilewright.ops.operands import along, expand_to, numeric, widen
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.shape import constant, equal
from tilewright.support.text import format_count

EPSILON = 1e-5  # the default of ONNX


def _moments(builder: Builder, x: Node, axes: Sequence[int]) -> tuple[Node, Node, Node]:
    """Mean over ``axes`` (kept), difference from it, and mean of its square (kept)."""
    mean = builder.mean(x, axes, keep=True)
    centred = builder.subtract(x, mean)
    variance = builder.mean(builder.multiply(centred, centred), axes, keep=True)
    return mean, centred, variance


def _inverse_root(builder: Builder, variance: Node, epsilon: float) -> Node:
    return builder.divide(1.0, builder.map("square_root", builder.add(variance, epsilon)))


def standardise(
    builder: Builder, x: Node, axes: Sequence[int], epsilon: float
) -> tuple[Node, Node, Node]:
    """``x`` with mean 0 and variance 1 over ``axes``, the mean, and 1 / standard deviation.

    What rounding leaves of the mean is taken away as well: equal values then become exactly 0, and
    values far from 0 keep their digits. A kernel of whole rows finds the rest of the mean in the
    sweep that finds the variance.
    """
    mean, centred, square = _moments(builder, x, axes)
    rest = builder.mean(centred, axes, keep=True)
    # Where squares are infinite, so is the variance, as if it had not been corrected.
    largest = float(np.finfo(np.float64 if x.dtype is DType.FLOAT64 else np.float32).max)
    correction = builder.map("minimum", builder.multiply(rest, rest), largest)
    variance = builder.map("maximum", builder.subtract(square, correction), 0.0)
    inverse = _inverse_root(builder, variance, epsilon)
    result = builder.multiply(builder.subtract(centred, rest), inverse)
    return result, builder.add(mean, rest), inverse


@operator("LayerNormalization", computes=False)
def layer_normalization(context: RuleContext) -> Sequence[Node]:
    """Standardised over the axes from ``axis`` on, scaled and shifted; mean, 1 / deviation."""
    builder, x = numeric(context)
    axis = builder.axis(context.integer("axis", -1), x.rank)
    epsilon = context.number("epsilon", EPSILON)
    work = widen(x)
    result, mean, inverse = standardise(builder, work, range(axis, x.rank), epsilon)
    result = builder.multiply(result, _fitted(builder, context.operand(1), work, "the scale"))
    bias = context.optional(2)
    if bias is not None:
        result = builder.add(result, _fitted(builder, bias, work, "the bias"))
    stash = element_type(context.integer("stash_type", 1), where=context.where)
    outputs = [cast(result, x.dtype), cast(mean, stash), cast(inverse, stash)]
    return outputs[: context.output_count]


def _fitted(builder: Builder, parameter: Node, x: Node, what: str) -> Node:
    """A parameter in the type and shape of ``x``."""
    return expand_to(builder, cast(parameter, x.dtype), x.shape, what)


@operator("RMSNormalization", computes=False)
def root_mean_square_normalization(context: RuleContext) -> Sequence[Node]:
    """x / sqrt(mean(x²) + epsilon) over the axes from ``axis`` on, scaled."""
    builder, x = numeric(context)
    axis = builder.axis(context.integer("axis", -1), x.rank)
    work = widen(x)
    square = builder.mean(builder.multiply(work, work), range(axis, x.rank), keep=True)
    inverse = _inverse_root(builder, square, context.number("epsilon", EPSILON))
    scale = _fitted(builder, context.operand(1), work, "the scale")
    return [cast(builder.multiply(builder.multiply(work, inverse), scale), x.dtype)]


@operator("InstanceNormalization")
def instance_normalization(context: RuleContext) -> Sequence[Node]:
    """Standardised per instance and channel, scaled and shifted per channel."""
    builder, x = numeric(context)
    epsilon = context.number("epsilon", EPSILON)
    result, _, _ = standardise(builder, x, range(2, x.rank), epsilon)
    return [_scale_and_shift(builder, result, context.operand(1), context.operand(2))]


def _scale_and_shift(builder: Builder, x: Node, scale: Node, shift: Node) -> Node:
    """x * scale + shift with one scale and shift per element of axis 1."""
    scaled = builder.multiply(x, along(builder, scale, x.shape, 1, "the scale"))
    return builder.add(scaled, along(builder, shift, x.shape, 1, "the bias"))


def _grouped(builder: Builder, x: Node) -> Node:
    """[N, C, …] standardised in groups of channels, as [N, groups, C / groups, …]."""
    context = builder.context
    groups = context.integer("num_groups")
    channels = x.shape[1]
    message = f"{channels} channels cannot be split into {groups} groups"
    context.require(equal(channels % groups, 0), message)
    split = builder.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    epsilon = context.number("epsilon", EPSILON)
    return standardise(builder, split, range(2, split.rank), epsilon)[0]


@operator("GroupNormalization")
def group_normalization_per_group(context: RuleContext) -> Sequence[Node]:
    """Before opset 21: one scale and bias per group."""
    builder, x = numeric(context)
    result = _scale_and_shift(builder, _grouped(builder, x), context.operand(1), context.operand(2))
    return [builder.reshape(result, x.shape)]


@operator("GroupNormalization", since=21)
def group_normalization(context: RuleContext) -> Sequence[Node]:
    """From opset 21 on: one scale and bias per channel."""
    builder, x = numeric(context)
    result = builder.reshape(_grouped(builder, x), x.shape)
    return [_scale_and_shift(builder, result, context.operand(1), context.operand(2))]


@operator("BatchNormalization", since=9, computes=False)
def batch_normalization(context: RuleContext) -> Sequence[Node]:
    """x * a + c per channel; in training mode by the batch's statistics, which are averaged in."""
    builder, x = numeric(context)
    if x.rank < 2:
        raise NoRule(f"the data has {format_count(x.rank, 'axis', 'axes')}", where=context.where)
    training = bool(context.integer("training_mode", 0))
    if context.output_count > 1 and not training:
        raise NoRule("statistics of training before opset 14", where=context.where)
    work = widen(x)
    parameters = [cast(context.operand(i), work.dtype) for i in range(1, 5)]
    scale, shift, mean, variance = parameters
    extra: list[Node] = []
    if training:
        axes = [a for a in range(x.rank) if a != 1]
        mean, variance = _channel_moments(builder, work, axes)
        extra = [
            _running(builder, parameters[i], current, context.operand(i + 1).dtype)
            for i, current in ((2, mean), (3, variance))
        ]
    root = builder.map("square_root", builder.add(variance, context.number("epsilon", EPSILON)))
    factor = builder.divide(scale, root)
    offset = builder.subtract(shift, builder.multiply(mean, factor))
    result = _scale_and_shift(builder, work, factor, offset)
    return [cast(result, x.dtype), *extra][: context.output_count]


def _channel_moments(builder: Builder, x: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """Mean and variance of every channel, as vectors."""
    mean, _, variance = _moments(builder, x, axes)
    channels = (x.shape[1],)
    return builder.reshape(mean, channels), builder.reshape(variance, channels)


def _running(builder: Builder, previous: Node, current: Node, dtype: DType) -> Node:
    momentum = builder.context.number("momentum", 0.9)
    kept = builder.multiply(previous, momentum)
    return cast(builder.add(kept, builder.multiply(current, 1.0 - momentum)), dtype)


@operator("LpNormalization")
def norm_normalization(context: RuleContext) -> Sequence[Node]:
    """x over its norm along an axis; 0 where the norm is 0."""
    builder, x = numeric(context)
    axis = (builder.axis(context.integer("axis", -1), x.rank),)
    if context.integer("p", 2) == 1:
        norm = builder.reduce("sum", builder.map("absolute", x), axis, keep=True)
    else:
        squares = builder.reduce("sum", builder.multiply(x, x), axis, keep=True)
        norm = builder.map("square_root", squares)
    is_zero = builder.map("equal", norm, 0.0)
    return [builder.divide(x, builder.select(is_zero, 1.0, norm))]


@operator("MeanVarianceNormalization")
def mean_variance_normalization(context: RuleContext) -> Sequence[Node]:
    """(x - mean) / (standard deviation + 1e-9) over ``axes``."""
    builder, x = numeric(context)
    axes = [builder.axis(a, x.rank) for a in context.integer_list("axes", [0, 2, 3])]
    _, centred, variance = _moments(builder, x, axes)
    deviation = builder.add(builder.map("square_root", variance), 1e-9)
    return [builder.divide(centred, deviation)]


@operator("LRN")
def local_response_normalization(context: RuleContext) -> Sequence[Node]:
    """x / (bias + alpha / size * s)^beta with s the sum of squares of ``size`` near channels."""
    builder, x = numeric(context)
    size, rank = context.integer("size"), x.rank - 1
    ones = (1,) * rank
    low = (constant((size - 1) // 2), *(constant(0) for _ in range(rank - 1)))
    window = Window("sum", (size, *ones[1:]), ones, ones, low, x.shape[1:])
    squares = node(window, builder.multiply(x, x))
    weighted = builder.multiply(squares, context.number("alpha", 1e-4) / size)
    base = builder.add(weighted, context.number("bias", 1.0))
    return [builder.divide(x, builder.map("power", base, context.number("beta", 0.75)))]
