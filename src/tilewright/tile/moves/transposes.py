"""Copies that exchange the contiguous axis: squares through registers instead of single elements.

Start with :func:`as_transpose`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.tile import Load, Statement, Store, TransposeBlock
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum
from tilewright.tile.values.lowering import Lowering

STRIP = 64  # columns of the source per task, and more where rows are fewer or elements narrow
WIDE = 4  # bytes of elements of which a task has so few columns
LONG = 256  # rows of that many columns: more of them are shared out, and more of fewer columns
SIZES = (2, 4, 8)  # bytes of elements that may be turned into scratch memory; one makes words there

Variables = Sequence[tuple[str, Expr]]


def as_transpose(
    lowering: Lowering, variables: Variables, body: Sequence[Statement]
) -> tuple[list[tuple[str, Expr]], TransposeBlock] | None:
    """The grid and the one statement of a loop nest that is a transposition, or None.

    Along the last variable the target is contiguous, along another one the source.
    """
    if len(variables) < 2 or len(body) != 1 or not isinstance(body[0], Store):
        return None
    store = body[0]
    load = store.value
    if not isinstance(load, Load) or load.buffer.dtype.bytes not in (1, *SIZES):
        return None
    names = [name for name, _ in variables]
    written, read = store.offset.affine(names), load.offset.affine(names)
    if written is None or read is None:
        return None
    zero, last = constant(0), names[-1]
    across = [n for n in names[:-1] if _is_one(read[0].get(n, zero))]
    if not across or not _is_one(written[0].get(last, zero)) or _is_one(read[0].get(last, zero)):
        return None
    columns, sizes = across[-1], dict(variables)
    most = columns_of_task(sizes[last]) * max(1, WIDE // load.buffer.dtype.bytes)
    strips = ceil_div(sizes[columns], most)
    strip = lowering.variable(strips, "t")
    begin = strip * most
    grid = [(n, s) for n, s in variables[:-1] if n != columns]
    grid.append((str(strip), strips))
    rows, first_row = _rows_of_task(lowering, sizes[last], sizes[columns], grid)
    first = {columns: begin, last: first_row}
    block = TransposeBlock(
        load.buffer,
        load.offset.substitute(first),
        read[0].get(last, zero),
        store.buffer,
        store.offset.substitute(first),
        written[0].get(columns, zero),
        rows,
        minimum(begin + most, sizes[columns]) - begin,
    )
    return grid, block


def columns_of_task(rows: Expr) -> Expr:
    """How many columns a task has: more of few rows."""
    return STRIP * maximum(STRIP // maximum(rows, 1), 1)


def _rows_of_task(
    lowering: Lowering, rows: Expr, columns: Expr, grid: list[tuple[str, Expr]]
) -> tuple[Expr, Expr]:
    """How many rows a task has, and its first; many rows become an axis of the grid."""
    if rows.is_constant and rows.value <= LONG:
        return rows, constant(0)
    most = LONG * (STRIP // maximum(minimum(columns, STRIP), 1))
    part = lowering.variable(ceil_div(rows, most), "t")
    grid.append((str(part), ceil_div(rows, most)))
    return minimum(rows - part * most, most), part * most


def _is_one(slope: Expr) -> bool:
    return slope.is_constant and slope.value == 1
