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
    equal,
    less_equal,
    logical_and,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target.core_model import PIECE_BYTES, most_thin, thin_lanes

# Elements of one byte are turned by pieces wherever they lie
# (``backend/cpu/transposed_blocks.py``); of two bytes only where that pays, which is not modelled.
ALWAYS_PIECES_BYTES = 1
MOST_TURNED_BYTES = 8  # bytes of the largest element, and of the longest run that is turned as one
# Of an element of another run to one of a vector that is loaded and stored.
BY_ELEMENT = 2


def squares_cycles(
    core: Core, block: TransposeBlock, usual: tuple[Expr, Expr], mean: tuple[Expr, Expr]
) -> Expr:
    """Thousandths of cycles to turn a block by the largest squares of which one fits.

    One fits the ``usual`` rows and columns; those of the last turn of a loop, which may be fewer,
    take their share of the ``mean``. Runs that are as long as no element are copied by the element.
    """
    size = block.target.dtype.bytes
    if block.run is constant(1):
        return _squares(core, block, usual, mean, size)
    each = core.costs.load + core.costs.store
    made = product([*mean, block.run]) * round(1000 * BY_ELEMENT * each)
    for wide in (size << doubled for doubled in range((MOST_TURNED_BYTES // size).bit_length())):
        squares = _squares(core, block, usual, mean, wide)
        made = select(equal(block.run, wide // size), squares, made)
    return made


def _squares(
    core: Core, block: TransposeBlock, usual: tuple[Expr, Expr], mean: tuple[Expr, Expr], size: int
) -> Expr:
    """The same of elements of ``size`` bytes, or of runs of so many."""
    lanes = core.lanes(size)
    tall, wide = usual
    least, made = minimum(tall, wide), constant(0)
    for side, each in reversed(core.costs.turns):
        if side <= lanes:
            squares = ceil_div(tall, side) * ceil_div(wide, side)
            own = squares * round(1000 * side * each)
            made = own if side == 1 else select(less_equal(side, least), own, made)
    if size <= ALWAYS_PIECES_BYTES:
        squares = ceil_div(tall, lanes) * ceil_div(wide, lanes)
        own = squares * round(1000 * lanes * _by_pieces(core, size))
        made = select(less_equal(2 * lanes, least), own, made)
    if block.run is constant(1):
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
    most = most_thin(core.target.vector_bytes)
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
