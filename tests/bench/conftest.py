"""Contenders and a clock without real time, for the tests of the bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import pytest


class FakeClock:
    """Time passes only by sleeping and by calling fake contenders; both are written down.

    ``apart`` are the next answers to whether the processors are apart; they are near after those.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.events: list[str] = []
        self.apart: list[bool] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.events.append("sleep")

    def is_apart(self) -> bool:
        return self.apart.pop(0) if self.apart else False

    def settle(self) -> None:
        self.events.append("settle")


class FakeContender:
    """Takes `duration(number of its call)` seconds of the clock for each call."""

    def __init__(
        self,
        name: str,
        clock: FakeClock,
        duration: Callable[[int], float],
        twin_duration: Callable[[int], float] | None = None,
        value: float = 1.0,
        failure: Exception | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.duration = duration
        self.twin_duration = twin_duration or duration
        self.value = value
        self.failure = failure
        self.calls = 0

    def call(self) -> None:
        self.clock.time += self.duration(self.calls)
        self.clock.events.append(self.name)
        self.calls += 1

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], object]:
        return self.call

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        if self.failure is not None:
            raise self.failure
        return (np.full(3, self.value, np.float32),)

    def twin(self) -> FakeContender:
        return FakeContender(f"{self.name}'", self.clock, self.twin_duration)


def constant(seconds: float) -> Callable[[int], float]:
    """Every call takes the same time."""

    def duration(call: int) -> float:
        return seconds

    return duration


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The names of this module, for test modules, which cannot import each other."""
    return SimpleNamespace(Clock=FakeClock, Contender=FakeContender, constant=constant)
