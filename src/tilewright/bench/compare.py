"""The comparison: one compiled model against its peers over a list of cases.

For each case all contenders get the same inputs and are timed in the same run, together with a
second instance of the subject; if that one does not come out equal to the first, rounds are added,
and if they do not help, the row says so. Slow rows, failures and skipped peers are all kept.
May import the rest of the package but no peer. Start with `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.bench.clock import Clock, SystemClock
from tilewright.bench.contender import Contender, Inputs
from tilewright.bench.machine import describe_machine
from tilewright.bench.measure import Call, Settings, is_quiet, measure
from tilewright.bench.report import Failure, Report, Row, Timing

TWIN = " (second instance)"
OTHER_OUTPUTS = "its outputs have other shapes, or are NaN or infinite elsewhere"

Progress = Callable[[int, int, str], None]


def compare(
    subject: Contender,
    peers: Sequence[Contender],
    cases: Sequence[Mapping[str, int]],
    make_inputs: Callable[[Mapping[str, int]], Inputs],
    *,
    threads: int,
    skipped: Sequence[Failure] = (),
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
    precision: str = "float32",
) -> Report:
    """Time `subject` and `peers` at every case.

    `make_inputs` makes the inputs of a case; `threads` is the number that every contender was set
    up with and `precision` what the subject's products have, for the report; `skipped` are the
    peers that could not be set up. `progress` is called before each case with the number done, the
    number in all, and the case as text. An error of the subject is raised; an error of a peer
    becomes a failure in the row.
    """
    settings = settings or Settings()
    clock = clock or SystemClock(threads)
    twin = subject.twin()
    rows: list[Row] = []
    for index, case in enumerate(cases):
        if progress is not None:
            progress(index, len(cases), _describe(case))
        rows.append(_compare_case(subject, twin, peers, case, make_inputs(case), settings, clock))
    return Report(
        subject=subject.name,
        peers=tuple(peer.name for peer in peers),
        rows=tuple(rows),
        skipped=tuple(skipped),
        threads=threads,
        machine=describe_machine(),
        settings=settings,
        precision=precision,
    )


def _compare_case(
    subject: Contender,
    twin: Contender,
    peers: Sequence[Contender],
    case: Mapping[str, int],
    inputs: Inputs,
    settings: Settings,
    clock: Clock,
) -> Row:
    calls: dict[str, Call] = {}
    failures: list[Failure] = []
    differences: dict[str, float] = {}
    first: dict[str, float] = {}
    expected, first[subject.name] = _first_call(subject, inputs, clock)
    calls[subject.name] = subject.prepare(inputs)
    calls[subject.name + TWIN] = twin.prepare(inputs)
    calls[subject.name + TWIN]()
    for peer in peers:
        prepared = _prepare_peer(peer, inputs, expected, clock)
        if isinstance(prepared, Failure):
            failures.append(prepared)
            continue
        calls[peer.name] = prepared.call
        first[peer.name] = prepared.first
        differences[peer.name] = prepared.difference
    pair = (subject.name + TWIN, subject.name)
    measured = measure(calls, pair, settings, clock)
    self_ratio = measured.ratio(*pair)
    timings = tuple(
        Timing(
            contender=name,
            first=first[name],
            p90=measured.percentile(name, 0.9),
            p99=measured.percentile(name, 0.99),
            seconds=measured.seconds(name),
            ratio=measured.ratio(name, subject.name),
            rounds=measured.rounds[name],
            difference=differences.get(name),
        )
        for name in calls
        if name != subject.name + TWIN
    )
    return Row(
        case=dict(case),
        timings=timings,
        failures=tuple(failures),
        self_ratio=self_ratio,
        is_quiet=is_quiet(self_ratio, settings),
        repeated=measured.repeated,
    )


@dataclass(frozen=True)
class _PreparedPeer:
    """A peer's call, the seconds of its first one, and how far its outputs are from expected."""

    call: Call
    first: float
    difference: float


def _prepare_peer(
    peer: Contender, inputs: Inputs, expected: Sequence[np.ndarray], clock: Clock
) -> _PreparedPeer | Failure:
    """A peer that is ready to be timed, or why it is left out."""
    # A peer may raise any error of its own, and it must not end the comparison.
    try:
        outputs, first = _first_call(peer, inputs, clock)
        difference = largest_difference(expected, outputs)
        if not math.isfinite(difference):
            return Failure(peer.name, OTHER_OUTPUTS)
        call = peer.prepare(inputs)
        call()
    except Exception as error:
        return Failure(peer.name, first_line(error))
    return _PreparedPeer(call, first, difference)


def _first_call(
    contender: Contender, inputs: Inputs, clock: Clock
) -> tuple[tuple[np.ndarray, ...], float]:
    """The outputs of the first call at a shape, and its seconds."""
    started = clock.now()
    outputs = contender.outputs(inputs)
    return outputs, clock.now() - started


def largest_difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The largest difference of two lists of outputs, relative to the largest finite magnitude.

    Infinite when the shapes, the number of outputs, or the places of NaN and infinity differ.
    """
    if len(one) != len(other):
        return float("inf")
    worst = 0.0
    for first, second in zip(one, other, strict=True):
        if first.shape != second.shape:
            return float("inf")
        first, second = first.astype(np.float64), second.astype(np.float64)
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        both_finite = np.isfinite(first) & np.isfinite(second)
        if not np.all(same | both_finite):
            return float("inf")
        if same.all():
            continue
        scale = max(np.abs(second[both_finite]).max(), np.finfo(np.float32).tiny)
        worst = max(worst, float(np.abs(first[~same] - second[~same]).max() / scale))
    return worst


def _describe(case: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in case.items())


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its message, at most 200 characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:200]
