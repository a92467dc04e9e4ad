"""What a comparison found: plain data, JSON, and a table for people.

Every row is kept, slow ones included. A ratio is a peer's time divided by the subject's in the same
round, so above 1 the subject is faster. Imports rich and the rest of the package's data only. Start
with `Report`.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.bench.machine import Machine
from tilewright.bench.measure import Settings, Spread
from tilewright.support.text import format_count, format_sizes

DOUBTFUL = 1e-3  # difference of outputs, relative to the largest one, that rounding hardly makes


@dataclass(frozen=True)
class Failure:
    """A peer that could not be set up, or failed at one case, and why."""

    contender: str
    reason: str


@dataclass(frozen=True)
class Timing:
    """One contender at one case.

    `first` are the seconds of the first call at this shape; `seconds` per call after that, `p90`
    and `p99` those within which so many of the calls ended; `ratio` to the subject's time; `rounds`
    the medians of the rounds in seconds; `difference` the largest relative difference of the
    outputs from the subject's, None for the subject itself.
    """

    contender: str
    first: float
    p90: float
    p99: float
    seconds: Spread
    ratio: Spread
    rounds: tuple[float, ...]
    difference: float | None


@dataclass(frozen=True)
class Row:
    """One case: the subject's timing first, then the peers' that did not fail.

    `self_ratio` is a second instance of the subject against the first; `is_quiet` says whether it
    came out at 1, without which the row's ratios should not be believed. `repeated` further rounds
    do not count, as two processors shared no cache meanwhile. `least` are the seconds that the
    machine allows the plain algorithm, the roofline; None where that is not known.
    """

    case: Mapping[str, int]
    timings: tuple[Timing, ...]
    failures: tuple[Failure, ...]
    self_ratio: Spread
    is_quiet: bool
    repeated: int = 0
    least: float | None = None

    def timing(self, contender: str) -> Timing | None:
        """The timing of one contender, None where it failed."""
        return next((timing for timing in self.timings if timing.contender == contender), None)

    @property
    def best_peer(self) -> Timing | None:
        """The fastest of the peers at this case."""
        return min(self.timings[1:], key=_median_ratio, default=None)

    @property
    def largest_difference(self) -> tuple[float, str] | None:
        """How far a peer's outputs are off the subject's at most, and whose they are."""
        found = [(t.difference, t.contender) for t in self.timings if t.difference is not None]
        return max(found, default=None)

    @property
    def roofline_share(self) -> float | None:
        """The least possible time divided by the subject's."""
        return None if self.least is None else self.least / self.timings[0].seconds.median


def _median_ratio(timing: Timing) -> float:
    return timing.ratio.median


@dataclass(frozen=True)
class Report:
    """A whole comparison."""

    subject: str
    peers: tuple[str, ...]
    rows: tuple[Row, ...]
    skipped: tuple[Failure, ...]
    threads: int
    machine: Machine
    settings: Settings
    precision: str = "float32"

    @property
    def is_quiet(self) -> bool:
        """Whether every row passed its self-check."""
        return all(row.is_quiet for row in self.rows)

    def geometric_mean(self, contender: str | None = None) -> float | None:
        """The mean ratio of a peer, or of the best peer per case; None if there is none."""
        timings = [
            row.best_peer if contender is None else row.timing(contender) for row in self.rows
        ]
        logarithms = [math.log(timing.ratio.median) for timing in timings if timing is not None]
        return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None

    def beside(self, least: Sequence[float | None]) -> Report:
        """The report with the least seconds of every row."""
        rows = zip(self.rows, least, strict=True)
        return replace(self, rows=tuple(replace(row, least=seconds) for row, seconds in rows))

    def to_json(self) -> str:
        """Everything, the medians of the rounds included, as JSON."""
        document = dataclasses.asdict(self)
        document["is_quiet"] = self.is_quiet
        document["geometric_mean_over_best_peer"] = self.geometric_mean()
        for row, written in zip(self.rows, document["rows"], strict=True):
            written["roofline_share"] = row.roofline_share
            written["best_peer"] = row.best_peer.contender if row.best_peer else None
        return json.dumps(document, indent=2, allow_nan=False)

    def save(self, path: Path) -> None:
        """Write the JSON to a file."""
        path.write_text(self.to_json() + "\n", encoding="utf-8")

    def save_csv(self, path: Path) -> None:
        """Write a line for each contender at each case, with times in seconds."""
        dimensions = list(dict.fromkeys(name for row in self.rows for name in row.case))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*dimensions, *_CSV_COLUMNS])
            for row in self.rows:
                sizes = [row.case.get(name, "") for name in dimensions]
                for timing in row.timings:
                    writer.writerow([*sizes, *_csv_cells(row, timing)])


_CSV_COLUMNS = (
    "contender", "first", "median", "p90", "p99", "ratio", "ratio_low", "ratio_high",
    "difference", "self_ratio", "is_quiet", "least",
)  # fmt: skip


