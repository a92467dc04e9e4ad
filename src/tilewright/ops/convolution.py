"""Conv and ConvTranspose of any rank, and CausalConvWithState.

A transposed convolution is a convolution with weights flipped and exchanged per group, which are
primitives and fold when the weights are constant: one of the data as they are, with channels for
every phase of the strides, or else one of the data with zeros between them. Start with
:func:`direct_convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Convolve, Slice
from tilewright.ops.build import Builder
from tilewright.ops.linear import contract, with_size
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import require_multiple
from tilewright.ops.spatial import (
    automatic_padding,
    explicit_pads,
    geometry,
    per_axis,
    positive,
)
from tilewright.ops.types import require_native
from tilewright.shape import Expr, ceil_div, constant, less_equal, maximum
from tilewright.support.errors import InvalidModelError


@operator("Conv")
def _conv(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    out = direct_convolution(b, context.operand(0), context.operand(1))
    return [with_bias(b, out, context.optional(2))]


def direct_convolution(b: Builder, data: Node, weights: Node) -> Node:
    """Data [N, C, spatial…] and weights [O, C / group, kernel…] by the node's attributes."""
    groups = _group_count(b)
    weights = _with_kernel_shape(b, data, weights)
    data, weights = _matching_channels(b, data, weights, 1, groups)
    message = f"{weights.shape[0]} output channels in {groups} groups"
    require_multiple(b.context, weights.shape[0], groups, message)
    g = geometry(b, data.shape[2:], weights.shape[2:], ceil=False, fits=True)
    spread = (1,) * g.rank
    return node(Convolve(g.strides, g.dilations, spread, g.low, g.sizes, groups), data, weights)


def with_bias(b: Builder, out: Node, bias: Node | None) -> Node:
    """``out`` [N, O, …] plus a bias [O], if there is one."""
    if bias is None:
        return out
    b.context.require_equal(bias.shape[0], out.shape[1], "the bias does not fit the channels")
    fitting = b.reshape(bias, [out.shape[1]])
    return b.add(out, b.broadcast(fitting, out.shape, [1]))


def _group_count(b: Builder) -> int:
    groups = b.context.integer("group", 1)
    if groups < 1:
        raise InvalidModelError(f"group is {groups}", where=b.context.where)
    return groups


def _with_kernel_shape(b: Builder, data: Node, weights: Node) -> Node:
    """The weights with their kernel sizes resolved by the attribute ``kernel_shape``."""
    if weights.rank != data.rank or data.rank < 3:
        message = f"data of rank {data.rank} and weights of rank {weights.rank}"
        raise InvalidModelError(message, where=b.context.where)
    weights = b.reshape(weights, weights.shape)
    for axis, size in enumerate(b.context.integer_list("kernel_shape", []), start=2):
        message = f"axis {axis} of the weights is not what kernel_shape says"
        b.context.require_equal(weights.shape[axis], constant(size), message)
        weights = with_size(b, weights, axis, size)
    return weights


