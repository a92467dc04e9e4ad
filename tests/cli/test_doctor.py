from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.target import detect
from tilewright.tune.peak import Peak

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_target_is_shown(command: Command, folder: Path) -> None:
    result = command("doctor", "--no-measure")
    assert result.code == 0
    target = detect()
    assert f"Target: {target.name}" in result.out
    assert all(level.name in result.out for level in target.levels)
    assert "f32, published\n" in result.out, "nothing is measured"
    assert str(folder) in result.out.replace("\n", "")
    assert not folder.exists()


def test_what_is_measured_stands_beside(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = Peak("avx2", 123e9, 17e9, (("L1", 211e9), ("L2", 97e9)))
    monkeypatch.setattr("tilewright.cli.doctor.measure_peak", lambda: peak)
    shown = command("doctor").out
    assert "123 measured" in shown and "211 GB/s" in shown and "17 GB/s" in shown
    found = command("doctor", "--json").json
    assert found["cache_bytes_per_second_per_core"] == {"L1": 211e9, "L2": 97e9}
    assert found["target"]["units"] == detect().units
    assert "candidates" not in found


@pytest.mark.slow
def test_candidates(command: Command) -> None:
    shown = command("doctor", "--no-measure", "--candidates").out
    assert all(f"Level {number}: " in shown for number in range(3))
    found = command("doctor", "--no-measure", "--candidates", "--json").json["candidates"]
    assert len(found) == 3 and all(found)
    assert found[1][0]["children"]
