"""Compiled code in the cache directory stays within its limit; what was used last stays longest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.support.cache import (
    LIMIT_VARIABLE,
    cache_limit,
    cached_files,
    read_cached,
    write_cached,
)
from tilewright.support.errors import InputError

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, name: str, age: int) -> Path:
    path = folder / f"kernel-{name}.code"
    write_cached(path, name.encode() * 1000)
    os.utime(path, (1_000_000 - age, 1_000_000 - age))
    return path


def test_what_was_not_used_for_longest_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "4k")
    old, older, oldest = (write(folder, name, age) for name, age in (("a", 1), ("b", 2), ("c", 3)))
    profile = folder / "profile-avx2.json"
    profile.write_text("{}")
    os.utime(profile, (0, 0))
    assert read_cached(oldest) == b"c" * 1000, "used now"
    new = write(folder, "d", 0)
    assert set(cached_files()) == {profile, old, oldest, new}
    assert read_cached(older) is None


def test_a_file_larger_than_the_limit_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    assert not write_free(folder).exists()


def write_free(folder: Path) -> Path:
    path = folder / "shared-x.code"
    write_cached(path, b"x")
    return path


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 1 << 30), ("0", 0), ("512M", 512 << 20), ("2 GiB", 2 << 30), ("10kb", 10 << 10)],
)
def test_sizes_of_the_limit(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    assert cache_limit() == size


def test_what_is_no_size_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(InputError, match="'much' is not a size"):
        cache_limit()
    assert LIMIT_VARIABLE in command("cache").err


def test_cache_says_what_its_limit_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "3M")
    assert command("cache", "--json").json["limit"] == 3 << 20
    assert "at most 3.00 MiB" in command("cache").out


def test_clearing_goes_on_after_what_cannot_be_removed(folder: Path, command: Command) -> None:
    files = [write(folder, name, 0) for name in "abc"]
    files[0].unlink()
    files[0].mkdir()
    result = command("cache", "--clear", "--json")
    assert result.code == 1 and not files[1].exists() and not files[2].exists()
    message = result.json["error"]["message"]
    assert message.startswith("Removed 2 files, but 1 cannot be removed: kernel-a.code (")
