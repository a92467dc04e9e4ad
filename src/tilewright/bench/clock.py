"""Where times come from, and whether they can be compared.

Two threads exchange data through the cache that their cores share. A virtual machine's processors
are moved between cores, and while two of them share no cache, whatever runs on both is slower: a
vision transformer took 19 ms in the place of 15, for seconds at a time. So a clock also says
whether the processors are further apart than they have been; what was timed meanwhile is timed
again. Imports the runtime and support. Start with `Clock` and `while_near`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

from tilewright.runtime import _native
from tilewright.support.processors import allowed_processors, cores

# Times the least: two cores of a Zen 4 server took 51 to 81 ns with one cache, 317 to 352 without.
_FAR = 2.5
PATIENCE = 20.0  # seconds after which a distance is taken as the machine's own
_PAUSE = 0.05  # seconds, until the processors are looked at again

Found = TypeVar("Found")


class Clock(Protocol):
    """Where the time comes from, in seconds, and whether times can be compared."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for that long."""
        ...

    def is_apart(self) -> bool:
        """Whether what two threads do takes longer now, as their processors share no cache."""
        ...

    def settle(self) -> None:
        """Wait until that is over, or take it as given if it lasts."""
        ...


class SystemClock:
    """The clock of the machine, and the distance of the first two cores of this process.

    What runs on one of ``threads`` alone exchanges nothing, so that no distance matters.
    """

    _nearest: ClassVar[float] = float("inf")  # of the whole process, in seconds

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def now(self) -> float:
        """Seconds of the monotonic clock with the finest resolution."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Give the processor up for that long."""
        time.sleep(seconds)

    def is_apart(self) -> bool:
        """Whether a cache line takes much longer between two cores than it has taken before."""
        took = self.exchange()
        if took == 0:
            return False  # nothing was measured
        SystemClock._nearest = min(SystemClock._nearest, took)
        return took > _FAR * SystemClock._nearest

    def settle(self) -> None:
        """Wait until the cores are as near as before; what lasts is how the machine is now."""
        until = self.now() + PATIENCE
        while self.is_apart():
            if self.now() >= until:
                SystemClock._nearest = self.exchange() or float("inf")
            self.sleep(_PAUSE)

    def exchange(self) -> float:
        """Seconds of a cache line from one core to another and back; 0 where there are no two."""
        pair = _first_cores() if self.threads > 1 else None
        return _native.exchange_seconds(*pair) if pair else 0.0


@functools.cache
def _first_cores() -> tuple[int, int] | None:
    first, *others = (core[0] for core in cores(allowed_processors()))
    return (first, others[0]) if others else None


class ProcessClock:
    """The processor time of this process, which other processes hardly change."""

    def now(self) -> float:
        """Seconds of all threads."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Give the processor up for that long."""
        time.sleep(seconds)

    def is_apart(self) -> bool:
        """False: one thread exchanges nothing."""
        return False

    def settle(self) -> None:
        """Nothing to wait for."""


def clock_for(threads: int) -> Clock:
    """Processor time of one thread, which others hardly change, or the time on the wall."""
    return ProcessClock() if threads == 1 else SystemClock(threads)


def while_near(
    clock: Clock, attempt: Callable[[], tuple[Found, bool]], most: int
) -> tuple[Found, int]:
    """What an attempt finds while the processors are near, and how many before it do not count.

    ``attempt`` also says whether they were apart meanwhile. After ``most`` such attempts the next
    one counts in any case.
    """
    for discarded in range(most):
        found, was_apart = attempt()
        if not was_apart:
            return found, discarded
        clock.settle()
    return attempt()[0], most
