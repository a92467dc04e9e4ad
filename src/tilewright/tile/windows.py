"""Pooling and depthwise convolution: one row of outputs accumulated tap by tap.

For every output row, each tap of the window adds its contribution to a row of accumulators in
scratch over just the outputs for which it lies inside the operand, so that the inner loop has no
test and walks memory in order. Windows over maps with their channels last, and reductions that keep
the last axis, are in ``channel_windows`` and ``columns``. Windows along nothing but the last axis
(sums over neighbouring channels) read a copy of the row with neutral elements at both ends, in one
pass with the epilogue. Start with :func:`lower_windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as combinations

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve, Reduce, Window
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Load, Local, Loop, LoopProgram, Store, TileBuffer, Value
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum
from tilewright.tile.channel_windows import lower_channel_windows
from tilewright.tile.columns import lower_columns
from tilewright.tile.loops import finish, target_buffers
from tilewright.tile.lowering import Lowering

LONGEST_REACH = 64  # elements beside a row that are kept with it; longer windows go tap by tap
ALIGNMENT = 16  # elements: rows start on a cache line, so that vectors are stored whole


@dataclass(frozen=True)
class _Geometry:
    """What pooling and depthwise convolution share, per spatial axis."""

    kind: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    operand: Node
    lead: int


def _geometry(node: Node) -> _Geometry:
    match node.primitive:
        case Window() as w:
            lead = node.rank - len(w.kernel)
            return _Geometry(w.kind, w.kernel, w.strides, w.dilations, w.low, node.inputs[0], lead)
        case Convolve() as c:
            kernel = tuple(size.value for size in node.inputs[1].shape[2:])
            return _Geometry("sum", kernel, c.strides, c.dilations, c.low, node.inputs[0], 2)
        case _:
            raise AssertionError(node)


def lower_windows(kernel: Kernel, lowering: Lowering) -> LoopProgram:
    """The program of a windowed kernel with its epilogue."""
    node = kernel.seed
    if isinstance(node.primitive, Reduce):
        return lower_columns(kernel, lowering)
    if _channels_last(node):
        return lower_channel_windows(kernel, lowering)
    geometry = _geometry(node)
    targets = target_buffers(kernel)
    index: list[Expr] = []
    grid: list[tuple[str, Expr]] = []
    for size in node.shape[:-1]:
        lowering.open()
        index.append(lowering.variable(size))
        grid.append((str(index[-1]), size))
    if _is_short_line(node, geometry):
        _line(lowering, kernel, targets, geometry, index)
    else:
        lowering.open()
        width = node.shape[-1]
        row = lowering.scratch_buffer(node.dtype, width)
        _fill_row(lowering, row, width, geometry.kind)
        _outer_taps(lowering, node, geometry, index, row, 0, [], [])
        _finish_row(lowering, kernel, targets, index, width, lambda x: Load(row, x))
    body = [s for block in lowering.blocks for s in block.statements]
    return finish(lowering, kernel, grid, body, targets)


def _is_short_line(node: Node, geometry: _Geometry) -> bool:
    """Whether windows lie along the last axis, one element apart, and reach few elements beside."""
    low = geometry.low[-1]
    one = isinstance(node.primitive, Window) and len(geometry.kernel) == geometry.strides[-1] == 1
    return one and low.is_constant and 0 <= low.value <= _reach(geometry) <= LONGEST_REACH


def _reach(geometry: _Geometry) -> int:
    return (geometry.kernel[-1] - 1) * geometry.dilations[-1]


def _line(
    lowering: Lowering,
    kernel: Kernel,
    targets: dict[Node, TileBuffer],
    geometry: _Geometry,
    index: list[Expr],
) -> None:
    """A copy of one row with neutral elements around it, then every window of it."""
    node = kernel.seed
    width, size, low = node.shape[-1], geometry.operand.shape[-1], geometry.low[-1].value
    start = -(-low // ALIGNMENT) * ALIGNMENT
    # Windows may end before the operand does; what they do not reach is not copied.
    copied = minimum(size, maximum(0, width + (_reach(geometry) - low)))
    length = start + maximum(copied, width + (_reach(geometry) - low))
    lowering.open()
    row = lowering.scratch_buffer(node.dtype, length)
    neutral = Local(f"identity:{geometry.kind}", node.dtype)
    for begin, end in ((constant(start - low), constant(start)), (copied + start, length)):
        lowering.open()
        place = lowering.variable(length)
        lowering.emit(Store(row, place, neutral))
        lowering.emit(Loop(str(place), begin, end, lowering.close()))
    lowering.open()
    x = lowering.variable(copied)
    value = lowering.value(geometry.operand, (*index, x))
    lowering.emit(Store(row, x + start, value))
    lowering.emit(Loop(str(x), constant(0), copied, lowering.close()))

    def combined(x: Expr) -> Value:
        result: Value = neutral
        for tap in range(geometry.kernel[-1]):
            place = x + (start - low + tap * geometry.dilations[-1])
            result = Apply(COMBINE[geometry.kind], (result, Load(row, place)), node.dtype)
        return result

    _finish_row(lowering, kernel, targets, index, width, combined)


def _channels_last(node: Node) -> bool:
    match node.primitive:
        case Window(trailing=trailing):
            return trailing > 0
        case Convolve(channels_last=channels_last):
            return channels_last
        case _:
            raise AssertionError(node)


def _fill_row(lowering: Lowering, row: TileBuffer, width: Expr, kind: str) -> None:
    lowering.open()
    x = lowering.variable(width)
    lowering.emit(Store(row, x, Local(f"identity:{kind}", row.dtype)))
    lowering.emit(Loop(str(x), constant(0), width, lowering.close()))


def _outer_taps(
    lowering: Lowering,
    node: Node,
    geometry: _Geometry,
    index: list[Expr],
    row: TileBuffer,
    axis: int,
    positions: list[Expr],
    taps: list[Expr],
) -> None:
    """Loops over the taps of all axes but the last, each limited to those inside."""
    if axis == len(geometry.kernel) - 1:
        _last_taps(lowering, node, geometry, index, row, (positions, taps))
        return
    size = geometry.operand.shape[geometry.lead + axis]
    stride, dilation = geometry.strides[axis], geometry.dilations[axis]
    origin = index[geometry.lead + axis] * stride - geometry.low[axis]
    begin = maximum(0, ceil_div(-origin, dilation))
    end = minimum(geometry.kernel[axis], ceil_div(size - origin, dilation))
    lowering.open()
    tap = lowering.variable(constant(geometry.kernel[axis]))
    position = origin + tap * dilation
    _outer_taps(
        lowering, node, geometry, index, row, axis + 1, [*positions, position], [*taps, tap]
    )
    lowering.emit(Loop(str(tap), begin, end, lowering.close()))


def _last_taps(
    lowering: Lowering,
    node: Node,
    geometry: _Geometry,
    index: list[Expr],
    row: TileBuffer,
    outer: tuple[list[Expr], list[Expr]],
) -> None:
    """One vectorisable loop per tap of the last axis."""
    positions, taps = outer
    width, size = node.shape[-1], geometry.operand.shape[-1]
    stride, dilation, low = geometry.strides[-1], geometry.dilations[-1], geometry.low[-1]
    for (tap,) in combinations(range(geometry.kernel[-1])):
        shift = constant(tap * dilation) - low
        begin = maximum(0, ceil_div(-shift, stride))
        end = minimum(width, ceil_div(size - shift, stride))
        lowering.open()
        x = lowering.variable(width)
        read = (*index[: geometry.lead], *positions, x * stride + shift)
        value = _contribution(lowering, node, geometry, index, read, (*taps, constant(tap)))
        old = Load(row, x)
        made = Apply(COMBINE[geometry.kind], (old, value), node.dtype)
        lowering.emit(Store(row, x, made))
        lowering.emit(Loop(str(x), begin, end, lowering.close()))


def _contribution(
    lowering: Lowering,
    node: Node,
    geometry: _Geometry,
    index: list[Expr],
    read: Index,
    taps: Index,
) -> Value:
    if isinstance(node.primitive, Window):
        return lowering.value(geometry.operand, read)
    data, weights = node.inputs
    assert isinstance(node.primitive, Convolve)
    per_group = weights.shape[0] // node.primitive.groups
    channel = lowering.scope.resolve(index[1] // per_group)
    value = lowering.value(data, (read[0], channel, *read[2:]))
    weight = lowering.value(weights, (index[1], constant(0), *taps))
    return Apply("multiply", (value, weight), node.dtype)


def _finish_row(
    lowering: Lowering,
    kernel: Kernel,
    targets: dict[Node, TileBuffer],
    index: list[Expr],
    width: Expr,
    window: Callable[[Expr], Value],
) -> None:
    """The epilogue, evaluated on the finished row, whose element x is ``window(x)``."""
    lowering.open()
    x = lowering.variable(width)
    full = tuple(lowering.scope.resolve(i) for i in (*index, x))

    def finished(asked: Index) -> Value | None:
        return window(x) if asked == full else None

    lowering.cached[kernel.seed] = finished
    for output in kernel.outputs:
        value = lowering.value(output, full)
        lowering.store(targets[output], linear(full, kernel.seed.shape), value)
    lowering.emit(Loop(str(x), constant(0), width, lowering.close()))
