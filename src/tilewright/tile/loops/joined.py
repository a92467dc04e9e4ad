"""Concatenation: parts that are copied, computed, or turned into the order of the result.

Parts that lie in memory are runs, one after the other. Others are computed where they belong, but
for those along whose last axis elements lie apart, while they are neighbours along another axis, as
planes of pixels are: they go through scratch memory and register squares. Start with
:func:`lower_concat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Concat
from tilewright.ir.tile import (
    Let,
    Load,
    Loop,
    Statement,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_interleaved import MOST_PICKED
from tilewright.ir.tile_walk import slope, stride, value_loads
from tilewright.ir.views import linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, total
from tilewright.tile.loops.loops import CHUNK, SHORT
from tilewright.tile.moves.transposes import SIZES, STRIP, columns_of_task
from tilewright.tile.nests import finish, grid_axis, target_buffers
from tilewright.tile.values.lowering import Lowering

ZERO = constant(0)


def lower_concat(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """One inner nest per part; the grid is every other axis but the last, or blocks of one."""
    output = kernel.outputs[0]
    primitive = output.primitive
    assert isinstance(primitive, Concat)
    axis = primitive.axis
    target = target_buffers(kernel)[output]
    if all(lowering.is_stored(operand) for operand in output.inputs):
        grid = _joined_runs(lowering, target, output, axis)
    else:
        turned = _turned_parts(kernel, lowering, output)
        if turned is not None:
            grid = _Turned(lowering, target, output, axis, *turned).write()
        else:
            grid = _joined_values(lowering, target, output, axis)
    body = lowering.opened_statements()
    return finish(lowering, kernel, grid, body, {output: target})


def _joined_runs(
    lowering: Lowering, target: TileBuffer, output: Node, axis: int
) -> list[tuple[str, Expr]]:
    """Parts that lie in memory: what each has below the axes outside is one run, in the result too.

    A task copies a piece of every run; runs that are known to be short are one.
    """
    grid: list[tuple[str, Expr]] = []
    outside: list[Expr] = []
    runs = [product(operand.shape[axis:]) for operand in output.inputs]
    are_short = all(run.is_constant and run.value <= SHORT for run in runs)
    pieces = constant(1) if are_short else maximum(ceil_div(reduce(maximum, runs), CHUNK), 1)
    for size, stem in (*((size, "i") for size in output.shape[:axis]), (pieces, "c")):
        outside.append(grid_axis(lowering, grid, size, stem))
    *outside, piece = outside
    origin = linear((*outside, *[ZERO] * (output.rank - axis)), output.shape)
    for operand, run in zip(output.inputs, runs, strict=True):
        first = linear((*outside, *[ZERO] * (operand.rank - axis)), operand.shape)
        name = lowering.name("i")
        place = lowering.opened(name, run)
        load = Load(lowering.stored(operand), lowering.scope.resolve(first + place))
        lowering.store(target, origin + place, load)
        begin, end = minimum(piece * CHUNK, run), minimum((piece + 1) * CHUNK, run)
        bounds = (ZERO, run) if are_short else (begin, end)
        lowering.emit(Loop(name, *bounds, lowering.close()))
        origin = origin + run
    return grid


def _joined_values(
    lowering: Lowering, target: TileBuffer, output: Node, axis: int
) -> list[tuple[str, Expr]]:
    """Parts computed one after the other, for each place along the other axes but the last."""
    inner = [axis] if axis == output.rank - 1 else [axis, output.rank - 1]
    grid, index = _opened_grid(lowering, output, inner)
    begin = ZERO
    for operand in output.inputs:
        loops = [_InnerLoop.over(lowering, a, operand.shape[a]) for a in inner]
        for loop in loops:
            index[loop.axis] = loop.variable
        value = lowering.value(operand, index)
        shifted = [i + begin if a == axis else i for a, i in enumerate(index)]
        lowering.store(target, linear(shifted, output.shape), value)
        for loop in reversed(loops):
            loop.close(lowering, ZERO, operand.shape[loop.axis])
        begin = begin + operand.shape[axis]
    return grid


def _opened_grid(
    lowering: Lowering, output: Node, inner: Sequence[int]
) -> tuple[list[tuple[str, Expr]], list[Expr]]:
    """A loop of the grid for every axis but ``inner`` ones, and the place that they are at."""
    grid: list[tuple[str, Expr]] = []
    index = [ZERO] * output.rank
    for axis, size in enumerate(output.shape):
        if axis not in inner:
            index[axis] = grid_axis(lowering, grid, size)
    return grid, index


@dataclass(frozen=True)
class _InnerLoop:
    """A loop that is being filled."""

    axis: int
    variable: Expr

    @staticmethod
    def over(lowering: Lowering, axis: int, size: Expr) -> _InnerLoop:
        """Open the body of a loop over an axis."""
        lowering.open()
        return _InnerLoop(axis, lowering.variable(size))

    def close(self, lowering: Lowering, begin: Expr, end: Expr) -> None:
        """End the body and write the loop."""
        body = lowering.close()
        lowering.emit(Loop(str(self.variable), begin, end, body))


# ---------------------------------------------------------------- planes that become pixels


def _turned_parts(
    kernel: Kernel, lowering: Lowering, output: Node
) -> tuple[int, list[bool]] | None:
    """The axis along which parts lie contiguously in the place of the last one, and which do."""
    if output.dtype.bytes not in SIZES:
        return None
    turned = [_planes(kernel, lowering, operand) for operand in output.inputs]
    along = {found for found in turned if found is not None}
    if len(along) != 1:
        return None
    return along.pop(), [found is not None for found in turned]


def _planes(kernel: Kernel, lowering: Lowering, operand: Node) -> int | None:
    """The axis along which neighbours lie in memory, where those along the last one do not."""
    trial = Lowering(kernel, lowering.scope)
    trial.open()
    index = [trial.variable(size) for size in operand.shape]
    made = trial.value(operand, index)
    values = [s.value for b in trial.blocks for s in _nested(b.statements) if isinstance(s, Let)]
    loads = [load for value in (*values, made) for load in value_loads(value)]
    *others, last = map(str, index)
    far = [load for load in loads if slope(load.offset, last) is None]
    for axis, name in reversed(list(enumerate(others))):
        near = [load for load in far if stride(load.offset, name) in range(1, MOST_PICKED + 1)]
        if near and len(near) == len(loads):
            return axis
    return None


def _nested(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _nested(statement.body)


@dataclass
class _Turned:
    """A task is a block of pixels: planes are turned by strips of them, other parts copied.

    Parts follow each other along the axis ``along``: that of planes, of pixels, or another one.
    """

    lowering: Lowering
    target: TileBuffer
    output: Node
    along: int
    axis: int  # of pixels
    turned: Sequence[bool]

    def write(self) -> list[tuple[str, Expr]]:
        """All parts, and the grid."""
        self.last = self.output.rank - 1
        inner = {self.axis, self.last, self.along}
        self.grid, self.index = _opened_grid(self.lowering, self.output, tuple(inner))
        pixels = self.output.shape[self.axis]
        most = columns_of_task(self.output.shape[self.last])
        number = grid_axis(self.lowering, self.grid, ceil_div(pixels, most), "t")
        self.first, self.row = number * most, minimum(pixels, most)
        begin = ZERO
        for group, is_turned in self._groups():
            self._part(group, begin, self._turn if is_turned else self._compute)
            begin = begin + total(operand.shape[self.along] for operand in group)
        return self.grid

    def _part(
        self, group: Sequence[Node], begin: Expr, write: Callable[[Sequence[Node]], None]
    ) -> None:
        """Parts of a task, of which the first has its first element at ``begin``."""
        pixels = group[0].shape[self.axis]
        shift = begin if self.along == self.axis else ZERO
        self.begin = begin
        self.low = minimum(maximum(self.first - shift, ZERO), pixels)
        self.high = minimum(maximum(self.first + self.row - shift, ZERO), pixels)
        if self.along in (self.axis, self.last):
            write(group)
            return
        place = _InnerLoop.over(self.lowering, self.along, group[0].shape[self.along])
        self.index[self.along] = place.variable
        write(group)
        place.close(self.lowering, ZERO, group[0].shape[self.along])

    def _groups(self) -> Iterator[tuple[list[Node], bool]]:
        """Parts by themselves, but for planes of one strip that follow each other."""
        group: list[Node] = []
        for operand, is_turned in zip(self.output.inputs, self.turned, strict=True):
            width = total(part.shape[-1] for part in (*group, operand))
            is_strip = width.is_constant and width.value <= STRIP and self.along == self.last
            if group and not (is_turned and is_strip):
                yield group, True
                group = []
            if is_turned:
                group.append(operand)
            else:
                yield [operand], False
        if group:
            yield group, True

    def _index(self, pixel: Expr, column: Expr) -> list[Expr]:
        index = [*self.index[:-1], column]
        index[self.axis] = pixel
        return index

    def _place(self, pixel: Expr, column: Expr) -> Expr:
        """Where an element of a part is in the result."""
        index = self._index(pixel, column)
        index[self.along] = index[self.along] + self.begin
        return linear(index, self.output.shape)

    def _compute(self, group: Sequence[Node]) -> None:
        (operand,) = group
        pixel = _InnerLoop.over(self.lowering, self.axis, operand.shape[self.axis])
        column = _InnerLoop.over(self.lowering, self.last, operand.shape[-1])
        value = self._value(operand, pixel, column)
        self.lowering.store(self.target, self._place(pixel.variable, column.variable), value)
        column.close(self.lowering, ZERO, operand.shape[-1])
        pixel.close(self.lowering, self.low, self.high)

    def _turn(self, group: Sequence[Node]) -> None:
        """Planes in one strip, or in as many as it takes."""
        width = total(operand.shape[-1] for operand in group)
        if width.is_constant and width.value <= STRIP:
            self._turn_strip(group, ZERO, width)
            return
        count = ceil_div(width, STRIP)
        strips = _InnerLoop.over(self.lowering, -1, count)
        first = strips.variable * STRIP
        self._turn_strip(group, first, minimum(width - first, STRIP))
        strips.close(self.lowering, ZERO, count)

    def _turn_strip(self, group: Sequence[Node], first: Expr, count: Expr) -> None:
        """Planes from ``first`` on, written to scratch memory and turned."""
        most = count if count.is_constant else constant(STRIP)
        scratch = self.lowering.scratch_buffer(self.output.dtype, most * self.row)
        before = ZERO
        for operand in group:
            own = operand.shape[-1]
            column = _InnerLoop.over(self.lowering, self.last, own)
            pixel = _InnerLoop.over(self.lowering, self.axis, operand.shape[self.axis])
            value = self._value(operand, pixel, column)
            row = (before + column.variable - first) * self.row
            self.lowering.store(scratch, row + pixel.variable - self.low, value)
            pixel.close(self.lowering, self.low, self.high)
            column.close(self.lowering, first, minimum(first + most, own))
            before = before + own
        place = self._place(self.low, first)
        step = self._place(self.low + 1, first) - place
        self.lowering.emit(
            TransposeBlock(
                scratch, ZERO, self.row, self.target, place, step, count, self.high - self.low
            )
        )

    def _value(self, operand: Node, pixel: _InnerLoop, column: _InnerLoop) -> Value:
        return self.lowering.value(operand, self._index(pixel.variable, column.variable))
