"""Rules of activations: short formulas over scalar functions, chosen to not overflow.

An exponential is only taken where its argument is not positive, or where overflow gives the right
limit. Softmax and its kin are in `softmax.py`. Start with :func:`sigmoid`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Map
from tilewright.ops.build import Builder, cast
from tilewright.ops.operands import expand_to, numeric, require_same_shape
from tilewright.ops.record import RuleContext, operator

# The defaults of ONNX.
SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875
# Terms of the series of log(1 + x) after which the next one is below half a unit in the last place:
# the ratio of two is 1/9.
SERIES_OF_FLOATS, SERIES_OF_DOUBLES = 8, 16

# From here on the hyperbolic tangent of a softplus, 1 - 2 / (exp(x)**2 + ...), rounds to 1 or its
# neighbour, and the square of the exponential is still a number.
ONE_FROM = {DType.FLOAT16: 5.0, DType.FLOAT32: 9.0, DType.FLOAT64: 19.0}


def _logistic(builder: Builder, x: Node) -> Node:
    """1 / (1 + exp(-x)); where exp overflows the quotient is 0, the limit."""
    grown = builder.map("exponential", builder.map("negate", x))
    return builder.divide(1.0, builder.add(grown, 1.0))


def _exponential_minus_one(builder: Builder, x: Node) -> Node:
    """exp(min(x, 0)) - 1: the negative branch of Elu and its kin."""
    return builder.subtract(builder.map("exponential", builder.minimum(x, 0.0)), 1.0)


def _soft_plus(builder: Builder, x: Node) -> Node:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|))."""
    small = builder.map("exponential", builder.map("negate", builder.map("absolute", x)))
    return builder.add(builder.maximum(x, 0.0), _logarithm_of_one_plus(builder, small))


def _within_soft_plus(builder: Builder, y: Node) -> Node | None:
    """The x of which ``y`` is the softplus, if it is one."""
    if y.primitive != Map("add") or y.inputs[0].primitive != Map("maximum"):
        return None
    x = y.inputs[0].inputs[0]
    return x if _soft_plus(builder, x) is y else None  # equal nodes are one


def _tangent_of_soft_plus(builder: Builder, x: Node) -> Node:
    """tanh(log(1 + e)) of e = exp(x): n / (n + 2) with n = e (e + 2), which is 1 for large x."""
    limit = ONE_FROM.get(x.dtype, ONE_FROM[DType.FLOAT32])
    e = builder.map("exponential", builder.minimum(x, limit))
    n = builder.multiply(e, builder.add(e, 2.0))
    return builder.divide(n, builder.add(n, 2.0))


def _logarithm_of_one_plus(builder: Builder, x: Node) -> Node:
    """log(1 + x) for x in 0..1, with all digits where x is small and 1 + x would round them off.

    The series 2 (t + t³/3 + t⁵/5 + …) of t = x / (2 + x), which is at most 1/3.
    """
    t = builder.divide(x, builder.add(x, 2.0))
    square = builder.multiply(t, t)
    terms = SERIES_OF_DOUBLES if x.dtype is DType.FLOAT64 else SERIES_OF_FLOATS
    series = builder.multiply(square, 2.0 / (2 * terms - 1))
    for term in range(terms - 2, 0, -1):
        series = builder.multiply(builder.add(series, 2.0 / (2 * term + 1)), square)
    return builder.multiply(builder.add(series, 2.0), t)


def _hard_sigmoid(builder: Builder, x: Node, alpha: float, beta: float) -> Node:
    line = builder.add(builder.multiply(x, alpha), beta)
    return builder.maximum(builder.minimum(line, 1.0), 0.0)


def _swish(builder: Builder, x: Node, alpha: float) -> Node:
    scaled = x if alpha == 1.0 else builder.multiply(x, alpha)
    return builder.multiply(x, _logistic(builder, scaled))


@operator("Relu")
def relu(context: RuleContext) -> Sequence[Node]:
    """max(x, 0)."""
    builder, x = numeric(context)
    return [builder.maximum(x, 0)]


@operator("LeakyRelu")
def leaky_relu(context: RuleContext) -> Sequence[Node]:
    """x, or alpha x where negative."""
    builder, x = numeric(context)
    scaled = builder.multiply(x, context.number("alpha", 0.01))
    return [builder.select(builder.map("less", x, 0.0), scaled, x)]


@operator("PRelu", since=7)
def parametric_relu(context: RuleContext) -> Sequence[Node]:
    """x, or slope x where negative; the slope is broadcast to x."""
    builder, x = numeric(context)
    slope = expand_to(builder, context.operand(1), x.shape, "the slope")
    return [builder.select(builder.map("less", x, 0), builder.multiply(x, slope), x)]


@operator("Elu")
def elu(context: RuleContext) -> Sequence[Node]:
    """x, or alpha (exp(x) - 1) where negative."""
    builder, x = numeric(context)
    low = builder.multiply(_exponential_minus_one(builder, x), context.number("alpha", 1.0))
    return [builder.select(builder.map("less", x, 0.0), low, x)]


@operator("Celu")
def celu(context: RuleContext) -> Sequence[Node]:
    """max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)."""
    builder, x = numeric(context)
    alpha = context.number("alpha", 1.0)
    grown = builder.map("exponential", builder.divide(builder.minimum(x, 0.0), alpha))
    low = builder.multiply(builder.subtract(grown, 1.0), alpha)
    return [builder.add(builder.maximum(x, 0.0), low)]


