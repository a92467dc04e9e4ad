"""Reading between elements: RoiAlign and DeformConv by bilinear interpolation.

Positions are computed, the four neighbours gathered and weighted. Start with
``_deformable_convolution`` or ``_roi_align``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import GatherElements, GatherND
from tilewright.ops.build import Builder, array, cast, dimension
from tilewright.ops.convolution import with_bias
from tilewright.ops.linear import contract
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import integers_of, require_multiple, size_of
from tilewright.ops.spatial import Geometry, geometry
from tilewright.ops.types import require_native
from tilewright.shape import Expr, constant, product
from tilewright.support.errors import InvalidModelError


@dataclass(frozen=True)
class _Neighbour:
    """Along one axis: an index in range for every position, and its weight."""

    index: Node
    weight: Node


def _clamped(b: Builder, index: Node, size: Expr) -> Node:
    """Indices moved into 0 … size - 1."""
    last = b.subtract(dimension(size), 1)
    return b.maximum(b.minimum(index, last), 0)


# ---------------------------------------------------------------- deformable convolution


@operator("DeformConv", since=19)
def _deformable_convolution(context: RuleContext) -> Sequence[Node]:
    """A convolution whose taps are moved by offsets and weighted by a mask."""
    b = Builder(context)
    require_native(context)
    data, weights, offset = (context.operand(i) for i in range(3))
    if data.rank != 4:
        raise NoRule(f"a deformable convolution of rank {data.rank}", where=context.where)
    groups, shifts = context.integer("group", 1), context.integer("offset_group", 1)
    for axis, size in enumerate(context.integer_list("kernel_shape", []), start=2):
        message = f"axis {axis} of the weights is not what kernel_shape says"
        context.require_equal(weights.shape[axis], constant(size), message)
    kernel = b.shape(weights.shape[2:])
    g = geometry(b, data.shape[2:], kernel, ceil=False)
    context.require_equal(offset.shape[0], data.shape[0], "data and offsets differ in the batch")
    for axis, size in enumerate(g.sizes, start=2):
        context.require_equal(offset.shape[axis], size, f"axis {axis} of the offsets")
    batch, channels = b.shape(data.shape[:2])
    message = f"{channels} channels in {shifts} offset groups"
    per_shift = require_multiple(context, channels, shifts, message)
    message = "data, weights and groups do not fit"
    context.require_equal(channels, weights.shape[1] * groups, message)
    message = f"{weights.shape[0]} output channels in {groups} groups"
    require_multiple(context, weights.shape[0], groups, message)
    taps = [batch, constant(shifts), *kernel]
    context.require_equal(offset.shape[1], product(kernel) * (2 * shifts), "axis 1 of the offsets")
    moved = b.reshape(offset, [*taps, constant(2), *g.sizes])
    points = [*taps, *g.sizes]
    along = [_tap_neighbours(b, g, axis, moved, points) for axis in range(2)]
    flat = b.reshape(data, [batch, shifts, per_shift, g.input[0] * g.input[1]])
    sampled = _bilinear(b, flat, g.input[1], along, points)
    mask = context.optional(4)
    if mask is not None:
        context.require_equal(mask.shape[1], product(kernel) * shifts, "axis 1 of the mask")
        sampled = b.multiply(sampled, b.unsqueeze(b.reshape(mask, points), [2]))
    out = _group_product(b, sampled, weights, groups, batch, channels)
    return [with_bias(b, out, context.optional(3))]


def _tap_neighbours(
    b: Builder, g: Geometry, axis: int, moved: Node, points: Sequence[Expr]
) -> list[_Neighbour]:
    """The two neighbours along ``axis`` of every tap [N, G, kh, kw, oh, ow]; zero outside."""
    shift = b.reshape(b.slice_axis(moved, 4, axis, 1), points)
    tap = b.multiply(b.iota(points, 2 + axis), g.dilations[axis])
    start = b.multiply(b.iota(points, 4 + axis), g.strides[axis])
    regular = b.subtract(b.add(tap, start), dimension(g.low[axis]))
    position = b.add(cast(regular, shift.dtype), shift)
    below = b.map("floor", position)
    upper = b.subtract(position, below)
    first = cast(below, DType.INT64)
    neighbours: list[_Neighbour] = []
    for step, weight in ((0, b.subtract(1.0, upper)), (1, upper)):
        index = b.add(first, step) if step else first
        inside = _clamped(b, index, g.input[axis])
        counted = b.select(b.map("equal", inside, index), weight, 0.0)
        neighbours.append(_Neighbour(inside, counted))
    return neighbours


def _bilinear(
    b: Builder, flat: Node, width: Expr, along: list[list[_Neighbour]], points: Sequence[Expr]
) -> Node:
    """Values [N, G, C / G, kh, kw, oh, ow] of ``flat`` [N, G, C / G, H * W] between elements."""
    count = product(points[2:])
    lead = [*flat.shape[:3], count]
    summed: Node | None = None
    for row in along[0]:
        for column in along[1]:
            index = b.add(b.multiply(row.index, dimension(width)), column.index)
            weight = b.multiply(row.weight, column.weight)
            index, weight = (b.reshape(x, [*points[:2], count]) for x in (index, weight))
            value = node(GatherElements(3), flat, b.broadcast(index, lead, [0, 1, 3]))
            part = b.multiply(value, b.broadcast(weight, lead, [0, 1, 3]))
            summed = part if summed is None else b.add(summed, part)
    assert summed is not None
    return b.reshape(summed, [*flat.shape[:3], *points[2:]])


def _group_product(
    b: Builder, sampled: Node, weights: Node, groups: int, batch: Expr, channels: Expr
) -> Node:
    """Sampled taps [N, ., ., kh, kw, oh, ow] times weights [O, C / g, kh, kw]: [N, O, oh, ow]."""
    kernel, sizes = sampled.shape[3:5], sampled.shape[5:]
    inputs, outputs = channels // groups, weights.shape[0] // groups
    x = b.reshape(sampled, [batch, groups, inputs, *kernel, *sizes])
    w = b.reshape(weights, [groups, outputs, inputs, *kernel])
    out = contract(b, x, w, [(2, 2), (3, 3), (4, 4)], [(1, 0)])
    return b.reshape(transpose(out, [1, 0, 4, 2, 3]), [batch, outputs * groups, *sizes])


# ---------------------------------------------------------------- regions of interest


@operator("RoiAlign", since=10)
def _roi_align_10(context: RuleContext) -> Sequence[Node]:
    """Before opset 16: corners of regions are corners of pixels."""
    return [_roi_align(context, "output_half_pixel")]


@operator("RoiAlign", since=16)
def _roi_align_16(context: RuleContext) -> Sequence[Node]:
    """From opset 16 on: corners of regions are centres of pixels unless the node says otherwise."""
    return [_roi_align(context, "half_pixel")]


@dataclass(frozen=True)
class _Samples:
    """The samples of all regions [R, cells * most] along one axis.

    ``count`` is how many each cell has, of every region [R, 1] where it depends on that; only those
    that are ``taken`` are samples then, since all regions have room for ``most``.
    """

    neighbours: list[_Neighbour]
    most: Expr
    count: Node
    taken: Node | None


def _roi_align(context: RuleContext, default: str) -> Node:
    """[R, C, height, width]: every cell of a region averages (or takes the maximum of) samples."""
    b = Builder(context)
    require_native(context)
    data, regions, batches = (context.operand(i) for i in range(3))
    mode = context.text("mode", "avg").lower()
    if mode not in ("avg", "max"):
        raise InvalidModelError(f"mode is {mode!r}", where=context.where)
    half = context.text("coordinate_transformation_mode", default) == "half_pixel"
    cells = (context.integer("output_height", 1), context.integer("output_width", 1))
    context.require_equal(batches.shape[0], regions.shape[0], "regions and their batch indices")
    context.require_equal(regions.shape[1], constant(4), "a region has four coordinates")
    count = b.scope.resolve(regions.shape[0])
    corners = b.reshape(regions, [count, 4])
    along = [
        _region_samples(b, corners, axis, data.shape[2 + axis], cells[axis], half)
        for axis in range(2)
    ]
    joined = _sampled(b, data, batches, along, mode)
    down, across = along
    split = b.reshape(joined, [count, cells[0], down.most, cells[1], across.most, data.shape[1]])
    if mode == "avg":
        number = cast(b.maximum(b.multiply(down.count, across.count), 1.0), data.dtype)
        pooled = b.reduce("sum", split, [2, 4])
        pooled = b.divide(pooled, b.reshape(number, [*number.shape[:1], 1, 1, 1]))
    else:
        pooled = b.reduce("maximum", split, [2, 4])
        if down.taken is not None:
            none = b.map("less_equal", b.multiply(down.count, across.count), 0.0)
            pooled = b.select(b.reshape(none, [count, 1, 1, 1]), 0.0, pooled)
    return transpose(pooled, [0, 3, 1, 2])


def _sampled(
    b: Builder, data: Node, batches: Node, along: Sequence[_Samples], mode: str
) -> Node:  # fmt: skip
    """What all samples [R, rows, columns, C] add to a mean, or the greatest of their parts."""
    picture = transpose(
        b.reshape(data, [*data.shape[:2], data.shape[2] * data.shape[3]]), [0, 2, 1]
    )
    down, across = along
    samples = [n.neighbours[0].index.shape[1] for n in along]
    count = batches.shape[0]
    batch = b.broadcast(b.reshape(cast(batches, DType.INT64), [count]), [count, *samples], [0])
    parts: list[Node] = []
    for row in down.neighbours:
        for column in across.neighbours:
            wide = b.multiply(b.unsqueeze(row.index, [2]), dimension(data.shape[3]))
            index = b.add(wide, b.unsqueeze(column.index, [1]))
            both = b.concat([b.unsqueeze(batch, [3]), b.unsqueeze(index, [3])], 3)
            weight = b.multiply(b.unsqueeze(row.weight, [2]), b.unsqueeze(column.weight, [1]))
            value = node(GatherND(0), picture, both)
            parts.append(b.multiply(value, b.unsqueeze(weight, [3])))
    function = "add" if mode == "avg" else "maximum"
    joined = parts[0]
    for part in parts[1:]:
        joined = b.map(function, joined, part)
    if down.taken is None or across.taken is None:
        return joined
    both = b.map("logical_and", b.unsqueeze(down.taken, [2]), b.unsqueeze(across.taken, [1]))
    return b.select(b.unsqueeze(both, [3]), joined, 0.0 if mode == "avg" else -math.inf)


def _region_samples(
    b: Builder, corners: Node, axis: int, size: Expr, cells: int, half: bool
) -> _Samples:
    """Where the samples of every region lie along an axis, and how many there are."""
    scale, ratio = b.context.number("spatial_scale", 1.0), b.context.integer("sampling_ratio", 0)
    # Corners are x1, y1, x2, y2; axis 0 is y.
    start, end = (
        b.subtract(b.multiply(b.slice_axis(corners, 1, 1 - axis + 2 * i, 1), scale),
                   0.5 if half else 0.0)
        for i in range(2)
    )  # fmt: skip
    extent = b.subtract(end, start)
    if not half:
        extent = b.maximum(extent, 1.0)
    if ratio > 0:
        step = b.divide(extent, float(cells * ratio))
        number = b.add(cast(b.iota([1, cells * ratio], 1), corners.dtype), 0.5)
        found = _region_neighbours(b, b.add(start, b.multiply(number, step)), size)
        return _Samples(found, constant(ratio), array([[ratio]], corners.dtype), None)
    count = b.maximum(b.map("ceil", b.divide(extent, float(cells))), 0.0)
    # One at least, as no element is the greatest of none; it is not taken.
    largest = b.maximum(b.reduce("maximum", cast(count, DType.INT64), [0, 1]), 1)
    most = size_of(b.context, integers_of(b.context, largest)[0], "the number of samples")
    cell, sample = (cast(b.iota([1, cells, most], a), corners.dtype) for a in (1, 2))
    share = b.divide(b.add(sample, 0.5), b.unsqueeze(b.maximum(count, 1.0), [2]))
    step = b.unsqueeze(b.divide(extent, float(cells)), [2])
    position = b.add(b.unsqueeze(start, [2]), b.multiply(b.add(cell, share), step))
    taken = b.expand(b.map("less", sample, b.unsqueeze(count, [2])), position.shape)
    flat = [corners.shape[0], most * cells]
    found = _region_neighbours(b, b.reshape(position, flat), size)
    return _Samples(found, most, count, b.reshape(taken, flat))


def _region_neighbours(b: Builder, position: Node, size: Expr) -> list[_Neighbour]:
    """The two neighbours along an axis of every sample [R, samples]."""
    length = cast(dimension(size), position.dtype)
    outside = b.map("logical_or", b.map("less", position, -1.0), b.map("less", length, position))
    inside = b.minimum(b.maximum(position, 0.0), b.subtract(length, 1.0))
    below = b.map("floor", inside)
    upper = b.subtract(inside, below)
    first = cast(below, DType.INT64)
    return [
        _Neighbour(
            _clamped(b, b.add(first, 1) if i else first, size), b.select(outside, 0.0, weight)
        )
        for i, weight in enumerate((b.subtract(1.0, upper), upper))
    ]
