# pyright: basic
"""Plots of what benches measured: runs over suites, comparisons, sweeps and errors of prices.

Imports matplotlib at the top: load this module only when plots are asked for. Start with
`draw_plots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tilewright.bench.model_error import Priced
from tilewright.bench.operator_report import SUBJECT, OperatorReport, OperatorRow
from tilewright.bench.report import Report
from tilewright.bench.sweep import Sweep

_SIZE = (9.0, 5.0)  # inches
_FEWEST_POINTS = 3  # along an axis for which a plot is drawn


def draw_plots(report: OperatorReport, folder: Path) -> tuple[Path, ...]:
    """Write one PNG of speed-ups, and one of speeds for each suite with an axis that varies."""
    rows = [row for row in report.rows if row.rounds]
    drawn: list[Path] = []
    if any(row.ratios for row in rows):
        drawn.append(_draw_speedup(report, rows, folder / "speedup.png"))
    for suite in dict.fromkeys(row.case.suite for row in rows):
        own = [row for row in rows if row.case.suite == suite]
        axis = _axis(own)
        if axis is not None:
            drawn.append(_draw_speed(report, own, axis, folder / f"speed_{suite}.png"))
    return tuple(drawn)


def _axis(rows: Sequence[OperatorRow]) -> str | None:
    """The size to draw a suite against: M, or another that takes enough values."""
    for name in ("M", "N", "H", "B"):
        if len({row.case.sizes.get(name) for row in rows}) >= _FEWEST_POINTS:
            return name
    return None


def _draw_speedup(report: OperatorReport, rows: Sequence[OperatorRow], path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=_SIZE)
    for number, peer in enumerate(report.peers):
        own = [row for row in rows if peer in row.ratios]
        work = [row.case.flops or row.case.bytes for row in own]
        ratios = [row.ratios[peer] for row in own]
        axes.scatter(work, ratios, s=9, color=f"C{number}", alpha=0.7, label=f"over {peer}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel=_work_label(rows), ylabel="speed-up")
    axes.set_title(f"{report.machine.processor}, threads: {report.threads}")
    return _finish(figure, axes, path)


def _work_label(rows: Sequence[OperatorRow]) -> str:
    """Of an axis with operations; with bytes, where a case has no products."""
    kinds = {"operations (FLOP)" if row.case.flops else "bytes moved" for row in rows}
    return ", ".join(sorted(kinds, reverse=True))


def _draw_speed(report: OperatorReport, rows: Sequence[OperatorRow], axis: str, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=_SIZE)
    ordered = sorted(rows, key=_size_of(axis))
    sizes = [row.case.sizes[axis] for row in ordered]
    for number, name in enumerate((SUBJECT, *report.peers)):
        points = [
            (size, report.gflops(row, name))
            for size, row in zip(sizes, ordered, strict=True)
            if name in row.rounds
        ]
        if points:
            line = "-" if _is_line(ordered, axis) else ""
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=f"C{number}", label=name, marker=".", linestyle=line)
    limits = [row.case.flops / row.least_seconds(report.limits) / 1e9 for row in ordered]
    axes.plot(sizes, limits, color="grey", linestyle="", marker="_", label="roofline")
    axes.set(xlabel=axis, ylabel="GFLOP/s", ylim=(0, None))
    if not _is_line(ordered, axis):
        axes.set_xscale("log")
    axes.set_title(f"{rows[0].case.suite}, {report.machine.processor}, threads: {report.threads}")
    return _finish(figure, axes, path)


def _size_of(axis: str):
    return lambda row: row.case.sizes[axis]


def _is_line(rows: Sequence[OperatorRow], axis: str) -> bool:
    """Whether only the axis varies, so that neighbouring points belong together."""
    others = {tuple(size for n, size in row.case.sizes.items() if n != axis) for row in rows}
    return len(others) == 1


def draw_comparison(report: Report, path: Path) -> Path:
    """Times of a call against what varies between the cases: medians, and bands up to p90."""
    figure, axes = pyplot.subplots(figsize=_SIZE)
    axis = _varying([row.case for row in report.rows])
    places = [row.case[axis] if axis else number for number, row in enumerate(report.rows)]
    for number, name in enumerate((report.subject, *report.peers)):
        found = [(place, row.timing(name)) for place, row in zip(places, report.rows, strict=True)]
        points = [(place, timing) for place, timing in found if timing is not None]
        points.sort(key=itemgetter(0))  # a size may be timed twice
        x = [place for place, _ in points]
        medians = [1000 * timing.seconds.median for _, timing in points]
        ends = [1000 * timing.p90 for _, timing in points]
        axes.plot(x, medians, color=f"C{number}", marker="o", label=name)
        axes.fill_between(x, medians, ends, color=f"C{number}", alpha=0.15, linewidth=0)
    if axis is None:
        labels = [", ".join(f"{k}={v}" for k, v in row.case.items()) for row in report.rows]
        axes.set_xticks(places, labels, rotation=20, ha="right")
    axes.set(xlabel=axis or "", ylabel="ms, median to p90", ylim=(0, None))
    axes.set_title(f"{report.machine.processor}, threads: {report.threads}")
    return _finish(figure, axes, path)


def _varying(cases: Sequence[Mapping[str, int]]) -> str | None:
    """The one dimension that differs between the cases; None for none or several."""
    names = dict.fromkeys(name for case in cases for name in case)
    found = [name for name in names if len({case.get(name) for case in cases}) > 1]
    is_everywhere = len(found) == 1 and all(found[0] in case for case in cases)
    return found[0] if is_everywhere else None


def draw_sweep(sweep: Sweep, path: Path) -> Path:
    """Speed against the axis of a sweep, coloured by the variant chosen."""
    figure, axes = pyplot.subplots(figsize=_SIZE)
    axes.plot([p.size for p in sweep.points], [p.gflops for p in sweep.points], color="grey")
    for name in dict.fromkeys(point.variant for point in sweep.points):
        own = [point for point in sweep.points if point.variant == name]
        axes.scatter([p.size for p in own], [p.gflops for p in own], s=8, label=name, zorder=3)
    axes.set(xlabel=sweep.axis, ylabel="GFLOP/s", ylim=(0, None))
    axes.set_title(f"{sweep.fixed}, deepest dip {100 * max(sweep.dips):.1f} %")
    return _finish(figure, axes, path)


def draw_errors(samples: Sequence[Priced], path: Path) -> Path:
    """Modelled times against measured ones, coloured by family; on the line they agree."""
    figure, axes = pyplot.subplots(figsize=_SIZE)
    for family in dict.fromkeys(sample.case.suite for sample in samples):
        own = [sample for sample in samples if sample.case.suite == family]
        x, y = zip(*((1e6 * s.measured, 1e6 * s.predicted) for s in own), strict=True)
        axes.scatter(x, y, s=9, alpha=0.7, label=family)
    ends = [1e6 * end(s.measured for s in samples) for end in (min, max)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured (µs)", ylabel="modelled (µs)")
    return _finish(figure, axes, path)


def _finish(figure: Figure, axes: Axes, path: Path) -> Path:
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return path
