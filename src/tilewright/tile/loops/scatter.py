"""Scatter: a copy of the data with updates one after another.

The order of updates decides what an element becomes, so one task makes all that an element may get.
Along axes that updates share with what they change, elements do not meet: these axes are the grid.
A task copies its part of the data before it changes it, if that lies in one piece; else the copy is
a step of its own. Where updates replace rows, ``scatter_rows`` is another way.
Start with :func:`lower_scatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import ScatterElements, ScatterND
from tilewright.ir.tile import LINE_BYTES, Apply, Load, Loop, TileProgram, Value
from tilewright.ir.views import Index, linear
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    less,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.tile.loops.loops import CHUNK
from tilewright.tile.loops.scatter_rows import replaces_rows, scatter_rows
from tilewright.tile.nests import Columns, finish, target_buffers, task_columns
from tilewright.tile.passes.tables import with_tables
from tilewright.tile.prices import priced
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Variant
from tilewright.tile.work import SHARES

LONGEST_RUN = 2048  # bytes of an update in one task: of less, waiting for the first is too much
LEAST_LINES = 2  # of a strip of updates that have places of their own


def lower_scatter(
    kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
) -> tuple[Variant, ...]:
    """The variants of a ScatterElements or ScatterND, whose data are in memory."""
    task = _Scatter(kernel, fresh())
    steps = with_tables(task.program(), task.lowering, kernel.outputs)
    if not task.copies:
        steps = (_copy(kernel, fresh()), *steps)
    found = [Variant("loops", steps, constant(0))]
    if replaces_rows(kernel, task.lowering):
        found.append(Variant("rows", scatter_rows(kernel, fresh), constant(0)))
    return priced(found, machine)


def _copy(kernel: Kernel, lowering: Lowering) -> LoweredStep:
    """The data as they are, a chunk for each task."""
    (output,) = kernel.outputs
    targets, size = target_buffers(kernel), product(output.shape)
    lowering.open()
    chunk = lowering.variable(ceil_div(size, CHUNK))
    first = chunk * CHUNK
    lowering.open()
    place = lowering.variable(size)
    read = Load(lowering.buffer(output.inputs[0]), place)
    lowering.store(targets[output], place, read)
    loop = Loop(str(place), first, minimum(first + CHUNK, size), lowering.close())
    grid = ((str(chunk), ceil_div(size, CHUNK)),)
    program = finish(lowering, kernel, grid, (loop,), targets)
    return LoweredStep(program, tuple(lowering.buffers), kernel.outputs)


class _Scatter:
    """One task. ``place`` is where it is along shared axes; of the last one it has some columns."""

    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.output = kernel.outputs[0]
        self.data, self.indices, self.updates = self.output.inputs
        self.targets = target_buffers(kernel)
        self.shared = _shared_axes(self.output, self.updates)
        self.grid: list[tuple[str, Expr]] = []
        self.place: dict[int, Expr] = {}
        self.columns: Columns | None = None

    @property
    def copies(self) -> bool:
        """Whether a task copies its part: the axes that it has whole lie inside of the others."""
        return 0 in self.shared and self.output.rank > 1

    def program(self) -> TileProgram:
        """The grid, the copy if it is here, and the updates."""
        lowering, shape = self.lowering, self.output.shape
        last = len(shape) - 1
        for axis in self.shared:
            lowering.open()
            if axis == last:
                most = _balanced(shape[last], self._most_columns(shape[last]))
                self.columns = task_columns(lowering, self.grid, shape[last], most=most)
            else:
                self.place[axis] = lowering.variable(shape[axis])
                self.grid.append((str(self.place[axis]), shape[axis]))
        lowering.open()
        if self.copies:
            self._nested(shape, self.place, self._copied)
        self._all_updates()
        body = lowering.opened_statements()
        return finish(lowering, self.kernel, self.grid, body, self.targets)

    def _most_columns(self, width: Expr) -> Expr:
        """Columns of a task at most: some lines where each of their elements has its own place.

        Such updates gain nothing by long runs, and all threads have strips of what they change.
        Few columns are not shared out: threads would write to the same lines all the time.
        """
        size = self.output.dtype.bytes
        longest, line = constant(LONGEST_RUN // size), LINE_BYTES // size
        if isinstance(self.output.primitive, ScatterND):
            return longest
        share = ceil_div(ceil_div(width, SHARES), line) * line
        return select(less(share, LEAST_LINES * line), longest, minimum(share, longest))

    # ------------------------------------------------------------ the copy

    def _copied(self, index: Index) -> None:
        self._store(index, Load(self.lowering.buffer(self.data), self._offset(index)))

    # ------------------------------------------------------------ updates

    def _all_updates(self) -> None:
        """Those of the task; of an axis that is shared there may be fewer updates than elements."""
        shape, scope = self.updates.shape, self.lowering.scope
        known = {self.shared[axis]: place for axis, place in self.place.items()}
        loops: list[tuple[Expr, Expr]] = []
        for axis, place in known.items():
            if scope.is_less(place, shape[axis]) is not Truth.YES:
                some = less(place, shape[axis])
                self.lowering.open()
                loops.append((self.lowering.variable(some), some))
        self._nested(shape, known, self._update)
        for variable, some in reversed(loops):
            inner = self.lowering.close()
            self.lowering.emit(Loop(str(variable), constant(0), some, inner))

    def _update(self, index: Index) -> None:
        where = self._where(index)
        value = self.lowering.value(self.updates, index)
        primitive = self.output.primitive
        assert isinstance(primitive, ScatterElements | ScatterND)
        if primitive.reduction != "none":
            before = Load(self.targets[self.output], self._offset(where))
            value = Apply(primitive.reduction, (before, value), self.data.dtype)
        self._store(where, value)

    def _where(self, index: Index) -> Index:
        """The element that an update changes; what is read of it is checked."""
        position, shape = self.lowering.position, self.output.shape
        match self.output.primitive:
            case ScatterElements(axis=axis):
                found = position(self.output, index, shape[axis])
                return (*index[:axis], found, *index[axis + 1 :])
            case ScatterND():
                lead, depth = self.indices.rank - 1, self.indices.shape[-1].value
                read = [(*index[:lead], constant(d)) for d in range(depth)]
                found = [position(self.output, r, shape[d]) for d, r in enumerate(read)]
                return (*found, *index[lead:])
            case _:
                raise AssertionError(self.output)

    # ------------------------------------------------------------ both

    def _nested(
        self, shape: Sequence[Expr], known: Mapping[int, Expr], body: Callable[[Index], None]
    ) -> None:
        """``body`` for the task's part of an index space, in which ``known`` is where it is."""
        index, loops = dict(known), list[tuple[Expr, Expr, bool]]()
        for axis, size in enumerate(shape):
            if axis in known:
                continue
            self.lowering.open()
            if axis + 1 == len(shape) and self.columns is not None:
                columns = self.columns
                count = minimum(columns.count, size - columns.first)
                variable = self.lowering.variable(columns.most, count=count)
                loops.append((variable, count, True))
                index[axis] = columns.first + variable
            else:
                index[axis] = self.lowering.variable(size)
                loops.append((index[axis], size, False))
        body(tuple(index[axis] for axis in range(len(shape))))
        for variable, end, independent in reversed(loops):
            inner = self.lowering.close()
            loop = Loop(str(variable), constant(0), end, inner, independent=independent)
            self.lowering.emit(loop)

    def _offset(self, index: Index) -> Expr:
        return self.lowering.scope.resolve(linear(index, self.output.shape))

    def _store(self, index: Index, value: Value) -> None:
        self.lowering.store(self.targets[self.output], self._offset(index), value)


def _balanced(size: Expr, most: Expr) -> Expr:
    """Columns of each of the fewest blocks of at most ``most``."""
    return maximum(ceil_div(size, maximum(ceil_div(size, most), 1)), 1)


def _shared_axes(output: Node, updates: Node) -> dict[int, int]:
    """The axes along which an update is where the element is that it changes: theirs by its."""
    match output.primitive:
        case ScatterElements(axis=axis):
            return {a: a for a in range(output.rank) if a != axis}
        case ScatterND():
            offset = updates.rank - output.rank
            depth = output.inputs[1].shape[-1].value
            return {a: a + offset for a in range(depth, output.rank)}
        case _:
            raise AssertionError(output)
