"""What it takes to write between steps what other threads have read."""

from __future__ import annotations

from tilewright.cost import Machine, taken_time
from tilewright.shape import constant
from tilewright.target import preset

MACHINE = Machine(preset("zen4"))
ONE, TWO, FOUR = constant(1), constant(2), constant(4)


def test_lines_are_taken_as_long_as_a_cache_of_their_readers_holds_them() -> None:
    """Threads share them out; of what no second-level cache holds nothing has to be taken."""
    second = MACHINE.target.levels[2].capacity
    near, shared, large, passed = (
        taken_time(constant(size), MACHINE, writers, writers, streamed).value
        for size, writers, streamed in (
            (second, TWO, 0),
            (second, FOUR, 0),
            (2 * second, TWO, 0),
            (second, TWO, second),
        )
    )
    lines = second // 64
    assert near == lines // 2 * round(1000 * MACHINE.core.threads.taken_ns)
    assert shared == near // 2
    assert large == passed == 0


def test_one_thread_takes_nothing_but_what_several_have_read() -> None:
    """One that writes alone takes all lines, once others read them."""
    size = constant(1 << 16)
    assert taken_time(size, MACHINE, ONE, ONE).value == 0
    alone = taken_time(size, MACHINE, ONE, TWO).value
    assert alone == 2 * taken_time(size, MACHINE, TWO, TWO).value
