"""Rules of Softmax and its kin: LogSoftmax, Hardmax, and the losses made of them.

The maximum is subtracted before exponentials. Before opset 13 an axis meant itself and all after
it. Start with :func:`soft_maximum`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import ArgReduce, GatherElements
from tilewright.ops.build import Builder, cast
from tilewright.ops.operands import numeric, require_same_shape
from tilewright.ops.record import RuleContext, operator

Axes = tuple[int, ...]


def soft_maximum(builder: Builder, x: Node, axes: Axes) -> Node:
    """exp(x - m) / sum(exp(x - m)) with m the maximum, all over ``axes``."""
    grown = builder.map("exponential", _below_maximum(builder, x, axes))
    return builder.divide(grown, builder.reduce("sum", grown, axes, keep=True))


def log_soft_maximum(builder: Builder, x: Node, axes: Axes) -> Node:
    """x - m - log(sum(exp(x - m))) with m the maximum, all over ``axes``."""
    shifted = _below_maximum(builder, x, axes)
    grown = builder.map("exponential", shifted)
    summed = builder.reduce("sum", grown, axes, keep=True)
    return builder.subtract(shifted, builder.map("logarithm", summed))


def _below_maximum(builder: Builder, x: Node, axes: Axes) -> Node:
    return builder.subtract(x, builder.reduce("maximum", x, axes, keep=True))


def _one_axis(builder: Builder, x: Node) -> Axes:
    return (builder.axis(builder.context.integer("axis", -1), x.rank),)


@operator("Softmax", since=13)
def softmax(context: RuleContext) -> Sequence[Node]:
    """Softmax over one axis."""
    builder, x = numeric(context)
    return [soft_maximum(builder, x, _one_axis(builder, x))]


@operator("LogSoftmax", since=13)
def log_softmax(context: RuleContext) -> Sequence[Node]:
    """LogSoftmax over one axis."""
    builder, x = numeric(context)
    return [log_soft_maximum(builder, x, _one_axis(builder, x))]


@operator("Hardmax", since=13)
def hardmax(context: RuleContext) -> Sequence[Node]:
    """1 at the first maximum along one axis, else 0."""
    builder, x = numeric(context)
    return [_hard_maximum(builder, x, _one_axis(builder, x)[0])]


def _hard_maximum(builder: Builder, x: Node, axis: int) -> Node:
    first = builder.unsqueeze(node(ArgReduce("maximum", axis, last=False), x), [axis])
    return cast(builder.map("equal", builder.iota(x.shape, axis), first), x.dtype)


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(context: RuleContext) -> Sequence[Node]:
    """The weighted negative of the input at each target's class."""
    builder, x = numeric(context)
    return [_class_loss(builder, x)]


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(context: RuleContext) -> Sequence[Node]:
    """The loss of the LogSoftmax over axis 1, which is the second output."""
    builder, x = numeric(context)
    logarithms = log_soft_maximum(builder, x, (1,))
    return [_class_loss(builder, logarithms), logarithms][: context.output_count]


def _class_loss(builder: Builder, x: Node) -> Node:
    """[N, C, …] with target classes [N, …] and class weights [C], reduced as the node says."""
    context = builder.context
    target = cast(context.operand(1), DType.INT64)
    expected = x.shape[:1] + x.shape[2:]
    require_same_shape(context, expected, target.shape, "input and target differ in shape")
    valid: Node | None = None
    if context.has("ignore_index"):
        ignored = builder.map("equal", target, context.integer("ignore_index"))
        valid = builder.map("logical_not", ignored)
        # An ignored class may be no class at all: class 0 stands in for it.
        target = builder.select(ignored, 0, target)
    picked = node(GatherElements(1), x, builder.unsqueeze(target, [1]))
    loss = builder.map("negate", builder.reshape(picked, target.shape))
    weight = _class_weight(builder, target, valid, x.dtype)
    if valid is not None:
        loss = builder.select(valid, loss, 0.0)
    if weight is not None:
        loss = builder.multiply(loss, weight)
    return _reduced_loss(builder, loss, weight)


def _class_weight(builder: Builder, target: Node, valid: Node | None, dtype: DType) -> Node | None:
    """The weight of every target, 0 where ignored; None where all are 1."""
    weights = builder.context.optional(2)
    if weights is None:
        return None if valid is None else cast(valid, dtype)
    chosen = builder.gather(weights, target, 0)
    return chosen if valid is None else builder.select(valid, chosen, 0.0)


def _reduced_loss(builder: Builder, loss: Node, weight: Node | None) -> Node:
    axes = tuple(range(loss.rank))
    reduction = builder.context.text("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction == "mean" and weight is None:
        return builder.mean(loss, axes)
    summed = builder.reduce("sum", loss, axes)
    if reduction == "sum" or weight is None:
        return summed
    return builder.divide(summed, builder.reduce("sum", weight, axes))
