"""What a run over suites found: rows, statistics for each suite, JSON, CSV and tables.

A ratio is a peer's time divided by the subject's, so above 1 the subject is faster; the best peer
is the best of each case. Imports rich and the rest of the package's data only. Start with
`OperatorReport`.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.bench.machine import Machine
from tilewright.bench.report import Failure, repeated_rounds
from tilewright.bench.roofline import Limits
from tilewright.bench.suites import AnyCase
from tilewright.support.text import format_bytes, format_count

SUBJECT = "tilewright"
SLOW = 0.9  # of the best peer's speed: below it a case counts as slow
_WORST = 10  # cases of a suite that are shown
_DOUBTFUL = 1e-4  # as ``DOUBTFUL`` of a network: one operator rounds less


@dataclass(frozen=True)
class OperatorRow:
    """One case: seconds per call by contender and round, and the median ratio of each peer.

    ``differences`` are the peers' results against the subject's, relative to the largest magnitude;
    ``self_ratio`` is a second instance of the subject against the first, where there was one.
    ``copy_seconds`` are those of a plain copy of as many bytes, where nothing is multiplied;
    ``computing_seconds`` the least that its functions take (see `arithmetic`).
    ``repeated`` further rounds do not count. Without rounds the subject failed.
    """

    case: AnyCase
    constant: str
    rounds: Mapping[str, tuple[float, ...]]
    ratios: Mapping[str, float]
    differences: Mapping[str, float]
    failures: tuple[Failure, ...]
    self_ratio: float | None
    copy_seconds: float | None = None
    computing_seconds: float = 0.0
    compile_seconds: float = 0.0
    repeated: int = 0

    def compiled_in(self, seconds: float) -> OperatorRow:
        """The row with the time that compiling its group took."""
        return replace(self, compile_seconds=seconds)

    def seconds(self, contender: str = SUBJECT) -> float:
        """Seconds per call, the median of the rounds."""
        return statistics.median(self.rounds[contender])

    def least_seconds(self, limits: Limits) -> float:
        """Of the plain algorithm; of copying or computing, where nothing is multiplied."""
        copied = self.copy_seconds
        if copied is None:
            return limits.seconds(self.case.flops, self.case.bytes)
        return max(copied, self.computing_seconds)

    @property
    def copy_share(self) -> float | None:
        """The time of the copy divided by the subject's."""
        return None if self.copy_seconds is None else self.copy_seconds / self.seconds()

    def roofline_share(self, limits: Limits) -> float:
        """The least possible time divided by the subject's."""
        return self.least_seconds(limits) / self.seconds()

    @property
    def best_peer(self) -> str | None:
        """The fastest peer of this case."""
        return min(self.ratios, key=self.ratios.__getitem__, default=None)

    @property
    def best_ratio(self) -> float | None:
        """The fastest peer's time divided by the subject's."""
        return min(self.ratios.values(), default=None)

    @property
    def largest_difference(self) -> float:
        """Of all peers that ran."""
        return max(self.differences.values(), default=0.0)


@dataclass(frozen=True)
class Summary:
    """Statistics over the rows of one suite. Means are geometric; None where no peer ran.

    ``best`` is the speed-up over the best peer of each case, ``ceiling`` what it would be with all
    calls at their limit: nobody can win more than that by the plain algorithm. ``copy`` is the
    share of a plain copy's speed, where nothing is multiplied.
    """

    suite: str
    cases: int
    means: Mapping[str, float]
    best: float | None
    ceiling: float | None
    won: float | None
    slow: float | None
    roofline: float | None
    copy: float | None


