"""Pooling and depthwise convolution: the way of each, and windows along nothing but the last axis.

Windows over maps with their channels first are in ``window_lines`` and ``window_bands``, over those
with their channels last in ``channel_windows``, before several axes in ``kept_axes``. Windows along
nothing but the last axis, one element apart (sums over neighbouring channels), read a copy of the
row with neutral elements at both ends, in one pass with the epilogue. Start with
:func:`lower_windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve, Window
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import (
    Apply,
    Load,
    Loop,
    Store,
    TileBuffer,
    TileProgram,
    Value,
    neutral_element,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, constant, maximum, minimum, product
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.nests import finish, target_buffers
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import Geometry
from tilewright.tile.windows.channel_windows import lower_channel_windows
from tilewright.tile.windows.pair_bands import pair_bands
from tilewright.tile.windows.window_bands import WindowBands
from tilewright.tile.windows.window_lines import WindowLines

LONGEST_REACH = 64  # elements beside a row that are kept with it; longer windows go tap by tap
WORK_SHIFT = 16  # taps per nanosecond of one thread, for the thread count


def lower_windows(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """The program of a windowed kernel with its epilogue."""
    node = kernel.seed
    if _channels_last(node):
        return lower_channel_windows(kernel, lowering)
    geometry = Geometry.of(node)
    if not _is_short_line(node, geometry):
        return _lower_bands(kernel, lowering)
    targets = target_buffers(kernel)
    index: list[Expr] = []
    grid: list[tuple[str, Expr]] = []
    for size in node.shape[:-1]:
        lowering.open()
        index.append(lowering.variable(size))
        grid.append((str(index[-1]), size))
    _line(lowering, kernel, targets, geometry, index)
    body = lowering.opened_statements()
    return finish(lowering, kernel, grid, body, targets)


def _lower_bands(kernel: Kernel, lowering: Lowering) -> TileProgram:
    weighted = isinstance(kernel.seed.primitive, Convolve)
    task = pair_bands(kernel, lowering)
    if task is None:
        task = WindowBands(kernel, lowering) if weighted else WindowLines(kernel, lowering)
    task.write()
    body = lowering.opened_statements()
    program = finish(lowering, kernel, task.grid, body, task.targets)
    kernel_sizes = task.geometry.kernel
    # Without weights, the axes are combined one after the other.
    taps = prod(kernel_sizes) if weighted else sum(kernel_sizes) * max(task.geometry.strides)
    return replace(program, work=product(kernel.seed.shape) * (taps + 16) // WORK_SHIFT + 1)


def _is_short_line(node: Node, geometry: Geometry) -> bool:
    """Whether windows lie along the last axis, one element apart, and reach few elements beside."""
    low = geometry.low[-1]
    one = isinstance(node.primitive, Window) and len(geometry.kernel) == geometry.strides[-1] == 1
    return one and low.is_constant and 0 <= low.value <= geometry.reach(-1) <= LONGEST_REACH


def _line(
    lowering: Lowering,
    kernel: Kernel,
    targets: dict[Node, TileBuffer],
    geometry: Geometry,
    index: list[Expr],
) -> None:
    """A copy of one row with neutral elements around it, then every window of it."""
    node = kernel.seed
    width, size, low = node.shape[-1], geometry.operand.shape[-1], geometry.low[-1].value
    start = -(-low // LINE_ELEMENTS) * LINE_ELEMENTS
    # Windows may end before the operand does; what they do not reach is not copied.
    copied = minimum(size, maximum(0, width + (geometry.reach(-1) - low)))
    length = start + maximum(copied, width + (geometry.reach(-1) - low))
    lowering.open()
    row = lowering.scratch_buffer(node.dtype, length)
    neutral = neutral_element(geometry.kind, node.dtype)
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
            return trailing == 1
        case Convolve(channels_last=channels_last):
            return channels_last
        case _:
            raise AssertionError(node)


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
