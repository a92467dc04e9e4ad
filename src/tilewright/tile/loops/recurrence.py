"""States that follow from those before them: recurrent networks over sequences of any length.

A step goes over blocks of units: it multiplies the states of its rows by the weights of all gates
of a block, which lie together, and computes at once what follows from the sums. The states are read
from the result, in which the step before has left them.

There are two variants. Where there are many rows, a task has some of them and makes all their
steps, so that threads never wait for each other; weights are read once a step by each task, so
there are as few tasks as threads, unless the sums of their rows would leave the second cache. Where
there are few rows, a step is a round of tasks, each of which has some of the units for all rows:
each weight is read by one thread, whose caches keep it, and threads meet after every step. That
takes products of states alone, as those of other vectors follow from sums of all units. Start with
:func:`lower_recurrence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost import Machine, StepSizes, own_rows_time, shared_units_time, step_tasks
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node, topological
from tilewright.ir.kernel import Kernel
from tilewright.ir.make import reshape, transpose
from tilewright.ir.primitives import Constant, Map, Pad, Recurrence
from tilewright.ir.recurrence import StepProduct
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import (
    LINE_BYTES,
    Apply,
    IndexValue,
    Load,
    Loop,
    Product,
    Sums,
    TileBuffer,
    Value,
    View,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, select, symbol
from tilewright.target import Target
from tilewright.tile.nests import finish, target_buffers
from tilewright.tile.products.contraction import is_constant
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, PackedConstant, Source, Variant

MOST_ROWS = 256  # of one task, whatever the second cache holds
WORK_PER_NANOSECOND = 16  # multiply-adds of one thread, about


def lower_recurrence(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> tuple[Variant, ...]:
    """The ways to share a Recurrence among threads: its rows, and its units where that can be."""
    made = _Steps(kernel, fresh(), tile)
    rows = made.own_rows(machine.target)
    if not made.may_share_units:
        return (Variant("rows", rows, constant(0)),)
    threads = made.threads
    units = _Steps(kernel, fresh(), tile).shared_units(machine)
    return (
        Variant("rows", rows, own_rows_time(made.sizes, machine, threads)),
        Variant("units", units, shared_units_time(made.sizes, machine, threads)),
    )


@dataclass(frozen=True)
class _Place:
    """Where the states of a step and of the one before it are in the result."""

    time: Expr
    before: Expr
    after: Expr


@dataclass(frozen=True)
class _Unit:
    """Unit ``index`` of a state is number ``lane`` of a block."""

    block: Expr
    lane: Expr
    index: Expr


@dataclass(frozen=True)
class _Weights:
    """The weights of a product: those of block u begin ``u * block`` elements after each view.

    One view has the ``columns`` of all gates of a block where the weights were packed so; else
    there is one for each gate, whose sums are as far apart as a block has units.
    """

    views: tuple[View, ...]
    block: Expr
    columns: int


class _Steps:
    """The program of one variant: rows from ``first_row`` on, ``here`` of them."""

    def __init__(self, kernel: Kernel, lowering: Lowering, tile: RegisterTile) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.output = kernel.outputs[0]
        primitive = self.output.primitive
        assert isinstance(primitive, Recurrence)
        self.primitive, self.steps = primitive, primitive.steps
        self.inputs, *others = self.output.inputs
        self.length, self.batch, _ = self.inputs.shape
        self.hidden = self.output.shape[3].value
        self.tile = tile.for_type(self.output.dtype)
        self.gates = [p.sums.shape[1].value // self.hidden for p in self.steps.products]
        self.units = self._units_of_a_block()
        self.blocks = -(-self.hidden // self.units)
        self.packed: dict[Source, TileBuffer] = {}
        self.weights = [self._weights(others.pop(0), gates) for gates in self.gates]
        self.lengths = others.pop(0) if primitive.ragged else None
        states = len(self.steps.states)
        self.initial, self.extras = others[:states], others[states:]
        self.targets = target_buffers(kernel)
        # Directions are computed side by side.
        self.threads = maximum(symbol(THREADS) // primitive.directions, 1)
        # From this product on, all that follows from a block of units needs no other sums.
        self.stitched = max(
            (n for n, p in enumerate(self.steps.products) if p.vector not in self.steps.states),
            default=0,
        )

    @property
    def may_share_units(self) -> bool:
        """Whether what a task multiplies is there when the step before has ended."""
        return all(product.vector in self.steps.states for product in self.steps.products)

    @property
    def sizes(self) -> StepSizes:
        """What the time of the steps depends on."""
        nodes = topological(self.steps.following)
        functions = tuple(n.primitive.function for n in nodes if isinstance(n.primitive, Map))
        columns = sum(weights.columns for weights in self.weights) * self.blocks
        sizes = self.length, self.batch, self.hidden, columns
        return StepSizes(*sizes, self.output.dtype, functions)

    # ------------------------------------------------------------ the two programs

    def own_rows(self, target: Target) -> tuple[LoweredStep, ...]:
        """Tasks of some rows each, and loops over their steps."""
        lowering = self.lowering
        most = self._rows_of_a_task(target)
        self._allocate(most)
        tasks = ceil_div(self.batch, most)
        lowering.open()
        number = lowering.variable(tasks)
        self.first_row, self.most = number * most, most
        self.here = minimum(most, self.batch - self.first_row)
        everywhere = constant(0), constant(self.blocks)
        self._begin(everywhere)
        lowering.open()
        step = lowering.variable(self.length)
        self._step(step, everywhere)
        lowering.emit(Loop(str(step), constant(0), self.length, lowering.close()))
        return self._finished([(str(number), tasks)], in_rounds=False)

    def shared_units(self, machine: Machine) -> tuple[LoweredStep, ...]:
        """A round of tasks for each step, and one before them for the first states."""
        lowering = self.lowering
        self._allocate(self.batch)
        lowering.open()
        rounds = self.length + 1
        number = lowering.variable(rounds)
        wanted = minimum(step_tasks(self.sizes, machine, self.threads), self.blocks)
        share = lowering.scope.resolve(ceil_div(self.blocks, wanted))
        tasks = ceil_div(self.blocks, share)
        task = lowering.variable(tasks)
        self.first_row, self.most, self.here = constant(0), self.batch, self.batch
        first = task * share
        last = minimum(first + share, self.blocks)
        is_step = minimum(number, 1)
        self._begin((first, select(is_step, first, last)))
        self._step(number - 1, (first, select(is_step, last, first)))
        return self._finished([(str(number), rounds), (str(task), tasks)], in_rounds=True)

    def _finished(self, grid: Sequence[tuple[str, Expr]], in_rounds: bool) -> tuple[LoweredStep]:
        lowering = self.lowering
        body = lowering.opened_statements()
        program = finish(lowering, self.kernel, grid, body, self.targets)
        columns = sum(p.sums.shape[1].value for p in self.steps.products)
        products = self.length * self.batch * (self.hidden * columns)
        results = program.buffers[-program.results :]
        program = replace(
            program,
            buffers=(*lowering.buffers.values(), *self.packed.values(), *results),
            work=products // WORK_PER_NANOSECOND + 1,
            in_rounds=in_rounds,
        )
        reads = (*lowering.buffers, *self.packed)
        return (LoweredStep(program, reads, self.kernel.outputs),)

    # ------------------------------------------------------------ weights and memory

    def _units_of_a_block(self) -> int:
        """Whole cache lines, of which the sums of all gates fill the widest register tile."""
        line = LINE_BYTES // self.output.dtype.bytes
        return line * max(1, self.tile.columns // (line * max(self.gates)))

    def _weights(self, weights: Node, gates: int) -> _Weights:
        """The right operand of a product, packed block by block if it is known when compiling."""
        units, hidden = self.units, self.hidden
        if not is_constant(self.lowering, weights):
            buffer = self.lowering.buffer(weights)
            views = tuple(
                View(buffer, constant(gate * hidden), constant(1), constant(gates * hidden))
                for gate in range(gates)
            )
            return _Weights(views, constant(units), gates * units)
        panel = min(gates * units, self.tile.columns)
        columns = -(-gates * units // panel) * panel
        source = PackedConstant(self._arranged(weights, gates, columns), (1, 0), 0, 1, panel)
        buffer = self.packed.setdefault(source, TileBuffer(f"p{len(self.packed)}", weights.dtype))
        view = View(buffer, constant(0), constant(hidden), constant(panel), panel)
        return _Weights((view,), constant(hidden * columns), columns)

    def _arranged(self, weights: Node, gates: int, columns: int) -> Node:
        """[H, gates * H] with the gates of a block of units beside each other, and zeros."""
        depth, units, blocks = weights.shape[0], constant(self.units), constant(self.blocks)
        each = reshape(weights, (depth, constant(gates), constant(self.hidden)))
        each = _filled(each, self.units * self.blocks)
        each = reshape(each, (depth, constant(gates), blocks, units))
        each = reshape(transpose(each, (0, 2, 1, 3)), (depth, blocks, units * gates))
        return reshape(_filled(each, columns), (depth, blocks * columns))

    def _allocate(self, rows: Expr) -> None:
        """Scratch memory for the sums of so many rows, and for vectors that are no states."""
        scratch, dtype = self.lowering.scratch_buffer, self.output.dtype
        self.sums = [
            scratch(dtype, rows * self._sums_of_a_row(n)) for n in range(len(self.weights))
        ]
        self.vectors = {
            product: scratch(dtype, rows * self._line())
            for product in self.steps.products
            if product.vector not in self.steps.states
        }

    def _sums_of_a_row(self, number: int) -> int:
        """Those of all blocks, unless the states of a block follow at once."""
        columns = self.weights[number].columns
        return columns if number >= self.stitched else columns * self.blocks

    def _line(self) -> int:
        """How far apart the vectors of two rows are in scratch: whole cache lines."""
        elements = LINE_BYTES // self.output.dtype.bytes
        return -(-self.hidden // elements) * elements

    def _rows_of_a_task(self, target: Target) -> Expr:
        """Balanced, a whole number of rounds for all threads."""
        products = range(len(self.weights))
        vectors = sum(p.vector not in self.steps.states for p in self.steps.products)
        elements = sum(map(self._sums_of_a_row, products)) + vectors * self._line()
        share = target.level("L2").capacity // 2 // (elements * self.output.dtype.bytes)
        most = min(max(share, self.tile.rows), MOST_ROWS)
        rounds = maximum(ceil_div(self.batch, most * symbol(THREADS)), 1)
        rows = maximum(ceil_div(self.batch, rounds * symbol(THREADS)), 1)
        return self.lowering.scope.resolve(rows)

    # ------------------------------------------------------------ one step

    def _begin(self, blocks: tuple[Expr, Expr]) -> None:
        """The first states of some blocks of units."""
        start = self.length if self.primitive.backward else constant(0)

        def element(row: Expr, unit: _Unit) -> None:
            for number, state in enumerate(self.initial):
                value = self.lowering.value(state, (self.first_row + row, unit.index))
                self._store(start, row, number, unit.index, value)

        self._each_block(blocks, lambda block: self._each_element(block, element))

    def _place(self, step: Expr) -> _Place:
        if self.primitive.backward:
            time = self.length - 1 - step
            return _Place(time, time + 1, time)
        return _Place(step, step, step + 1)

    def _step(self, step: Expr, blocks: tuple[Expr, Expr]) -> None:
        """The states of some blocks of units after a step."""
        place, products = self._place(step), self.steps.products
        for number in range(self.stitched):
            self._vector(place, products[number], blocks)
            self._each_block(blocks, lambda block, n=number: self._multiply(place, n, block))
        self._vector(place, products[self.stitched], blocks)

        def finish_block(block: Expr) -> None:
            for number in range(self.stitched, len(products)):
                self._multiply(place, number, block)
            self._follow(place, block)

        self._each_block(blocks, finish_block)

    def _vector(self, place: _Place, product: StepProduct, blocks: tuple[Expr, Expr]) -> None:
        """What a product multiplies, where that is no state."""
        if product not in self.vectors:
            return

        def element(row: Expr, unit: _Unit) -> None:
            self._show(place, row, unit)
            value = self.lowering.value(product.vector, (constant(0), unit.index))
            offset = row * self._line() + unit.index
            self.lowering.store(self.vectors[product], offset, value)

        self._each_block(blocks, lambda block: self._each_element(block, element))

    def _multiply(self, place: _Place, number: int, block: Expr) -> None:
        """The sums of a product for all rows of the task and a block of units."""
        zero, weights = constant(0), self.weights[number]
        left = self._left(place, self.steps.products[number])
        line = constant(self._sums_of_a_row(number))
        first = zero if number >= self.stitched else block * weights.columns
        each = weights.columns // len(weights.views)
        for gate, view in enumerate(weights.views):
            right = replace(view, offset=view.offset + block * weights.block)
            columns = constant(each) if view.panel else self._units_of(block)
            target = Sums(self.sums[number], first + gate * each, line, NEVER)
            bounds = (zero, self.here), (zero, columns), (zero, constant(self.hidden))
            self.lowering.emit(Product(self.output.dtype, left, right, *bounds, target))

    def _left(self, place: _Place, product: StepProduct) -> View:
        zero, one = constant(0), constant(1)
        if product in self.vectors:
            return View(self.vectors[product], zero, constant(self._line()), one)
        state = self.steps.states.index(product.vector)
        first = self._offset(place.before, zero, state, zero)
        row = constant(self.hidden * len(self.steps.states))
        return View(self.targets[self.output], first, row, one)

    def _follow(self, place: _Place, block: Expr) -> None:
        """The states of a block after a step; those before it where a sequence has ended."""
        lowering = self.lowering

        def element(row: Expr, unit: _Unit) -> None:
            going: Value | None = None
            if self.lengths is not None:
                length = lowering.value(self.lengths, (self.first_row + row,))
                going = Apply("less", (IndexValue(place.time), length), DType.BOOL)
            self._show(place, row, unit)
            for number, state in enumerate(self.steps.following):
                value = lowering.value(state, (constant(0), unit.index))
                if going is not None:
                    kept = self._load(place.before, row, number, unit.index)
                    value = Apply("select", (going, value, kept), self.output.dtype)
                self._store(place.after, row, number, unit.index, value)

        self._each_element(block, element)

    def _show(self, place: _Place, row: Expr, unit: _Unit) -> None:
        """What the leaves of the steps are for a unit of a row."""
        lowering, cached = self.lowering, self.lowering.cached
        index = (place.time, self.first_row + row)
        cached[self.steps.inputs] = lambda i: lowering.value(self.inputs, (*index, i[1]))
        for number, state in enumerate(self.steps.states):
            cached[state] = self._state(place, row, number)
        for number, product in enumerate(self.steps.products):
            cached[product.sums] = self._sum(number, row, unit)
        for leaf, extra in zip(self.steps.extras, self.extras, strict=True):
            cached[leaf] = self._extra(extra)

    def _state(self, place: _Place, row: Expr, number: int) -> Callable[[Index], Value]:
        return lambda index: self._load(place.before, row, number, index[1])

    def _sum(self, number: int, row: Expr, unit: _Unit) -> Callable[[Index], Value]:
        """The sum of the gate whose part of the index is asked for."""
        columns = self.weights[number].columns
        first = constant(0) if number >= self.stitched else unit.block * columns
        line = row * self._sums_of_a_row(number) + first + unit.lane

        def load(index: Index) -> Value:
            gate = self.lowering.scope.resolve(index[1] - unit.index)
            assert gate.is_constant and gate.value % self.hidden == 0, gate
            offset = line + gate.value // self.hidden * self.units
            return Load(self.sums[number], self.lowering.scope.resolve(offset))

        return load

    def _extra(self, extra: Node) -> Callable[[Index], Value]:
        return lambda index: self.lowering.value(extra, index)

    # ------------------------------------------------------------ loops

    def _each_block(self, blocks: tuple[Expr, Expr], body: Callable[[Expr], None]) -> None:
        first, last = blocks
        self.lowering.open()
        block = self.lowering.variable(constant(self.blocks), count=last - first)
        body(block)
        self.lowering.emit(Loop(str(block), first, last, self.lowering.close()))

    def _units_of(self, block: Expr) -> Expr:
        """How many units a block has."""
        if self.hidden % self.units == 0:
            return constant(self.units)
        return minimum(self.units, self.hidden - block * self.units)

    def _each_element(self, block: Expr, body: Callable[[Expr, _Unit], None]) -> None:
        """A loop over the rows and one over the units of a block."""
        lowering, count = self.lowering, self._units_of(block)
        lowering.open()
        row = lowering.variable(self.most, count=self.here)
        lowering.open()
        lane = lowering.variable(constant(self.units), count=count)
        body(row, _Unit(block, lane, block * self.units + lane))
        inner = Loop(
            str(lane), constant(0), count, lowering.close(),
            independent=True, masked=not count.is_constant,
        )  # fmt: skip
        lowering.emit(inner)
        lowering.emit(Loop(str(row), constant(0), self.here, lowering.close()))

    def _offset(self, entry: Expr, row: Expr, state: int, j: Expr) -> Expr:
        index = (entry, self.first_row + row, constant(state), j)
        return self.lowering.scope.resolve(linear(index, self.output.shape))

    def _load(self, entry: Expr, row: Expr, state: int, j: Expr) -> Load:
        return Load(self.targets[self.output], self._offset(entry, row, state, j))

    def _store(self, entry: Expr, row: Expr, state: int, j: Expr, value: Value) -> None:
        self.lowering.store(self.targets[self.output], self._offset(entry, row, state, j), value)


def _filled(x: Node, size: int) -> Node:
    """``x`` with zeros after its last axis."""
    last = x.rank - 1
    more = constant(size) - x.shape[last]
    if more is constant(0):
        return x
    none = (constant(0),) * last
    zero = node(Constant.of(np.zeros((), x.dtype.numpy)))
    return node(Pad((*none, constant(0)), (*none, more)), x, zero)
