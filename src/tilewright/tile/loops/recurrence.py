"""States that follow from those before them: recurrent networks over sequences of any length.

A task has some rows of the batch and makes all their steps, one after the other, so that threads
never wait for each other. For every step it multiplies the states of its rows by the weights and
computes what follows from the sums. The states are read from the result, in which the step before
has left them. Weights are read once a step by each task, so there are as few tasks as threads,
unless the sums of their rows would leave the second cache. Start with :func:`lower_recurrence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Recurrence
from tilewright.ir.recurrence import StepProduct
from tilewright.ir.tile import (
    Apply,
    IndexValue,
    Load,
    Loop,
    Product,
    Sums,
    TileBuffer,
    TileProgram,
    Value,
    View,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, symbol, total
from tilewright.target import Target
from tilewright.tile.loops.loops import finish, target_buffers
from tilewright.tile.products.contraction import is_constant
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, PackedConstant, Source

MOST_ROWS = 256  # of one task, whatever the second cache holds
WORK_PER_NANOSECOND = 16  # multiply-adds of one thread, about


def lower_recurrence(
    kernel: Kernel, lowering: Lowering, tile: RegisterTile, target: Target
) -> tuple[LoweredStep, ...]:
    """The one step of a kernel that computes a Recurrence."""
    made = _Steps(kernel, lowering, tile, target)
    program = made.program()
    return (LoweredStep(program, (*lowering.buffers, *made.packed), kernel.outputs),)


@dataclass(frozen=True)
class _Place:
    """Where the states of a step and of the one before it are in the result."""

    time: Expr
    before: Expr
    after: Expr


class _Steps:
    """One task: rows from ``first_row`` on, ``here`` of them."""

    def __init__(
        self, kernel: Kernel, lowering: Lowering, tile: RegisterTile, target: Target
    ) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.output = kernel.outputs[0]
        primitive = self.output.primitive
        assert isinstance(primitive, Recurrence)
        self.primitive, self.steps = primitive, primitive.steps
        self.inputs, *others = self.output.inputs
        self.packed: dict[Source, TileBuffer] = {}
        self.weights = [self._weights(others.pop(0), tile) for _ in self.steps.products]
        self.lengths = others.pop(0) if primitive.ragged else None
        states = len(self.steps.states)
        self.initial, self.extras = others[:states], others[states:]
        self.length, self.batch, _ = self.inputs.shape
        self.hidden = self.output.shape[3]
        self.targets = target_buffers(kernel)
        self.most = self._rows_of_a_task(tile, target)
        self.vectors = [self._scratch(p.vector) for p in self.steps.products]
        self.sums = [self._scratch(p.sums) for p in self.steps.products]

    def program(self) -> TileProgram:
        """The grid of blocks of rows, the first states, and the steps."""
        lowering = self.lowering
        tasks = ceil_div(self.batch, self.most)
        lowering.open()
        number = lowering.variable(tasks)
        self.first_row = number * self.most
        self.here = minimum(self.most, self.batch - self.first_row)
        start = self.length if self.primitive.backward else constant(0)
        self._each_element(self.hidden, lambda row, j: self._begin(start, row, j))
        lowering.open()
        step = lowering.variable(self.length)
        self._step(self._place(step))
        lowering.emit(Loop(str(step), constant(0), self.length, lowering.close()))
        body = [s for block in lowering.blocks for s in block.statements]
        program = finish(lowering, self.kernel, [(str(number), tasks)], body, self.targets)
        columns = total(p.sums.shape[1] for p in self.steps.products)
        products = self.length * self.batch * self.hidden * columns
        results = program.buffers[-program.results :]
        buffers = (*lowering.buffers.values(), *self.packed.values(), *results)
        return replace(program, buffers=buffers, work=products // WORK_PER_NANOSECOND + 1)

    def _weights(self, weights: Node, tile: RegisterTile) -> View:
        """The right operand of a product, in panels if it is known when compiling."""
        depth, columns = weights.shape
        if not is_constant(self.lowering, weights):
            return View(self.lowering.buffer(weights), constant(0), constant(1), columns)
        panel = tile.for_type(weights.dtype).columns
        source = PackedConstant(weights, (1, 0), 0, 1, panel)
        buffer = self.packed.setdefault(source, TileBuffer(f"p{len(self.packed)}", weights.dtype))
        return View(buffer, constant(0), depth, constant(panel), panel)

    def _rows_of_a_task(self, tile: RegisterTile, target: Target) -> Expr:
        """Balanced, a whole number of rounds for all threads."""
        products = self.steps.products
        lines = [self._line(vector) for p in products for vector in (p.vector, p.sums)]
        size = total(lines) * self.output.dtype.bytes
        share = target.level("L2").capacity // 2
        most = minimum(maximum(share // maximum(size, 1), tile.rows), MOST_ROWS)
        rounds = maximum(ceil_div(self.batch, most * symbol(THREADS)), 1)
        rows = maximum(ceil_div(self.batch, rounds * symbol(THREADS)), 1)
        return self.lowering.scope.resolve(rows)

    def _begin(self, start: Expr, row: Expr, j: Expr) -> None:
        for number, state in enumerate(self.initial):
            value = self.lowering.value(state, (self.first_row + row, j))
            self._store(start, row, number, j, value)

    def _place(self, step: Expr) -> _Place:
        if self.primitive.backward:
            time = self.length - 1 - step
            return _Place(time, time + 1, time)
        return _Place(step, step, step + 1)

    # ------------------------------------------------------------ one step

    def _step(self, place: _Place) -> None:
        for number, product in enumerate(self.steps.products):
            self._multiply(place, number, product)
        self._each_row(lambda row: self._follow(place, row))

    def _multiply(self, place: _Place, number: int, product: StepProduct) -> None:
        """The sums of a product for all rows of the task."""
        zero, dtype = constant(0), self.output.dtype
        vectors, sums = self.vectors[number], self.sums[number]

        def element(row: Expr, j: Expr) -> None:
            self._show(place, row)
            value = self.lowering.value(product.vector, (zero, j))
            self.lowering.store(vectors, row * self._line(product.vector) + j, value)

        if product.vector in self.steps.states:
            state = self.steps.states.index(product.vector)
            first = self._offset(place.before, zero, state, zero)
            row = self.hidden * len(self.steps.states)
            left = View(self.targets[self.output], first, row, constant(1))
        else:
            self._each_element(self.hidden, element)
            left = View(vectors, zero, self._line(product.vector), constant(1))
        target = Sums(sums, zero, self._line(product.sums), zero)
        bounds = (zero, self.here), (zero, product.sums.shape[1]), (zero, self.hidden)
        self.lowering.emit(Product(dtype, left, self.weights[number], *bounds, target))

    def _follow(self, place: _Place, row: Expr) -> None:
        """The states of a row after a step; those before it where its sequence has ended."""
        lowering = self.lowering
        going: Value | None = None
        if self.lengths is not None:
            length = lowering.value(self.lengths, (self.first_row + row,))
            going = lowering.let(Apply("less", (IndexValue(place.time), length), DType.BOOL))
        lowering.open()
        j = lowering.variable(self.hidden)
        self._show(place, row)
        for number, node in enumerate(self.steps.following):
            value = lowering.value(node, (constant(0), j))
            if going is not None:
                kept = self._load(place.before, row, number, j)
                value = Apply("select", (going, value, kept), self.output.dtype)
            self._store(place.after, row, number, j, value)
        lowering.emit(Loop(str(j), constant(0), self.hidden, lowering.close(), independent=True))

    def _show(self, place: _Place, row: Expr) -> None:
        """What the leaves of the steps are for a row."""
        lowering, cached = self.lowering, self.lowering.cached
        index = (place.time, self.first_row + row)
        cached[self.steps.inputs] = lambda i: lowering.value(self.inputs, (*index, i[1]))
        for number, state in enumerate(self.steps.states):
            cached[state] = self._state(place, row, number)
        for number, product in enumerate(self.steps.products):
            cached[product.sums] = self._sum(number, row * self._line(product.sums))
        for leaf, extra in zip(self.steps.extras, self.extras, strict=True):
            cached[leaf] = self._extra(extra)

    def _state(self, place: _Place, row: Expr, number: int) -> Callable[[Index], Value]:
        return lambda index: self._load(place.before, row, number, index[1])

    def _sum(self, number: int, line: Expr) -> Callable[[Index], Value]:
        return lambda index: Load(self.sums[number], self.lowering.scope.resolve(line + index[1]))

    def _extra(self, extra: Node) -> Callable[[Index], Value]:
        return lambda index: self.lowering.value(extra, index)

    # ------------------------------------------------------------ loops and memory

    def _each_row(self, body: Callable[[Expr], None]) -> None:
        self.lowering.open()
        row = self.lowering.variable(self.most, count=self.here)
        body(row)
        self.lowering.emit(Loop(str(row), constant(0), self.here, self.lowering.close()))

    def _each_element(self, size: Expr, body: Callable[[Expr, Expr], None]) -> None:
        def line(row: Expr) -> None:
            self.lowering.open()
            j = self.lowering.variable(size)
            body(row, j)
            inner = self.lowering.close()
            self.lowering.emit(Loop(str(j), constant(0), size, inner, independent=True))

        self._each_row(line)

    def _scratch(self, vector: Node) -> TileBuffer:
        return self.lowering.scratch_buffer(vector.dtype, self._line(vector) * self.most)

    def _line(self, vector: Node) -> Expr:
        """How far apart the vectors of two rows are in scratch: whole cache lines."""
        elements = 64 // vector.dtype.bytes
        return ceil_div(vector.shape[1], elements) * elements

    def _offset(self, entry: Expr, row: Expr, state: int, j: Expr) -> Expr:
        index = (entry, self.first_row + row, constant(state), j)
        return self.lowering.scope.resolve(linear(index, self.output.shape))

    def _load(self, entry: Expr, row: Expr, state: int, j: Expr) -> Load:
        return Load(self.targets[self.output], self._offset(entry, row, state, j))

    def _store(self, entry: Expr, row: Expr, state: int, j: Expr, value: Value) -> None:
        self.lowering.store(self.targets[self.output], self._offset(entry, row, state, j), value)
