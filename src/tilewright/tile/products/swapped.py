"""Contractions with the roles exchanged: columns are broadcast, rows run along the lanes.

That is the product of the transposed operands. A constant left operand is packed when compiling,
few columns cost no more than they are, and a left operand with contiguous rows is read in place.
Results leave the registers with the distance of two rows between neighbouring lanes. Start with
:func:`lower_swapped`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.access import contraction_access
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep


def lower_swapped(
    kernel: Kernel,
    fresh: Callable[[], Lowering],
    tile: RegisterTile,
    blocking: Blocking | None = None,
) -> tuple[LoweredStep, ...] | None:
    """The step of a Contract whose right operand can be read in place; None for others."""
    lowering = fresh()
    if not isinstance(kernel.seed.primitive, Contract):
        return None
    if contraction_access(kernel.seed, lowering.scope, lowering.memory).right is None:
        return None
    return (lower_contraction(kernel, lowering, tile, blocking, mirrored=True),)
