"""What a product waits for that leaves the pixels of a band in scratch, for windows over them.

Start with :func:`band_time`.
"""

from __future__ import annotations

from tilewright.cost.levels import line_rate
from tilewright.cost.machine import Machine
from tilewright.cost.operands import batch_size
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import LINE_BYTES
from tilewright.shape import Expr, minimum

MOVES = 2  # of a line: it is fetched before it is written, and makes room for another one


def band_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds on one thread to write the pixels of all bands of ``nest``, block by block.

    They leave the first-level cache for the one that holds a band. Stores are done in order, so
    that lines are waited for, unlike those that windows read, which are asked for ahead.
    """
    size = nest.dtype.bytes
    columns = minimum(nest.columns.block, nest.n)
    lines = batch_size(nest) * nest.m * nest.n * size // LINE_BYTES
    return lines * line_rate(machine, nest.m * columns * size) * MOVES
