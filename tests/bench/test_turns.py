"""Calls take turns, and what is hopeless is left out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.bench.turns import time_variants


def test_variants_take_turns_and_are_compared_within_each(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    calls = 0

    def call(duration: float) -> None:
        nonlocal calls
        calls += 1
        slow = 2.0 if calls // 6 % 2 else 1.0  # a processor that is slower at times
        clock.sleep(duration * slow)

    found = time_variants([lambda: call(3.0), lambda: call(4.0)], clock, seconds=0.0)
    assert found == pytest.approx((3.0, 4.0))


def test_what_is_hopeless_is_not_timed_for_long(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    calls = [0, 0]

    def call(variant: int, duration: float) -> None:
        calls[variant] += 1
        clock.sleep(duration)

    found = time_variants([lambda: call(0, 1.0), lambda: call(1, 9.0)], clock, seconds=0.05)
    assert found == pytest.approx((1.0, 9.0))
    assert calls[1] < 15 < calls[0]


def test_what_was_timed_while_processors_were_apart_is_timed_again(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    clock.apart = [True, False]
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.sleep(1.0 if clock.events.count("settle") == 2 else 9.0)

    assert time_variants([call], clock, seconds=0.0) == (1.0,)
    assert clock.events.count("settle") == 2


def test_processors_that_stay_apart_are_taken_as_they_are(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    clock.apart = [True] * 20
    assert time_variants([lambda: clock.sleep(2.0)], clock, seconds=0.0) == (2.0,)
    turns = 1 + 2  # of what is hopeless, twice more
    assert clock.events.count("settle") == 3 * turns


def test_what_is_hopeless_is_not_decided_while_processors_are_apart(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    clock.apart = [True]

    def call_of_two_threads() -> None:
        clock.sleep(1.0 if clock.events.count("settle") == 2 else 9.0)

    found = time_variants([lambda: clock.sleep(2.0), call_of_two_threads], clock, seconds=0.0)
    assert found == pytest.approx((2.0, 1.0))
