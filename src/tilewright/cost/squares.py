"""What it takes to turn blocks through registers. Imports ir and shape.

Start with :func:`squares_cycles`.
"""

from __future__ import annotations

from tilewright.cost.lengths import short
from tilewright.cost.vector_work import Core
from tilewright.ir.tile import TransposeBlock
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less_equal,
    logical_and,
    maximum,
    minimum,
    select,
)
from tilewright.target.core_model import PIECE_BYTES, most_thin, thin_lanes

# Elements of one byte are turned by pieces wherever they lie (``backend/cpu/transpose.py``); of two
# bytes only where that pays, which is not modelled.
ALWAYS_PIECES_BYTES = 1


def squares_cycles(
    core: Core, block: TransposeBlock, usual: tuple[Expr, Expr], mean: tuple[Expr, Expr]
) -> Expr:
    """Thousandths of cycles to turn a block by the largest squares of which one fits.

    One fits the ``usual`` rows and columns; those of the last turn of a loop, which may be fewer,
    take their share of the ``mean``.
    """
    lanes = core.lanes(block.target.dtype.bytes)
    tall, wide = usual
    least, made = minimum(tall, wide), constant(0)
    for size, each in reversed(core.costs.turns):
        if size <= lanes:
            squares = ceil_div(tall, size) * ceil_div(wide, size)
            own = squares * round(1000 * size * each)
            made = own if size == 1 else select(less_equal(size, least), own, made)
    size = block.target.dtype.bytes
    if size <= ALWAYS_PIECES_BYTES:
        squares = ceil_div(tall, lanes) * ceil_div(wide, lanes)
        own = squares * round(1000 * lanes * _by_pieces(core, size))
        made = select(less_equal(2 * lanes, least), own, made)
    made = _thin(core, block, usual, made, lanes)
    for one, whole in zip(usual, mean, strict=True):
        if one is not whole:
            made = short(made) * whole // maximum(one, 1)
    return made


def _by_pieces(core: Core, size: int) -> float:
    """Cycles of a register of a square as wide as it, whose elements have ``size`` bytes.

    It is copied to scratch memory, filled with a piece of each of several rows, and interleaved
    with others once for each binary digit of the elements in a piece.
    """
    costs = core.costs
    pieces, turns = core.lanes(PIECE_BYTES), PIECE_BYTES // size
    steps = pieces - 1 + turns.bit_length() - 1
    moved = costs.load + costs.aligned_store + pieces * costs.aligned_load + costs.store
    return moved + steps * costs.instruction


def _thin(
    core: Core, block: TransposeBlock, usual: tuple[Expr, Expr], squares: Expr, lanes: int
) -> Expr:
    """The same, for few columns or rows side by side, by the vector.

    It is picked out of as many vectors as there are of them, each of which takes an instruction
    more; that hides behind its load and its store as long as these are few.
    """
    size = block.target.dtype.bytes
    most = most_thin(core.target.vector_bytes, size)
    least = round(1000 * (core.costs.load + core.costs.store))
    pick = round(1000 * core.costs.instruction)
    tall, wide = usual
    sides = (
        (wide, tall, block.columns is block.source_row),
        (tall, wide, block.rows is block.target_row),
    )
    for count, length, beside in sides:
        if not beside or (count.is_constant and not 1 < count.value <= most):
            continue
        each = count * maximum(least, (count - 1) * pick)
        for long in sorted(thin_lanes(2, lanes)):
            widest = max(n for n in range(2, most + 1) if long in thin_lanes(n, lanes))
            fits = (less_equal(2, count), less_equal(count, widest), less_equal(long, length))
            squares = select(logical_and(*fits), ceil_div(length, long) * each, squares)
    return squares


__all__ = ["squares_cycles"]
