"""Rules that cut axes and pad them: Slice, Pad, CenterCropPad.

Starts, ends and amounts may be expressions of unknown sign; the choices ONNX makes by sign become
``select``, ``minimum`` and ``maximum`` in the sizes. Read ``_cut``, then ``_pad_axis``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Slice
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.record import NoRule, RuleContext, StructuralInput, operator
from tilewright.ops.sizes import (
    UNLIMITED,
    clamp,
    data_operand,
    flattened_axes,
    from_end,
    is_at_least,
    is_negative,
    named,
    not_zero,
    scalar_of,
    size_of,
)
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)


@dataclass(frozen=True)
class Cut:
    """The elements ``start + i * step`` for i in 0..size-1 of one axis."""

    start: Expr
    size: Expr
    step: Expr


@operator("Slice", since=10, computes=False)
def _slice(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    starts, ends = context.integers(1), context.integers(2)
    steps = [constant(1)] * len(starts)
    if context.optional(4) is not None:
        steps = context.integers(4)
    cuts = [Cut(constant(0), size, constant(1)) for size in data.shape]
    try:
        given = range(len(starts)) if context.optional(3) is None \
            else context.static_integers(3, "axes")  # fmt: skip
    except StructuralInput:
        return [cut_axes(builder, data, _cuts_on_unknown_axes(context, data, starts, ends, steps))]
    axes = flattened_axes(list(given), data.rank, builder)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = _cut(context, data.shape[axis], start, end, step)
    return [cut_axes(builder, data, cuts)]


def cut_axes(builder: Builder, data: Node, cuts: Sequence[Cut]) -> Node:
    """``data`` with every axis cut; itself if nothing is left out."""
    starts = builder.shape([c.start for c in cuts])
    sizes = builder.shape([c.size for c in cuts])
    steps = builder.shape([c.step for c in cuts])
    whole = all(
        size is axis and step.is_constant and step.value == 1
        for size, axis, step in zip(sizes, data.shape, steps, strict=True)
    )
    return data if whole else node(Slice(starts, sizes, steps), data)


def _cuts_on_unknown_axes(
    context: RuleContext, data: Node, starts: list[Expr], ends: list[Expr], steps: list[Expr]
) -> list[Cut]:
    """Cuts where the axes themselves are run-time values: each axis looks for its own entry."""
    axes = context.integers(3)
    for axis in axes:
        inside = less_equal(-data.rank, axis) * less(axis, data.rank)
        context.require(inside, "an axis of Slice is out of range")
    entries: list[Expr] = []
    for position, size in enumerate(data.shape):
        start, end, step = constant(0), size, constant(1)
        for axis, a, b, c in zip(axes, starts, ends, steps, strict=True):
            meant = logical_or(equal(axis, position), equal(axis, position - data.rank))
            start, end = select(meant, a, start), select(meant, b, end)
            step = select(meant, c, step)
        entries += [start, end, step]
    own = named(Builder(context), entries)
    return [
        _cut(context, size, *own[3 * position : 3 * position + 3])
        for position, size in enumerate(data.shape)
    ]


def _cut(context: RuleContext, size: Expr, start: Expr, end: Expr, step: Expr) -> Cut:
    """One axis by the rules of ONNX for negative and exceeding positions."""
    scope = context.scope
    # Longer steps choose the same, at most one element, and their products would overflow.
    step = scope.resolve(clamp(step, -UNLIMITED, UNLIMITED))
    start, end = scope.resolve(start), scope.resolve(end)
    if is_at_least(context, step, 1):
        first, count = _forward(context, size, start, end, step)
    elif is_negative(context, step):
        first, count = _backward(context, size, start, end, step)
        count = maximum(count, 0)
    else:
        context.require(logical_not(equal(step, 0)), "a step of Slice must not be 0")
        # Both ways are computed, also where the limits of the other way would overflow.
        start, end = clamp(start, -UNLIMITED, UNLIMITED), clamp(end, -UNLIMITED, UNLIMITED)
        ahead, behind = maximum(step, 1), minimum(step, -1)
        forward = _forward(context, size, start, end, ahead)
        backward = _backward(context, size, start, end, behind)
        first = select(less(step, 0), backward[0], forward[0])
        count = select(less(step, 0), maximum(backward[1], 0), forward[1])
    return Cut(scope.resolve(first), scope.resolve(count), step)


def _is_unlimited(end: Expr) -> bool:
    return end.is_constant and end.value >= UNLIMITED


def _from_front(context: RuleContext, position: Expr, size: Expr) -> Expr:
    """``position`` as one from the front, where it is 0..size whenever it was meant to be inside.

    Written with ``minimum``, so that the sizes of a head and a tail add up to the whole again.
    """
    if position.is_constant and position.value <= -UNLIMITED:
        return constant(0)
    if position.is_constant and position.value < 0:
        return size - minimum(-position, size)
    return from_end(context, position, size)


def _forward(
    context: RuleContext, size: Expr, start: Expr, end: Expr, step: Expr
) -> tuple[Expr, Expr]:
    """First element and count. A start behind the end is left as it is."""
    if _is_unlimited(start):
        return size, constant(0)
    first = _from_front(context, start, size)
    if not is_at_least(context, first, 0):
        first = maximum(first, 0)
    last = size
    if not _is_unlimited(end):
        last = minimum(_from_front(context, end, size), size)
    last = context.scope.resolve(last)
    count = ceil_div(last - context.scope.resolve(minimum(first, last)), step)
    if not is_at_least(context, count, 0):
        # It is a size minus part of it: nothing new, but not always seen from the terms.
        context.scope.assume_equal(maximum(count, 0), count)
    return first, count


def _backward(
    context: RuleContext, size: Expr, start: Expr, end: Expr, step: Expr
) -> tuple[Expr, Expr]:
    """As :func:`_forward` for a negative step, but the count is below 0 for none."""
    if _is_unlimited(start) or (start.is_constant and start.value == -1):
        first = size - 1
    elif start.is_constant and start.value <= -UNLIMITED:
        first = minimum(size - 1, 0)
    else:
        first = clamp(from_end(context, start, size), 0, size - 1)
    if end.is_constant and end.value <= -UNLIMITED:
        last = constant(-1)
    elif _is_unlimited(end):
        last = size - 1
    else:
        last = clamp(from_end(context, end, size), -1, size - 1)
    return first, ceil_div(last - first, step)


# ---------------------------------------------------------------- padding


@operator("Pad", since=2, computes=False)
def _pad(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    amounts = context.integers(1)
    axes = range(data.rank) if context.optional(3) is None \
        else flattened_axes(context.static_integers(3, "axes"), data.rank, builder)  # fmt: skip
    low, high = [constant(0)] * data.rank, [constant(0)] * data.rank
    for position, axis in enumerate(axes):
        low[axis], high[axis] = amounts[position], amounts[position + len(axes)]
    mode = context.text("mode", "constant")
    if mode == "constant":
        return [_pad_constant(context, data, low, high, _fill(context, data))]
    for axis in range(data.rank):
        data = _pad_axis(context, data, axis, low[axis], high[axis], mode)
    return [data]


def _fill(context: RuleContext, data: Node) -> Node:
    given = context.optional(2)
    if given is None:
        return scalar(0, data.dtype)
    return cast(scalar_of(Builder(context), given), data.dtype)


def _pad_constant(
    context: RuleContext, data: Node, low: Sequence[Expr], high: Sequence[Expr], fill: Node
) -> Node:
    """Elements added first, negative amounts cut off after: one may reach into the other."""
    builder = Builder(context)
    lows = builder.shape([maximum(p, 0) for p in low])
    highs = builder.shape([maximum(p, 0) for p in high])
    padded = builder.pad(data, lows, highs, fill)
    cuts: list[Cut] = []
    for axis, size in enumerate(data.shape):
        wanted = size_of(context, size + low[axis] + high[axis], "the size of a padded axis")
        start = context.scope.resolve(maximum(-low[axis], 0))
        cuts.append(Cut(start, wanted, constant(1)))
    return cut_axes(builder, padded, cuts)


def _pad_axis(
    context: RuleContext, data: Node, axis: int, low: Expr, high: Expr, mode: str
) -> Node:
    """One axis padded with its own elements; negative amounts are cut off first."""
    builder = Builder(context)
    if all(p.is_constant and p.value == 0 for p in (low, high)):
        return data
    kept = data.shape[axis] - maximum(-low, 0) - maximum(-high, 0)
    kept = size_of(context, kept, "the size of a padded axis")
    data = builder.slice_axis(data, axis, maximum(-low, 0), kept)
    more_low, more_high = builder.shape([maximum(low, 0), maximum(high, 0)])
    if all(p.is_constant and p.value == 0 for p in (more_low, more_high)):
        return data
    wanted = kept + more_low + more_high
    context.require(
        logical_or(less_equal(1, kept), equal(wanted, 0)),
        f"axis {axis} has no elements to pad it with in mode {mode!r}",
    )
    position = builder.subtract(builder.iota([wanted], 0), dimension(more_low))
    match mode:
        case "edge":
            index = clamp_index(builder, position, kept)
        case "wrap":
            index = builder.map("remainder", position, dimension(not_zero(kept)))
        case "reflect":
            index = reflect_index(builder, position, kept)
        case _:
            raise NoRule(f"there is no padding mode {mode!r}", where=context.where)
    return builder.gather(data, index, axis)


def clamp_index(builder: Builder, position: Node, size: Expr) -> Node:
    """``position`` (int64) moved into 0..size-1."""
    return builder.minimum(builder.maximum(position, 0), dimension(size - 1))


def reflect_index(builder: Builder, position: Node, size: Expr, edge_twice: bool = False) -> Node:
    """``position`` (int64) reflected at both ends of an axis until it is inside.

    The elements at the ends occur once per reflection, or twice if ``edge_twice``.
    """
    period = size * 2 if edge_twice else size * 2 - 2
    last = dimension(builder.scope.resolve(period - 1 if edge_twice else period))
    positive = dimension(builder.scope.resolve(maximum(period, 1)))
    inside = builder.map("remainder", position, positive)
    return builder.minimum(inside, builder.subtract(last, inside))


@operator("CenterCropPad", computes=False)
def _center_crop_pad(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    wanted = [size_of(context, s, "a size") for s in context.integers(1)]
    axes = flattened_axes(context.integer_list("axes", range(data.rank)), data.rank, builder)
    low, high = [constant(0)] * data.rank, [constant(0)] * data.rank
    cuts = [Cut(constant(0), size, constant(1)) for size in data.shape]
    for axis, target in zip(axes, wanted, strict=True):
        size = data.shape[axis]
        more = maximum(target - size, 0)
        low[axis], high[axis] = more // 2, more - more // 2
        cuts[axis] = Cut(maximum(size - target, 0) // 2, minimum(size, target), constant(1))
    cropped = cut_axes(builder, data, cuts)
    return [_pad_constant(context, cropped, low, high, scalar(0, data.dtype))]
