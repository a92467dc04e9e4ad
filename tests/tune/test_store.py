from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.support.cache import cache_directory, cached_files, clear
from tilewright.support.errors import ResourceError
from tilewright.target.loop_costs import NARROW
from tilewright.tune import LevelReads, MeasuredStreams, Profile, TileTiming, fingerprint
from tilewright.tune import load_profile as load
from tilewright.tune import save_profile as save
from tilewright.tune.store import load_kernel_times, profile_path, save_kernel_times

PROFILE = Profile(
    "avx2",
    3.5,
    (TileTiming("tile", 6, 16, False, False, 1.75, 3.0, 2.0, 0.01),),
    (LevelReads("L1", 4e11, 8e11, 0.02),),
    NARROW,
    clock_spread=0.03,
    loop_spreads=(("enter", 0.2),),
    streams=MeasuredStreams(16, 3e10, 0.0, 0.1),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_round_trip(folder: Path) -> None:
    assert load("avx2") is None
    assert not folder.exists(), "looking writes nothing"
    path = save(PROFILE)
    assert path.parent == folder and list(folder.iterdir()) == [path]
    assert load("avx2") == PROFILE
    assert load("avx512") is None
    faster = replace(PROFILE, clock_ghz=4.0)
    assert save(faster) == path
    assert load("avx2") == faster


def test_clear(folder: Path) -> None:
    assert clear() == (0, {})
    save(PROFILE)
    save(replace(PROFILE, level="avx512"))
    assert len(cached_files()) == 2
    assert clear() == (2, {})
    assert not folder.exists()
    save(PROFILE)
    (folder / "mine.txt").write_text("kept")
    assert clear() == (1, {})
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"format": 1}', '{"format": 99}'])
def test_damaged_files_are_not_there(damage: str) -> None:
    save(PROFILE)
    profile_path("avx2").write_text(damage)
    assert load("avx2") is None


@pytest.mark.parametrize("value", [0, -1, "fast", None])
def test_senseless_times_are_not_there(value: object) -> None:
    save(PROFILE)
    path = profile_path("avx2")
    content = json.loads(path.read_text())
    content["profile"]["tiles"][0]["step_ns"] = value
    path.write_text(json.dumps(content))
    assert load("avx2") is None


def test_spreads_are_kept_and_none_is_negative() -> None:
    save(PROFILE)
    kept = load("avx2")
    assert kept is not None
    wanted = {"clock": 0.03, "tile tile": 0.01, "reads of L1": 0.02, "loops: enter": 0.2}
    wanted |= {"streams: followed": 0.0, "streams: written": 0.1}
    assert dict(kept.spreads()) == wanted
    path = profile_path("avx2")
    content = json.loads(path.read_text())
    content["profile"]["clock_spread"] = -0.1
    path.write_text(json.dumps(content))
    assert load("avx2") is None


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="TILEWRIGHT_CACHE_DIR"):
        save(PROFILE)


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tilewright"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home/.cache/tilewright"

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_directory() == Path(tempfile.gettempdir()) / f"tilewright-{os.geteuid()}"


def test_the_fingerprint_depends_on_the_machine() -> None:
    here = fingerprint()
    assert here == fingerprint() and here.digest == fingerprint().digest
    others = [
        replace(here, processor="another"),
        replace(here, features=("avx",)),
        replace(here, caches=("L1 Data 1",)),
        replace(here, version="9"),
    ]
    assert len({here.digest, *(other.digest for other in others)}) == 5


def test_times_of_kernels_stay_as_they_were_first(folder: Path) -> None:
    assert load_kernel_times("avx2") == {}
    path = save_kernel_times("avx2", {"one": 5, "two": 7})
    assert path.parent == folder and path in cached_files()
    save_kernel_times("avx2", {"two": 8, "three": 9})
    assert load_kernel_times("avx2") == {"one": 5, "two": 7, "three": 9}
    assert load_kernel_times("avx512") == {}
    for damage in ("", "[]", '{"format": 1}', '{"format": 1, "picoseconds": {"one": -1}}'):
        path.write_text(damage)
        assert load_kernel_times("avx2") == {}
