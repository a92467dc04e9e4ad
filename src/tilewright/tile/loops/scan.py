"""Running sums and products: each result is the one before it combined with an element.

Start with :func:`lower_scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Scan
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Load, Store, TileBuffer, TileProgram, Value, neutral_element
from tilewright.ir.views import linear
from tilewright.shape import Expr, Truth, constant, maximum, minimum
from tilewright.target.core_model import FEWEST_REGISTERS
from tilewright.tile.loops.side_by_side import side_by_side
from tilewright.tile.nests import Columns, filled, finish, grid_axis, target_buffers, task_columns
from tilewright.tile.values.lowering import Lowering

# Of running sums side by side, which are taken up once for all of them: registers hold the results
# of all steps, and as many are left for what these read.
STEPS = FEWEST_REGISTERS // 2


def lower_scan(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """Running sums along one axis; each result is the one before it combined with an element.

    Along another axis than the last one, a task has a block of neighbouring columns, whose sums run
    side by side.
    """
    output = kernel.outputs[0]
    primitive = output.primitive
    assert isinstance(primitive, Scan)
    targets = target_buffers(kernel)
    last = output.rank - 1
    grid: list[tuple[str, Expr]] = []
    index: list[Expr] = [constant(0)] * output.rank
    for a, size in enumerate(output.shape):
        if a not in (primitive.axis, last):
            index[a] = grid_axis(lowering, grid, size)
    columns: Columns | None = None
    if primitive.axis != last:
        lowering.open()
        columns = task_columns(lowering, grid, output.shape[last])
    _Steps(lowering, primitive, output, targets[output], index, columns).write()
    body = lowering.opened_statements()
    return finish(lowering, kernel, grid, body, targets)


@dataclass
class _Steps:
    """The steps of a scan: ``index`` is the task's place, its columns apart."""

    lowering: Lowering
    primitive: Scan
    output: Node
    target: TileBuffer
    index: list[Expr]
    columns: Columns | None

    @cached_property
    def running(self) -> TileBuffer:
        """The latest results of all columns of the task."""
        assert self.columns is not None
        return self.lowering.scratch_buffer(self.output.dtype, self.columns.most)

    def write(self) -> None:
        """The first elements, then every one from the one before it."""
        length = self.output.shape[self.primitive.axis]
        self._loop((constant(0), minimum(length, 1)), length, self._begin)
        if self.lowering.scope.is_less_equal(length, 1) is Truth.YES:
            return  # what a step that never runs reads would be read outside of its loop
        if self.columns is None:
            self._loop((constant(1), length), length, self._go_on)
            return
        groups = maximum(length - 1, 0) // STEPS

        def together(group: Expr) -> None:
            self._columns([group * STEPS + i for i in range(1, STEPS + 1)])

        self._loop((constant(0), groups), length, together)
        rest = (groups * STEPS + 1, length)
        self._loop(rest, length, lambda step: self._columns([step]))

    def _loop(self, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]) -> None:
        self.lowering.emit(filled(self.lowering, bounds, extent, body))

    def _along(self, body: Callable[[Expr], None]) -> None:
        """A loop over the columns of the task."""
        columns = self.columns
        assert columns is not None

        def at(column: Expr) -> None:
            self.index[-1] = columns.first + column
            body(column)

        loop = filled(self.lowering, (constant(0), columns.count), columns.most, at)
        self.lowering.emit(side_by_side(loop.variable, loop.end, loop.body))

    def _begin(self, first: Expr) -> None:
        if self.columns is None:
            self.lowering.emit(Store(self.target, self._offset(first), self._start(first)))
            return

        def body(column: Expr) -> None:
            start = self.lowering.let(self._start(first))
            self.lowering.emit(Store(self.target, self._offset(first), start))
            self.lowering.emit(Store(self.running, column, start))

        self._along(body)

    def _start(self, first: Expr) -> Value:
        if self.primitive.exclusive:
            return neutral_element(self.primitive.kind, self.output.dtype)
        return self.lowering.value(self.output.inputs[0], self._at(first))

    def _go_on(self, step: Expr) -> None:
        before = Load(self.target, self._offset(step - 1))
        self.lowering.emit(Store(self.target, self._offset(step), self._after(before, step)))

    def _after(self, before: Value, step: Expr) -> Value:
        """The result of a step, of the one before it."""
        read = self._at(step - 1) if self.primitive.exclusive else self._at(step)
        value = self.lowering.value(self.output.inputs[0], read)
        return Apply(COMBINE[self.primitive.kind], (before, value), self.output.dtype)

    def _columns(self, steps: Sequence[Expr]) -> None:
        """Some steps of all columns, whose last results wait in scratch for the next ones.

        All is read before a result is stored: rows are no whole vectors, and a load that touches
        one of those that were just stored waits until it has left the core.
        """

        def body(column: Expr) -> None:
            value: Value = Load(self.running, column)
            made: list[Value] = []
            for step in steps:
                value = self.lowering.let(self._after(value, step))
                made.append(value)
            for step, result in zip(steps, made, strict=True):
                self.lowering.emit(Store(self.target, self._offset(step), result))
            self.lowering.emit(Store(self.running, column, value))

        self._along(body)

    def _at(self, step: Expr) -> list[Expr]:
        axis = self.primitive.axis
        place = self.output.shape[axis] - 1 - step if self.primitive.reverse else step
        return [place if a == axis else i for a, i in enumerate(self.index)]

    def _offset(self, step: Expr) -> Expr:
        return self.lowering.scope.resolve(linear(self._at(step), self.output.shape))
