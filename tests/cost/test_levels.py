"""What lines cost by the level that they come from, and by how they follow each other."""

from __future__ import annotations

import pytest

from tilewright.cost import Machine
from tilewright.cost.levels import pieces_time, unforeseen_time
from tilewright.shape import constant
from tilewright.target import preset

MACHINE = Machine(preset("zen4"))
SECOND, LAST = (level.capacity for level in MACHINE.target.levels[-3:-1])


def test_runs_of_lines_begin_anew_in_the_last_cache_as_well() -> None:
    """The second cache knows no beginnings, the last one short ones, memory long ones."""
    near, last, memory = (
        pieces_time(constant(1000), constant(size), MACHINE).value
        for size in (SECOND // 4, LAST // 8, LAST * 64)
    )
    cycle = 1000 / MACHINE.target.clock_ghz
    assert near == 0
    assert last == pytest.approx(1000 * cycle * MACHINE.core.loops.near_piece, rel=0.01)
    assert memory == pytest.approx(1000 * cycle * MACHINE.core.loops.piece, rel=0.01)


def test_lines_that_nobody_asked_for_ahead_wait_for_memory() -> None:
    """As many are under way as a core has misses; caches answer before that shows."""
    inside, beyond = (
        unforeseen_time(constant(1000), constant(size), MACHINE).value
        for size in (LAST // 8, LAST * 64)
    )
    memory = MACHINE.target.levels[-1]
    each = memory.latency / MACHINE.core.streams.misses
    arriving = 64 / memory.bandwidth
    assert inside == 0
    cycle = 1000 / MACHINE.target.clock_ghz
    assert beyond == pytest.approx(1000 * cycle * (each - arriving), rel=0.01)
    assert each > arriving
