"""Row kernels: softmax, normalisations and other reductions, stitched with the work around them.

Each stage of a kernel (``stages``) is a sweep over whole rows that stay in cache. Where rows
lie side by side in memory, vectors run across them (``row_columns``); where these are very few,
rows one by one are a variant, and so are the columns turned into rows (``turned_columns``), and
several places of all columns together (``folded_columns``).
Otherwise one task has one row, and vectors run along it (``rows_along``). Where rows
may be short, there is a variant that turns blocks of them (``turned_rows``), where they may be few
and long one in which threads share each sweep (``parts``). Start with :func:`lower_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel, RowSpace
from tilewright.ir.tile import TileProgram
from tilewright.shape import constant, product
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.passes.borders import with_borders
from tilewright.tile.passes.tables import with_tables
from tilewright.tile.prices import priced
from tilewright.tile.rows.folded_columns import FoldedColumns
from tilewright.tile.rows.parts import (
    MakeTask,
    RowTask,
    lower_in_parts,
    lower_whole,
    may_pay,
)
from tilewright.tile.rows.row_columns import RowColumns
from tilewright.tile.rows.row_layouts import WIDEST, Layout, layouts
from tilewright.tile.rows.rows_along import Rows
from tilewright.tile.rows.stages import NotOneLoopError, RowStages
from tilewright.tile.rows.turned_columns import TurnedColumns
from tilewright.tile.rows.turned_rows import turned_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Variant


def lower_rows(
    kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
) -> tuple[Variant, ...]:
    """The variants of a row kernel with their prices; ``fresh`` makes a lowering for each."""
    columns = _along_columns(kernel, fresh)
    found: list[Variant] = []
    task: RowTask
    if columns is not None:
        make, task, program = columns
        found.append(Variant("rows", _steps(program, task, kernel), constant(0)))
        if columns[1].layout.has_few:
            found += _one_by_one(kernel, fresh, "along")[2]
        found += _turned_columns(kernel, fresh, columns[1].layout)
        found += _folded_columns(kernel, fresh, columns[1].layout)
    else:
        make = partial(_rows, kernel, fresh)
        task, program, found = _one_by_one(kernel, fresh, "rows")
    if may_pay(program, task.stages):
        parts = lower_in_parts(make)
        if parts is not None:
            found.append(Variant("parts", parts, constant(0)))
    return priced(found, machine)


def _one_by_one(
    kernel: Kernel, fresh: Callable[[], Lowering], name: str
) -> tuple[Rows, TileProgram, list[Variant]]:
    """A task of one row with its program, and the variants of tasks that go along rows."""
    task = _rows(kernel, fresh, False)
    program = lower_whole(task)
    found = [Variant(name, _steps(program, task, kernel), constant(0))]
    turned = turned_rows(kernel, fresh, program)
    if turned is not None:
        steps = _steps(turned[1], turned[0], kernel)
        found.append(Variant("turned", steps, constant(0)))
    return task, program, found


def _turned_columns(kernel: Kernel, fresh: Callable[[], Lowering], layout: Layout) -> list[Variant]:
    """Few columns, or as many as only a call knows, picked apart: a variant or none."""
    if not layout.may_be_few:
        return []
    try:
        task = TurnedColumns(_stages(kernel, fresh, False))
        program = lower_whole(task)
    except NotOneLoopError:
        return []
    return [Variant("columns", _steps(program, task, kernel), constant(0))]


def _folded_columns(kernel: Kernel, fresh: Callable[[], Lowering], layout: Layout) -> list[Variant]:
    """Columns that fill no whole vectors, or as many as only a call knows: a variant or none."""
    columns = product([RowSpace.of(kernel.seed).shape[axis] for axis in layout.beside])
    if columns.is_constant and (columns.value % WIDE_LANES == 0 or columns.value > WIDEST):
        return []
    try:
        task = FoldedColumns(_stages(kernel, fresh, False), layout)
        program = lower_whole(task)
    except NotOneLoopError:
        return []
    return [Variant("folded", _steps(program, task, kernel), constant(0))]


def _steps(program: TileProgram, task: RowTask, kernel: Kernel) -> tuple[LoweredStep, ...]:
    lowering = task.lowering
    return with_tables(with_borders(program, lowering), lowering, kernel.outputs)


def _along_columns(
    kernel: Kernel, fresh: Callable[[], Lowering]
) -> tuple[MakeTask, RowColumns, TileProgram] | None:
    """How tasks of neighbouring rows are made, and the one of whole rows with its program."""
    for layout in layouts(kernel):

        def columns(in_parts: bool, layout: Layout = layout) -> RowColumns:
            return RowColumns(_stages(kernel, fresh, in_parts), layout, in_parts)

        try:
            task = columns(False)
            return columns, task, lower_whole(task)
        except NotOneLoopError:
            continue
    return None


def _rows(kernel: Kernel, fresh: Callable[[], Lowering], in_parts: bool) -> Rows:
    return Rows(_stages(kernel, fresh, in_parts), in_parts)


def _stages(kernel: Kernel, fresh: Callable[[], Lowering], in_parts: bool) -> RowStages:
    return RowStages(kernel, fresh(), keeps=not in_parts)
