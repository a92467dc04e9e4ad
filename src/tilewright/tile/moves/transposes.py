"""Copies that exchange the contiguous axis: squares through registers instead of single elements.

Start with :func:`as_transpose`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.tile import Load, Statement, Store, TransposeBlock
from tilewright.shape import Expr, Truth, ceil_div, constant, maximum, minimum
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
    moved = _moved(body)
    return None if moved is None else _turned(lowering, variables, *moved, constant(1))


def as_transposed_runs(
    lowering: Lowering, variables: Variables, body: Sequence[Statement]
) -> tuple[list[tuple[str, Expr]], TransposeBlock] | None:
    """The same where runs along the last variable keep their order, and may be short, or None.

    A run of as many bytes as an element may have is turned as one.
    """
    moved = _moved(body)
    if moved is None or len(variables) < 3:
        return None
    store, load = moved
    (name, run), zero = variables[-1], constant(0)
    written, read = (part.offset.affine([name]) for part in moved)
    if written is None or read is None:
        return None
    if not all(_is_one(slopes.get(name, zero)) for slopes, _ in (written, read)):
        return None
    lengths = [size // load.buffer.dtype.bytes for size in SIZES if size > load.buffer.dtype.bytes]
    if all(lowering.scope.is_equal(run, length) is Truth.NO for length in lengths):
        return None
    first = {name: zero}
    load = Load(load.buffer, load.offset.substitute(first))
    store = Store(store.buffer, store.offset.substitute(first), load)
    return _turned(lowering, variables[:-1], store, load, run)


def _moved(body: Sequence[Statement]) -> tuple[Store, Load] | None:
    """What is stored where, if that is one element as it was loaded."""
    if len(body) != 1 or not isinstance(body[0], Store):
        return None
    load = body[0].value
    if not isinstance(load, Load) or load.buffer.dtype.bytes not in (1, *SIZES):
        return None
    return body[0], load


def _turned(
    lowering: Lowering, variables: Variables, store: Store, load: Load, run: Expr
) -> tuple[list[tuple[str, Expr]], TransposeBlock] | None:
    """The grid and the statement of a transposition of runs of elements, or None if it is none."""
    if len(variables) < 2:
        return None
    names = [name for name, _ in variables]
    written, read = store.offset.affine(names), load.offset.affine(names)
    if written is None or read is None:
        return None
    zero, last = constant(0), names[-1]
    across = [n for n in names[:-1] if read[0].get(n, zero) is run]
    if not across or written[0].get(last, zero) is not run or read[0].get(last, zero) is run:
        return None
    columns, sizes = across[-1], dict(variables)
    rows_apart = read[0].get(last, zero), written[0].get(columns, zero)
    if not all(_is_multiple(apart, run) for apart in rows_apart):
        return None
    bytes_moved = load.buffer.dtype.bytes * run
    most = columns_of_task(sizes[last]) * maximum(1, WIDE // maximum(bytes_moved, 1))
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
        rows_apart[0],
        store.buffer,
        store.offset.substitute(first),
        rows_apart[1],
        rows,
        minimum(begin + most, sizes[columns]) - begin,
        run,
    )
    return grid, block


def _is_multiple(size: Expr, run: Expr) -> bool:
    """Whether a size is seen to be one of a length that is a number or has a name."""
    if run.is_constant:
        return size % run is constant(0)
    affine = None if run.symbol_name is None else size.affine([run.symbol_name])
    return affine is not None and affine[1] is constant(0)


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
