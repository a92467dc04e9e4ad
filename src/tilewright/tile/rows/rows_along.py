"""Rows one by one, with vectors along each: start with :class:`Rows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.tile import (
    Accumulator,
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, constant, product
from tilewright.tile.loops.side_by_side import combined
from tilewright.tile.nests import collapse, grid_axis
from tilewright.tile.rows.stages import (
    RowStages,
    Sweep,
    kind_of,
    part_of,
    reciprocal,
)
from tilewright.tile.work import PARTS


class Rows:
    """One task for each row; ``place`` is where the task's row lies along the kept axes.

    If it is given, the row is one of several of a task that is not made here.
    """

    def __init__(
        self, stages: RowStages, in_parts: bool, place: dict[int, Expr] | None = None
    ) -> None:
        self.stages = stages
        self.lowering = stages.lowering
        self.space = stages.space
        self.in_parts = in_parts
        self.place: dict[int, Expr] = place or {}
        self.grid: list[tuple[str, Expr]] = []
        self.reduced = [a for a in self.space.wide if a in self.space.axes]
        for axis in self.space.kept if place is None else ():
            self.place[axis] = grid_axis(self.lowering, self.grid, self.space.shape[axis])
        self.part = constant(0)
        if in_parts:
            self.part = grid_axis(self.lowering, self.grid, constant(PARTS))
        self.lowering.open()

    @property
    def is_even(self) -> tuple[str, ...]:
        """See :class:`~tilewright.tile.rows.parts.RowTask`, also for what has no comment."""
        return (str(self.part),) if self.in_parts else ()

    @property
    def sums(self) -> Expr:
        """One for each row."""
        return product([self.space.shape[a] for a in self.space.kept])

    def sweep(self, sweep: Sweep) -> None:
        """A loop over the elements of the row that reduces them."""
        self._sweep(sweep)

    def write(self, sweep: Sweep) -> None:
        """A loop over the elements of the row that writes them."""
        self._sweep(sweep)

    def write_rows(self) -> None:
        """What there is one of for the row."""
        for output in self.stages.results:
            index = self.stages.row_index(output.shape, self.place)
            value = self.lowering.value(output, index)
            self.lowering.store(self.stages.targets[output], linear(index, output.shape), value)

    def gather(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """What all parts of the row were reduced to is combined."""
        for reduction, space in zip(sweep.reductions, spaces, strict=True):
            parts = [Load(space, self._in_space(constant(p))) for p in range(PARTS)]
            value = self.lowering.let(combined(kind_of(reduction), parts))
            self.lowering.cached[reduction] = self._result(value)

    def leave(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """The part is reduced, to its own place."""
        names = self._sweep(sweep)
        for reduction, space in zip(sweep.reductions, spaces, strict=True):
            value = Local(names[reduction], reduction.dtype)
            self.lowering.store(space, self._in_space(self.part), value)

    def _in_space(self, part: Expr) -> Expr:
        """Where the sum of a part of the row lies, of all rows' sums of all parts."""
        kept = self.space.kept
        row = linear([self.place[a] for a in kept], tuple(self.space.shape[a] for a in kept))
        return part * self.sums + row

    def _index(self, reduced: dict[int, Expr]) -> list[Expr]:
        known = {**self.place, **reduced}
        return [known.get(a, constant(0)) for a in range(len(self.space.shape))]

    def _inner(self, body: Callable[[list[Expr]], list[Accumulator]]) -> None:
        """Loops over the reduced axes; ``body`` emits and returns the accumulators.

        There is one loop at least: it is what binds the accumulators. Neighbouring axes which every
        access walks as one are one loop.
        """
        lowering = self.lowering
        index: dict[int, Expr] = {}
        axes: list[tuple[str, Expr]] = []
        for axis in self.reduced or self.space.axes[-1:]:
            lowering.open()
            index[axis] = lowering.variable(self.space.shape[axis])
            axes.append((str(index[axis]), self.space.shape[axis]))
        accumulators = tuple(body(self._index(index)))
        levels = [lowering.close() for _ in axes]
        if not any(levels[1:]):
            whole = Loop("", constant(0), constant(0), levels[0], accumulators)
            lowering.open()
            axes, (loop,) = collapse(lowering, axes, [whole])
            lowering.close()
            assert isinstance(loop, Loop)
            levels, accumulators = (
                [loop.body, *levels[len(levels) - len(axes) + 1 :]],
                loop.accumulators,
            )
        cut = _cut(axes) if self.in_parts else None
        inside: list[Statement] = []
        for level, (variable, size) in zip(levels, reversed(axes), strict=True):
            own = (*level, *inside)
            masked = all(isinstance(part, Let | Store) for part in own)
            bounds = part_of(size, self.part) if variable == cut else (constant(0), size)
            inside = [Loop(variable, *bounds, own, accumulators, masked=masked)]
            accumulators = tuple(
                Accumulator(a.name, a.kind, Local(a.name, a.value.dtype)) for a in accumulators
            )
        lowering.emit(inside[0])

    def _sweep(self, sweep: Sweep) -> dict[Node, str]:
        """The names of what the row is reduced to."""
        lowering, stages = self.lowering, self.stages
        for node, divisor in stages.divided(sweep):
            shared = lowering.let(reciprocal(lowering.value(divisor, self._index({}))))
            lowering.cached[node] = stages.quotient(node, self._shared(shared))
        names = {r: lowering.name("r") for r in sweep.reductions}
        sizes = tuple(self.space.shape[a] for a in self.reduced)

        def in_scratch(index: Sequence[Expr]) -> Expr:
            return linear([index[a] for a in self.reduced], sizes)

        places = {n: stages.place(n, product(sizes), in_scratch) for n in sweep.keep}

        def body(index: list[Expr]) -> list[Accumulator]:
            for node, (buffer, offset) in places.items():
                value = lowering.let(lowering.value(node, index))
                lowering.blocks[-1].memo[(node, tuple(index))] = value
                lowering.emit(Store(buffer, lowering.scope.resolve(offset(index)), value))
            for output in sweep.outputs:
                stages.write(output, index)
            return [
                Accumulator(names[r], kind_of(r), lowering.value(r.inputs[0], index))
                for r in sweep.reductions
            ]

        self._inner(body)
        for node, (buffer, offset) in places.items():
            lowering.cached[node] = stages.reader(buffer, offset, self.place)
        for reduction, name in names.items():
            lowering.depth[name] = len(lowering.blocks) - 1
            lowering.cached[reduction] = self._result(Local(name, reduction.dtype))
        return names

    def _shared(self, value: Value) -> Callable[[Index], Value | None]:
        """Reads what all elements of the task's row share."""
        resolve = self.lowering.scope.resolve

        def read(index: Index) -> Value | None:
            same = all(index[axis] is resolve(own) for axis, own in self.place.items())
            return value if same else None

        return read

    def _result(self, result: Value) -> Callable[[Index], Value | None]:
        """Reads the result of a reduction of the task's row."""
        resolve = self.lowering.scope.resolve

        def read(index: Index) -> Value | None:
            shape = [s for a, s in enumerate(self.space.shape) if a not in self.space.axes]
            own = self.stages.row_index(shape, self.place)
            return result if all(i is resolve(o) for i, o in zip(index, own, strict=True)) else None

        return read


def _cut(axes: Sequence[tuple[str, Expr]]) -> str:
    """Of nested loops the one that parts have a share of: the outermost that is long enough."""
    known_short = [size.is_constant and size.value < PARTS for _, size in axes]
    long = [variable for (variable, _), short in zip(axes, known_short, strict=True) if not short]
    return (long or [axes[-1][0]])[0]
