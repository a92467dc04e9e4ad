"""MaxPool, AveragePool, LpPool, their global forms, MaxRoiPool and MaxUnpool.

Sums and maxima are windows; the divisor of an average is arithmetic on index vectors, one per
axis; the indices of maxima come from gathering every window. Start with ``_max_pool``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import ArgReduce, ScatterElements, Window
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.linear import agree
from tilewright.ops.record import RuleContext, operator
from tilewright.ops.sizes import size_of
from tilewright.ops.spatial import Geometry, explicit_pads, geometry, per_axis
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant, product
from tilewright.support.errors import InvalidModelError


def _geometry(b: Builder, x: Node) -> Geometry:
    context = b.context
    kernel = context.integer_list("kernel_shape")
    if len(kernel) != x.rank - 2 or min(kernel, default=1) < 1:
        message = f"kernel_shape {kernel} for an operand of rank {x.rank}"
        raise InvalidModelError(message, where=context.where)
    ceil = context.integer("ceil_mode", 0) != 0
    return geometry(b, x.shape[2:], [constant(k) for k in kernel], ceil=ceil)


def _window(kind: str, x: Node, g: Geometry) -> Node:
    kernel = tuple(k.value for k in g.kernel)
    return node(Window(kind, kernel, g.strides, g.dilations, g.low, g.sizes), x)


# ---------------------------------------------------------------- maxima


@operator("MaxPool")
def _max_pool(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    g = _geometry(b, x)
    out = _window("maximum", x, g)
    if context.output_count < 2:
        return [out]
    column_major = context.integer("storage_order", 0) != 0
    return [out, _maximum_indices(b, x, g, column_major)]


def _maximum_indices(b: Builder, x: Node, g: Geometry, column_major: bool) -> Node:
    """Position of every window's first maximum in the whole tensor."""
    taps = [_taps(b, g, axis) for axis in range(g.rank)]
    windows = x
    for axis, (positions, _) in enumerate(taps):
        windows = b.gather(windows, positions, 2 + 2 * axis)
    outputs = [2 + 2 * axis for axis in range(g.rank)]
    inner = [3 + 2 * axis for axis in range(g.rank)]
    order = transpose(windows, [0, 1, *outputs, *inner])
    count = product(g.kernel)
    rows = b.reshape(order, [*x.shape[:2], *g.sizes, count])
    chosen = node(ArgReduce("maximum", rows.rank - 1, last=False), rows)
    return _flat_position(b, x, g, chosen, column_major)


def _taps(b: Builder, g: Geometry, axis: int) -> tuple[Node, Node]:
    """Operand positions [out, kernel] of an axis, taps outside replaced by the nearest inside."""
    sizes = (g.sizes[axis], g.kernel[axis])
    start = b.subtract(b.multiply(b.iota(sizes, 0), g.strides[axis]), dimension(g.low[axis]))
    dilation = g.dilations[axis]
    last = b.subtract(dimension(g.input[axis] - 1), start)
    lowest = _ceil_divide(b, b.maximum(b.map("negate", start), 0), dilation)
    highest = b.divide(b.maximum(last, 0), dilation)
    tap = b.minimum(b.maximum(b.iota(sizes, 1), lowest), highest)
    return b.add(start, b.multiply(tap, dilation)), tap


def _ceil_divide(b: Builder, x: Node, divisor: int) -> Node:
    """Rounded up; ``x`` is not negative."""
    return x if divisor == 1 else b.divide(b.add(x, divisor - 1), divisor)


def _flat_position(b: Builder, x: Node, g: Geometry, chosen: Node, column_major: bool) -> Node:
    """Positions in the flattened tensor of the chosen taps [N, C, out…]."""
    shape = chosen.shape
    remaining = chosen
    coordinates: list[Node] = []
    for axis in reversed(range(g.rank)):
        kernel = g.kernel[axis].value
        tap = b.map("remainder", remaining, kernel)
        remaining = b.divide(remaining, kernel)
        coordinates.insert(0, _coordinate(b, g, axis, tap))
    order = range(g.rank) if column_major else reversed(range(g.rank))
    stride: Expr = constant(1)
    flat = b.expand(scalar(0, DType.INT64), shape)
    for axis in order:
        flat = b.add(flat, b.multiply(coordinates[axis], dimension(stride)))
        stride = stride * g.input[axis]
    for axis in (1, 0):
        flat = b.add(flat, b.multiply(b.iota(shape, axis), dimension(stride)))
        stride = stride * x.shape[axis]
    return flat


