"""What windows wait for over the pixels of a band that a product has just made.

Start with :func:`band_time`.
"""

from __future__ import annotations

from tilewright.cost.machine import Machine
from tilewright.cost.operands import batch_size
from tilewright.ir.product_nest import ProductNest
from tilewright.shape import Expr, constant, minimum, select


def band_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds on one thread to read the pixels of all bands of ``nest`` again.

    None, if those of a block of channels stay in the second-level cache with the data they are made
    of, which a product of several taps reads once.
    """
    size, columns = nest.dtype.bytes, minimum(nest.columns.block, nest.n)
    held = nest.m * (columns + minimum(nest.k, columns)) + nest.k * columns
    elements = batch_size(nest) * nest.m * nest.n
    far = elements // 64 * machine.reading(nest.m * columns, size, 3)
    return select(machine.holds(2, held, size), constant(0), far)
