"""``tilewright bench-ops``: single operators of whole suites, beside other engines.

Start with :func:`bench_ops`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench.machine import describe_machine
from tilewright.bench.operator_report import OperatorReport, OperatorRow, render, save_rows
from tilewright.bench.operator_run import QUICK, Plan, run_groups
from tilewright.bench.operators import AnyGroup, group_cases
from tilewright.bench.peers.operators import OPERATOR_PEERS, load_peers
from tilewright.bench.roofline import Limits, measure_limits
from tilewright.bench.suites import (
    LARGEST_BYTES,
    AnyCase,
    Case,
    choose_suites,
    parse_shapes,
    read_suite,
    sample,
)
from tilewright.bench.tables import TABLES, TableCase, group_table_cases, read_table
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag, peer_names
from tilewright.cli.output import Output, load_plots
from tilewright.cli.usage import as_usage
from tilewright.support.errors import InputError
from tilewright.support.progress import Steps
from tilewright.support.text import format_seconds

_SAVE_SECONDS = 20.0
_SUITES = "|".join((*TABLES, "FILE.csv"))


def bench_ops(
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar=_SUITES, help="One that comes along, or sizes. Repeatable."),
    ] = None,
    shapes: Annotated[
        str,
        typer.Option(metavar="SHAPES", help="Other cases: M=5,N=2304,K=768;B=12,M=64,N=64,K=64."),
    ] = "",
    only: Annotated[
        str, typer.Option(metavar="SUITES", help="Names in the column suite, with commas.")
    ] = "",
    sample_size: Annotated[
        int | None,
        typer.Option(
            "--sample",
            min=1,
            help="Cases of each suite, spread by what they take.",
            show_default="all",
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="PEERS", help=f"Any of {', '.join(OPERATOR_PEERS)}, or none.")
    ] = ",".join(OPERATOR_PEERS),
    constant: Annotated[
        str, typer.Option(help="The operand of a gemm known when compiling: right, left or none.")
    ] = "right",
    threads: Annotated[int, typer.Option(min=1, help="Threads of a call, for everybody.")] = 1,
    rounds: Annotated[
        int, typer.Option(min=1, help="Blocks of timing for each; three times as many if noisy.")
    ] = QUICK.rounds,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write report.json, rows.csv and plots there."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Time single operators beside other engines, as speed-ups per suite or family.

    \b
    Example: tilewright bench-ops --shapes "M=5,N=2304,K=768;M=24,N=2304,K=768"
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    with as_usage():
        cases = _cases(suite or (), shapes, _names(only), sample_size)
        groups = _groups([case for case in cases if case.bytes <= LARGEST_BYTES], constant)
    plots = None if save is None else load_plots()
    with output.progress.activity("Setting up"), as_usage():
        peers = load_peers(peer_names(against))
    plan = Plan(peers, threads, replace(QUICK, rounds=rounds, most_rounds=3 * rounds))
    report = _measure(cases, groups, plan, output, save)
    if save is not None and plots is not None:
        report.save(save)
        plots.draw_plots(report, save)
    output.document(report.document())
    output.show(render(report))
    if report.missing or report.failed:
        raise typer.Exit(1)


def _measure(
    cases: Sequence[AnyCase],
    groups: Sequence[AnyGroup],
    plan: Plan,
    output: Output,
    folder: Path | None,
) -> OperatorReport:
    peers, limits = tuple(plan.peers), measure_limits(plan.threads)
    skipped = tuple(case for case in cases if case.bytes > LARGEST_BYTES)
    count = len(cases) - len(skipped)
    with output.progress.steps("Timing", count) as steps:
        found = run_groups(groups, plan, _Remaining(steps, count).at)
        rows = _collect(found, peers, limits, folder)
    # Somebody else may have had the core the first time.
    limits = limits.larger(measure_limits(plan.threads))
    return OperatorReport(
        peers, rows, skipped, plan.threads, describe_machine(), limits, count - len(rows)
    )


def _groups(cases: Sequence[AnyCase], constant: str) -> tuple[AnyGroup, ...]:
    contractions = group_cases([case for case in cases if isinstance(case, Case)], constant)
    models = group_table_cases([case for case in cases if isinstance(case, TableCase)])
    return (*contractions, *models)


def _collect(
    found: Iterator[OperatorRow], peers: tuple[str, ...], limits: Limits, folder: Path | None
) -> tuple[OperatorRow, ...]:
    """All rows, or those until an interrupt; a long run writes down what it has meanwhile."""
    rows: list[OperatorRow] = []
    saved = time.perf_counter()
    try:
        for row in found:
            rows.append(row)
            if folder is not None and time.perf_counter() - saved > _SAVE_SECONDS:
                save_rows(rows, peers, limits, folder)
                saved = time.perf_counter()
    except KeyboardInterrupt:
        pass
    return tuple(rows)


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _cases(
    suites: Sequence[str], shapes: str, only: Sequence[str], sample_size: int | None
) -> tuple[AnyCase, ...]:
    cases: tuple[AnyCase, ...] = ()
    for suite in suites:
        cases += read_table(suite) if suite in TABLES else read_suite(Path(suite))
    if only:
        cases = choose_suites(cases, only)
    if sample_size is not None:
        cases = sample(cases, sample_size)
    cases += parse_shapes(shapes)
    if not cases:
        raise InputError(
            "There is nothing to time.",
            hint='give --suite memory, --suite FILE.csv or --shapes "M=5,N=64,K=64"',
        )
    return cases


class _Remaining:
    """Reports each case with the time that is left, judged by the cases that are done."""

    def __init__(self, steps: Steps, count: int) -> None:
        self._steps = steps
        self._count = count
        self._started = time.perf_counter()

    def at(self, done: int, case: AnyCase) -> None:
        """``done`` cases are finished; ``case`` comes next."""
        what = f"{case.suite} {case.describe()}"
        if done:
            elapsed = time.perf_counter() - self._started
            what += f", {format_seconds(elapsed / done * (self._count - done))} left"
        self._steps.at(done, what)
