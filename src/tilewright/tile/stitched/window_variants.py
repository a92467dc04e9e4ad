"""Variants to compute a convolution and windows over its pixels, with their modelled costs.

Either the two are steps of their own, each as if it was a kernel by itself, or they are one program
whose tasks go over bands of an image. The latter makes some pixels twice and has narrow blocks of
channels; it pays where pixels would not stay in cache from one step to the next. Start with
:func:`window_product_variants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.cost import Machine, band_time, contraction_time, contraction_work, loop_price
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Statement
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.ir.window_product import WindowProduct, window_product_of
from tilewright.policy.cover import Bound
from tilewright.shape import Expr, Scope, ceil_div, maximum, product, symbol
from tilewright.tile.convolutions.convolution import FELT
from tilewright.tile.convolutions.gathered import gathered_time, lower_channels_last
from tilewright.tile.narrow import meetings
from tilewright.tile.prices import shared_out
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import needed
from tilewright.tile.stitched.window_product import lower_window_product
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import is_pointwise
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    Once,
    Variant,
    between,
    made_anew,
    workspace,
)

Alone = Callable[[Kernel], tuple[Variant, ...]]  # the variants of a kernel by itself
CHANNELS = 64  # of a block: four lines, and loops that are not entered more than they run
# How far what is left of all variants may be from the best of them: each is more code.
CLOSE = Bound(mean=0.005, worst=0.05, most=6)


def window_product_variants(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, alone: Alone,
    once: Once = made_anew,
) -> tuple[Variant, ...]:  # fmt: skip
    """The variants of a product with the windows over its pixels.

    ``alone`` makes those of each part by itself, and ``once`` keeps them for other kernels.
    """
    parts = window_product_of(kernel)
    assert parts is not None, f"{kernel.label}: its windows are not those of a product"
    firsts = once(parts.first, "product", lambda: alone(parts.first))
    lasts = once(parts.last, "windows", lambda: alone(parts.last))
    spaces = {parts.shown: workspace(parts.shown)}
    apart = [
        Variant(
            f"{first.name}; {last.name}",
            tuple(between(step, spaces) for step in (*first.steps, *last.steps)),
            first.cost + last.cost + meetings(first.steps[:1], machine),
        )
        for first in firsts
        for last in lasts
    ]
    # As wide as for the product by itself, so that all variants share weights.
    tile = kernel_tiles(tile, lambda size: _product(parts.first, scope, size), scope, machine)
    panels = -(-CHANNELS // tile.for_product(parts.first.seed).columns)
    banded = banded_variant(parts, scope, tile, machine, panels)
    return needed((*apart, banded), scope, machine, CLOSE)


def _product(kernel: Kernel, scope: Scope, tile: RegisterTile) -> LoweredStep:
    return lower_channels_last(kernel, Lowering(kernel, scope), tile)


def banded_variant(
    parts: WindowProduct, scope: Scope, tile: RegisterTile, machine: Machine, panels: int
) -> Variant:
    """One program for both in blocks of so many ``panels`` of channels, with its price."""
    step = lower_window_product(parts, scope, tile, panels)
    program, nest = step.program, ProductNest.of(step.program)
    results = program.buffers[-program.results :]
    sizes = {
        buffer.name: product(node.shape)
        for buffer, node in zip(results, step.writes, strict=True)
        if isinstance(node, Node)
    }
    windows = loop_price(replace(program, body=_by_number(nest)), machine, sizes)
    alone = replace(nest, blocks=replace(nest.blocks, store=()))
    after, seed = windows.alone + band_time(alone, machine), parts.first.seed
    if is_pointwise(seed):
        cost = contraction_time(alone, machine, symbol(THREADS), after=after)
    else:
        cost = gathered_time(alone, seed, machine, after)
    work = contraction_work(alone, machine) + windows.alone // 1000
    name = f"bands, {panels * nest.registers.columns}"
    cost = maximum(cost, windows.shared)
    # Two steps stay unless bands are faster by what is felt: with equal prices, bands of images
    # that lie in cache took 1.02 to 1.1 times as long.
    return Variant(name, (shared_out(step, work),), cost + cost // FELT)


def _by_number(nest: ProductNest) -> tuple[Statement, ...]:
    """What is done with a block, as loops that know of it by its numbers in the grid alone.

    For their price: blocks are as large as they are in the mean.
    """
    places: dict[str, Expr] = {}
    for axis in nest.blocks.axes:
        size = ceil_div(axis.extent, maximum(axis.count, 1))
        first = axis.place * size
        places |= {str(axis.begin): first, str(axis.end): first + size}
    return ExpressionMap.substitution(places).statements(nest.blocks.store)