def _csv_cells(row: Row, timing: Timing) -> list[object]:
    ratio = timing.ratio
    return [
        timing.contender, timing.first, timing.seconds.median, timing.p90, timing.p99,
        ratio.median, ratio.low, ratio.high,
        "" if timing.difference is None else timing.difference,
        row.self_ratio.median, int(row.is_quiet), "" if row.least is None else row.least,
    ]  # fmt: skip


# Widths of the columns: the table is no wider than a terminal of 80 characters.
_NAME_WIDTH, _TIME_WIDTH, _RATIO_WIDTH = 15, 9, 20


def render_table(report: Report, title: str | None = None) -> RenderableType:
    """The comparison for a terminal: a table, the means, and everything that is doubtful."""
    heads = ["ms", *("first", "median", "p90", "p99"), "ratio (quartiles)"]
    table = _columns()
    table.add_row(*(Text(head, style="bold") for head in heads))
    parts: list[RenderableType] = [] if title is None else [Text(title, style="bold")]
    parts.append(table)
    for row in report.rows:
        parts.append(_case_line(row))
        table = _columns()
        for peer in (report.subject, *report.peers):
            table.add_row(*_cells(peer, row.timing(peer), is_subject=peer == report.subject))
        parts.append(table)
    return Group(*parts, "", *_remarks(report))


def _columns() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(width=_NAME_WIDTH, no_wrap=True)
    for _ in range(4):
        table.add_column(width=_TIME_WIDTH, justify="right", no_wrap=True)
    table.add_column(width=_RATIO_WIDTH, justify="right", no_wrap=True)
    return table


def _case_line(row: Row) -> Text:
    """The sizes of a case, what its outputs and times are beside, and whether to believe them."""
    line = Text(format_sizes(list(row.case.items())), style="bold")
    if row.largest_difference is not None:
        worst, peer = row.largest_difference
        whose = f" from {peer}'s" if worst > DOUBTFUL else ""
        style = "bold red" if worst > DOUBTFUL else "dim"
        line.append(f"  outputs differ by {worst:.1e}{whose}", style=style)
    share = row.roofline_share
    if row.least is not None and share is not None:
        line.append(f"  roofline {_milliseconds(row.least)} ms, {share:.0%} of it", style="dim")
    if not row.is_quiet:
        line.append(f"  noisy: itself {row.self_ratio.median:.2f} !", style="bold red")
    return line


def _cells(name: str, timing: Timing | None, *, is_subject: bool) -> list[Text | str]:
    label = Text(f"  {name}", style="bold" if is_subject else "")
    if timing is None:
        return [label, Text("failed", style="red"), "", "", "", ""]
    seconds = (timing.first, timing.seconds.median, timing.p90, timing.p99)
    cells: list[Text | str] = [label, *(_milliseconds(value) for value in seconds)]
    if is_subject:
        return [*cells, ""]
    ratio = timing.ratio
    style = "green" if ratio.median >= 1 else "yellow"
    cell = Text(f"{_digits(ratio.median)}×", style=style)
    cell.append(f" ({_digits(ratio.low)}–{_digits(ratio.high)})", style="dim")
    return [*cells, cell]


def _digits(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def repeated_rounds(counts: Iterable[int]) -> list[Text]:
    """A remark on how many rounds of all rows were timed again, if any were."""
    repeated = sum(counts)
    if not repeated:
        return []
    rounds = format_count(repeated, "round")
    return [Text(f"{rounds} timed again, as the processors shared no cache", style="dim")]


def _remarks(report: Report) -> list[Text]:
    remarks: list[Text] = []
    for peer in report.peers:
        mean = report.geometric_mean(peer)
        if mean is not None:
            remarks.append(
                Text(f"{peer}: {mean:.2f}× the time of {report.subject}, geometric mean")
            )
    best = report.geometric_mean()
    if best is not None and len(report.peers) > 1:
        remarks.append(Text(f"best peer of each case: {best:.2f}×", style="bold"))
    failures = [failure for row in report.rows for failure in row.failures]
    for failure in dict.fromkeys((*report.skipped, *failures)):
        remarks.append(Text(f"{failure.contender} left out: {failure.reason}", style="yellow"))
    differences = [row.largest_difference for row in report.rows]
    if any(found is not None and found[0] > DOUBTFUL for found in differences):
        text = "Outputs differ more than rounding explains: tilewright verify tells who is wrong"
        remarks.append(Text(text, style="bold red"))
    noisy = sum(not row.is_quiet for row in report.rows)
    if noisy:
        remarks.append(
            Text(
                f"This machine is too noisy: in {noisy} of {len(report.rows)} rows (marked !) "
                f"{report.subject} against itself is not within {report.settings.tolerance:.0%} "
                "of 1. Do not trust their ratios; measure again when it is idle.",
                style="bold red",
            )
        )
    remarks += repeated_rounds(row.repeated for row in report.rows)
    remarks.append(
        Text(
            f"{report.machine.processor}, {format_count(report.threads, 'thread')}, "
            f"{report.subject} in {report.precision}, peers in float32; "
            "a ratio above 1 means that the peer takes longer",
            style="dim",
        )
    )
    return remarks
