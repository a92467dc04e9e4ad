"""Row kernels: softmax, normalisations and other reductions, stitched with the work around them.

Each stage of a kernel (``row_stages``) is a sweep over whole rows that stay in cache. Where rows
lie side by side in memory, vectors run across them (``row_columns``). Otherwise one task has one
row, and vectors run along it. Start with :func:`lower_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Reduce
from tilewright.ir.tile import Accumulator, Let, Local, Loop, LoopProgram, Statement, Store, Value
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, constant, product
from tilewright.tile.loops import collapse, finish
from tilewright.tile.lowering import Lowering
from tilewright.tile.row_columns import NotOneLoopError, RowColumns, layouts
from tilewright.tile.row_stages import RowStages, Sweep


def lower_rows(kernel: Kernel, fresh: Callable[[], Lowering]) -> tuple[LoopProgram, Lowering]:
    """The program of a row kernel, and the lowering, made by ``fresh``, that it comes from."""
    for layout in layouts(kernel):
        lowering = fresh()
        try:
            return RowColumns(RowStages(kernel, lowering), layout).program(), lowering
        except NotOneLoopError:
            continue
    lowering = fresh()
    return _Rows(RowStages(kernel, lowering)).program(), lowering


class _Rows:
    """One task for each row; ``place`` is where the task's row lies along the kept axes."""

    def __init__(self, stages: RowStages) -> None:
        self.stages = stages
        self.lowering = stages.lowering
        self.space = stages.space
        self.place: dict[int, Expr] = {}
        self.grid: list[tuple[str, Expr]] = []
        self.reduced = [a for a in self.space.wide if a in self.space.axes]
        for axis in self.space.kept:
            self.lowering.open()
            self.place[axis] = self.lowering.variable(self.space.shape[axis])
            self.grid.append((str(self.place[axis]), self.space.shape[axis]))
        self.lowering.open()

    def program(self) -> LoopProgram:
        """All sweeps of a row, then what there is one of for each."""
        for sweep in self.stages.sweeps():
            self._sweep(sweep)
        for output in self.stages.results:
            index = self.stages.row_index(output.shape, self.place)
            value = self.lowering.value(output, index)
            self.lowering.store(self.stages.targets[output], linear(index, output.shape), value)
        body = [s for block in self.lowering.blocks for s in block.statements]
        return finish(self.lowering, self.stages.kernel, self.grid, body, self.stages.targets)

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
        inside: list[Statement] = []
        for level, (variable, size) in zip(levels, reversed(axes), strict=True):
            own = (*level, *inside)
            masked = all(isinstance(part, Let | Store) for part in own)
            inside = [Loop(variable, constant(0), size, own, accumulators, masked=masked)]
            accumulators = tuple(
                Accumulator(a.name, a.kind, Local(a.name, a.value.dtype)) for a in accumulators
            )
        lowering.emit(inside[0])

    def _sweep(self, sweep: Sweep) -> None:
        lowering, stages = self.lowering, self.stages
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
                self._store(output, index)
            return [
                Accumulator(names[r], _kind(r), lowering.value(r.inputs[0], index))
                for r in sweep.reductions
            ]

        self._inner(body)
        for node, (buffer, offset) in places.items():
            lowering.cached[node] = stages.reader(buffer, offset, self.place)
        for reduction, name in names.items():
            lowering.depth[name] = len(lowering.blocks) - 1
            lowering.cached[reduction] = self._result(Local(name, reduction.dtype))

    def _store(self, output: Node, index: list[Expr]) -> None:
        stages = self.stages
        value = stages.element(output, index)
        self.lowering.store(stages.targets[output], linear(index, self.space.shape), value)

    def _result(self, local: Local) -> Callable[[Index], Value | None]:
        """Reads the result of a reduction of the task's row."""
        resolve = self.lowering.scope.resolve

        def read(index: Index) -> Value | None:
            shape = [s for a, s in enumerate(self.space.shape) if a not in self.space.axes]
            own = self.stages.row_index(shape, self.place)
            return local if all(i is resolve(o) for i, o in zip(index, own, strict=True)) else None

        return read


def _kind(reduction: Node) -> str:
    primitive = reduction.primitive
    assert isinstance(primitive, Reduce)
    return primitive.kind


__all__ = ["lower_rows"]
