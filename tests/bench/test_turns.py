"""Calls take turns, and what is hopeless is left out."""

from __future__ import annotations

import pytest

from tilewright.bench.turns import time_variants


class StubClock:
    """A clock that calls move on."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_variants_take_turns_and_are_compared_within_each() -> None:
    clock = StubClock()
    calls = 0

    def call(duration: float) -> None:
        nonlocal calls
        calls += 1
        slow = 2.0 if calls // 6 % 2 else 1.0  # a processor that is slower at times
        clock.sleep(duration * slow)

    found = time_variants([lambda: call(3.0), lambda: call(4.0)], clock, seconds=0.0)
    assert found == pytest.approx((3.0, 4.0))


def test_what_is_hopeless_is_not_timed_for_long() -> None:
    clock = StubClock()
    calls = [0, 0]

    def call(variant: int, duration: float) -> None:
        calls[variant] += 1
        clock.sleep(duration)

    found = time_variants([lambda: call(0, 1.0), lambda: call(1, 9.0)], clock, seconds=0.05)
    assert found == pytest.approx((1.0, 9.0))
    assert calls[1] < 15 < calls[0]
