"""Which register tiles of the machine become the code of a kernel, by their prices.

The kernel is lowered with each of them, and what their steps and calls take over the whole range of
sizes decides: level 0 comes before level 1, the blocks, and knows nothing of them. Start with
:func:`kernel_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.cost import Machine, tiles_time
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import RunTable, View
from tilewright.policy import Problem
from tilewright.policy.tiles import covering_tiles
from tilewright.shape import Expr, Scope
from tilewright.target.core_model import tallest
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.variants import THREADS, LoweredStep

FLOAT_BYTES = 4  # of the elements by which tiles are counted


def kernel_tiles(
    tile: RegisterTile, lower: Callable[[RegisterTile], LoweredStep], scope: Scope, machine: Machine
) -> RegisterTile:
    """The tile that is best over the ranges of ``scope``; the usual one unless that is felt.

    ``lower`` makes the step of the kernel with a tile. Its last panel is as narrow as the columns
    that are left, with tiles as high as that width allows: so two widths cover the columns, without
    padding but for a part of a vector. Of columns whose number is not known nothing tells.
    """
    usual, *others = tile.sizes()
    nest = ProductNest.of(lower(usual).program)
    fixed = isinstance(nest.left, View) and nest.left.panel and nest.m.is_constant
    if not (nest.line.is_constant or fixed) or nest.product.narrow is not None:
        return usual
    lanes, fitting = max(1, machine.target.vector_bytes // nest.dtype.bytes), others
    narrow = as_wide(usual, nest, machine)
    if narrow is not usual:
        return narrow
    if nest.line.is_constant:
        most = -(-nest.line.value // lanes) * lanes
        fitting = [size for size in others if size.for_type(nest.dtype).columns <= most]
    if not fitting:
        return usual
    sizes = (usual, *fitting)
    nests = (nest, *(ProductNest.of(lower(size).program) for size in fitting))
    prices = tuple(_price(each, machine, lanes) for each in nests)
    (chosen,) = covering_tiles(Problem((), prices, scope, THREADS, machine.target))
    return sizes[chosen]


def as_wide(tile: RegisterTile, nest: ProductNest, machine: Machine) -> RegisterTile:
    """The tile no wider than the columns of ``nest``, if they are known and lie in panels.

    In wider panels, most of what lies in caches would be of no column.
    """
    if not (nest.n.is_constant and nest.right.panel):
        return tile
    size, vector = nest.dtype.bytes, machine.target.vector_bytes
    vectors = -(-nest.n.value * size // vector)
    if not 0 < vectors * vector < tile.for_type(nest.dtype).columns * size:
        return tile
    listed = isinstance(nest.left, RunTable)
    rows = tallest(machine.target.free_registers, vectors, listed=listed)
    return replace(tile, rows=rows, columns=vectors * vector // FLOAT_BYTES)


def _price(nest: ProductNest, machine: Machine, lanes: int) -> Expr:
    """Of tiles alone."""
    known = nest.line.value if nest.line.is_constant else 0
    last = -(-(known % nest.registers.columns) // lanes)
    rows = nest.registers.rows
    if last:
        listed = isinstance(nest.left, RunTable)
        rows = tallest(machine.target.free_registers, last, listed=listed)
    return tiles_time(nest, machine, rows)
