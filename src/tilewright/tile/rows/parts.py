"""Few long rows: every sweep is cut into parts, which threads share.

Each sweep is a step of its own. Its tasks have a part of the rows and leave what they reduce it to
in a workspace; those of the next step begin by combining all parts, in a fixed order, so that
results do not depend on the number of threads. Start with :func:`lower_in_parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tilewright.ir.graph import Node
from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import Expr, constant, product
from tilewright.tile.rows.stages import NotOneLoopError, RowStages, Sweep
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace
from tilewright.tile.work import PARTS, estimate

MANY_TASKS = 16  # of whole rows: threads share these
LONG = 1 << 15  # elements of the rows of one task from which on parts may pay


class RowTask(Protocol):
    """A task that has rows, or a part of each, while it is written."""

    stages: RowStages
    lowering: Lowering
    grid: list[tuple[str, Expr]]

    @property
    def sums(self) -> Expr:
        """How many values a reduction of all rows is while it is in parts."""
        ...

    @property
    def is_even(self) -> tuple[str, ...]:
        """The variables of the grid on whose value the work of a task hardly depends."""
        ...

    def sweep(self, sweep: Sweep) -> None:
        """Reduce whole rows."""
        ...

    def gather(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """Combine what the parts of an earlier sweep have left."""
        ...

    def leave(self, sweep: Sweep, spaces: Sequence[TileBuffer]) -> None:
        """Reduce a part."""
        ...

    def write(self, sweep: Sweep) -> None:
        """Write elements."""
        ...

    def write_rows(self) -> None:
        """Write the results of which there is one for each row."""
        ...


MakeTask = Callable[[bool], RowTask]


def lower_whole(task: RowTask) -> TileProgram:
    """The program of a task of whole rows."""
    write_whole(task)
    return _program(task, (), [task.stages.targets[o] for o in task.stages.kernel.outputs])


def write_whole(task: RowTask) -> None:
    """All sweeps over whole rows, and what there is one of for each."""
    for sweep in task.stages.sweeps():
        if sweep.reductions:
            task.sweep(sweep)
        else:
            task.write(sweep)
    task.write_rows()


def _program(
    task: RowTask, spaces: Sequence[TileBuffer], results: Sequence[TileBuffer]
) -> TileProgram:
    lowering = task.lowering
    body = tuple(lowering.opened_statements())
    zeros = dict.fromkeys(task.is_even, constant(0))
    work = estimate(task.grid, ExpressionMap.substitution(zeros).statements(body))
    return TileProgram(
        (*lowering.buffers.values(), *spaces, *results),
        len(results),
        tuple(task.grid),
        body,
        tuple(lowering.scratch),
        tuple(lowering.checks),
        work,
    )


def may_pay(program: TileProgram, stages: RowStages) -> bool:
    """Whether tasks of whole rows may be few and long at some sizes."""
    scope = stages.lowering.scope
    space = product(stages.space.shape)
    tasks = scope.bounds(product([size for _, size in program.grid])).low
    longest = scope.bounds(space).high
    few = tasks is None or tasks < MANY_TASKS
    return few and (longest is None or longest >= LONG)


def lower_in_parts(make: MakeTask) -> tuple[LoweredStep, ...] | None:
    """A step for every sweep, and one for what there is one of for each row; None: impossible."""
    try:
        return tuple(_steps(make))
    except NotOneLoopError:
        return None


def _steps(make: MakeTask) -> list[LoweredStep]:
    made: list[LoweredStep] = []
    left: list[tuple[Sweep, list[Workspace]]] = []
    for sweep in make(True).stages.sweeps():
        task = make(True)
        gathered = _gather(task, left)
        if not sweep.reductions:
            task.write(sweep)
            outputs = task.stages.elements
            results = [task.stages.targets[o] for o in outputs]
            made.append(_step(task, gathered, results, outputs))
            continue
        own = [
            Workspace(f"parts {len(left)}.{i}", r.dtype, task.sums * PARTS)
            for i, r in enumerate(sweep.reductions)
        ]
        targets = [TileBuffer(f"q{i}", space.dtype) for i, space in enumerate(own)]
        task.leave(sweep, targets)
        made.append(_step(task, gathered, targets, own))
        left.append((sweep, own))
    task = make(False)
    if task.stages.results:
        gathered = _gather(task, left)
        task.write_rows()
        results = [task.stages.targets[o] for o in task.stages.results]
        made.append(_step(task, gathered, results, task.stages.results))
    return made


def _gather(
    task: RowTask, left: Sequence[tuple[Sweep, list[Workspace]]]
) -> dict[TileBuffer, Workspace]:
    """Combine what earlier sweeps have left; the buffers from which that is read."""
    gathered: dict[TileBuffer, Workspace] = {}
    for sweep, spaces in left:
        buffers = [TileBuffer(f"p{len(gathered) + i}", w.dtype) for i, w in enumerate(spaces)]
        task.gather(sweep, buffers)
        gathered.update(zip(buffers, spaces, strict=True))
    return gathered


def _step(
    task: RowTask,
    gathered: Mapping[TileBuffer, Workspace],
    results: Sequence[TileBuffer],
    writes: Sequence[Node | Workspace],
) -> LoweredStep:
    program = _program(task, tuple(gathered), results)
    return LoweredStep(program, (*task.lowering.buffers, *gathered.values()), tuple(writes))
