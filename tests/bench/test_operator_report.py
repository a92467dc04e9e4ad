from __future__ import annotations

import csv
import importlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tilewright.bench.machine import Machine
from tilewright.bench.operator_report import (
    SUBJECT,
    OperatorReport,
    OperatorRow,
    geometric_mean,
    render,
)
from tilewright.bench.report import Failure
from tilewright.bench.roofline import Limits, Reads
from tilewright.bench.suites import Case
from tilewright.bench.tables import read_table

LIMITS = Limits(1e9, (Reads("L1", 1 << 20, 1e9), Reads("memory", None, 1e8)))


def case_of(suite: str, m: int) -> Case:
    sizes = {"M": m, "N": 10, "K": 100, "trans_a": 0, "trans_b": 0}
    return Case(suite, f"m{m}", "gemm", sizes)


def row_of(
    suite: str,
    m: int,
    ratios: dict[str, float],
    seconds: float = 1e-3,
    self_ratio: float | None = None,
    difference: float = 1e-7,
) -> OperatorRow:
    rounds = {SUBJECT: (2 * seconds, seconds, 0.5 * seconds)}
    rounds |= {peer: (seconds * ratio,) * 3 for peer, ratio in ratios.items()}
    differences = dict.fromkeys(ratios, difference)
    return OperatorRow(case_of(suite, m), "right", rounds, ratios, differences, (), self_ratio)


def report_of(
    *rows: OperatorRow, skipped: tuple[Case, ...] = (), missing: int = 0
) -> OperatorReport:
    machine = Machine("Some CPU", 2, "Linux", {"python": "3"})
    return OperatorReport(("x", "y"), rows, skipped, 1, machine, LIMITS, missing)


def test_statistics_of_a_suite() -> None:
    report = report_of(
        row_of("a", 100, {"x": 2.0, "y": 0.5}),
        row_of("a", 200, {"x": 2.0, "y": 8.0}),
        row_of("b", 100, {"x": 0.95}),
    )
    a, b, everything = report.summaries()
    assert (a.suite, a.cases, b.suite, everything.suite) == ("a", 2, "b", "all")
    assert a.means == pytest.approx({"x": 2.0, "y": 2.0})
    # The best peer is y in the first case and x in the second.
    assert a.best == pytest.approx(1.0)
    assert (a.won, a.slow) == (0.5, 0.5)
    assert b.means == pytest.approx({"x": 0.95})
    assert (b.won, b.slow) == (0.0, 0.0)
    assert everything.cases == 3
    assert everything.slow == pytest.approx(1 / 3)
    assert everything.best == pytest.approx((0.5 * 2.0 * 0.95) ** (1 / 3))


def test_share_of_the_roofline() -> None:
    report = report_of(row_of("a", 100, {}, seconds=1e-3))
    # 200000 operations at one per nanosecond are 0.2 ms.
    assert report.roofline_share(report.rows[0]) == pytest.approx(0.2)
    assert report.gflops(report.rows[0]) == pytest.approx(0.2)
    (summary,) = report.summaries()
    assert summary.roofline == pytest.approx(0.2)
    assert (summary.best, summary.ceiling) == (summary.won, summary.slow) == (None, None)


def test_what_there_is_to_win() -> None:
    # The best peers take 0.3 and 0.4 ms for what cannot take less than 0.2.
    rows = (
        row_of("a", 100, {"x": 0.3, "y": 0.5}, seconds=1e-3),
        row_of("a", 100, {"x": 2}, seconds=2e-4),
    )
    (summary,) = report_of(*rows).summaries()
    assert summary.ceiling == pytest.approx((1.5 * 2) ** 0.5)


def test_the_level_that_holds_the_operands_bounds_them() -> None:
    thin = Case("a", "m1", "gemm", {"M": 1, "N": 512, "K": 500, "trans_a": 0, "trans_b": 0})
    small, large = case_of("a", 2000), case_of("a", 20000)
    # Two operations for each element of four bytes.
    assert thin.bytes < 1 << 20 and thin.bytes > thin.flops
    assert LIMITS.seconds(thin.flops, thin.bytes) == pytest.approx(thin.bytes / 1e9)
    assert LIMITS.seconds(small.flops, small.bytes) == pytest.approx(small.flops / 1e9)
    assert LIMITS.seconds(large.flops, large.bytes) == pytest.approx(large.bytes / 1e8)
    other = Limits(2e9, (Reads("L1", 1 << 20, 5e8), Reads("memory", None, 2e8)))
    best = Limits(2e9, (Reads("L1", 1 << 20, 1e9), Reads("memory", None, 2e8)))
    assert LIMITS.larger(other) == other.larger(LIMITS) == best


