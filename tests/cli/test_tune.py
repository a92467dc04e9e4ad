from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.backend.cpu.machine import host_level
from tilewright.backend.cpu.register_tile import TileShape
from tilewright.ir.dtype import DType
from tilewright.target.loop_costs import WIDE
from tilewright.tune import (
    InterruptedTuning,
    LevelReads,
    MeasuredLoops,
    MeasuredStreams,
    Profile,
    TileTiming,
    save_profile,
)

Command = Callable[..., Any]
READS = (LevelReads("L1", 5e11, 9e11, 0.02),)
LOOPS = MeasuredLoops(WIDE, (("enter", 0.33),))
STREAMS = MeasuredStreams(16, 3.1e10)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but tiles has its figures at once."""
    monkeypatch.setattr("tilewright.cli.tune.measure_reads", lambda target: READS)
    monkeypatch.setattr("tilewright.cli.tune.measure_loop_costs", lambda *_: LOOPS)
    monkeypatch.setattr("tilewright.cli.tune.measure_streams", lambda target: STREAMS)


@pytest.mark.parametrize("verb", ["tune", "cache"])
def test_help_has_an_example(command: Command, verb: str) -> None:
    result = command(verb, "--help")
    assert result.code == 0
    assert f"Example: tilewright {verb}" in " ".join(result.out.split())
    assert "--json" in result.out


@pytest.mark.usefixtures("_measured")
def test_tune_keeps_what_it_measured(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []
    shape = TileShape(DType.FLOAT32, 6, 2, 1, 16)
    monkeypatch.setattr("tilewright.cli.tune.standard_shapes", lambda *_: (shape,))

    def measure(level: Any, shapes: Any, target: Any, seconds: float) -> Profile:
        measured.append(seconds)
        timing = TileTiming("tile", 6, 16, True, False, 2.0, 3.0, 4.0)
        return Profile(level.name, 3.0, tuple(replace(timing, name=s.name) for s in shapes))

    monkeypatch.setattr("tilewright.cli.tune.measure_profile", measure)
    assert command("cache", "--json").json["files"] == []
    result = command("tune", "--seconds", "0.5")
    assert result.code == 0
    assert "6 x 16" in result.out and "6.00" in result.out and "12.00" in result.out
    assert command("tune", "--json").json["tiles"][0]["step_ns"] == 2.0
    assert command("tune", "--json").json["reads"][0]["together"] == 9e11
    assert command("tune", "--json").json["loops"]["enter"] == WIDE.enter
    assert "900" in result.out and "16 rows at a time" in result.out and "31 GB/s" in result.out
    assert "33.0%" in result.out and "loops: enter" in result.out
    assert "1 entry by more than 10%" in result.out
    assert measured == [0.5]
    command("tune", "--again")
    assert len(measured) == 2
    another = replace(shape, height=5)
    monkeypatch.setattr("tilewright.cli.tune.standard_shapes", lambda *_: (shape, another))
    command("tune")
    assert len(measured) == 3, "a shape was not measured yet"
    found = command("cache", "--json").json
    (kept,) = found["files"]
    assert found["directory"] == str(folder) and found["bytes"] == kept["bytes"] > 0
    assert kept["name"] in command("cache").out
    assert "Removed 1 file" in command("cache", "--clear").out
    assert not folder.exists()


@pytest.mark.usefixtures("_measured")
def test_an_interrupted_tune_keeps_what_it_has(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = tuple(TileShape(DType.FLOAT32, height, 2, 1, 16) for height in (4, 5, 6))
    monkeypatch.setattr("tilewright.cli.tune.standard_shapes", lambda *_: shapes)
    asked: list[list[str]] = []

    def measure(level: Any, wanted: Any, target: Any, seconds: float) -> Profile:
        asked.append([shape.name for shape in wanted])
        timing = TileTiming("tile", 6, 16, True, False, 2.0, 3.0, 4.0)
        done = wanted[:2] if len(asked) == 1 else wanted
        profile = Profile(level.name, 3.0, tuple(replace(timing, name=s.name) for s in done))
        if len(asked) == 1:
            raise InterruptedTuning(profile)
        return profile

    monkeypatch.setattr("tilewright.cli.tune.measure_profile", measure)
    result = command("tune")
    assert result.code == 130
    assert "Interrupted: what was measured is kept" in result.err
    assert "Traceback" not in result.err
    assert len(command("tune", "--json").json["tiles"]) == 3
    assert asked[1] == [shapes[2].name], "the other two were kept"


def test_doctor_says_how_sure_the_measurements_are(command: Command) -> None:
    assert command("doctor", "--no-measure", "--json").json["measured_spreads"] is None
    timing = TileTiming("tile", 6, 16, True, False, 2.0, 3.0, 4.0, 0.04)
    loops = (("enter", 0.33), ("load", 0.01))
    save_profile(
        Profile(
            host_level().name, 3.0, (timing,), READS, WIDE, clock_spread=0.007, loop_spreads=loops
        )
    )
    result = command("doctor", "--no-measure")
    for text in ("0.7%", "4.0%", "2.0%", "33.0%", "loops: enter", "1 entry by more than 10%"):
        assert text in result.out
    found = command("doctor", "--no-measure", "--json").json["measured_spreads"]
    assert found["tile tile"] == 0.04 and found["loops: load"] == 0.01
