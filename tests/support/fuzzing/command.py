"""The fuzzer's command: runs numbers of a seed, reports progress, shrinks and prints findings."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnx import parser, printer

import tilewright
from tilewright.backend.cpu import workers
from tilewright.backend.cpu.machine import host_levels
from tilewright.options import PlanName

from .case import Case, Finding
from .check import INTERPRETED, REFERENCE, RUNTIME, Outcome, check
from .generate import generate
from .pool import Limits, run_all, run_one
from .show import as_test
from .shrink import shrink

# Levels by how often they are chosen; the lowest compiles fastest.
LEVELS = ("x86-64", "x86-64", "x86-64", "avx2", "avx2", "avx512")
ORACLES = (REFERENCE, RUNTIME)


@dataclass
class Options:
    """What to run; ``levels`` are this machine's unless given."""

    seed: int
    first: int
    graphs: int
    jobs: int = 1
    levels: Sequence[str] = ()
    shrink_seconds: float = 60.0
    most_shrunk: int = 20
    plan: PlanName = "greedy"


def fuzz(options: Options) -> int:
    """Run the cases; 1 if there are findings."""
    outcomes = dict(_run(options, _Progress(options.graphs)))
    found = {number: o.finding for number, o in sorted(outcomes.items()) if o.finding is not None}
    for rank, (number, finding) in enumerate(found.items()):
        print(f"\n--- {options.seed}:{number} {finding.title}", flush=True)
        if rank < options.most_shrunk and options.shrink_seconds > 0:
            print(shrunk_test(options, number, finding), flush=True)
    _summary(options, outcomes)
    return 1 if found else 0


def replay(options: Options) -> int:
    """Run one case again, print it whole, then as small as it goes."""
    levels = _levels(options)
    _warm_up(levels)
    case = generate(options.seed, options.first, levels, options.plan)
    print(printer.to_text(case.proto()))
    print(f"inputs: {case.recipes}\nshapes: {case.shapes}\nranges: {case.ranges}")
    print(f"level: {case.level}")
    outcome = judge(case)
    if outcome.finding is None:
        print(f"no finding; {outcome.compared} calls compared; {outcome.limits}")
        return 0
    print(f"{outcome.finding.title}\n{outcome.finding.text}\nat {outcome.finding.sizes}\n")
    if options.shrink_seconds > 0:
        print(shrunk_test(options, options.first, outcome.finding), flush=True)
    return 1


def judge(case: Case) -> Outcome:
    """One case in a child; a crash of an oracle is no finding, the case runs without it."""
    without: tuple[str, ...] = ()
    while True:
        outcome = run_one(partial(check, case, without=without), Limits())
        if outcome.ended_in not in ORACLES or outcome.ended_in in without:
            return outcome
        without = (*without, outcome.ended_in)


def shrunk_test(options: Options, number: int, finding: Finding) -> str:
    """A finding made smaller, as a test."""
    case = generate(options.seed, number, _levels(options), options.plan)
    small, left = shrink(case, finding, lambda c: judge(c).finding, options.shrink_seconds)
    name = re.sub(r"\W", "_", f"fuzz_{options.seed}_{number}")
    return f"{left.text}\n{as_test(small, left, name)}"


def _levels(options: Options) -> Sequence[str]:
    if options.levels:
        return options.levels
    present = {level.name for level in host_levels()}
    return [name for name in LEVELS if name in present]


def _run(options: Options, report: Callable[[int, Outcome], None]) -> Iterator[tuple[int, Outcome]]:
    levels = _levels(options)
    _warm_up(levels)

    def tasks() -> Iterator[tuple[int, Callable[[Callable[[str], None]], Outcome]]]:
        for number in range(options.first, options.first + options.graphs):
            yield number, partial(_generate_and_check, options.seed, number, levels, options.plan)

    for number, outcome in run_all(tasks(), options.jobs, Limits()):
        if outcome.ended_in in ORACLES:
            outcome = judge(generate(options.seed, number, levels, options.plan))
        report(number, outcome)
        yield number, outcome


def _generate_and_check(
    seed: int, number: int, levels: Sequence[str], plan: PlanName, stage: Callable[[str], None]
) -> Outcome:
    return check(generate(seed, number, levels, plan), stage)


def _warm_up(levels: Sequence[str]) -> None:
    """Start LLVM and import all there is before the first fork, so that no child does."""
    workers.MOST_WORKERS = 1  # other processes take longer to start than such kernels to compile
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) {y = Neg(x)}'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm.tw"
        for level in set(levels) - {INTERPRETED}:
            tilewright.compile(parser.parse_model(text), levels=[level]).save(path)
            tilewright.load(path)


class _Progress:
    """One line that is written over in a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.findings = total, 0, 0
        self.start = self.said = time.monotonic()
        self.is_terminal = sys.stderr.isatty()

    def __call__(self, number: int, outcome: Outcome) -> None:
        self.done += 1
        now = time.monotonic()
        if outcome.finding is not None:
            self.findings += 1
            self._say(f"graph {number}: {outcome.finding.title}", is_kept=True)
        if now - self.said > (0.2 if self.is_terminal else 30.0) or self.done == self.total:
            self.said = now
            left = (now - self.start) / self.done * (self.total - self.done)
            self._say(
                f"{self.done}/{self.total} graphs, {self.findings} findings, "
                f"{left / 60:.0f} min {left % 60:.0f} s left",
                is_kept=self.done == self.total,
            )

    def _say(self, text: str, *, is_kept: bool) -> None:
        if self.is_terminal:
            text = f"\r\x1b[K{text}"
        end = "\n" if is_kept or not self.is_terminal else ""
        print(text, end=end, file=sys.stderr, flush=True)


def _summary(options: Options, outcomes: dict[int, Outcome]) -> None:
    operators = Counter(name for outcome in outcomes.values() for name in outcome.operators)
    kinds = Counter(o.finding.kind for o in outcomes.values() if o.finding is not None)
    limits = Counter(why for outcome in outcomes.values() for why in outcome.limits)
    compared = sum(outcome.compared for outcome in outcomes.values())
    idle = sum(not outcome.compared for outcome in outcomes.values())
    covered = ", ".join(f"{name} {count}" for name, count in operators.most_common())
    print(f"\n{len(operators)} operators: {covered}")
    print(f"{len(outcomes)} graphs of seed {options.seed}, {compared} calls compared")
    print(f"{idle} graphs without a call that could be compared")
    for why, count in limits.items():
        print(f"{count} shapes without a verdict: {why}")
    print("findings: " + (", ".join(f"{c} {kind}" for kind, c in kinds.items()) or "none"))
