"""A draft takes its place as a whole, or leaves no trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.draft import Draft
from tilewright.support.errors import ArtifactError


def test_it_takes_its_place_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with Draft(path) as draft:
        draft.write(70_000, np.arange(4, dtype=np.uint8))
        draft.write(3, b"three")
        held = draft.mapped(70_001, 3)
        assert path.read_bytes() == b"before" and len([*tmp_path.iterdir()]) == 2
        draft.take_place(70_004)
        assert path.read_bytes() == b"\0\0\0three" + bytes(69_992) + b"\0\1\2\3"
    assert [*tmp_path.iterdir()] == [path]
    path.unlink()
    assert held.tolist() == [1, 2, 3] and not draft.mapped(0, 0).size


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(path)
    link.symlink_to(path)
    for place in (path, link):
        with pytest.raises(ArtifactError, match="a device or a pipe"):
            Draft(place)
    assert path.is_fifo() and link.is_symlink() and len([*tmp_path.iterdir()]) == 2


def test_names_as_long_as_they_may_be_and_longer(tmp_path: Path) -> None:
    path = tmp_path / f"{'n' * 252}.tw"
    with Draft(path) as draft:
        draft.take_place(0)
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(ArtifactError, match=r"too long\n[^@]*try: Choose a shorter name"):
        Draft(tmp_path / ("n" * 300))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, OSError])
def test_what_is_not_finished_is_removed(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(kind), Draft(path) as draft:
        draft.write(0, b"after")
        raise kind
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"before"


def test_a_disk_that_takes_little_at_a_time_and_is_full_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.pwrite, 25

    def little(file: int, data: Any, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = min(room, 10, len(data))
        room -= count
        return write(file, data[:count], offset)

    monkeypatch.setattr(os, "pwrite", little)
    text = b"the bytes of a file to be"
    with Draft(tmp_path / "file") as draft:
        draft.write(0, text)
        with pytest.raises(ArtifactError, match="cannot be written: No space left") as caught:
            draft.write(len(text), b"!")
        assert caught.value.hint is not None and "Make room" in caught.value.hint
        assert caught.value.where == str(tmp_path / "file")
        draft.take_place(len(text))
    assert (tmp_path / "file").read_bytes() == text


@pytest.mark.parametrize("name", ["", "none/file", "a\0b"])
def test_a_place_that_cannot_be_taken(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"), Draft(tmp_path / name) as draft:
        draft.take_place(0)
    assert not [*tmp_path.iterdir()]