def _matching_channels(
    b: Builder, data: Node, weights: Node, axis: int, groups: int
) -> tuple[Node, Node]:
    """Data and weights after demanding data channels = weights' size on ``axis`` * ``groups``."""
    what = "channels of data and weights differ"
    b.context.require_equal(data.shape[1], weights.shape[axis] * groups, what)
    weights = b.reshape(weights, weights.shape)
    channels = b.scope.resolve(data.shape[1])
    if channels.is_constant and channels.value % groups == 0:
        weights = with_size(b, weights, axis, channels.value // groups)
    data = b.reshape(data, data.shape)
    return with_size(b, data, 1, weights.shape[axis] * groups), weights


@operator("ConvTranspose")
def _conv_transpose(context: RuleContext) -> Sequence[Node]:
    """The adjoint of a convolution: weights are [C, O / group, kernel…]."""
    b = Builder(context)
    require_native(context)
    groups = _group_count(b)
    weights = _with_kernel_shape(b, context.operand(0), context.operand(1))
    data, weights = _matching_channels(b, context.operand(0), weights, 0, 1)
    message = f"{weights.shape[0]} input channels in {groups} groups"
    require_multiple(context, weights.shape[0], groups, message)
    rank = data.rank - 2
    spread = positive(context, "strides", per_axis(context, "strides", rank, 1))
    dilations = positive(context, "dilations", per_axis(context, "dilations", rank, 1))
    low, sizes = _transposed_sizes(b, data.shape[2:], weights.shape[2:], spread, dilations)
    phased = [axis for axis, s in enumerate(spread) if s > 1]
    if any(dilations[axis] > 1 or not weights.shape[2 + axis].is_constant for axis in phased):
        phased = []
    phases = spread if phased else (1,) * rank
    spread = (1,) * rank if phased else spread
    weights = _taps_of_phases(b, weights, phases)
    flipped = _adjoint_weights(b, weights, groups)
    before, whole = list(low), list(sizes)
    for axis in phased:
        before[axis], whole[axis] = constant(0), ceil_div(low[axis] + sizes[axis], phases[axis])
    extents = [(k - 1) * d for k, d in zip(weights.shape[2:], dilations, strict=True)]
    out = _offset_convolution(
        b, data, flipped, spread, dilations, groups,
        [e - cut for e, cut in zip(extents, before, strict=True)], whole,
    )  # fmt: skip
    out = _interleaved(b, out, phases, groups)
    for axis in phased:
        out = b.slice_axis(out, 2 + axis, low[axis], sizes[axis])
    return [with_bias(b, out, context.optional(2))]


def _taps_of_phases(b: Builder, weights: Node, phases: Sequence[int]) -> Node:
    """[C, O / group, kernel…] with channels for every phase, [C, phases… · O / group, taps…].

    The result at q * stride + phase is made of the data at q, q - 1, … by every stride-th tap from
    that phase on: no zeros between the data are needed. The last taps of some phases are zero.
    """
    if all(s == 1 for s in phases):
        return weights
    channels, outputs, *kernel = weights.shape
    taps = [ceil_div(k, s) if s > 1 else k for k, s in zip(kernel, phases, strict=True)]
    zero = [constant(0)] * weights.rank
    more = [t * s - k for t, s, k in zip(taps, phases, kernel, strict=True)]
    padded = b.pad(weights, zero, [*zero[:2], *more])
    apart = [size for t, s in zip(taps, phases, strict=True) for size in (t, s)]
    split = b.reshape(padded, [channels, outputs, *apart])
    rank = len(phases)
    order = [0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2)]
    return b.reshape(transpose(split, order), [channels, outputs * prod(phases), *taps])


