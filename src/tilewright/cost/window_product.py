"""What a pointwise convolution and windows over its pixels cost as one kernel, band by band.

Start with :func:`banded_time`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost.contraction import contraction_time
from tilewright.cost.machine import Machine
from tilewright.cost.operands import Blocks, batch_size
from tilewright.cost.phases import LoopPrice
from tilewright.ir.product_nest import ProductNest
from tilewright.shape import Expr, constant, maximum, minimum, select


def banded_time(nest: ProductNest, windows: LoopPrice, machine: Machine, threads: Expr) -> Expr:
    """Picoseconds of products, each of all pixels that a band reaches, and of windows over them.

    ``windows`` is the price of the latter by themselves. What they read stays in the second-level
    cache if the pixels of a block of channels do, with their data.
    """
    nest = replace(nest, blocks=replace(nest.blocks, store=()))
    size, blocks = nest.dtype.bytes, Blocks.of(nest)
    columns = minimum(nest.columns.block, nest.n)
    inside = machine.holds(2, nest.m * (columns + nest.k) + nest.k * columns, size)
    elements = batch_size(nest) * nest.m * nest.n
    far = elements // 64 * machine.reading(nest.m * columns, size, 3)
    after = windows.alone + select(inside, constant(0), far)
    return maximum(contraction_time(nest, machine, threads, blocks, after), windows.shared)
