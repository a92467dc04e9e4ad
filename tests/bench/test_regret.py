"""The statistics of regret, how variants take turns, and the dips of a sweep."""

from __future__ import annotations

import pytest

from tilewright.bench.regret import Sample, Setting, ablations, draw_cases, summarise, time_variants
from tilewright.bench.suites import Case
from tilewright.bench.sweep import dips_of, parse_sweep
from tilewright.support.errors import TilewrightError

CASE = next(iter(draw_cases(Setting())))


def sample(seconds: tuple[float, ...], chosen: int, case: Case = CASE) -> Sample:
    return Sample(case, ("a", "b"), seconds, chosen, unmeasured=0)


def test_regret_is_the_time_lost_against_the_best_variant() -> None:
    samples = [sample((1.0, 2.0), 0), sample((3.0, 2.0), 0), sample((1.0, 1.1), 1)]
    found = summarise(samples)
    assert found.mean == pytest.approx((0.0 + 0.5 + 0.1) / 3)
    assert found.worst == pytest.approx(0.5)
    assert found.at is samples[1]


def test_ablations_are_shares_of_the_oracle() -> None:
    rows = ablations([sample((1.0, 2.0), 1), sample((1.0, 2.0), 0)])
    assert rows["oracle"] == 1.0
    assert rows["dynamic"] == pytest.approx(0.75)
    assert rows["no level measured"] == 1.0


def test_shapes_depend_on_the_seed_alone() -> None:
    assert draw_cases(Setting(seed=3)) == draw_cases(Setting(seed=3))
    assert draw_cases(Setting(seed=3)) != draw_cases(Setting(seed=4))


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


def test_a_dip_is_measured_from_the_line_through_the_neighbours() -> None:
    assert dips_of([10.0, 9.0, 10.0, 12.0]) == pytest.approx((0.0, 0.1, 1 - 10 / 10.5, 0.0))
    assert dips_of([1.0]) == (0.0,)


def test_sweeps_are_parsed() -> None:
    axis, sizes, fixed = parse_sweep("M=1..9:4,N=30,K=7")
    assert (axis, list(sizes), fixed) == ("M", [1, 5, 9], {"N": 30, "K": 7})
    with pytest.raises(TilewrightError):
        parse_sweep("M=4,N=30,K=7")
