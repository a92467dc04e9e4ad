"""Squares of which a register holds two rows or more: rows are zipped, not exchanged.

Elements of two rows in turns fill one register, and so on: half as many registers pass through
every step as where each row has its own. Start with :func:`zipped_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir


def zipped_columns(
    builder: ir.IRBuilder, rows: Sequence[ir.Value], most: int
) -> Sequence[ir.Value]:
    """The columns of a square of rows, in registers of ``most`` elements."""
    parts = [[row] for row in rows]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [
            [made for pair in zip(one, other, strict=True) for made in _zipped(builder, pair, most)]
            for one, other in zip(parts[:half], parts[half:], strict=True)
        ]
    size = len(rows)
    places = [(x, first) for x in parts[0] for first in range(0, _count(x), size)]
    return [_picked(builder, (x, x), range(first, first + size)) for x, first in places]


def _zipped(
    builder: ir.IRBuilder, pair: tuple[ir.Value, ir.Value], most: int
) -> Sequence[ir.Value]:
    """Elements of both in turns, in one register or in two."""
    count = _count(pair[0])
    order = [place for i in range(count) for place in (i, count + i)]
    step = min(most, 2 * count)
    return [
        _picked(builder, pair, order[first : first + step]) for first in range(0, 2 * count, step)
    ]


def _picked(
    builder: ir.IRBuilder, pair: tuple[ir.Value, ir.Value], order: Sequence[int]
) -> ir.Value:
    indices = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
    return builder.shuffle_vector(*pair, indices)


def _count(x: ir.Value) -> int:
    assert isinstance(x.type, ir.VectorType)
    return x.type.count


__all__ = ["zipped_columns"]