def _interleaved(b: Builder, out: Node, phases: Sequence[int], groups: int) -> Node:
    """[N, group · phases… · O / group, spatial…] to [N, O, spatial · phases…]."""
    if all(s == 1 for s in phases):
        return out
    rank, count = len(phases), prod(phases)
    batch, channels, *spatial = out.shape
    outputs = b.scope.resolve(channels // (groups * count))
    split = b.reshape(out, [batch, groups, *phases, outputs, *spatial])
    places = [axis for a in range(rank) for axis in (3 + rank + a, 2 + a)]
    joined = transpose(split, [0, 1, 2 + rank, *places])
    sizes = [size * s for size, s in zip(spatial, phases, strict=True)]
    return b.reshape(joined, [batch, outputs * groups, *sizes])


def _transposed_sizes(
    b: Builder, spatial: Sequence[Expr], kernel: Sequence[Expr],
    spread: Sequence[int], dilations: Sequence[int],
) -> tuple[list[Expr], list[Expr]]:  # fmt: skip
    """How much is cut off before each axis, and the sizes of the result."""
    context, rank = b.context, len(spatial)
    extra = per_axis(context, "output_padding", rank, 0)
    mode = automatic_padding(context)
    wanted: list[int] = context.integer_list("output_shape", [])[-rank:]
    before, after = explicit_pads(context, rank)
    low: list[Expr] = []
    sizes: list[Expr] = []
    for axis in range(rank):
        full = (spatial[axis] - 1) * spread[axis] + extra[axis]
        full = full + (kernel[axis] - 1) * dilations[axis] + 1
        if wanted or mode.startswith("SAME"):
            size = constant(wanted[axis]) if wanted else spatial[axis] * spread[axis]
            cut = maximum(0, full - size)
            half = cut // 2
            low.append(half if mode == "SAME_UPPER" else cut - half)
        else:
            pads = (before[axis], after[axis]) if mode == "NOTSET" else (0, 0)
            size = full - pads[0] - pads[1]
            low.append(constant(pads[0]))
            message = f"spatial axis {axis}: the padding is larger than the result"
            context.require(less_equal(0, size), message)
        sizes.append(size)
    return list(b.shape(low)), list(b.shape(sizes))


def _adjoint_weights(b: Builder, weights: Node, groups: int) -> Node:
    """[C, O / group, kernel…] as [O, C / group, flipped kernel…]."""
    kernel = weights.shape[2:]
    starts = (constant(0), constant(0), *b.shape([k - 1 for k in kernel]))
    steps = (constant(1), constant(1), *[constant(-1)] * len(kernel))
    flipped = node(Slice(starts, weights.shape, steps), weights)
    per_group, outputs = b.scope.resolve(weights.shape[0] // groups), weights.shape[1]
    grouped = b.reshape(flipped, [groups, per_group, outputs, *kernel])
    exchanged = transpose(grouped, [0, 2, 1, *range(3, grouped.rank)])
    return b.reshape(exchanged, [outputs * groups, per_group, *kernel])


def _offset_convolution(
    b: Builder, data: Node, weights: Node, spread: tuple[int, ...], dilations: tuple[int, ...],
    groups: int, low: Sequence[Expr], sizes: Sequence[Expr],
) -> Node:  # fmt: skip
    """A spread convolution whose padding may be negative: such results are computed and cut off."""
    data = with_size(b, data, 1, weights.shape[1] * groups)
    cut = b.shape([maximum(0, -before) for before in low])
    kept = b.shape([maximum(0, before) for before in low])
    whole = b.shape([size + c for size, c in zip(sizes, cut, strict=True)])
    strides = (1,) * len(spread)
    out = node(Convolve(strides, dilations, spread, kept, whole, groups), data, weights)
    for axis, (start, size) in enumerate(zip(cut, sizes, strict=True), start=2):
        out = b.slice_axis(out, axis, start, size)
    return out


@operator("CausalConvWithState", since=27)
def _causal_conv(context: RuleContext) -> Sequence[Node]:
    """Depthwise convolution along the last axis that looks only back and carries its tail over."""
    b = Builder(context)
    require_native(context)
    activation = context.text("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise NoRule(f"activation {activation!r}", where=context.where)
    data, weights, past = context.operand(0), context.operand(1), context.optional(3)
    context.require_equal(weights.shape[1], constant(1), "weights of a depthwise convolution")
    context.require_equal(weights.shape[0], data.shape[1], "channels of data and weights differ")
    tail = b.scope.resolve(weights.shape[2] - 1)
    zero = constant(0)
    if past is None:
        padded = b.pad(data, [zero, zero, tail], [zero, zero, zero])
    else:
        context.require_equal(past.shape[2], tail, "the state does not fit the kernel")
        padded = b.concat([b.reshape(past, [*past.shape[:2], tail]), data], 2)
    present = b.slice_axis(padded, 2, padded.shape[2] - tail, tail)
    out = with_bias(b, _depthwise(b, padded, weights, data.shape[2]), context.optional(2))
    if activation != "none":
        out = b.divide(out, b.add(b.map("exponential", b.map("negate", out)), 1.0))
    return [out, present]


def _depthwise(b: Builder, padded: Node, weights: Node, length: Expr) -> Node:
    """[B, C, L + k - 1] and [C, 1, k] to [B, C, L]."""
    channels, taps = b.scope.resolve(padded.shape[1]), b.scope.resolve(weights.shape[2])
    length = b.scope.resolve(length)
    if channels.is_constant and channels.value > 0:
        filters = b.reshape(weights, [channels, constant(1), taps])
        primitive = Convolve((1,), (1,), (1,), (constant(0),), (length,), channels.value)
        return node(primitive, with_size(b, padded, 1, channels), filters)
    # The number of groups is part of the primitive; without it every window is gathered.
    positions = b.add(b.iota([length, taps], 0), b.iota([length, taps], 1))
    windows = b.gather(padded, positions, 2)
    filters = b.reshape(weights, [weights.shape[0], taps])
    return transpose(contract(b, windows, filters, [(3, 1)], [(1, 0)]), [1, 0, 2])
