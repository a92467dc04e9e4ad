"""Whether two processors are apart, and how long that is waited for."""

from __future__ import annotations

import pytest

from tilewright.bench.clock import ProcessClock, SystemClock, clock_for
from tilewright.runtime import _native
from tilewright.support.processors import allowed_processors


@pytest.fixture(autouse=True)
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "_nearest", float("inf"))


class Scripted(SystemClock):
    """Exchanges take what a list says; time passes by sleeping only."""

    def __init__(self, *exchanges: float) -> None:
        super().__init__(threads=2)
        self.exchanges = list(exchanges)
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def exchange(self) -> float:
        return self.exchanges.pop(0) if len(self.exchanges) > 1 else self.exchanges[0]


def test_apart_is_what_takes_several_times_the_least() -> None:
    clock = Scripted(55e-9, 80e-9, 330e-9, 55e-9)
    assert [clock.is_apart() for _ in range(4)] == [False, False, True, False]


def test_what_could_not_be_measured_is_no_distance() -> None:
    clock = Scripted(0.0, 330e-9, 55e-9, 0.0, 330e-9)
    assert [clock.is_apart() for _ in range(5)] == [False, False, False, False, True]


def test_settling_waits_until_they_are_near_again() -> None:
    clock = Scripted(55e-9, 330e-9, 330e-9, 55e-9)
    clock.is_apart()
    clock.settle()
    assert 0 < clock.time < 1
    assert not clock.is_apart()


def test_what_lasts_is_taken_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.bench.clock.PATIENCE", 20.0)  # tests have less
    clock = Scripted(55e-9, 330e-9)
    clock.is_apart()
    clock.settle()
    assert not clock.is_apart()
    assert 10 < clock.time < 60


def test_distances_of_real_processors() -> None:
    first, *others = allowed_processors()
    assert _native.exchange_seconds(first, first) == 0
    assert _native.exchange_seconds(-1, first) == 0
    assert _native.exchange_seconds(first, 1 << 20) == 0
    if others:
        assert 1e-9 < _native.exchange_seconds(first, others[0]) < 1
        assert SystemClock(2).exchange() > 0


def test_one_thread_is_timed_by_its_processor_time() -> None:
    assert isinstance(clock_for(1), ProcessClock)
    assert not clock_for(1).is_apart()
    assert SystemClock(1).exchange() == 0  # one thread exchanges nothing
    assert isinstance(clock_for(2), SystemClock)
