"""Searches along rows for the best element and its place, once through each row.

A piece of the row at a time goes through lanes that each keep the best that they have met, and what
they have found is combined in the end. Start with :func:`in_pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    neutral_element,
)
from tilewright.ir.tile_walk import ExpressionMap, slope, value_loads
from tilewright.shape import Expr, constant, maximum, minimum
from tilewright.target.core_model import VECTORS_TOGETHER, WIDE_LANES
from tilewright.tile.loops.few_columns import Nest
from tilewright.tile.loops.searches import Searching
from tilewright.tile.loops.side_by_side import row_groups, side_by_side
from tilewright.tile.nests import task_columns
from tilewright.tile.rows.turned_rows import BLOCK
from tilewright.tile.values.best_position import Search, place_of, searched
from tilewright.tile.values.lowering import Lowering

PIECE = VECTORS_TOGETHER * WIDE_LANES  # lanes: no vector waits for what was just stored
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
    known = length.value if length.is_constant else None
    if search is None or best.begin is not ZERO or (known is not None and known < PIECE):
        return None
    slopes = {slope(load.offset, best.variable) for load in value_loads(search.element)}
    if not all(isinstance(part, Store) for part in stores) or not {1} <= slopes <= {0, 1}:
        return None
    *others, (name, count) = variables
    grid = list(others)
    rows = task_columns(lowering, grid, count, "c", maximum(BLOCK // maximum(length, 1), 1))
    statements = (*_pieces(lowering, search, best, place), *stores)
    made: list[Statement] = [Loop(name, rows.first, rows.first + rows.count, statements)]
    return grid, made


def _pieces(lowering: Lowering, search: Search, best: Loop, place: Loop) -> list[Statement]:
    """A search in each lane, and then for the best of all lanes and its place."""
    (extreme,), (position,), length = best.accumulators, place.accumulators, best.end
    kept = position.value.dtype
    scratch = [lowering.scratch_buffer(dtype, constant(PIECE)) for dtype in (search.dtype, kept)]
    lanes = Searching(lowering, search, scratch[0], scratch[1])

    def along(count: Expr, pieces: Sequence[Expr]) -> Loop:
        lane = lowering.variable(constant(PIECE))
        firsts = [piece * PIECE for piece in pieces]
        found = [
            (ExpressionMap.substitution({best.variable: first + lane}).value(search.element),
             place_of(first, kept))
            for first in firsts
        ]  # fmt: skip
        return side_by_side(str(lane), count, lanes.step(lane, found))

    lane, whole = lowering.variable(constant(PIECE)), length // PIECE
    begun = side_by_side(str(lane), constant(PIECE), lanes.begun(lane, ZERO))
    steps = row_groups(
        lowering, (ZERO, whole), lowering.variable(whole), lambda p: along(constant(PIECE), p)
    )
    rest = along(length - whole * PIECE, [whole])
    used = minimum(length, PIECE)
    return [begun, *steps, rest, *_combined(lowering, lanes, (extreme, position), used)]


def _combined(
    lowering: Lowering, lanes: Searching, results: tuple[Accumulator, Accumulator], used: Expr
) -> list[Statement]:
    """The reductions of the elements themselves, of those that the lanes have found."""
    extreme, position = results
    kept = position.value.dtype
    lane, other = lowering.variable(used), lowering.variable(used)
    best = replace(extreme, value=Load(lanes.elements, lane))
    first = Apply("add", (Load(lanes.places, other), place_of(other, kept)), kept)
    is_best = lanes.search.is_best(
        Load(lanes.elements, other), Local(extreme.name, lanes.search.dtype)
    )
    nowhere = neutral_element(position.kind, kept)
    found = replace(position, value=Apply("select", (is_best, first, nowhere), kept))
    return [
        Loop(str(lane), ZERO, used, (), (best,), masked=True),
        Loop(str(other), ZERO, used, (), (found,), masked=True),
    ]
