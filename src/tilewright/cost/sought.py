"""What loops take that look for elements: they end where they find one.

Where it lies nobody knows, so half of the elements count. Imports ir, shape and target. Start with
:func:`seeking`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost.vector_work import Core, loop_work
from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Let, Loop
from tilewright.ir.tile_sought import Sought, sought
from tilewright.shape import Expr, ceil_div, minimum
from tilewright.target.core_model import MASKED_VECTOR_BYTES

_TEST = "_test"


def seeking(core: Core, loop: Loop) -> Sought | None:
    """What a loop looks for, if code for this core ends where it finds it."""
    ends = loop.masked and core.target.vector_bytes >= MASKED_VECTOR_BYTES
    return sought(loop) if ends else None


def read_of(length: Expr) -> Expr:
    """How many of so many elements are read in the mean."""
    return (length + 1) // 2


def seeking_cycles(core: Core, loop: Loop, found: Sought, length: Expr) -> Expr:
    """Thousandths of cycles of such a loop with so many iterations.

    A vector is a comparison, which is noted for several of them. Where the way out is not foreseen,
    rows behind it have begun by then: it is no more than entering another loop.
    """
    condition = found.condition
    if found.asked is not None and found.same is not None:
        condition = Apply("equal", (found.asked, found.same), DType.BOOL)
    lanes, work = loop_work(core, replace(loop, body=(Let(_TEST, condition),), accumulators=()))
    work.arithmetic += core.costs.instruction
    once = 2 * core.costs.enter + work.fixed
    vectors = read_of(ceil_div(length, lanes))
    return vectors * round(1000 * work.cycles) + minimum(length, 1) * round(1000 * once)


__all__ = ["read_of", "seeking", "seeking_cycles"]
