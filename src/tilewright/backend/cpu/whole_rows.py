"""Programs whose tasks are blocks of rows, for calls in which each block is a whole row.

A kernel of one loop cuts long rows into blocks, and may write past the caches. Where rows are
short, asking for that once for each takes as long as a row: such kernels have all of their tasks
once more, without. Start with :func:`with_whole_rows`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import Let, Loop, Store, TileProgram
from tilewright.ir.tile_walk import ExpressionMap, is_innermost, value_parts
from tilewright.shape import Expr, constant, equal, logical_and, logical_not

# Of the values of a loop. A question and a division are saved for each row, some ten cycles, which
# are little where more is computed of every element; and the code of all tasks is made twice.
MOST_PARTS = 8


def with_whole_rows(program: TileProgram) -> tuple[Expr, TileProgram] | None:
    """The program of rows that are one block each and not streamed, and when that is so.

    None where that would save nothing: rows are no blocks, or there is one alone, or much is
    computed of each of their elements.
    """
    axes = dict(program.grid)
    match program.body:
        case (Loop() as loop,) if is_innermost(loop) and not loop.accumulators:
            blocks = [name for name in axes if name in loop.begin.free_symbols]
        case _:
            return None
    if len(blocks) != 1 or len(axes) < 2 or not _is_light(loop):
        return None
    if loop.streamed.free_symbols & axes.keys():
        return None
    (name,) = blocks
    rows = tuple((axis, size) for axis, size in program.grid if axis != name)
    single = ExpressionMap.substitution({name: constant(0)})
    body = single.statements([replace(loop, streamed=NEVER)])
    is_whole = logical_and(equal(axes[name], 1), logical_not(loop.streamed))
    return is_whole, replace(program, grid=rows, body=body)


def _is_light(loop: Loop) -> bool:
    """Whether so little is computed of an element that a task of a short row is mostly overhead."""
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    parts = [part for value in values for part in value_parts(value)]
    return len(parts) <= MOST_PARTS and len(values) == len(loop.body)


__all__ = ["with_whole_rows"]
