"""What it takes of a core to store values several times side by side. Imports ir and shape.

Start with :func:`repeating_cycles`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost.vector_work import Core, loop_work
from tilewright.ir.tile import Store
from tilewright.ir.tile_repeated import Repeats
from tilewright.shape import Expr, ceil_div, minimum, symbol


def repeating_cycles(core: Core, repeated: Repeats, length: Expr) -> Expr:
    """Thousandths of cycles of such a loop with so many iterations.

    A vector of values takes a permutation for each of the vectors that it becomes, which are
    stored in each of its places.
    """
    loop, times = repeated.loop, repeated.times
    further = symbol(loop.variable) * (times - 1)
    stores = [
        Store(store.buffer, store.offset - further + number, store.value)
        for store in repeated.stores
        for number in range(times)
    ]
    lanes, work = loop_work(core, replace(loop, body=(*repeated.lets, *stores)))
    work.arithmetic += times * len({s.value for s in stores}) * core.costs.instruction
    vectors = ceil_div(length, lanes) * round(1000 * work.cycles)
    return vectors + minimum(length, 1) * round(1000 * (work.fixed + core.costs.enter))


__all__ = ["repeating_cycles"]
