from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench.roofline import Limits, Reads
from tilewright.cli import bench_ops

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure the limits of this machine takes seconds, and they are not of interest here."""
    limits = Limits(1e11, (Reads("memory", None, 1e10),))
    monkeypatch.setattr(bench_ops, "measure_limits", lambda _: limits)


def test_help_has_an_example(command: Command) -> None:
    result = command("bench-ops", "--help")
    assert result.code == 0
    assert "Example: tilewright bench-ops" in " ".join(result.out.split())
    assert "--json" in result.out


@pytest.mark.slow
def test_without_peers(command: Command) -> None:
    result = command("bench-ops", "--shapes", "M=3,N=4,K=5", "--against", "none", "--rounds", 1)
    assert result.code == 0
    assert "shapes_gemm" in result.out and "1 thread, f32" in result.out


@pytest.mark.slow
def test_json_holds_the_rows(command: Command, tmp_path: Path) -> None:
    suite = tmp_path / "own.csv"
    suite.write_text("suite,case,M,N,K\na,one,3,4,5\na,two,30,4,5\nb,three,7,4,5\n")
    options = ("--against", "none", "--rounds", 1, "--json")
    result = command("bench-ops", "--suite", suite, "--only", "a", "--sample", 1, *options)
    assert result.code == 0
    (row,) = result.json["rows"]
    assert (row["suite"], row["case"], row["sizes"]["M"]) == ("a", "two", 30)
    assert len(row["rounds"]["tilewright"]) == 1
    assert result.json["missing"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "family"), [("memory", "triangles"), ("attention", "causal operator")]
)
def test_suites_that_come_along(command: Command, suite: str, family: str) -> None:
    options = ("--sample", 1, "--against", "none", "--rounds", 1, "--json")
    result = command("bench-ops", "--suite", suite, "--only", family, *options)
    assert result.code == 0
    (row,) = result.json["rows"]
    assert (row["suite"], row["kind"]) == (family, suite)
    assert (row["flops"] == 0) == (row["copy_seconds"] is not None) == (suite == "memory")


@pytest.mark.slow
def test_cases_that_are_too_large_are_listed(command: Command) -> None:
    shapes = "M=3,N=4,K=5;M=100000,N=100000,K=1"
    options = ("--against", "none", "--rounds", 1)
    result = command("bench-ops", "--shapes", shapes, *options)
    assert result.code == 0
    assert "skipped, needs 37.3 GiB" in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to time"),
        (("--shapes", "M=3,N=4"), "no known kind"),
        (("--shapes", "M=3,N=4,K=5", "--against", "tvm"), "no peer called 'tvm'"),
        (("--shapes", "M=3,N=4,K=5", "--constant", "both"), "'both' is no operand"),
        (("--suite", "missing.csv"), "cannot be read"),
    ],
)
def test_errors_are_for_people(command: Command, options: tuple[str, ...], message: str) -> None:
    result = command("bench-ops", *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and "Traceback" not in result.err


@pytest.mark.slow
def test_an_interrupted_run_reports_what_it_has(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bench_ops.run_groups

    def interrupted(*arguments: Any) -> Iterator[Any]:
        yield next(iter(whole(*arguments)))
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_ops, "run_groups", interrupted)
    options = ("--against", "none", "--rounds", 1)
    result = command("bench-ops", "--shapes", "M=3,N=4,K=5;M=4,N=4,K=5;M=5,N=4,K=5", *options)
    assert result.code == 1
    assert "interrupted: 2 cases not measured" in result.out


@pytest.mark.slow
@pytest.mark.peers
def test_saves_figures_and_plots(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    options = ("--against", "onnxruntime", "--rounds", 1, "--threads", 1, "--save", folder)
    result = command("bench-ops", "--shapes", "M=1,N=4,K=5;M=2,N=4,K=5;M=3,N=4,K=5", *options)
    assert result.code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "report.json",
        "rows.csv",
        "speed_shapes_gemm.png",
        "speedup.png",
    ]