def _coordinate(b: Builder, g: Geometry, axis: int, tap: Node) -> Node:
    """Operand coordinate of window element ``tap`` [N, C, out…], moved inside as ``_taps`` does."""
    start = b.multiply(b.iota(tap.shape, 2 + axis), g.strides[axis])
    start = b.subtract(start, dimension(g.low[axis]))
    dilation = g.dilations[axis]
    lowest = _ceil_divide(b, b.maximum(b.map("negate", start), 0), dilation)
    last = b.subtract(dimension(g.input[axis] - 1), start)
    highest = b.divide(b.maximum(last, 0), dilation)
    inside = b.minimum(b.maximum(tap, lowest), highest)
    return b.add(start, b.multiply(inside, dilation))


@operator("GlobalMaxPool")
def _global_max_pool(context: RuleContext) -> Sequence[Node]:
    require_native(context)
    x = context.operand(0)
    return [Builder(context).reduce("maximum", x, range(2, x.rank), keep=True)]


@operator("MaxRoiPool")
def _max_region_pool(context: RuleContext) -> Sequence[Node]:
    """Maxima over the cells of regions [batch index, x1, y1, x2, y2]; an empty cell gives 0."""
    b = Builder(context)
    require_native(context)
    x, regions = context.operand(0), context.operand(1)
    cells = context.integer_list("pooled_shape")
    if x.rank != 4 or len(cells) != 2:
        raise InvalidModelError("MaxRoiPool needs two spatial axes", where=context.where)
    context.require_equal(regions.shape[1], constant(5), "a region has five entries")
    regions = b.reshape(regions, [regions.shape[0], 5])
    batch = b.reshape(b.slice_axis(regions, 1, 0, 1), [regions.shape[0]])
    pictures = b.gather(x, cast(batch, DType.INT64), 0)
    least = scalar(-math.inf, x.dtype)
    rows, columns = (_in_cells(b, regions, axis, x, cells[axis]) for axis in range(2))
    # [R, C, H, 1, W] under [R, 1, 1, cells, W], then [R, C, 1, H, cells] under [R, 1, cells, H, 1].
    across = b.select(b.unsqueeze(columns, [1, 2]), b.unsqueeze(pictures, [3]), least)
    across = b.reduce("maximum", across, [4])
    down = b.select(b.unsqueeze(rows, [1, 4]), b.unsqueeze(across, [2]), least)
    out = b.reduce("maximum", down, [3])
    return [b.select(b.map("equal", out, least), 0.0, out)]


def _in_cells(b: Builder, regions: Node, axis: int, x: Node, cells: int) -> Node:
    """bool [R, cells, size]: which positions of a spatial axis lie in each cell."""
    scale = b.context.number("spatial_scale", 1.0)
    # Entries are the batch index, x1, y1, x2, y2; axis 0 is y.
    start, end = (
        _rounded(b, b.multiply(b.slice_axis(regions, 1, 2 - axis + 2 * i, 1), scale))
        for i in range(2)
    )
    extent = b.maximum(b.add(b.subtract(end, start), 1.0), 1.0)
    step = b.divide(extent, float(cells))
    number = cast(b.iota([1, cells], 1), regions.dtype)
    low = b.add(start, b.map("floor", b.multiply(number, step)))
    high = b.add(start, b.map("ceil", b.multiply(b.add(number, 1.0), step)))
    position = cast(b.iota([1, 1, x.shape[2 + axis]], 2), regions.dtype)
    after = b.map("less_equal", b.unsqueeze(low, [2]), position)
    return b.map("logical_and", after, b.map("less", position, b.unsqueeze(high, [2])))


def _rounded(b: Builder, x: Node) -> Node:
    """Rounded to the nearest integer, halves away from zero."""
    up, down = b.map("floor", b.add(x, 0.5)), b.map("ceil", b.subtract(x, 0.5))
    return b.select(b.map("less", x, 0.0), down, up)


