"""What a product and reductions over its rows cost as two kernels and as one.

As two, all threads meet between them, and what the first one wrote is read again from where all of
it lies, which is hidden while that is near. As one, rows stay in the second-level cache if a block
of them does, but tasks have whole rows. Start with :func:`apart_time` and :func:`together_time`.
"""

from __future__ import annotations

from tilewright.cost.contraction import contraction_time
from tilewright.cost.machine import Machine, workers_for
from tilewright.cost.operands import Blocks
from tilewright.ir.product_nest import ProductNest
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less_equal,
    maximum,
    minimum,
    product,
    select,
)


def apart_time(
    parts: tuple[Expr, Expr], elements: Expr, size: int, machine: Machine, threads: Expr
) -> Expr:
    """Picoseconds of two kernels of which one reads ``elements`` of ``size`` bytes of the other.

    ``parts`` are their times.
    """
    first, last = parts
    workers = workers_for((first + last) * threads, threads)
    near = machine.holds(2, elements // (machine.core.streams.handed_on * workers), size)
    moved = elements // 64 * machine.reading(elements, size, 3) // workers
    meeting = minimum(workers - 1, 1) * round(1000 * machine.target.sync_ns)
    return first + last + select(near, 0, moved) + meeting


def together_time(
    nest: ProductNest, rows: Expr, blocks: Blocks, machine: Machine, threads: Expr
) -> Expr:
    """Picoseconds of a product whose blocks have all columns, and of sweeps over their rows.

    ``rows`` are those of all sweeps on one thread, with rows in the second-level cache.
    """
    size = nest.dtype.bytes
    tall = ceil_div(nest.m, maximum(blocks.rows, 1))
    deep = ceil_div(nest.k, maximum(blocks.depth, 1))
    wide = nest.registers.columns
    # Sums that wait for the next block of the depth, what is shown of them, and both operands.
    sums = select(less_equal(blocks.depth, 1), 1, 2) * nest.n
    inside = machine.holds(2, tall * (sums + deep) + deep * wide, size)
    elements = product([extent for _, extent in nest.batch]) * nest.m * nest.n
    far = elements // 64 * machine.reading(tall * sums, size, 3)
    after = rows + select(inside, constant(0), far)
    return contraction_time(nest, machine, threads, blocks, after)
