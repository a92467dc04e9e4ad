"""The time of an attention whose scores stay in cache. Start with :func:`attention_time`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.contraction import (
    AGAIN_LEFT,
    AGAIN_RIGHT,
    TRANSPOSE_CYCLES,
    Machine,
    workers_for,
)
from tilewright.ir.dtype import DType
from tilewright.shape import Expr, ceil_div, maximum, minimum

# Cycles for each vector of scores: an exponential by lookup (some 14 of them), the maximum, the
# total, and what is loaded and stored for them, in three passes over the scores of a block.
SCORE_CYCLES = 26
# Both measured on a Zen 4 core, as what is left of the time of attentions of few keys and rows.
BLOCK_CYCLES = 400.0  # of a block of keys: two calls of products, short loops over rows
TASK_CYCLES = 600.0  # of a block of rows


@dataclass(frozen=True)
class AttentionSizes:
    """Elements along the axes of an attention; ``rows`` is what a block of them has at most."""

    batch: Expr
    queries: Expr
    keys: Expr
    depth: Expr
    width: Expr
    rows: int
    block_keys: int
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
    line = machine.line(dtype, columns, height)
    step = line.per_row + line.per_tile // height  # of a row along a panel, one step deep
    blocks = maximum(ceil_div(sizes.queries, sizes.rows), 1)
    lanes = ceil_div(ceil_div(sizes.queries, blocks), sizes.line) * sizes.line
    wide = ceil_div(sizes.width, sizes.line) * sizes.line
    score = _of_score(dtype, shown, machine)
    each_key = lanes * (sizes.depth * step // columns + score)
    each_key = each_key + minimum(sizes.queries, sizes.rows) * (wide * step // columns)
    turned = sizes.depth * lanes * machine.picoseconds(TRANSPOSE_CYCLES)
    passes = ceil_div(sizes.keys, sizes.block_keys) * machine.picoseconds(BLOCK_CYCLES)
    task = sizes.keys * each_key + turned + passes + machine.picoseconds(TASK_CYCLES)
    task = task + _moved(sizes, blocks, dtype, machine)
    tasks = maximum(sizes.batch * blocks, 1)
    workers = workers_for(tasks * task, threads)
    return ceil_div(tasks, workers) * task


def _moved(sizes: AttentionSizes, blocks: Expr, dtype: DType, machine: Machine) -> Expr:
    """Picoseconds that a task waits for keys, which are rows, and for values, which are columns.

    The first block of rows reads them from where all of them lie, others from the cache that holds
    those of one batch element. What multiply-adds hide is the same as in a contraction.
    """
    rows, columns = sizes.keys * sizes.depth, sizes.keys * sizes.width
    first = machine.reading(sizes.batch * (rows + columns), dtype.bytes, 2)
    again = machine.reading(rows + columns, dtype.bytes, 2)
    each = (first + (blocks - 1) * again) // blocks
    return (rows * AGAIN_LEFT + columns * AGAIN_RIGHT) // 8 // 64 * each


def softmax_time(elements: Expr, dtype: DType, machine: Machine, threads: Expr | int) -> Expr:
    """Picoseconds of the softmax of rows that are in cache, with so many threads."""
    alone = elements * _of_score(dtype, 0, machine)
    return alone // workers_for(alone, threads)


def _of_score(dtype: DType, shown: int, machine: Machine) -> int:
    """Picoseconds of what is done to a score between the products."""
    vectors = max(1, machine.target.vector_bytes // dtype.bytes)
    return machine.picoseconds((SCORE_CYCLES + shown) / vectors)
