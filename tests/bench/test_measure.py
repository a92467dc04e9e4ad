from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.bench.measure import Measurement, Settings, Spread, is_quiet, measure
from tilewright.support.errors import InputError

TWINS = ("a", "b")


def measured(contenders: list[Any], settings: Settings, clock: Any) -> Measurement:
    calls = {contender.name: contender.call for contender in contenders}
    return measure(calls, TWINS, settings, clock)


def three(fakes: SimpleNamespace, clock: Any) -> list[Any]:
    return [
        fakes.Contender("a", clock, fakes.constant(1 / 64)),
        fakes.Contender("b", clock, fakes.constant(1 / 64)),
        fakes.Contender("c", clock, fakes.constant(1 / 32)),
    ]


def test_blocks_are_quiet_then_untimed_then_timed(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    measured(three(fakes, clock), Settings(rounds=1, most_rounds=1, block=0.05), clock)
    runs = [(name, len(list(group))) for name, group in itertools.groupby(clock.events)]
    # One untimed call, then calls until 50 ms have passed, three at the least.
    assert runs == [("sleep", 1), ("a", 5), ("sleep", 1), ("b", 5), ("sleep", 1), ("c", 4)]


def test_order_rotates(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    measured(three(fakes, clock), Settings(rounds=3, most_rounds=3), clock)
    blocks = [name for name, _ in itertools.groupby(clock.events) if name != "sleep"]
    assert blocks == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_rounds_in_which_processors_move_apart_are_repeated(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    clock.apart = [True]  # when the first block begins
    a, b = (fakes.Contender(name, clock, fakes.constant(1 / 64)) for name in TWINS)
    result = measured([a, b], Settings(rounds=2, most_rounds=2), clock)
    assert result.repeated == 1
    assert {len(times) for times in result.rounds.values()} == {2}
    assert clock.events.count("settle") == 1
    assert a.calls == b.calls == 3 * 5  # the order is as if the first round had not been


def test_processors_that_are_always_apart_end_the_repetitions(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    clock.apart = [True] * 100
    contenders = [fakes.Contender(name, clock, fakes.constant(1 / 64)) for name in TWINS]
    result = measured(contenders, Settings(rounds=1, most_rounds=3), clock)
    assert result.repeated == 3
    assert {len(times) for times in result.rounds.values()} == {1}


def test_first_call_of_a_block_is_not_counted(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()

    def slow_first(call: int) -> float:
        return 5.0 if call == 0 else 1 / 64

    contenders = three(fakes, clock)
    contenders[0].duration = slow_first
    result = measured(contenders, Settings(rounds=1, most_rounds=1), clock)
    assert result.seconds("a").median == 1 / 64


def test_ratios_are_taken_round_by_round() -> None:
    result = Measurement({"a": (1.0, 2.0, 4.0), "b": (2.0, 4.0, 8.0)})
    assert result.ratio("b", "a") == Spread(2.0, 2.0, 2.0)
    assert result.seconds("a").median == 2.0


def test_a_call_longer_than_a_block_is_timed_once(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    contenders = [fakes.Contender(name, clock, fakes.constant(1.0)) for name in TWINS]
    measured(contenders, Settings(rounds=1, most_rounds=1), clock)
    assert [contender.calls for contender in contenders] == [2, 2]


def test_rounds_are_added_while_the_twins_differ(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()

    def settles(call: int) -> float:
        return 1 / 32 if call < 12 else 1 / 64

    contenders = [
        fakes.Contender("a", clock, fakes.constant(1 / 64)),
        fakes.Contender("b", clock, settles),
    ]
    settings = Settings(rounds=3, most_rounds=24)
    result = measured(contenders, settings, clock)
    # Three slow rounds (four calls each), then three fast ones, are not enough; twelve are.
    assert len(result.rounds["a"]) == 12
    assert is_quiet(result.ratio("b", "a"), settings)


def test_rounds_end_at_the_most(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    contenders = [
        fakes.Contender("a", clock, fakes.constant(1 / 64)),
        fakes.Contender("b", clock, fakes.constant(0.013)),
    ]
    settings = Settings(rounds=3, most_rounds=10)
    result = measured(contenders, settings, clock)
    assert len(result.rounds["a"]) == 10
    assert not is_quiet(result.ratio("b", "a"), settings)


@pytest.mark.parametrize("ratio, quiet", [(1.0, True), (1.015, True), (0.97, False), (1.3, False)])
def test_tolerance_of_the_self_check(ratio: float, quiet: bool) -> None:
    assert is_quiet(Spread(ratio, ratio, ratio), Settings()) is quiet


def test_settings_without_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="rounds"):
        Settings(rounds=0)
    with pytest.raises(InputError, match="rounds"):
        Settings(rounds=5, most_rounds=4)


def test_a_long_call_is_a_block_of_its_own(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    contenders = [
        fakes.Contender(n, clock, fakes.constant(t)) for n, t in (("a", 1 / 64), ("b", 1))
    ]
    settings = Settings(rounds=1, most_rounds=1, block=1 / 64, single=0.5)
    result = measured(contenders, settings, clock)
    assert clock.events.count("b") == 1
    assert result.seconds("b").median == 1


def test_rounds_are_added_until_they_are_steady(fakes: SimpleNamespace) -> None:
    def run(noisy_calls: int, patience: float | None = None) -> Measurement:
        clock = fakes.Clock()

        def duration(call: int) -> float:
            return 4 / 64 if call < noisy_calls else 1 / 64

        contenders = [
            fakes.Contender("a", clock, duration),
            fakes.Contender("b", clock, fakes.constant(3 / 64)),
        ]
        settings = Settings(rounds=2, most_rounds=7, block=1 / 256, steady=0.1, patience=patience)
        calls = {contender.name: contender.call for contender in contenders}
        return measure(calls, None, settings, clock)

    # Each round takes two calls, of which the first is not counted.
    assert len(run(noisy_calls=0).rounds["a"]) == 2
    assert len(run(noisy_calls=2).rounds["a"]) == 7
    assert run(noisy_calls=2).rounds["a"] == (4 / 64, *(1 / 64,) * 6)
    assert len(run(noisy_calls=2, patience=0.1).rounds["a"]) == 2
