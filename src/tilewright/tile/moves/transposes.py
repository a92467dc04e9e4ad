"""Copies that exchange the contiguous axis: squares through registers instead of single elements.

Start with :func:`as_transpose`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.tile import Load, Statement, Store, TransposeBlock
from tilewright.shape import Expr, constant, minimum
from tilewright.tile.values.lowering import Lowering

STRIP = 64  # columns of the source per task
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
    strip = lowering.variable((sizes[columns] + (STRIP - 1)) // STRIP, "t")
    begin = strip * STRIP
    grid = [(n, s) for n, s in variables[:-1] if n != columns]
    grid.append((str(strip), (sizes[columns] + (STRIP - 1)) // STRIP))
    first = {columns: begin, last: zero}
    block = TransposeBlock(
        load.buffer,
        load.offset.substitute(first),
        read[0].get(last, zero),
        store.buffer,
        store.offset.substitute(first),
        written[0].get(columns, zero),
        sizes[last],
        minimum(begin + STRIP, sizes[columns]) - begin,
    )
    return grid, block


def _is_one(slope: Expr) -> bool:
    return slope.is_constant and slope.value == 1
