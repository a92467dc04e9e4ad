"""Timing several contenders beside each other on a machine that is shared and noisy.

Contenders alternate in blocks, not call by call: the spinning worker threads of one would steal the
cores of the next. Before each block the others get time to go quiet, one call goes untimed, then
calls are timed for some tens of milliseconds. A round is one block of each contender; the order
rotates from round to round. A round in which the processors moved apart (see `clock`) is repeated.
Imports `clock` and support. Start with `measure`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.bench.clock import Clock, while_near
from tilewright.support.errors import InputError

Call = Callable[[], object]


@dataclass(frozen=True)
class Settings:
    """How long to measure. Durations are in seconds.

    `rounds` blocks of `block` seconds are timed per contender, each after `quiet` seconds of
    silence. While a contender against itself is further than `tolerance` from 1, rounds are added
    up to `most_rounds`. A block has at least `fewest_calls` timed calls, unless one call alone
    takes longer than a block. A call that takes `single` seconds or more is its own block: not
    even its first call goes untimed. With `steady`, rounds are added for another reason, equality
    or not: while the quartiles of a contender's rounds are further apart than this share of their
    median. None are added after `patience` seconds.
    """

    rounds: int = 9
    most_rounds: int = 36
    quiet: float = 0.03
    block: float = 0.05
    fewest_calls: int = 3
    tolerance: float = 0.02
    single: float | None = None
    steady: float | None = None
    patience: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= self.most_rounds or self.fewest_calls < 1:
            raise InputError(
                f"Cannot measure {self.rounds} to {self.most_rounds} rounds "
                f"of at least {self.fewest_calls} calls.",
                hint="Ask for at least one round and one call.",
            )


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """The median and quartiles of at least one value."""
        low, median, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
        return Spread(median, low, high)


@dataclass(frozen=True)
class Measurement:
    """Seconds per call, by contender: one median for each round, and every call that was timed.

    ``repeated`` further rounds do not count, as the processors were apart meanwhile.
    """

    rounds: Mapping[str, tuple[float, ...]]
    calls: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    repeated: int = 0

    def seconds(self, name: str) -> Spread:
        """Seconds per call of one contender, over the rounds."""
        return Spread.of(self.rounds[name])

    def percentile(self, name: str, share: float) -> float:
        """Seconds within which this share of the calls of one contender ended."""
        return float(np.quantile(self.calls[name], share))

    def ratio(self, name: str, base: str) -> Spread:
        """How many times longer `name` takes than `base`, compared round by round."""
        pairs = zip(self.rounds[name], self.rounds[base], strict=True)
        return Spread.of([one / other for one, other in pairs])


def measure(
    calls: Mapping[str, Call],
    twins: tuple[str, str] | None,
    settings: Settings,
    clock: Clock,
) -> Measurement:
    """Time every call, in rounds of blocks, until `twins` come out equal or the rounds run out.

    `twins` names the two entries of `calls` that do the same work in independent instances; they
    are needed unless the settings say what is steady.
    """
    names = tuple(calls)
    rounds: dict[str, list[float]] = {name: [] for name in names}
    timed: dict[str, list[float]] = {name: [] for name in names}
    wanted, repeated = settings.rounds, 0
    started = clock.now()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        while True:
            while len(rounds[names[0]]) < wanted:
                start = len(rounds[names[0]]) % len(names)
                order = names[start:] + names[:start]
                attempt = partial(_round, {name: calls[name] for name in order}, settings, clock)
                found, discarded = while_near(clock, attempt, settings.most_rounds - repeated)
                repeated += discarded
                for name, durations in found.items():
                    rounds[name].append(float(np.median(durations)))
                    timed[name] += durations
            measured = Measurement(_frozen(rounds), _frozen(timed), repeated)
            elapsed = clock.now() - started
            is_over = settings.patience is not None and elapsed >= settings.patience
            if wanted == settings.most_rounds or is_over or _is_done(measured, twins, settings):
                return measured
            wanted = min(2 * wanted, settings.most_rounds)
    finally:
        if was_enabled:
            gc.enable()


def _frozen(values: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(own) for name, own in values.items()}


def _is_done(measured: Measurement, twins: tuple[str, str] | None, settings: Settings) -> bool:
    if settings.steady is None:
        return twins is None or is_quiet(measured.ratio(*twins), settings)
    spreads = [measured.seconds(name) for name in measured.rounds]
    return all(s.high - s.low <= settings.steady * s.median for s in spreads)


def is_quiet(self_ratio: Spread, settings: Settings) -> bool:
    """Whether a contender against itself comes out at 1, within the tolerance."""
    return abs(self_ratio.median - 1.0) <= settings.tolerance


def _round(
    calls: Mapping[str, Call], settings: Settings, clock: Clock
) -> tuple[dict[str, list[float]], bool]:
    """The durations of a block of each, and whether the processors were apart meanwhile."""
    found: dict[str, list[float]] = {}
    was_apart = False
    for name, call in calls.items():
        clock.sleep(settings.quiet)
        was_apart |= clock.is_apart()
        found[name] = _block(call, settings, clock)
    gc.collect(1)  # what the round has made; all that compilers left takes longer than a round
    return found, was_apart or clock.is_apart()


def _block(call: Call, settings: Settings, clock: Clock) -> list[float]:
    """The seconds of every timed call of one block."""
    started = clock.now()
    call()
    first = clock.now() - started
    if settings.single is not None and first >= settings.single:
        return [first]
    durations: list[float] = []
    started = clock.now()
    while True:
        before = clock.now()
        call()
        after = clock.now()
        durations.append(after - before)
        is_long = after - before >= settings.block
        enough = is_long or len(durations) >= settings.fewest_calls
        if enough and after - started >= settings.block:
            return durations
