from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tilewright.bench import Failure, Report, Settings, compare, render_table
from tilewright.bench.compare import largest_difference

SETTINGS = Settings(rounds=3, most_rounds=6)
CASES = ({"batch": 1, "seq": 5}, {"batch": 2, "seq": 7})


def no_inputs(case: Mapping[str, int]) -> dict[str, np.ndarray]:
    return {"x": np.zeros(case["batch"], np.float32)}


def run(
    subject: Any,
    peers: list[Any],
    cases: Sequence[Mapping[str, int]] = CASES,
    **options: object,
) -> Report:
    return compare(
        subject,
        peers,
        cases,
        no_inputs,
        threads=2,
        settings=SETTINGS,
        clock=subject.clock,
        **options,
    )


def shown(report: Report) -> str:
    console = Console(width=200, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(render_table(report, title="a title"))
    return capture.get()


def test_ratios_and_best_peer(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    report = run(
        fakes.Contender("ours", clock, fakes.constant(0.01)),
        [
            fakes.Contender("slow", clock, fakes.constant(0.03)),
            fakes.Contender("fast", clock, fakes.constant(0.008)),
        ],
    )
    row = report.rows[0]
    assert row.case == CASES[0]
    assert [timing.contender for timing in row.timings] == ["ours", "slow", "fast"]
    assert [timing.ratio.median for timing in row.timings] == pytest.approx([1.0, 3.0, 0.8])
    assert row.best_peer is not None and row.best_peer.contender == "fast"
    assert report.geometric_mean("slow") == pytest.approx(3.0)
    assert report.geometric_mean() == pytest.approx(0.8)
    assert report.is_quiet


def test_times_beside_the_roofline(fakes: SimpleNamespace, tmp_path: Path) -> None:
    clock = fakes.Clock()
    report = run(fakes.Contender("ours", clock, fakes.constant(0.01)), [])
    assert "roofline" not in shown(report)
    report = report.beside([0.008, None])
    assert [row.roofline_share for row in report.rows] == [pytest.approx(0.8), None]
    assert "batch=1, seq=5 roofline 8.000 ms, 80% of it" in " ".join(shown(report).split())
    rows = json.loads(report.to_json())["rows"]
    assert [row["least"] for row in rows] == [0.008, None]
    report.save_csv(tmp_path / "rows.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert [line["least"] for line in lines] == ["0.008", ""]


def test_noise_is_reported_loudly(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    subject = fakes.Contender(
        "ours", clock, fakes.constant(0.01), twin_duration=fakes.constant(0.013)
    )
    report = run(subject, [fakes.Contender("peer", clock, fakes.constant(0.02))])
    assert not report.is_quiet
    assert report.rows[0].self_ratio.median == pytest.approx(1.3)
    assert len(report.rows[0].timings[0].rounds) == SETTINGS.most_rounds
    assert "too noisy: in 2 of 2 rows" in " ".join(shown(report).split())


def test_a_failing_peer_does_not_end_the_comparison(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    broken = fakes.Contender("broken", clock, fakes.constant(0.01), failure=ValueError("bad\nmore"))
    report = run(fakes.Contender("ours", clock, fakes.constant(0.01)), [broken])
    assert report.rows[0].failures == (Failure("broken", "ValueError: bad"),)
    assert report.rows[0].best_peer is None and report.geometric_mean() is None
    assert "broken left out: ValueError: bad" in shown(report)


def test_an_error_of_the_subject_is_raised(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    subject = fakes.Contender("ours", clock, fakes.constant(0.01), failure=ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        run(subject, [])


def test_json_holds_every_round_and_slow_rows(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    report = run(
        fakes.Contender("ours", clock, fakes.constant(0.02)),
        [fakes.Contender("peer", clock, fakes.constant(0.01), value=1.5)],
        skipped=(Failure("torch", "not installed"),),
    )
    document = json.loads(report.to_json())
    timing = document["rows"][1]["timings"][1]
    assert timing["contender"] == "peer" and len(timing["rounds"]) == 3
    assert timing["ratio"]["median"] == pytest.approx(0.5)
    assert timing["difference"] == pytest.approx(1 / 3, rel=1e-6)
    assert document["skipped"] == [{"contender": "torch", "reason": "not installed"}]
    assert document["rows"][0]["best_peer"] == "peer"
    assert "0.50×" in shown(report)
    assert "outputs differ by 3.3e-01 from peer's" in shown(report)
    assert "tilewright verify tells who is wrong" in shown(report)


def test_a_peer_that_gives_something_else_is_left_out(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    other = fakes.Contender("other", clock, fakes.constant(0.01), value=float("nan"))
    report = run(fakes.Contender("ours", clock, fakes.constant(0.01)), [other])
    assert report.rows[0].best_peer is None
    assert "other left out: its outputs have other shapes" in shown(report)


@pytest.mark.slow
def test_a_case_that_is_timed_twice_is_drawn_twice(fakes: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = [{"batch": 1, "seq": size} for size in (5, 7, 5)]
    clock = fakes.Clock()
    report = run(fakes.Contender("ours", clock, fakes.constant(0.01)), [], cases)
    plots = importlib.import_module("tilewright.bench.plots")
    assert plots.draw_comparison(report, tmp_path / "x.png").stat().st_size > 0


def test_progress_is_told(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    told: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, case: str) -> None:
        told.append((done, total, case))

    run(fakes.Contender("ours", clock, fakes.constant(0.01)), [], progress=progress)
    assert told == [(0, 2, "batch=1, seq=5"), (1, 2, "batch=2, seq=7")]


def test_largest_difference() -> None:
    one = np.array([1.0, np.nan, np.inf, 4.0], np.float32)
    other = np.array([1.0, np.nan, np.inf, 5.0], np.float32)
    assert largest_difference([one], [one]) == 0.0
    assert largest_difference([one], [other]) == pytest.approx(1 / 5)
    assert largest_difference([one], [-other]) == float("inf")
    assert largest_difference([one], [one[:2]]) == float("inf")
    assert largest_difference([one], []) == float("inf")
    empty = np.zeros((0, 3), np.float32)
    assert largest_difference([empty], [empty]) == 0.0


def test_the_table_fits_a_terminal_of_80_columns(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()
    slow = fakes.Contender("torch-compile", clock, fakes.constant(12.3))
    report = run(fakes.Contender("tilewright", clock, fakes.constant(0.01)), [slow])
    console = Console(width=80, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(render_table(report, title="One artifact, any shape"))
    text = capture.get()
    assert "…" not in text and "torch-compile" in text
    assert all(head in text for head in ("first", "median", "p90", "p99", "ratio (quartiles)"))


def test_percentiles_are_of_all_timed_calls(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()

    def uneven(call: int) -> float:
        return 0.1 if call % 10 == 0 else 0.01

    report = run(fakes.Contender("ours", clock, uneven), [])
    timing = report.rows[0].timings[0]
    assert timing.seconds.median == pytest.approx(0.01)
    assert 0.01 <= timing.p90 <= timing.p99 <= 0.1 and timing.p99 > 0.05


def test_the_first_call_is_timed_apart(fakes: SimpleNamespace) -> None:
    clock = fakes.Clock()

    class Slow(fakes.Contender):
        def outputs(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
            clock.time += 5.0
            return super().outputs(inputs)

    report = run(Slow("ours", clock, fakes.constant(0.01)), [])
    assert report.rows[0].timings[0].first == pytest.approx(5.0)


def test_csv_has_a_line_for_each_contender_and_case(fakes: SimpleNamespace, tmp_path: Path) -> None:
    clock = fakes.Clock()
    peer = fakes.Contender("peer", clock, fakes.constant(0.02))
    run(fakes.Contender("ours", clock, fakes.constant(0.01)), [peer]).save_csv(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch"], row["contender"]) for row in rows] == [
        ("1", "ours"), ("1", "peer"), ("2", "ours"), ("2", "peer"),
    ]  # fmt: skip
    assert float(rows[1]["median"]) == pytest.approx(0.02)
    assert float(rows[1]["ratio"]) == pytest.approx(2.0)