@dataclass(frozen=True)
class OperatorReport:
    """A whole run; ``skipped`` are the cases too large for it, ``missing`` those not reached."""

    peers: tuple[str, ...]
    rows: tuple[OperatorRow, ...]
    skipped: tuple[AnyCase, ...]
    threads: int
    machine: Machine
    limits: Limits
    missing: int = 0

    def roofline_share(self, row: OperatorRow) -> float:
        """The least possible time divided by the subject's."""
        return row.roofline_share(self.limits)

    def gflops(self, row: OperatorRow, contender: str = SUBJECT) -> float:
        """Operations of the plain algorithm per nanosecond."""
        return row.case.flops / row.seconds(contender) / 1e9

    def summaries(self) -> tuple[Summary, ...]:
        """One for each suite, and one of all where there are several."""
        suites = tuple(dict.fromkeys(row.case.suite for row in self.rows))
        found = [
            self._summarise(suite, [row for row in self.rows if row.case.suite == suite])
            for suite in suites
        ]
        if len(suites) > 1:
            found.append(self._summarise("all", self.rows))
        return tuple(found)

    def _summarise(self, suite: str, rows: Sequence[OperatorRow]) -> Summary:
        ran = [row for row in rows if row.rounds]
        best = [row.best_ratio for row in ran if row.best_ratio is not None]
        means = {
            peer: mean
            for peer in self.peers
            if (mean := geometric_mean([r.ratios[peer] for r in ran if peer in r.ratios]))
        }
        return Summary(
            suite=suite,
            cases=len(rows),
            means=means,
            best=geometric_mean(best),
            ceiling=geometric_mean(
                [r.best_ratio / self.roofline_share(r) for r in ran if r.best_ratio]
            ),
            won=sum(ratio > 1 for ratio in best) / len(best) if best else None,
            slow=sum(ratio < SLOW for ratio in best) / len(best) if best else None,
            roofline=geometric_mean([self.roofline_share(row) for row in ran]),
            copy=geometric_mean([row.copy_share for row in ran if row.copy_share is not None]),
        )

    def worst(self, suite: str) -> tuple[OperatorRow, ...]:
        """The rows of a suite that lose most to their best peer, worst first."""
        rows = [r for r in self.rows if r.case.suite == suite and r.best_ratio is not None]
        return tuple(sorted(rows, key=_best_ratio)[:_WORST])

    @property
    def failed(self) -> int:
        """How many cases the subject refused or got wrong."""
        return sum(not row.rounds for row in self.rows)

    @property
    def noise(self) -> tuple[float, float] | None:
        """How far the subject is from itself: the median and the worst of the cases checked."""
        found = [abs(row.self_ratio - 1) for row in self.rows if row.self_ratio is not None]
        return (statistics.median(found), max(found)) if found else None

    def document(self) -> dict[str, object]:
        """Everything as plain data for JSON."""
        noise = self.noise
        return {
            "machine": asdict(self.machine),
            "threads": self.threads,
            "limits": asdict(self.limits),
            "noise": {"median": noise[0], "worst": noise[1]} if noise else None,
            "summaries": [asdict(summary) for summary in self.summaries()],
            "missing": self.missing,
            "skipped": [_case_document(case) for case in self.skipped],
            "rows": [self._row_document(row) for row in self.rows],
        }

    def _row_document(self, row: OperatorRow) -> dict[str, object]:
        return {
            **_case_document(row.case),
            "constant": row.constant,
            "rounds": {name: list(times) for name, times in row.rounds.items()},
            "ratios": dict(row.ratios),
            "best_peer": row.best_peer,
            "differences": dict(row.differences),
            "failures": [asdict(failure) for failure in row.failures],
            "self_ratio": row.self_ratio,
            "copy_seconds": row.copy_seconds,
            "computing_seconds": row.computing_seconds,
            "compile_seconds": row.compile_seconds,
            "repeated": row.repeated,
            "roofline_share": self.roofline_share(row) if row.rounds else None,
        }

    def save(self, folder: Path) -> None:
        """Write ``report.json`` and ``rows.csv``."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.document(), indent=2, allow_nan=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")
        save_rows(self.rows, self.peers, self.limits, folder)


def save_rows(
    rows: Sequence[OperatorRow], peers: Sequence[str], limits: Limits, folder: Path
) -> None:
    """Write ``rows.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    flat = [flat_row(row, peers, limits) for row in rows]
    columns = tuple(dict.fromkeys(name for row in flat for name in row))
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(flat)


