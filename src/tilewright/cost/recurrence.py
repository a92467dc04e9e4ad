"""The time of steps that follow each other, by how threads share them.

A step multiplies the states of some rows by weights, which it reads once, and computes functions of
the sums. Start with :func:`own_rows_time` and :func:`shared_units_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.machine import Machine
from tilewright.cost.vector_work import function_cycles
from tilewright.ir.dtype import DType
from tilewright.ir.tile import LINE_BYTES
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, select


@dataclass(frozen=True)
class StepSizes:
    """``length`` steps of ``batch`` rows, each of which has ``units`` in a state.

    ``columns`` are the sums of all products of a row, ``functions`` what is computed for a unit.
    """

    length: Expr
    batch: Expr
    units: int
    columns: int
    dtype: DType
    functions: Sequence[str]


def own_rows_time(sizes: StepSizes, machine: Machine, threads: Expr) -> Expr:
    """Picoseconds of all steps where each thread makes those of some rows."""
    rows = ceil_div(sizes.batch, maximum(minimum(threads, sizes.batch), 1))
    return sizes.length * _step_time(sizes, rows, constant(1), machine)


def shared_units_time(sizes: StepSizes, machine: Machine, threads: Expr) -> Expr:
    """Picoseconds of all steps where threads share the units of each, and meet after it."""
    tasks = step_tasks(sizes, machine, threads)
    meeting = minimum(tasks - 1, 1) * round(1000 * machine.target.sync_ns)
    return sizes.length * (_step_time(sizes, sizes.batch, tasks, machine) + meeting)


def step_tasks(sizes: StepSizes, machine: Machine, threads: Expr) -> Expr:
    """How many tasks a step is worth: each takes as long as a meeting of the threads at least."""
    alone = _step_time(sizes, sizes.batch, constant(1), machine)
    least = round(1000 * machine.target.sync_ns)
    return maximum(minimum(threads, alone // max(least, 1)), 1)


def _step_time(sizes: StepSizes, rows: Expr, shares: Expr, machine: Machine) -> Expr:
    """Picoseconds of one of so many equal shares of a step of ``rows`` rows."""
    dtype, lanes = sizes.dtype, LINE_BYTES // sizes.dtype.bytes
    weights = constant(sizes.units * sizes.columns) // shares
    line = machine.line(dtype, lanes, machine.target.vector_registers)
    tall = select(minimum(rows - 1, 1), line.per_row * rows + line.per_tile, line.least)
    computed = weights // lanes * tall
    read = weights // 64 * machine.reading(weights, dtype.bytes, 1)
    costs = machine.core.loops
    vector = machine.target.vector_bytes // dtype.bytes
    cycles = sum(function_cycles(costs, name, dtype, vector)[0] for name in sizes.functions)
    vectors = -(-sizes.units // vector)
    finished = rows * constant(vectors * machine.picoseconds(cycles)) // shares
    return maximum(computed, read) + finished


__all__ = ["StepSizes", "own_rows_time", "shared_units_time", "step_tasks"]
