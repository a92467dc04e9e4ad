"""All ways to compute a contraction, with their modelled costs. Start with :func:`contraction_ways`."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.kernel import Kernel
from tilewright.shape import constant
from tilewright.tile.contraction import RegisterTile, lower_contraction
from tilewright.tile.lowering import Lowering
from tilewright.tile.ways import Way


def contraction_ways(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> tuple[Way, ...]:
    """The ways to compute a Contract with its epilogue; ``fresh`` makes a lowering for each."""
    return (Way("plain", (lower_contraction(kernel, fresh(), tile),), constant(0)),)
