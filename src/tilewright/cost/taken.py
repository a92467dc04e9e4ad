"""What it takes to write between the steps of a kernel what other threads have read there.

Imports ir, shape and target. Start with :func:`taken_time`.
"""

from __future__ import annotations

from tilewright.cost.levels import PRIVATE
from tilewright.cost.machine import SIXTEENTHS, Machine, beyond
from tilewright.ir.tile import LINE_BYTES
from tilewright.shape import Expr, maximum, minimum


def taken_time(
    between: Expr, machine: Machine, writers: Expr, readers: Expr, streamed: Expr | int = 0
) -> Expr:
    """Picoseconds for which writers of so many bytes wait for what readers of the last call hold.

    Each line is in the cache of a reader still, as far as that holds its part of all and of what is
    ``streamed`` by meanwhile. Tasks of both steps divide the bytes in other ways; a line that its
    writer alone has read has neighbours that another thread has read, and is fetched with these:
    lines took 3.9 to 6.9 ns each, those that the same thread had read included (Winograd's form
    with 36 planes of 12 to 48 tiles, two threads of Zen 4, one line in turns 6.5).
    """
    several = minimum(maximum(writers, readers) - 1, 1)
    line = round(1000 * machine.core.threads.taken_ns)
    lines = between // LINE_BYTES // maximum(writers, 1)
    own = (between + streamed) // maximum(readers, 1)
    held = SIXTEENTHS - beyond(own, machine.target.levels[2], PRIVATE)
    return lines * line * several * held // SIXTEENTHS


__all__ = ["taken_time"]
