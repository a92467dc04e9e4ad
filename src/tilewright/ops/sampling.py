"""Rules that place or read elements on grids: GridSample, AffineGrid, Col2Im.

GridSample reads 1, 2 or 4 neighbours per axis around computed positions. Start with
``_grid_sample``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Contract, Convolve, GatherElements
from tilewright.ops.build import Builder, array, cast, dimension, scalar
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.resample import cubic_weights
from tilewright.ops.sizes import data_operand, require_multiple, size_of
from tilewright.ops.slicing import clamp_index, reflect_index
from tilewright.shape import Expr, constant, product

_CUBIC = -0.75  # Keys's coefficient, as ONNX's reference has it


@dataclass(frozen=True)
class Sampling:
    """The attributes of GridSample."""

    mode: str
    padding: str
    aligned: bool


@dataclass(frozen=True)
class Neighbour:
    """One element along one axis for every position: index (in range), weight, whether it counts.

    ``weight`` and ``counts`` are None where they are 1 and true for all.
    """

    index: Node
    weight: Node | None
    counts: Node | None


@operator("GridSample", since=16)
def _grid_sample(context: RuleContext) -> Sequence[Node]:
    data, grid = data_operand(context), context.operand(1)
    builder = Builder(context)
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = context.text("mode", "linear")
    manner = Sampling(
        names.get(mode, mode),
        context.text("padding_mode", "zeros"),
        bool(context.integer("align_corners", 0)),
    )
    if manner.mode not in ("nearest", "linear", "cubic") or not data.dtype.is_float:
        message = f"{manner.mode} samples of {data.dtype.value} elements"
        raise NoRule(message, where=context.where)
    rank = data.rank - 2
    context.require_equal(grid.shape[-1], constant(rank), "the grid needs a position per axis")
    context.require_equal(grid.shape[0], data.shape[0], "data and grid differ in the batch")
    batch, channels = data.shape[:2]
    count = context.scope.resolve(product(grid.shape[1:-1]))
    points = builder.reshape(cast(grid, data.dtype), [batch, count, rank])
    neighbours: list[list[Neighbour]] = []
    for axis in range(rank):
        # The last component of a position belongs to the first spatial axis.
        component = builder.slice_axis(points, 2, rank - 1 - axis, 1)
        component = builder.reshape(component, [batch, count])
        neighbours.append(_neighbours(builder, component, data.shape[2 + axis], manner))
    flat = builder.reshape(data, [batch, channels, product(data.shape[2:])])
    out = _weighted_sum(builder, flat, data.shape[2:], neighbours)
    return [builder.reshape(out, [batch, channels, *grid.shape[1:-1]])]


def _neighbours(builder: Builder, component: Node, size: Expr, manner: Sampling) -> list[Neighbour]:
    """What is read along one axis for positions in -1..1."""
    length = cast(dimension(size), component.dtype)
    shifted = builder.add(component, 1.0)
    if manner.aligned:
        position = builder.multiply(builder.multiply(shifted, 0.5), builder.subtract(length, 1.0))
    else:
        position = builder.multiply(builder.subtract(builder.multiply(shifted, length), 1.0), 0.5)
    if manner.mode == "nearest":
        position = builder.map("round_even", position)
    position = _returned(builder, position, length, manner)
    left = builder.map("floor", position)
    first = cast(left, DType.INT64)
    ratio = builder.subtract(position, left)
    match manner.mode:
        case "nearest":
            return [_neighbour(builder, first, None, size, manner)]
        case "linear":
            offsets: Sequence[int] = (0, 1)
            weights = [builder.subtract(1.0, ratio), ratio]
        case _:
            offsets = (-1, 0, 1, 2)
            weights = cubic_weights(builder, ratio, _CUBIC)
    return [
        _neighbour(builder, builder.add(first, offset), weight, size, manner)
        for offset, weight in zip(offsets, weights, strict=True)
    ]


def _returned(builder: Builder, position: Node, length: Node, manner: Sampling) -> Node:
    """Positions outside of the operand brought back as the padding mode says."""
    if manner.padding == "zeros":
        return position
    low = scalar(0.0 if manner.aligned else -0.5, position.dtype)
    high = builder.subtract(length, 1.0 if manner.aligned else 0.5)
    outside = builder.map(
        "logical_or", builder.map("less", position, low), builder.map("less", high, position)
    )
    if manner.padding == "border":
        # Neighbours are moved to the border one by one: a position that has none inside stays.
        before, behind = (-2.0, 1.0) if manner.mode == "cubic" else (0.0, -1.0)
        last = builder.add(length, behind)
        moved = builder.minimum(builder.maximum(position, before), last)
    else:
        span = builder.subtract(high, low)
        span = builder.select(builder.map("less", 0.0, span), span, 1.0)
        period = builder.multiply(span, 2.0)
        along = builder.map("remainder", builder.subtract(position, low), period)
        back = builder.subtract(period, along)
        moved = builder.add(low, builder.minimum(along, back))
    return builder.select(outside, moved, position)


def _neighbour(
    builder: Builder, index: Node, weight: Node | None, size: Expr, manner: Sampling
) -> Neighbour:
    clamped = clamp_index(builder, index, size)
    match manner.padding:
        case "zeros":
            return Neighbour(clamped, weight, builder.map("equal", clamped, index))
        case "border":
            return Neighbour(clamped, weight, None)
        case _:
            reflected = reflect_index(builder, index, size, edge_twice=not manner.aligned)
            # A single element has no distance to be reflected over.
            return Neighbour(clamp_index(builder, reflected, size), weight, None)


def _weighted_sum(
    builder: Builder, flat: Node, sizes: Sequence[Expr], neighbours: list[list[Neighbour]]
) -> Node:
    """Over all combinations of neighbours: flat is [N, C, elements], the result [N, C, points]."""
    out: Node | None = None
    for chosen in combinations(*neighbours):
        index = chosen[0].index
        for size, neighbour in zip(sizes[1:], chosen[1:], strict=True):
            index = builder.add(builder.multiply(index, dimension(size)), neighbour.index)
        batch, count = index.shape
        shape = [batch, flat.shape[1], count]
        value = node(GatherElements(2), flat, builder.broadcast(index, shape, [0, 2]))
        weight = _joined(builder, "multiply", [n.weight for n in chosen])
        if weight is not None:
            value = builder.multiply(value, builder.broadcast(weight, shape, [0, 2]))
        counts = _joined(builder, "logical_and", [n.counts for n in chosen])
        if counts is not None:
            value = builder.select(builder.broadcast(counts, shape, [0, 2]), value, 0.0)
        out = value if out is None else builder.add(out, value)
    assert out is not None
    return out


def _joined(builder: Builder, function: str, parts: Sequence[Node | None]) -> Node | None:
    out: Node | None = None
    for part in parts:
        if part is not None:
            out = part if out is None else builder.map(function, out, part)
    return out


@operator("AffineGrid", since=20)
def _affine_grid(context: RuleContext) -> Sequence[Node]:
    theta = data_operand(context)
    builder = Builder(context)
    sizes = [size_of(context, s, "a size") for s in context.integers(1)][2:]
    rank = len(sizes)
    context.require_equal(theta.shape[1], constant(rank), "a row of theta per axis")
    context.require_equal(theta.shape[2], constant(rank + 1), "a column of theta per axis, and 1")
    aligned = bool(context.integer("align_corners", 0))
    # The components of a position are in reverse order of the axes: x, y, z.
    parts = [
        builder.unsqueeze(_axis_positions(builder, sizes, axis, aligned, theta.dtype), [rank])
        for axis in reversed(range(rank))
    ]
    parts.append(builder.broadcast(scalar(1.0, theta.dtype), [*sizes, 1], ()))
    base = builder.concat(parts, rank)
    matrix = builder.reshape(theta, [theta.shape[0], rank, rank + 1])
    grid = node(Contract((), ((2, rank),)), matrix, base)
    return [transpose(grid, [0, *range(2, rank + 2), 1])]


def _axis_positions(
    builder: Builder, sizes: Sequence[Expr], axis: int, aligned: bool, dtype: DType
) -> Node:
    """Positions in -1..1 along one axis of a grid of ``sizes``."""
    index = cast(builder.iota([sizes[axis]], 0), dtype)
    length = cast(dimension(sizes[axis]), dtype)
    twice = builder.multiply(index, 2.0)
    if aligned:
        steps = builder.maximum(builder.subtract(length, 1.0), 1.0)
        values = builder.subtract(builder.divide(twice, steps), 1.0)
    else:
        values = builder.subtract(builder.divide(builder.add(twice, 1.0), length), 1.0)
    return builder.broadcast(values, sizes, [axis])


@operator("Col2Im", since=18)
def _col2im(context: RuleContext) -> Sequence[Node]:
    """The sum of overlapping blocks is a transposed convolution with one-hot weights."""
    data = data_operand(context)
    if not data.dtype.is_float:
        raise NoRule(f"blocks of {data.dtype.value} elements", where=context.where)
    builder = Builder(context)
    image = [size_of(context, s, "a size") for s in context.integers(1)]
    block = context.static_integers(2, "the block shape")
    rank = len(block)
    strides = context.integer_list("strides", [1] * rank)
    dilations = context.integer_list("dilations", [1] * rank)
    pads = context.integer_list("pads", [0] * 2 * rank)
    elements = int(np.prod(block))
    low = [(k - 1) * d - p for k, d, p in zip(block, dilations, pads[:rank], strict=True)]
    if any(before < 0 for before in low):
        raise NoRule("padding wider than a block", where=context.where)
    counts = [
        context.scope.resolve((size + pads[a] + pads[a + rank] - reach - 1) // strides[a] + 1)
        for a, (size, reach) in enumerate(
            zip(image, [(k - 1) * d for k, d in zip(block, dilations, strict=True)], strict=True)
        )
    ]
    message = f"the channels must be a multiple of {elements}"
    channels = require_multiple(context, data.shape[1], elements, message)
    context.require_equal(data.shape[2], product(counts), "the number of blocks")
    planes = builder.reshape(data, [data.shape[0] * channels, elements, *counts])
    weights = np.zeros((elements, *block))
    for tap in np.ndindex(*block):
        mirrored = tuple(k - 1 - t for k, t in zip(block, tap, strict=True))
        weights[(int(np.ravel_multi_index(mirrored, block)), *tap)] = 1.0
    kernel = array(weights[None], data.dtype)
    primitive = Convolve(
        (1,) * rank, tuple(dilations), tuple(strides), builder.shape(low), tuple(image), 1
    )
    out = node(primitive, planes, kernel)
    return [builder.reshape(out, [data.shape[0], channels, *image])]
