"""Resampling one axis at computed positions: coordinates, weights, and the weighted sums.

Positions are float64 (an axis has few of them, and a rounding error would pick another element).
``resize`` makes the :class:`ResizedAxis` records. Start with :func:`coordinates` and
:func:`interpolate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.slicing import clamp_index
from tilewright.shape import Expr

EXACT = DType.FLOAT64


@dataclass(frozen=True)
class Scale:
    """Output size over input size as the model states it.

    Either a quotient of float64 scalars, kept as one so that a position which is a whole number
    comes out as one; or a float32 scalar, by which positions are divided in float32, where such
    positions are rounded to whole numbers again.
    """

    numerator: Node
    denominator: Node | None = None

    def value(self, builder: Builder) -> Node:
        """The scale itself in float64."""
        numerator = cast(self.numerator, EXACT)
        return (
            numerator if self.denominator is None else builder.divide(numerator, self.denominator)
        )

    def times(self, builder: Builder, x: Node) -> Node:
        """``x`` (float64) scaled."""
        scaled = builder.multiply(x, cast(self.numerator, EXACT))
        return scaled if self.denominator is None else builder.divide(scaled, self.denominator)

    def under(self, builder: Builder, x: Node) -> Node:
        """``x`` (float64) divided by the scale."""
        if self.denominator is not None:
            x = builder.multiply(x, self.denominator)
        return cast(builder.divide(cast(x, self.numerator.dtype), self.numerator), EXACT)


@dataclass(frozen=True)
class ResizedAxis:
    """How one axis is resized.

    ``width`` is the input size times the scale before rounding, ``region`` the ends of the region
    of interest (0..1): scalar float64 nodes. ``reach`` is how many elements a stretched filter
    covers to either side, ``factor`` the scale if it is known to be a whole number.
    """

    axis: int
    size: Expr
    wanted: Expr
    scale: Scale
    width: Node
    region: tuple[Node, Node] | None
    reach: Expr | None
    factor: int | None


def exact_dimension(size: Expr) -> Node:
    """A size as a float64 scalar."""
    return cast(dimension(size), EXACT)


def coordinates(builder: Builder, plan: ResizedAxis, mode: str) -> Node:
    """The position in the operand of every element of the resized axis: float64[wanted]."""
    y = cast(builder.iota([plan.wanted], 0), EXACT)
    last = exact_dimension(builder.scope.resolve(plan.size - 1))
    is_single = builder.map("equal", plan.width, 1.0)
    span = builder.select(is_single, 1.0, builder.subtract(plan.width, 1.0))
    centred = builder.subtract(plan.scale.under(builder, builder.add(y, 0.5)), 0.5)
    match mode:
        case "align_corners":
            return builder.divide(builder.multiply(y, last), span)
        case "asymmetric":
            return plan.scale.under(builder, y)
        case "half_pixel":
            return centred
        case "pytorch_half_pixel":
            one = builder.map("equal", exact_dimension(plan.wanted), 1.0)
            return builder.select(one, 0.0, centred)
        case "half_pixel_symmetric":
            # The centres of both axes lie on each other: one quotient is rounded, so that what is
            # a whole number comes out as one.
            wanted = exact_dimension(plan.wanted)
            offset = builder.subtract(builder.add(y, 0.5), builder.multiply(wanted, 0.5))
            centre = builder.multiply(last, 0.5)
            return builder.add(plan.scale.under(builder, offset), centre)
        case _:
            assert mode == "tf_crop_and_resize" and plan.region is not None
            start, end = plan.region
            extent = builder.multiply(builder.subtract(end, start), last)
            spread = builder.divide(builder.multiply(y, extent), span)
            middle = builder.multiply(extent, 0.5)
            inside = builder.select(is_single, middle, spread)
            return builder.add(inside, builder.multiply(start, last))


def nearest_index(builder: Builder, position: Node, rounding: str) -> Node:
    """The whole number (int64) that a position is rounded to."""
    match rounding:
        case "round_prefer_floor":
            chosen = builder.map("ceil", builder.subtract(position, 0.5))
        case "round_prefer_ceil":
            chosen = builder.map("floor", builder.add(position, 0.5))
        case "floor" | "ceil":
            chosen = builder.map(rounding, position)
        case _:
            raise AssertionError(rounding)
    return cast(chosen, DType.INT64)


# ---------------------------------------------------------------- filters


def cubic_weights(builder: Builder, ratio: Node, a: float) -> list[Node]:
    """Weights of the elements at -1, 0, 1 and 2 from the one left of the position."""
    other = builder.subtract(1.0, ratio)
    return [
        _cubic_outer(builder, builder.add(ratio, 1.0), a),
        _cubic_inner(builder, ratio, a),
        _cubic_inner(builder, other, a),
        _cubic_outer(builder, builder.add(other, 1.0), a),
    ]


def _cubic_inner(builder: Builder, x: Node, a: float) -> Node:
    """(a+2)x³ - (a+3)x² + 1, for distances up to 1."""
    square = builder.multiply(x, x)
    slope = builder.subtract(builder.multiply(x, a + 2), a + 3)
    return builder.add(builder.multiply(slope, square), 1.0)


def _cubic_outer(builder: Builder, x: Node, a: float) -> Node:
    """ax³ - 5ax² + 8ax - 4a, for distances from 1 to 2."""
    inner = builder.add(builder.multiply(builder.subtract(x, 5.0), x), 8.0)
    return builder.multiply(builder.subtract(builder.multiply(inner, x), 4.0), a)


def _stretched_weights(builder: Builder, distance: Node, a: float | None) -> Node:
    """Weights of a triangle (``a`` None) or cubic filter at distances in its own unit."""
    x = builder.map("absolute", distance)
    if a is None:
        return builder.maximum(builder.subtract(1.0, x), 0.0)
    inner, outer = _cubic_inner(builder, x, a), _cubic_outer(builder, x, a)
    tail = builder.select(builder.map("less", x, 2.0), outer, 0.0)
    return builder.select(builder.map("less_equal", x, 1.0), inner, tail)


def _inside(builder: Builder, index: Node, size: Expr) -> Node:
    first = builder.map("less_equal", scalar(0, DType.INT64), index)
    return builder.map("logical_and", first, builder.map("less", index, dimension(size)))


def _normalised(builder: Builder, weights: list[Node]) -> list[Node]:
    sum_ = weights[0]
    for weight in weights[1:]:
        sum_ = builder.add(sum_, weight)
    safe = builder.select(builder.map("equal", sum_, 0.0), 1.0, sum_)
    return [builder.divide(weight, safe) for weight in weights]


# ---------------------------------------------------------------- weighted sums


@dataclass(frozen=True)
class Filter:
    """Which elements take part: "linear" (``a`` None) or "cubic" with coefficient ``a``."""

    a: float | None
    exclude_outside: bool


def interpolate(
    builder: Builder, data: Node, plan: ResizedAxis, position: Node, kind: Filter
) -> Node:
    """``data`` (float) with one axis replaced by weighted sums around each position."""
    left = builder.map("floor", position)
    if plan.reach is not None:
        return _interpolate_stretched(builder, data, plan, position, kind)
    ratio = builder.subtract(position, left)
    first = cast(left, DType.INT64)
    if kind.a is None:
        offsets: Sequence[int] = (0, 1)
        weights = [builder.subtract(1.0, ratio), ratio]
    else:
        offsets = (-1, 0, 1, 2)
        weights = cubic_weights(builder, ratio, kind.a)
    indices = [builder.add(first, offset) for offset in offsets]
    if kind.exclude_outside:
        weights = _normalised(builder, [
            builder.select(_inside(builder, index, plan.size), weight, 0.0)
            for index, weight in zip(indices, weights, strict=True)
        ])  # fmt: skip
    out: Node | None = None
    for index, weight in zip(indices, weights, strict=True):
        taken = builder.gather(data, clamp_index(builder, index, plan.size), plan.axis)
        factor = builder.broadcast(cast(weight, data.dtype), taken.shape, [plan.axis])
        term = builder.multiply(taken, factor)
        out = term if out is None else builder.add(out, term)
    assert out is not None
    return out


def _interpolate_stretched(
    builder: Builder, data: Node, plan: ResizedAxis, position: Node, kind: Filter
) -> Node:
    """A filter widened by 1/scale: as many elements as its reach says, in one more axis."""
    assert plan.reach is not None
    grid = [plan.wanted, builder.scope.resolve(plan.reach * 2)]
    left = builder.broadcast(builder.map("floor", position), grid, [0])
    offset = builder.add(builder.iota(grid, 1), dimension(1 - plan.reach))
    index = builder.add(cast(left, DType.INT64), offset)
    centre = builder.broadcast(position, grid, [0])
    factor = builder.minimum(plan.scale.value(builder), 1.0)
    distance = builder.multiply(builder.subtract(cast(index, EXACT), centre), factor)
    weights = _stretched_weights(builder, distance, kind.a)
    if kind.exclude_outside:
        weights = builder.select(_inside(builder, index, plan.size), weights, 0.0)
    sums = builder.reduce("sum", weights, [1], keep=True)
    safe = builder.select(builder.map("equal", sums, 0.0), 1.0, sums)
    weights = cast(builder.divide(weights, safe), data.dtype)
    taken = builder.gather(data, clamp_index(builder, index, plan.size), plan.axis)
    spread = builder.broadcast(weights, taken.shape, [plan.axis, plan.axis + 1])
    return builder.reduce("sum", builder.multiply(taken, spread), [plan.axis + 1])