@operator("MaxUnpool", since=9, computes=False)
def _max_unpool(context: RuleContext) -> Sequence[Node]:
    """Values back at the positions their maxima had; zeros elsewhere."""
    b = Builder(context)
    require_native(context)
    x, indices = context.operand(0), context.operand(1)
    for axis in range(x.rank):
        x, indices = agree(b, x, axis, indices, axis, "values and indices differ in shape")
    kernel = context.integer_list("kernel_shape")
    rank = len(kernel)
    strides = per_axis(context, "strides", rank, 1)
    before, after = explicit_pads(context, rank)
    inner = [
        (x.shape[2 + a] - 1) * strides[a] - before[a] - after[a] + kernel[a] for a in range(rank)
    ]
    shape = b.shape([*x.shape[:2], *inner])
    count = product(shape)
    zeros = b.expand(scalar(0, x.dtype), [count])
    flat = node(
        ScatterElements(0, "none"),
        zeros,
        b.reshape(cast(indices, DType.INT64), [product(x.shape)]),
        b.reshape(x, [product(x.shape)]),
    )
    out = b.reshape(flat, shape)
    if context.optional(2) is None:
        return [out]
    wanted = context.integers(2)
    for axis in range(2):
        context.require_equal(wanted[axis], shape[axis], "output_shape changes batch or channels")
    added = [
        size_of(context, w - s, f"what output_shape adds to axis {axis}")
        for axis, (w, s) in enumerate(zip(wanted, shape, strict=True))
    ]
    return [b.pad(out, [0] * out.rank, added)]


# ---------------------------------------------------------------- averages and norms


@operator("AveragePool")
def _average_pool(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    g = _geometry(b, x)
    include = context.integer("count_include_pad", 0) != 0
    return [b.divide(_window("sum", x, g), _divisor(b, g, include, x.dtype))]


def _divisor(b: Builder, g: Geometry, include_padding: bool, dtype: DType) -> Node:
    """Number of elements that each window averages, shaped to broadcast with [N, C, out…]."""
    whole = 1
    counts: list[Node] = []
    for axis in range(g.rank):
        low = g.low[axis] if include_padding else constant(0)
        high = g.high[axis] if include_padding else constant(0)
        if _covered(b, g, axis, low, high):
            whole *= g.kernel[axis].value
        else:
            count = cast(_taps_inside(b, g, axis, low, high), dtype)
            counts.append(b.unsqueeze(count, range(1, g.rank - axis)))
    divisor = scalar(whole, dtype)
    for count in counts:
        divisor = b.multiply(divisor, count)
    return divisor


def _covered(b: Builder, g: Geometry, axis: int, low: Expr, high: Expr) -> bool:
    """Whether windows of an axis certainly lie between ``-low`` and the size plus ``high``."""
    whole = all(
        b.scope.is_equal(counted, padded) is Truth.YES
        for counted, padded in ((low, g.low[axis]), (high, g.high[axis]))
    )
    return whole and not g.overhang[axis]


def _taps_inside(b: Builder, g: Geometry, axis: int, low: Expr, high: Expr) -> Node:
    """int64 [out]: window elements at positions from ``-low`` up to the size plus ``high``."""
    start = b.multiply(b.iota([g.sizes[axis]], 0), g.strides[axis])
    start = b.subtract(start, dimension(g.low[axis]))
    kernel, dilation = g.kernel[axis].value, g.dilations[axis]

    def below(limit: Expr) -> Node:
        room = b.maximum(b.subtract(dimension(limit), start), 0)
        return b.minimum(_ceil_divide(b, room, dilation), kernel)

    return b.subtract(below(g.input[axis] + high), below(-low))


@operator("LpPool")
def _lp_pool(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    order = context.number("p", 2)
    summed = _window("sum", _power(b, b.map("absolute", x), order), _geometry(b, x))
    return [_root(b, summed, order)]


@operator("GlobalLpPool")
def _global_lp_pool(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    order = context.number("p", 2)
    powers = _power(b, b.map("absolute", x), order)
    return [_root(b, b.reduce("sum", powers, range(2, x.rank), keep=True), order)]


def _power(b: Builder, x: Node, order: float) -> Node:
    if order == 1:
        return x
    return b.multiply(x, x) if order == 2 else b.map("power", x, order)


def _root(b: Builder, x: Node, order: float) -> Node:
    if order == 1:
        return x
    return b.map("square_root", x) if order == 2 else b.map("power", x, 1.0 / order)


@operator("GlobalAveragePool")
def _global_average_pool(context: RuleContext) -> Sequence[Node]:
    require_native(context)
    x = context.operand(0)
    return [Builder(context).mean(x, range(2, x.rank), keep=True)]
