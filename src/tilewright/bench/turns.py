"""Calls that take turns, so that they can be compared on a processor that others share.

Imports `clock`. Start with `time_variants`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from tilewright.bench.clock import Clock, while_near

_HOPELESS = 1.5  # times the best after some turns: a variant is not timed again
_FAIR_TURNS = 5  # of all variants, before hopeless ones are left out, and of the others after that
_MOST_TURNS = 1000
_SAMPLE_SECONDS = 2e-4  # of the calls that are timed as one
_MOST_CALLS = 1000  # in a sample
_REPETITIONS = 2  # at most, where processors were moved apart meanwhile


def time_variants(
    calls: Sequence[Callable[[], object]], clock: Clock, seconds: float
) -> tuple[float, ...]:
    """Seconds of one call of each; they take turns for about ``seconds``.

    A processor that others share is faster at times and slower at others. So each call is compared
    with the others of the same turn, and the median of that multiplied by the time of the fastest
    turn. What is hopeless after some turns is not called again. It begins when the processors are
    near each other (see `clock`); if they are not in the end, all of it is repeated, at most twice,
    and so are the turns that decide what is hopeless: what hands data from thread to thread may
    take three times as long while they are apart.
    """

    def attempt() -> tuple[tuple[float, ...], bool]:
        return _in_turns(calls, clock, seconds), clock.is_apart()

    clock.settle()
    return while_near(clock, attempt, _REPETITIONS)[0]


def _in_turns(
    calls: Sequence[Callable[[], object]], clock: Clock, seconds: float
) -> tuple[float, ...]:
    started = time.perf_counter()
    counts: list[int] = []
    for call in calls:
        # First calls are slow, and a sample of too few is timed with its own beginning.
        call()
        once = max(min(_timed(call, 1, clock) for _ in range(3)), 1e-7)
        counts.append(max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / once))))

    def turn(variants: Sequence[int]) -> list[float]:
        return [_timed(calls[variant], counts[variant], clock) for variant in variants]

    everyone = range(len(calls))

    def fair_turns() -> tuple[list[list[float]], bool]:
        return [turn(everyone) for _ in range(_FAIR_TURNS)], clock.is_apart()

    found = _typical(while_near(clock, fair_turns, _REPETITIONS)[0])
    left = [variant for variant in everyone if found[variant] <= _HOPELESS * min(found)]
    turns = [turn(left) for _ in range(_FAIR_TURNS)]
    while time.perf_counter() - started < seconds and len(turns) < _MOST_TURNS:
        turns.append(turn(left))
    for variant, took in zip(left, _typical(turns), strict=True):
        found[variant] = took
    return tuple(found)


def _typical(turns: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each call, were all of them made in the fastest turn."""
    usual = [statistics.fmean(turn) for turn in turns]
    fastest = min(usual)
    shares = zip(*([t / mean for t in turn] for turn, mean in zip(turns, usual, strict=True)),
                 strict=True)  # fmt: skip
    return [statistics.median(share) * fastest for share in shares]


def _timed(call: Callable[[], object], count: int, clock: Clock) -> float:
    started = clock.now()
    for _ in range(count):
        call()
    return max((clock.now() - started) / count, 1e-9)