def test_what_multiplies_nothing_is_measured_by_a_copy() -> None:
    (case,) = [c for c in read_table("memory") if c.name == "tile"]
    row = replace(row_of("a", 1, {"x": 2.0}, seconds=1e-3), case=case, copy_seconds=2e-4)
    report = report_of(row, row_of("b", 100, {"x": 2.0}))
    assert report.roofline_share(row) == pytest.approx(0.2)
    # 515 x 129 numbers are read and six times as many written.
    assert case.bytes == 7 * 515 * 129 * 4
    assert "tile rows=515 1.000 1.9 GB/s 20 % 20 % 2.00× x" in text_of(report)
    heavy = replace(row, computing_seconds=5e-4)
    assert report.roofline_share(heavy) == pytest.approx(0.5)
    assert heavy.copy_share == pytest.approx(0.2)


def test_failures_of_the_subject_are_counted() -> None:
    assert report_of(row_of("a", 1, {}), failed_row()).failed == 1


def test_the_ten_worst_cases() -> None:
    rows = [row_of("a", m, {"x": m / 10}) for m in range(12, 0, -1)]
    report = report_of(*rows, row_of("b", 1, {"x": 0.01}))
    assert [row.case.sizes["M"] for row in report.worst("a")] == list(range(1, 11))


def test_noise_of_the_cases_with_a_twin() -> None:
    report = report_of(
        row_of("a", 1, {"x": 1.0}, self_ratio=1.02),
        row_of("a", 2, {"x": 1.0}),
        row_of("a", 3, {"x": 1.0}, self_ratio=0.9),
    )
    assert report.noise == pytest.approx((0.06, 0.1))
    assert report_of().noise is None


def failed_row() -> OperatorRow:
    failure = Failure(SUBJECT, "UnsupportedError: no such thing")
    return OperatorRow(case_of("a", 5), "right", {}, {}, {}, (failure,), None)


def test_a_failed_case_stays_in_the_report(tmp_path: Path) -> None:
    report = report_of(row_of("a", 100, {"x": 2.0}), failed_row())
    (summary,) = report.summaries()
    assert summary.cases == 2 and summary.best == pytest.approx(2.0)
    report.save(tmp_path / "new")
    document = json.loads((tmp_path / "new" / "report.json").read_text())
    first, second = document["rows"]
    assert first["differences"] == {"x": 1e-7}
    assert first["rounds"][SUBJECT] == [2e-3, 1e-3, 5e-4]
    assert second["roofline_share"] is None and second["failures"][0]["contender"] == SUBJECT
    with (tmp_path / "new" / "rows.csv").open(newline="") as file:
        flat = list(csv.DictReader(file))
    assert [row["M"] for row in flat] == ["100", "5"]
    assert float(flat[0]["ratio_best"]) == 2.0 and flat[0]["best_peer"] == "x"
    assert flat[1]["ratio_best"] == "" and "no such thing" in flat[1]["failures"]


def text_of(report: OperatorReport) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(report))
    return " ".join(console.export_text().split())


def test_what_people_read() -> None:
    report = report_of(
        row_of("a", 100, {"x": 2.0, "y": 0.5}, self_ratio=1.04, difference=0.3),
        failed_row(),
        skipped=(case_of("big", 1 << 30),),
        missing=4,
    )
    text = text_of(report)
    for part in (
        "a 2 2.00× 0.50× 0.50× 0 % 100 % – 20 %",
        "m100 M=100 N=10 K=100 1.000 0.2 GFLOP/s – 20 % 0.50× y",
        "interrupted: 4 cases not measured",
        "skipped, needs 440 GiB: big m1073741824",
        "tilewright failed at a m5: UnsupportedError: no such thing",
        "results differ by 3.0e-01: a m100",
        "noise, tilewright against itself: 4.0% at the median, 4.0% at worst",
        "Some CPU, 1 thread, f32",
    ):
        assert part in text


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


@pytest.mark.peers
def test_plots_are_files(tmp_path: Path) -> None:
    plots = importlib.import_module("tilewright.bench.plots")
    rows = [row_of("a", m, {"x": 1 + m / 10}) for m in (1, 2, 3, 4)]
    report = report_of(*rows, row_of("b", 1, {"x": 1.0}))
    drawn = plots.draw_plots(report, tmp_path)
    assert [path.name for path in drawn] == ["speedup.png", "speed_a.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
