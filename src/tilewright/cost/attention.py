"""The time of an attention whose scores stay in cache. Start with :func:`attention_time`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.machine import Machine, workers_for
from tilewright.ir.decay import DECAY
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.shape import Expr, ceil_div, less, maximum, select

SWEEPS = 2  # over the scores of a block, between the products
COPIED_ROWS = 32  # of a block, so that values are copied for them: a twentieth of both products
SIMPLE_OPERATIONS = 2  # of a score: less the maximum, and added to the total


@dataclass(frozen=True)
class AttentionSizes:
    """Elements along the axes of an attention.

    ``rows`` and ``block_keys`` are what a block has at most, ``line`` elements of which its rows
    are a multiple.
    """

    batch: Expr
    queries: Expr
    keys: Expr
    depth: Expr
    width: Expr
    rows: Expr
    block_keys: Expr
    line: int


def attention_time(
    sizes: AttentionSizes, dtype: DType, tile: tuple[int, int], shown: int,
    machine: Machine, threads: Expr | int,
) -> Expr:  # fmt: skip
    """Picoseconds with so many threads.

    ``tile`` is the register tile's rows and columns, ``shown`` the operations between a score and
    what is shown of it.
    """
    height, columns = tile
    core = machine.core
    line = machine.line(dtype, columns, height)
    step = line.per_row + line.per_tile // height  # of a row along a panel, one step deep
    blocks = maximum(ceil_div(sizes.queries, sizes.rows), 1)
    # Blocks are alike: what the mean of them has, and what fills its last vector.
    rows = ceil_div(sizes.queries, blocks)
    lanes = ceil_div(ceil_div(sizes.queries, sizes.line) * sizes.line, blocks)
    wide = ceil_div(sizes.width, sizes.line) * sizes.line
    score = _of_score(dtype, shown, machine)
    each_key = lanes * (sizes.depth * step // columns + score)
    each_key = each_key + rows * (wide * step // columns)
    turned = sizes.depth * lanes * machine.picoseconds(core.panels.transposed)
    passes = ceil_div(sizes.keys, sizes.block_keys)
    # In each block of keys the sums of all rows are raised to the new maximum, and added to.
    block, own = core.attention.block * core.tile.block, core.attention.task * core.tile.block
    raised, divided = _of_row(wide, dtype, machine)
    passes = passes * (machine.picoseconds(block) + rows * raised)
    task = sizes.keys * each_key + turned + passes + rows * divided + machine.picoseconds(own)
    task = task + _moved(sizes, blocks, dtype, machine)
    task = task + select(less(sizes.rows, COPIED_ROWS), 0, _copied(sizes, wide, dtype, machine))
    tasks = maximum(sizes.batch * blocks, 1)
    workers = workers_for(tasks * task, threads)
    return ceil_div(tasks, workers) * task


def _copied(sizes: AttentionSizes, wide: Expr, dtype: DType, machine: Machine) -> Expr:
    """Picoseconds to copy the values that a task meets."""
    costs, vectors = machine.core.loops, max(1, machine.target.vector_bytes // dtype.bytes)
    each = wide * machine.picoseconds(max(costs.load, costs.store) / vectors)
    return sizes.keys * (each + machine.picoseconds(costs.enter))


def _of_row(wide: Expr, dtype: DType, machine: Machine) -> tuple[Expr, Expr]:
    """Picoseconds of a row beside its scores: in each block of keys, and once.

    Its sums pass through memory twice in a block, to be raised and to be added to. Once they are
    zeroed, divided and stored.
    """
    costs, tile = machine.core.loops, machine.core.tile
    vectors = max(1, machine.target.vector_bytes // dtype.bytes)
    swept = max(costs.aligned_load, costs.aligned_store, costs.instruction)
    spilled = wide * machine.picoseconds(tile.spilled + swept / vectors)
    zeroed = wide * machine.picoseconds((costs.aligned_store + max(costs.store, swept)) / vectors)
    divided = costs.enter + (costs.function("divide") or 0.0)
    return spilled + machine.picoseconds(costs.enter), zeroed + machine.picoseconds(divided)


def _moved(sizes: AttentionSizes, blocks: Expr, dtype: DType, machine: Machine) -> Expr:
    """Picoseconds that a task waits for keys, which are rows, and for values, which are columns.

    The first block of rows reads them from where all of them lie, others from the cache that holds
    those of one batch element. What multiply-adds hide is the same as in a contraction.
    """
    rows, columns = sizes.keys * sizes.depth, sizes.keys * sizes.width
    first = machine.reading(sizes.batch * (rows + columns), dtype.bytes, 2)
    again = machine.reading(rows + columns, dtype.bytes, 2)
    each = (first + (blocks - 1) * again) // blocks
    streams = machine.core.streams
    shown = rows * streams.again_left + columns * streams.again_right
    return shown // 8 // 64 * each


def _of_score(dtype: DType, shown: int, machine: Machine) -> int:
    """Picoseconds of what is done to a score between the products."""
    vectors = max(1, machine.target.vector_bytes // dtype.bytes)
    cycles = score_cycles(machine, dtype) + shown * machine.core.loops.instruction
    return machine.picoseconds(cycles / vectors)


def score_cycles(machine: Machine, dtype: DType = DType.FLOAT32) -> float:
    """Cycles of a vector of scores, in two sweeps over what lies in the second-level cache.

    In the first one the greatest score of each row is found, in the second one its exponentials
    and their total.
    """
    costs, second = machine.core.loops, machine.target.levels[2]
    exponential = costs.function(DECAY) or SCALAR_FUNCTIONS[DECAY].cost
    exponential *= costs.double if dtype is DType.FLOAT64 else 1.0
    line = machine.target.vector_bytes / (second.bandwidth * costs.reached[0])
    each = max(costs.load, costs.store) + line
    simple = costs.compare + SIMPLE_OPERATIONS
    return SWEEPS * each + simple * costs.instruction + exponential


__all__ = ["COPIED_ROWS", "AttentionSizes", "attention_time", "score_cycles"]
