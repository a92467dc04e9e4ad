"""Rules for Resize and Upsample: output sizes from scales or sizes, then one axis after another.

Scales and sizes may be constants, shape arithmetic, or run-time values. Read ``_resize``; positions
and weights are in ``resample``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.resample import (
    EXACT,
    Filter,
    ResizedAxis,
    Scale,
    coordinates,
    exact_dimension,
    interpolate,
    nearest_index,
)
from tilewright.ops.sizes import data_operand, flattened_axes, integers_of, not_zero, size_of
from tilewright.ops.slicing import clamp_index
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    exact_quotient,
    maximum,
    minimum,
)
from tilewright.support.errors import InvalidModelError

_SOUND_SCALE = "must be a number above 0"
_BAD_SCALE = -1  # in the place of a size
# Sizes up to here are tried when a scale is read as a fraction.
_TRIED = 4096
_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


@dataclass(frozen=True)
class Manner:
    """The attributes of Resize. ``stretch`` is how many elements a filter reaches at scale 1."""

    mode: str
    coordinate: str
    rounding: str
    antialias: bool
    exclude_outside: bool
    cubic: float
    extrapolation: float
    policy: str

    @property
    def stretch(self) -> int:
        return 2 if self.mode == "cubic" else 1


def _manner(context: RuleContext) -> Manner:
    manner = Manner(
        context.text("mode", "nearest"),
        context.text("coordinate_transformation_mode", "half_pixel"),
        context.text("nearest_mode", "round_prefer_floor"),
        bool(context.integer("antialias", 0)),
        bool(context.integer("exclude_outside", 0)),
        context.number("cubic_coeff_a", -0.75),
        context.number("extrapolation_value", 0.0),
        context.text("keep_aspect_ratio_policy", "stretch"),
    )
    if manner.coordinate not in _MODES:
        raise NoRule(f"coordinates by {manner.coordinate!r}", where=context.where)
    if manner.mode not in ("nearest", "linear", "cubic"):
        raise NoRule(f"interpolation {manner.mode!r}", where=context.where)
    return manner


@operator("Resize", since=11, computes=False)
def _resize(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    manner = _manner(context)
    builder = Builder(context)
    axes = list(range(data.rank))
    if context.has("axes"):
        axes = flattened_axes(context.integer_list("axes"), data.rank, builder)
    scales, sizes = _given(context, 2), _given(context, 3)
    if (scales is None) == (sizes is None):
        raise NoRule("Resize needs either scales or sizes", where=context.where)
    if scales is not None:
        plans = _plans_by_scales(context, data, axes, scales, manner)
    else:
        assert sizes is not None
        plans = _plans_by_sizes(context, data, axes, sizes, manner)
    return [_resample(builder, data, plans, manner)]


def _given(context: RuleContext, index: int) -> Node | None:
    """Operand ``index``, None where it is omitted or empty."""
    operand = context.optional(index)
    if operand is None or context.scope.is_equal(operand.shape[0], 0) is Truth.YES:
        return None
    return operand


# ---------------------------------------------------------------- sizes


def _plans_by_scales(
    context: RuleContext, data: Node, axes: Sequence[int], scales: Node, manner: Manner
) -> list[ResizedAxis]:
    known = _constant_values(scales)
    plans: list[ResizedAxis] = []
    for position, axis in enumerate(axes):
        size = data.shape[axis]
        scale = _element(context, scales, position)
        value = None if known is None else known[position]
        wanted = _scaled_size(context, size, scale, value, axis)
        if value == 1.0 and manner.coordinate != "tf_crop_and_resize":
            continue
        exact = _exact_scale(scale, value)
        width = exact.times(Builder(context), exact_dimension(size))
        reach = _reach_of_scale(context, exact, value, manner) if manner.antialias else None
        region = _region(context, manner, position, len(axes))
        factor = int(value) if value is not None and value.is_integer() else None
        plans.append(ResizedAxis(axis, size, wanted, exact, width, region, reach, factor))
    return plans


def _constant_values(operand: Node) -> list[float] | None:
    from_constant = getattr(operand.primitive, "array", None)
    return None if from_constant is None else [float(v) for v in from_constant.reshape(-1)]


def _element(context: RuleContext, vector: Node, position: int) -> Node:
    """One element of a rank-1 node as a scalar."""
    known = _constant_values(vector)
    if known is not None:
        return scalar(known[position], vector.dtype)
    builder = Builder(context)
    return builder.reshape(builder.slice_axis(vector, 0, position, 1), [])


def _scaled_size(
    context: RuleContext, size: Expr, scale: Node, value: float | None, axis: int
) -> Expr:
    """floor(size * scale), the product rounded to float32 as ONNX's shape inference does."""
    if value is not None:
        if not 0 < value < np.inf:
            message = f"the scale of axis {axis} {_SOUND_SCALE}, and not {value:g}"
            raise InvalidModelError(message, where=context.where)
        fraction = _as_fraction(value)
        if size.is_constant:
            return constant(int(np.floor(np.float32(size.value) * np.float32(value))))
        if fraction is not None and _scales_sizes(fraction, value):
            return context.scope.resolve(size * fraction.numerator // fraction.denominator)
    builder = Builder(context)
    product = builder.multiply(cast(dimension(size), DType.FLOAT32), cast(scale, DType.FLOAT32))
    rounded = cast(builder.map("floor", product), DType.INT64)
    # A NaN is neither above 0 nor below infinity.
    given = cast(scale, DType.FLOAT32)
    above, below = builder.map("less", 0.0, given), builder.map("less", given, float("inf"))
    is_scale = builder.map("logical_and", above, below)
    sound = builder.select(is_scale, rounded, scalar(_BAD_SCALE, DType.INT64))
    refusal = f"the scale of axis {axis} {_SOUND_SCALE}"
    return size_of(context, integers_of(context, sound)[0], "a resized axis", refusal)


def _exact_scale(scale: Node, value: float | None) -> Scale:
    """The scale; one that was rounded to float32 is taken as the fraction it stands for."""
    fraction = None if value is None else _as_fraction(value)
    if fraction is None:
        return Scale(cast(scale, DType.FLOAT32))
    numerator, denominator = scalar(fraction.numerator, EXACT), fraction.denominator
    return Scale(numerator, None if denominator == 1 else scalar(denominator, EXACT))


def _as_fraction(value: float) -> Fraction | None:
    """The simple fraction that a float32 scale was rounded from, or None."""
    if not value > 0 or not np.isfinite(value):
        return None
    guess = Fraction(value).limit_denominator(1024)
    return guess if np.float32(float(guess)) == np.float32(value) else None


def _scales_sizes(fraction: Fraction, value: float) -> bool:
    """Whether whole multiples of the fraction are the sizes that float32 products round to."""
    sizes = np.arange(_TRIED, dtype=np.int64)
    rounded = np.floor(sizes.astype(np.float32) * np.float32(value)).astype(np.int64)
    return np.array_equal(rounded, sizes * fraction.numerator // fraction.denominator)


def _reach_of_scale(
    context: RuleContext, scale: Scale, value: float | None, manner: Manner
) -> Expr:
    if value is not None:
        return constant(ceil(manner.stretch / min(value, 1.0)))
    builder = Builder(context)
    inverse = builder.divide(float(manner.stretch), builder.minimum(scale.value(builder), 1.0))
    reach = integers_of(context, cast(builder.map("ceil", inverse), DType.INT64))[0]
    return size_of(context, reach, "the reach of the filter")


def _plans_by_sizes(
    context: RuleContext, data: Node, axes: Sequence[int], sizes: Node, manner: Manner
) -> list[ResizedAxis]:
    builder = Builder(context)
    wanted = [
        size_of(context, s, f"the size of axis {axis}")
        for axis, s in zip(axes, integers_of(context, sizes), strict=True)
    ]
    pairs = [(w, data.shape[axis]) for w, axis in zip(wanted, axes, strict=True)]
    scales = [Scale(exact_dimension(w), exact_dimension(size)) for w, size in pairs]
    keeps_ratio = manner.policy != "stretch"
    if keeps_ratio:
        wanted, scales = _same_ratio(context, pairs, scales, manner.policy)
    plans: list[ResizedAxis] = []
    for position, axis in enumerate(axes):
        size, target = data.shape[axis], wanted[position]
        if target is size and not keeps_ratio and manner.coordinate != "tf_crop_and_resize":
            continue
        scale = scales[position]
        length = exact_dimension(size)
        width = scale.times(builder, length) if keeps_ratio else exact_dimension(target)
        related = pairs if keeps_ratio else [pairs[position]]
        reach = _reach_of_sizes(context, related, manner) if manner.antialias else None
        region = _region(context, manner, position, len(axes))
        factor = None if keeps_ratio else _whole_quotient(target, size)
        plans.append(ResizedAxis(axis, size, target, scale, width, region, reach, factor))
    return plans


def _same_ratio(
    context: RuleContext, pairs: list[tuple[Expr, Expr]], scales: list[Scale], policy: str
) -> tuple[list[Expr], list[Scale]]:
    """Sizes and the one scale for all axes, so that none gets larger (or smaller) than wanted."""
    if policy not in ("not_larger", "not_smaller"):
        raise NoRule(f"keep_aspect_ratio_policy {policy!r}", where=context.where)
    builder = Builder(context)
    choose, function = (minimum, "minimum") if policy == "not_larger" else (maximum, "maximum")
    scale = scales[0].value(builder)
    for other in scales[1:]:
        scale = builder.map(function, scale, other.value(builder))
    sizes: list[Expr] = []
    for _, own in pairs:
        rounded = [(w * own * 2 + size) // not_zero(size * 2) for w, size in pairs]
        sizes.append(context.scope.resolve(choose(*rounded)))
    return sizes, [Scale(scale)] * len(pairs)


def _reach_of_sizes(
    context: RuleContext, pairs: Sequence[tuple[Expr, Expr]], manner: Manner
) -> Expr:
    reaches = [ceil_div(size * manner.stretch, not_zero(w)) for w, size in pairs]
    joined = minimum(*reaches) if manner.policy == "not_smaller" else maximum(*reaches)
    return context.scope.resolve(maximum(joined, manner.stretch))


def _region(
    context: RuleContext, manner: Manner, position: int, count: int
) -> tuple[Node, Node] | None:
    if manner.coordinate != "tf_crop_and_resize":
        return None
    roi = _given(context, 1)
    if roi is None:
        raise NoRule("tf_crop_and_resize needs a region", where=context.where)
    start, end = (_element(context, roi, p) for p in (position, position + count))
    return cast(start, EXACT), cast(end, EXACT)


# ---------------------------------------------------------------- values


def _resample(builder: Builder, data: Node, plans: Sequence[ResizedAxis], manner: Manner) -> Node:
    working = _working_type(data.dtype, manner)
    current = cast(data, working)
    outside: list[tuple[int, Node]] = []
    for plan in plans:
        if manner.mode == "nearest" and _repeats(plan, manner):
            current = _repeat_elements(builder, current, plan)
            continue
        position = coordinates(builder, plan, manner.coordinate)
        if manner.coordinate == "tf_crop_and_resize":
            outside.append((plan.axis, _is_outside(builder, plan, position)))
        if manner.mode == "nearest":
            index = nearest_index(builder, position, manner.rounding)
            index = clamp_index(builder, index, plan.size)
            current = builder.gather(current, index, plan.axis)
        else:
            kind = Filter(manner.cubic if manner.mode == "cubic" else None, manner.exclude_outside)
            current = interpolate(builder, current, plan, position, kind)
    for axis, mask in outside:
        spread = builder.broadcast(mask, current.shape, [axis])
        fill = scalar(manner.extrapolation, current.dtype)
        current = builder.select(spread, fill, current)
    return _narrowed(builder, current, data.dtype)


def _working_type(dtype: DType, manner: Manner) -> DType:
    """The type of sums: float32 for what it holds exactly, float64 for wide integers."""
    if manner.mode == "nearest" or dtype in (DType.FLOAT32, DType.FLOAT64):
        return dtype
    return DType.FLOAT64 if dtype.is_integer and dtype.bytes > 2 else DType.FLOAT32


def _narrowed(builder: Builder, x: Node, dtype: DType) -> Node:
    """``x`` in the operand's type; integers are rounded, and clamped to what the type holds."""
    if x.dtype is dtype:
        return x
    if dtype.is_integer:
        bits = dtype.bytes * 8 - int(dtype.is_signed)
        least, most = (-(2.0**bits) if dtype.is_signed else 0.0), 2.0**bits - 1
        rounded = builder.map("round_even", x)
        x = builder.minimum(builder.maximum(rounded, least), most)
    return cast(x, dtype)


def _is_outside(builder: Builder, plan: ResizedAxis, position: Node) -> Node:
    last = exact_dimension(plan.size - 1)
    before = builder.map("less", position, 0.0)
    return builder.map("logical_or", before, builder.map("less", last, position))


def _whole_quotient(wanted: Expr, size: Expr) -> int | None:
    factor = exact_quotient(wanted, size)
    return factor.value if factor is not None and factor.is_constant else None


def _repeats(plan: ResizedAxis, manner: Manner) -> bool:
    """Whether the nearest element is simply each element repeated (a whole known factor)."""
    if plan.factor is None or plan.factor < 1:
        return False
    if manner.coordinate == "asymmetric":
        return manner.rounding == "floor" or (
            manner.rounding == "round_prefer_floor" and plan.factor <= 2
        )
    half_pixel = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    return manner.coordinate in half_pixel and manner.rounding.startswith("round_")


def _repeat_elements(builder: Builder, x: Node, plan: ResizedAxis) -> Node:
    """[…, size, …] to […, size, factor, …] to […, wanted, …]."""
    factor = plan.factor
    assert factor is not None
    shape = builder.shape([*x.shape[: plan.axis + 1], factor, *x.shape[plan.axis + 1 :]])
    axes = tuple(a for a in range(len(shape)) if a != plan.axis + 1)
    merged = [*x.shape[: plan.axis], plan.wanted, *x.shape[plan.axis + 1 :]]
    return builder.reshape(node(Broadcast(shape, axes), x), merged)