def flat_row(row: OperatorRow, peers: Sequence[str], limits: Limits) -> dict[str, object]:
    """One row for a table: sizes, seconds and ratios in columns of their own."""
    case = row.case
    flat: dict[str, object] = {"suite": case.suite, "case": case.name, "kind": case.kind}
    flat |= case.sizes
    flat |= {"constant": row.constant, "flops": case.flops, "bytes": case.bytes}
    for name in (SUBJECT, *peers):
        flat[f"{name}_seconds"] = row.seconds(name) if name in row.rounds else ""
    for peer in peers:
        flat[f"ratio_{peer}"] = row.ratios.get(peer, "")
    flat["copy_seconds"] = row.copy_seconds or ""
    flat["computing_seconds"] = row.computing_seconds
    flat["best_peer"] = row.best_peer or ""
    flat["ratio_best"] = row.best_ratio or ""
    flat["roofline_share"] = row.roofline_share(limits) if row.rounds else ""
    flat["largest_difference"] = row.largest_difference
    flat["self_ratio"] = row.self_ratio or ""
    flat["failures"] = "; ".join(f"{f.contender}: {f.reason}" for f in row.failures)
    return flat


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean of positive numbers, None for no numbers."""
    if not values:
        return None
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _best_ratio(row: OperatorRow) -> float:
    return row.best_ratio if row.best_ratio is not None else math.inf


def _case_document(case: AnyCase) -> dict[str, Any]:
    return {
        "suite": case.suite,
        "case": case.name,
        "kind": case.kind,
        "sizes": dict(case.sizes),
        "flops": case.flops,
        "bytes": case.bytes,
    }


def render(report: OperatorReport) -> RenderableType:
    """The statistics, the worst cases of each suite, and everything doubtful, for a terminal."""
    parts: list[RenderableType] = [_summary_table(report)]
    if any(row.best_ratio is not None for row in report.rows):
        parts += [Text(), _worst_table(report)]
    return Group(*parts, Text(), *_remarks(report))


def _summary_table(report: OperatorReport) -> Table:
    table = _table("Speed-up over each peer, geometric means")
    table.add_column("suite")
    shares = ("best peer", "won", f"below {SLOW}", "of copy", "of limit", "at limit")
    for name in ("cases", *report.peers, *shares):
        table.add_column(name, justify="right")
    for summary in report.summaries():
        table.add_row(
            summary.suite,
            str(summary.cases),
            *(_ratio(summary.means.get(peer)) for peer in report.peers),
            _ratio(summary.best),
            _percent(summary.won),
            _percent(summary.slow),
            _percent(summary.copy),
            _percent(summary.roofline),
            _ratio(summary.ceiling),
        )
    return table


def _worst_table(report: OperatorReport) -> Table:
    table = _table(f"The {_WORST} worst cases of each suite")
    for name in ("suite", "case", "sizes"):
        table.add_column(name)
    for name in ("ms", "rate", "of copy", "of limit", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("best peer")
    for suite in dict.fromkeys(row.case.suite for row in report.rows):
        for row in report.worst(suite):
            table.add_row(
                Text(row.case.suite),
                Text(row.case.name),
                Text(row.case.describe()),
                f"{1000 * row.seconds():.3f}",
                _rate(report, row),
                _percent(row.copy_share),
                _percent(report.roofline_share(row)),
                _ratio(row.best_ratio),
                row.best_peer or "",
            )
        table.add_section()
    return table


def _rate(report: OperatorReport, row: OperatorRow) -> str:
    """Operations per second, or bytes where nothing is multiplied."""
    if row.case.flops:
        return f"{report.gflops(row):.1f} GFLOP/s"
    return f"{row.case.bytes / row.seconds() / 1e9:.1f} GB/s"


def _table(title: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    made.pad_edge, made.box = False, None
    return made


def _ratio(value: float | None) -> Text:
    if value is None:
        return Text("–", style="dim")
    style = "green" if value >= 1 else "red" if value < SLOW else "yellow"
    return Text(f"{value:.2f}×", style=style)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _remarks(report: OperatorReport) -> list[Text]:
    remarks: list[Text] = []
    if report.missing:
        text = f"interrupted: {format_count(report.missing, 'case')} not measured"
        remarks.append(Text(text, style="bold red"))
    for case in report.skipped:
        text = f"skipped, needs {format_bytes(case.bytes)}: {case.suite} {case.name}"
        remarks.append(Text(f"{text} {case.describe()}", style="yellow"))
    failures: dict[Failure, list[OperatorRow]] = {}
    for row in report.rows:
        for failure in row.failures:
            failures.setdefault(failure, []).append(row)
    for failure, rows in failures.items():
        where = f"{rows[0].case.suite} {rows[0].case.name}"
        count = "" if len(rows) == 1 else f" and {format_count(len(rows) - 1, 'other')}"
        text = f"{failure.contender} failed at {where}{count}: {failure.reason}"
        remarks.append(Text(text, style="red"))
    doubtful = [row for row in report.rows if row.largest_difference > _DOUBTFUL]
    for row in sorted(doubtful, key=_difference)[-_WORST:]:
        text = f"results differ by {row.largest_difference:.1e}: {row.case.suite} {row.case.name}"
        remarks.append(Text(text, style="bold red"))
    if report.noise is not None:
        median, worst = report.noise
        text = f"noise, {SUBJECT} against itself: {median:.1%} at the median, {worst:.1%} at worst"
        remarks.append(Text(text, style="bold" if median > 0.03 else ""))
    remarks += repeated_rounds(row.repeated for row in report.rows)
    reads = ", ".join(f"{r.bytes_per_second / 1e9:.0f} from {r.name}" for r in report.limits.reads)
    text = (
        f"{report.machine.processor}, {format_count(report.threads, 'thread')}, f32; above 1 the "
        f"peer takes longer; limits: {report.limits.flops / 1e9:.0f} GFLOP/s, GB/s {reads}"
    )
    return [*remarks, Text(text, style="dim")]


def _difference(row: OperatorRow) -> float:
    return row.largest_difference
