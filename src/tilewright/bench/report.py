"""What a comparison found: plain data, JSON, and a table for people.

Every row is kept, slow ones included. A ratio is a peer's time divided by the subject's in the same
round, so above 1 the subject is faster. Imports rich and the rest of the package's data only. Start
with `Report`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.bench.machine import Machine
from tilewright.bench.measure import Settings, Spread


@dataclass(frozen=True)
class Failure:
    """A peer that could not be set up, or failed at one case, and why."""

    contender: str
    reason: str


@dataclass(frozen=True)
class Timing:
    """One contender at one case.

    `seconds` per call; `ratio` to the subject's time; `rounds` the medians of the rounds in
    seconds; `difference` the largest relative difference of the outputs from the subject's, None
    for the subject itself.
    """

    contender: str
    seconds: Spread
    ratio: Spread
    rounds: tuple[float, ...]
    difference: float | None


@dataclass(frozen=True)
class Row:
    """One case: the subject's timing first, then the peers' that did not fail.

    `self_ratio` is a second instance of the subject against the first; `is_quiet` says whether it
    came out at 1, without which the row's ratios should not be believed.
    """

    case: Mapping[str, int]
    timings: tuple[Timing, ...]
    failures: tuple[Failure, ...]
    self_ratio: Spread
    is_quiet: bool

    def timing(self, contender: str) -> Timing | None:
        """The timing of one contender, None where it failed."""
        return next((timing for timing in self.timings if timing.contender == contender), None)

    @property
    def best_peer(self) -> Timing | None:
        """The fastest of the peers at this case."""
        return min(self.timings[1:], key=_median_ratio, default=None)


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

    def to_json(self) -> str:
        """Everything, the medians of the rounds included, as JSON."""
        document = dataclasses.asdict(self)
        document["is_quiet"] = self.is_quiet
        document["geometric_mean_over_best_peer"] = self.geometric_mean()
        for row, written in zip(self.rows, document["rows"], strict=True):
            written["best_peer"] = row.best_peer.contender if row.best_peer else None
            for timing in written["timings"]:
                # JSON has no infinity: outputs that do not even agree in shape are written as text.
                if timing["difference"] is not None and math.isinf(timing["difference"]):
                    timing["difference"] = "outputs disagree"
        return json.dumps(document, indent=2, allow_nan=False)

    def save(self, path: Path) -> None:
        """Write the JSON to a file."""
        path.write_text(self.to_json() + "\n", encoding="utf-8")


def render_table(report: Report, title: str | None = None) -> RenderableType:
    """The comparison for a terminal: a table, the means, and everything that is doubtful."""
    table = Table(title=title, header_style="bold", title_style="bold", pad_edge=False)
    dimensions = tuple(dict.fromkeys(name for row in report.rows for name in row.case))
    for name in dimensions:
        table.add_column(name, justify="right")
    table.add_column(f"{report.subject}\nms", justify="right", style="bold")
    for peer in report.peers:
        table.add_column(f"{peer}\nms", justify="right")
        table.add_column("ratio\n(quartiles)", justify="right")
    table.add_column("largest\ndifference", justify="right")
    table.add_column("itself", justify="right")
    for row in report.rows:
        cells: list[Text | str] = [str(row.case.get(name, "")) for name in dimensions]
        subject = row.timings[0]
        cells.append(_milliseconds(subject.seconds.median))
        for peer in report.peers:
            cells += _peer_cells(row.timing(peer))
        cells += [_difference(row), _self_ratio(row)]
        table.add_row(*cells)
    return Group(table, *_remarks(report))


def _peer_cells(timing: Timing | None) -> list[Text | str]:
    if timing is None:
        return [Text("failed", style="red"), ""]
    ratio = timing.ratio
    style = "green" if ratio.median >= 1 else "yellow"
    cell = Text(f"{ratio.median:.2f}×", style=style)
    cell.append(f" ({ratio.low:.2f}–{ratio.high:.2f})", style="dim")
    return [_milliseconds(timing.seconds.median), cell]


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _difference(row: Row) -> Text | str:
    differences = [timing.difference for timing in row.timings if timing.difference is not None]
    if not differences:
        return ""
    worst = max(differences)
    if math.isinf(worst):
        return Text("disagrees", style="bold red")
    return Text(f"{worst:.1e}", style="red" if worst > 1e-3 else "")


def _self_ratio(row: Row) -> Text:
    style = "dim" if row.is_quiet else "bold red"
    return Text(f"{row.self_ratio.median:.2f}{'' if row.is_quiet else ' !'}", style=style)


def _remarks(report: Report) -> list[Text]:
    remarks: list[Text] = []
    for peer in report.peers:
        mean = report.geometric_mean(peer)
        if mean is not None:
            remarks.append(Text(f"{peer}: {mean:.2f}× the time of {report.subject} on average"))
    best = report.geometric_mean()
    if best is not None and len(report.peers) > 1:
        remarks.append(Text(f"best peer of each case: {best:.2f}×", style="bold"))
    failures = [failure for row in report.rows for failure in row.failures]
    for failure in dict.fromkeys((*report.skipped, *failures)):
        remarks.append(Text(f"{failure.contender} left out: {failure.reason}", style="yellow"))
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
    remarks.append(
        Text(
            f"{report.machine.processor}, {report.threads} threads, f32, medians; "
            "a ratio above 1 means that the peer takes longer",
            style="dim",
        )
    )
    return remarks
