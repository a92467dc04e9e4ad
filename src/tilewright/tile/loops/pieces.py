"""Searches for the best element of long rows and its place, once through each row.

The best element of a piece is found along vectors, which takes less than half of what it takes to
keep a place beside it. Only the best piece is gone over once more, which the first cache still
holds or the second one does. Start with :func:`in_pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    neutral_element,
)
from tilewright.ir.tile_walk import slope, value_loads
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, symbol
from tilewright.tile.loops.few_columns import Nest
from tilewright.tile.loops.searches import Searching
from tilewright.tile.rows.turned_rows import BLOCK
from tilewright.tile.values.best_position import Search, searched
from tilewright.tile.values.lowering import Lowering

ZERO = constant(0)


def in_pieces(
    lowering: Lowering, variables: Sequence[tuple[str, Expr]], body: Sequence[Statement]
) -> Nest | None:
    """The grid and the statements of a search along rows in pieces; None where it is none."""
    match body:
        case [Loop() as best, Loop() as place, *stores] if stores:
            search, length = searched(best, place), best.end
        case _:
            return None
    if search is None or best.begin is not ZERO:
        return None
    if length.is_constant and length.value <= BLOCK:
        return None
    slopes = {slope(load.offset, best.variable) for load in value_loads(search.element)}
    if not all(isinstance(part, Store) for part in stores) or not {1} <= slopes <= {0, 1}:
        return None
    return [*variables], [*_pieces(lowering, search, best, place), *stores]


def _pieces(lowering: Lowering, search: Search, best: Loop, place: Loop) -> list[Statement]:
    """A search for the best piece, by the best element of each, and then within that piece."""
    (extreme,), (position,), length = best.accumulators, place.accumulators, best.end
    count = ceil_div(length, BLOCK)
    dtypes = search.dtype, DType.INT64
    elements, numbers = (lowering.scratch_buffer(dtype, constant(1)) for dtype in dtypes)
    found = Searching(lowering, search, elements, numbers)
    piece, chosen = lowering.variable(count), lowering.name("g")
    own = replace(extreme, name=lowering.name("r"))
    steps = found.step(ZERO, [(Local(own.name, search.dtype), IndexValue(piece))])
    return [
        *found.begun(ZERO, ZERO),
        Loop(str(piece), ZERO, count, (_piece(best, piece, own), *steps)),
        Let(extreme.name, Load(elements, ZERO)),
        LetIndex(chosen, Load(numbers, ZERO), maximum(count, 1), None),
        _piece(place, symbol(chosen), _somewhere(position)),
    ]


def _piece(loop: Loop, piece: Expr, accumulator: Accumulator) -> Loop:
    """The part of a loop along a row that is in a piece."""
    begin = piece * BLOCK
    end = minimum(begin + BLOCK, loop.end)
    return replace(loop, begin=begin, end=end, accumulators=(accumulator,), masked=True)


def _somewhere(position: Accumulator) -> Accumulator:
    """What looks for a position, where there is one."""
    value = position.value
    assert isinstance(value, Apply), "a choice"
    is_best, here, _ = value.operands
    nowhere = neutral_element(position.kind, value.dtype)
    return replace(position, value=replace(value, operands=(is_best, here, nowhere)))