@operator("Selu")
def selu(context: RuleContext) -> Sequence[Node]:
    """gamma x, or gamma alpha (exp(x) - 1) where negative."""
    builder, x = numeric(context)
    alpha, gamma = context.number("alpha", SELU_ALPHA), context.number("gamma", SELU_GAMMA)
    low = builder.multiply(_exponential_minus_one(builder, x), gamma * alpha)
    high = builder.multiply(x, gamma)
    return [builder.select(builder.map("less", x, 0.0), low, high)]


@operator("Gelu")
def gelu(context: RuleContext) -> Sequence[Node]:
    """x Phi(x), by the error function or its approximation by a hyperbolic tangent."""
    builder, x = numeric(context)
    if context.text("approximate", "none") == "tanh":
        cube = builder.multiply(builder.multiply(x, x), x)
        inner = builder.add(x, builder.multiply(cube, 0.044715))
        scaled = builder.multiply(inner, math.sqrt(2.0 / math.pi))
        bell = builder.map("hyperbolic_tangent", scaled)
    else:
        bell = builder.map("error_function", builder.multiply(x, math.sqrt(0.5)))
    return [builder.multiply(builder.multiply(x, 0.5), builder.add(bell, 1.0))]


@operator("Sigmoid")
def sigmoid(context: RuleContext) -> Sequence[Node]:
    """1 / (1 + exp(-x))."""
    builder, x = numeric(context)
    return [_logistic(builder, x)]


@operator("HardSigmoid")
def hard_sigmoid(context: RuleContext) -> Sequence[Node]:
    """alpha x + beta between 0 and 1."""
    builder, x = numeric(context)
    alpha, beta = context.number("alpha", 0.2), context.number("beta", 0.5)
    return [_hard_sigmoid(builder, x, alpha, beta)]


@operator("HardSwish")
def hard_swish(context: RuleContext) -> Sequence[Node]:
    """x times its hard sigmoid with alpha = 1/6, a float32 in its function in the standard."""
    builder, x = numeric(context)
    return [builder.multiply(x, _hard_sigmoid(builder, x, float(np.float32(1.0 / 6.0)), 0.5))]


@operator("Swish")
def swish(context: RuleContext) -> Sequence[Node]:
    """x times the sigmoid of alpha x."""
    builder, x = numeric(context)
    return [_swish(builder, x, context.number("alpha", 1.0))]


@operator("SwiGLU")
def gated_swish(context: RuleContext) -> Sequence[Node]:
    """The swish of operand 0 times operand 1, which has the same shape."""
    builder, gate = numeric(context)
    value = context.operand(1)
    require_same_shape(context, gate.shape, value.shape, "gate and value differ in shape")
    value = builder.broadcast(value, gate.shape, range(gate.rank))
    return [builder.multiply(_swish(builder, gate, context.number("alpha", 1.0)), value)]


@operator("Softplus")
def soft_plus(context: RuleContext) -> Sequence[Node]:
    """log(1 + exp(x))."""
    builder, x = numeric(context)
    return [_soft_plus(builder, x)]


@operator("Mish")
def mish(context: RuleContext) -> Sequence[Node]:
    """x tanh(softplus(x))."""
    builder, x = numeric(context)
    return [builder.multiply(x, _tangent_of_soft_plus(builder, x))]


@operator("Tanh")
def hyperbolic_tangent(context: RuleContext) -> Sequence[Node]:
    """tanh(x); that of a softplus, of which models spell out Mish, without a logarithm."""
    builder, x = numeric(context)
    inside = _within_soft_plus(builder, x)
    if inside is not None:
        return [_tangent_of_soft_plus(builder, inside)]
    return [builder.map("hyperbolic_tangent", x)]


@operator("Softsign")
def soft_sign(context: RuleContext) -> Sequence[Node]:
    """x / (1 + |x|)."""
    builder, x = numeric(context)
    return [builder.divide(x, builder.add(builder.map("absolute", x), 1.0))]


@operator("ThresholdedRelu")
def thresholded_relu(context: RuleContext) -> Sequence[Node]:
    """x where above alpha, else 0."""
    builder, x = numeric(context)
    above = builder.map("less", context.number("alpha", 1.0), x)
    return [builder.select(above, x, 0.0)]


@operator("Shrink")
def shrink(context: RuleContext) -> Sequence[Node]:
    """x moved towards 0 by the bias where farther from 0 than lambd, else 0."""
    builder, x = numeric(context)
    bias, threshold = context.number("bias", 0.0), context.number("lambd", 0.5)
    # The attributes are floats: integers are computed as such and truncated.
    work = x if x.dtype.is_float else cast(x, DType.FLOAT64)
    raised = builder.add(work, bias)
    lowered = builder.subtract(work, bias)
    high = builder.select(builder.map("less", threshold, work), lowered, 0.0)
    result = builder.select(builder.map("less", work, -threshold), raised, high)
    return [cast(result, x.dtype)]


@operator("Clip", since=11)
def clip(context: RuleContext) -> Sequence[Node]:
    """min(max(x, least), greatest); bounds are scalars and may be left out."""
    builder, x = numeric(context)
    for index, function in ((1, "maximum"), (2, "minimum")):
        bound = context.optional(index)
        if bound is not None:
            for size in bound.shape:
                context.require_equal(size, builder.shape([1])[0], "a bound must be a scalar")
            x = builder.map(function, x, builder.reshape(bound, ()))
    return [x]
