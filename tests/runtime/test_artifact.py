"""Artifacts: what is saved is what is loaded; damage of any kind is an ArtifactError."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.runtime_kit import LEVEL, buffers, chain_program, contents, image, kernel, program
from tilewright.runtime import _native, artifact, artifact_writer
from tilewright.runtime.artifact import (
    FORMAT,
    MAGIC,
    ArtifactContents,
    open_artifact,
)
from tilewright.runtime.artifact_writer import save_artifact
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import CodeImage
from tilewright.runtime.program_json import program_to_json
from tilewright.shape import symbol
from tilewright.support.errors import ArtifactError

WEIGHTS = np.arange(1000, dtype=np.float32)


def weighted() -> ArtifactContents:
    """y[n] = the first n weights + 1, of which two equal copies are stored."""
    n = symbol("n")
    rows = buffers(
        ("x", "float32", [n], "input"),
        ("w", "float32", [1000], "constant"),
        ("v", "float32", [1000], "constant"),
        ("y", "float32", [n], "output"),
    )
    what = program(rows, [kernel("add", [1], [3], n, [1])])
    return contents(what, [WEIGHTS, WEIGHTS.copy()])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.tw"
    save_artifact(path, weighted())
    return path


def check(compiled: CompiledModel) -> None:
    np.testing.assert_array_equal(compiled(np.zeros(5, np.float32)), WEIGHTS[:5] + 1)


def test_round_trip(saved: Path, tmp_path: Path) -> None:
    compiled = CompiledModel.load(saved)
    check(compiled)
    compiled.save(tmp_path / "again.tw")
    CompiledModel.from_contents(weighted()).save(tmp_path / "fresh.tw")
    assert (tmp_path / "again.tw").read_bytes() == saved.read_bytes()
    assert (tmp_path / "fresh.tw").read_bytes() == saved.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tw", "fresh.tw", "model.tw"]
    check(CompiledModel.load(saved, verify=False))


def test_a_file_has_the_usual_permissions_and_those_of_others_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        # It is the whole process's: another thread would make a file of its own meanwhile.
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")
            save_artifact(tmp_path / "model.tw", weighted())
    finally:
        os.umask(before)
    assert (tmp_path / "model.tw").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["model.tw"]


@pytest.mark.parametrize("name", ["", "none/model.tw", "a\0b"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        save_artifact(tmp_path / name, weighted())
    assert not [*tmp_path.iterdir()]


def test_replacing_the_file_of_a_loaded_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "READ_AS_A_WHOLE", 0)
    compiled = CompiledModel.load(saved)
    compiled.save(saved)
    check(compiled)
    check(CompiledModel.load(saved))


def change_in_place(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("way", ["weights", "longer", "shorter", "empty"])
def test_a_file_changed_in_place_is_noticed_by_the_next_call(
    saved: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "READ_AS_A_WHOLE", 0)
    compiled = CompiledModel.load(saved)
    check(compiled)
    data = saved.read_bytes()
    os.utime(saved, ns=(0, os.stat(saved).st_mtime_ns))  # reading it again is no change
    check(compiled)
    match way:
        case "weights":
            change_in_place(saved, data.index(WEIGHTS.tobytes()), b"\1")
            os.utime(saved, ns=(0, 1))  # the clock of files may be slower than this test
        case "longer":
            change_in_place(saved, len(data), b"\1")
        case "shorter":
            os.truncate(saved, len(data) - 1)
        case _:
            os.truncate(saved, 0)
    for attempt in (
        lambda: compiled(np.zeros(5, np.float32)),
        lambda: compiled.run({"x": np.zeros(5, np.float32)}),
        lambda: compiled.profile(np.zeros(5, np.float32)),
        lambda: compiled.save(saved.parent / "other.tw"),
    ):
        with pytest.raises(ArtifactError, match="was changed in place") as caught:
            attempt()
        assert str(saved) in str(caught.value) and "copy=True" in str(caught.value.hint)
    assert not (saved.parent / "other.tw").exists()


@pytest.mark.parametrize(("copy", "small"), [(True, 0), (False, 1 << 20)])
def test_a_copy_does_not_depend_on_the_file(
    saved: Path, copy: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does what was read into memory for its size."""
    monkeypatch.setattr(artifact, "READ_AS_A_WHOLE", small)
    compiled = CompiledModel.load(saved, copy=copy)
    data = saved.read_bytes()
    change_in_place(saved, data.index(WEIGHTS.tobytes()), b"\xff" * 64)
    check(compiled)
    os.truncate(saved, 0)
    check(compiled)
    saved.unlink()
    compiled.save(saved)
    assert saved.read_bytes() == data


def test_a_file_that_is_replaced_or_removed_is_no_change(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "READ_AS_A_WHOLE", 0)
    compiled = CompiledModel.load(saved)
    other = saved.with_suffix(".new")
    other.write_bytes(b"something else")
    os.replace(other, saved)
    check(compiled)
    saved.unlink()
    check(compiled)


def test_large_weights_are_checked_part_by_part(tmp_path: Path) -> None:
    """By several threads, wherever the damage is."""
    count = 10 << 20
    n = symbol("n")
    rows = buffers(
        ("x", "float32", [n], "input"),
        ("w", "float32", [count], "constant"),
        ("y", "float32", [n], "output"),
    )
    weights = np.arange(count, dtype=np.float32)
    path = tmp_path / "large.tw"
    save_artifact(path, contents(program(rows, [kernel("add", [1], [2], n, [1])]), [weights]))
    data = bytearray(path.read_bytes())
    begin = data.index(weights.tobytes())
    for at in (begin, begin + (17 << 20) + 3, begin + weights.nbytes - 1):
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match="does not match its digest"):
            CompiledModel.load(path)
        data[at] ^= 1
    path.write_bytes(data)
    CompiledModel.load(path)


def test_constants_of_equal_digests_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_writer, "digests", lambda sections: ["0" * 64 for _ in sections])
    base = weighted()
    other = ArtifactContents(base.programs, base.images, {LEVEL: [WEIGHTS, WEIGHTS + 1]})
    assert CompiledModel.from_contents(other).info.weight_bytes == 2 * WEIGHTS.nbytes
    assert CompiledModel.from_contents(base).info.weight_bytes == WEIGHTS.nbytes


def test_the_sums_are_those_of_xxh64() -> None:
    text = b"Nobody inspects the spammish repetition"
    assert _native.part_checksums(text, 1 << 20)[::-1].hex() == "fbcea83c8a378bf1"
    assert _native.part_checksums(b"", 1 << 20) == b""
    parts = _native.part_checksums(b"abcab", 3)
    assert parts[7::-1].hex() == "44bc2cf5ad770999" and len(parts) == 16


def test_constants_are_stored_once_and_used_in_place(saved: Path) -> None:
    assert saved.read_bytes().count(WEIGHTS.tobytes()) == 1
    (first, second) = open_artifact(saved).contents([LEVEL]).constants[LEVEL]
    assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    assert first.ctypes.data == second.ctypes.data and first.ctypes.data % 64 == 0


def test_levels_share_constants_and_the_best_is_taken(tmp_path: Path) -> None:
    base = weighted()
    other = CodeImage("avx512", ("no-such-feature",), b"\xc3", {"add": 0}, (), 1)
    both = ArtifactContents(
        {LEVEL: base.programs[LEVEL], "avx512": base.programs[LEVEL]},
        {LEVEL: image(), "avx512": other},
        {LEVEL: base.constants[LEVEL], "avx512": base.constants[LEVEL]},
    )
    save_artifact(tmp_path / "both.tw", both)
    assert (tmp_path / "both.tw").read_bytes().count(WEIGHTS.tobytes()) == 1
    loaded = CompiledModel.load(tmp_path / "both.tw")
    assert loaded.level == LEVEL
    check(loaded)
    check(CompiledModel.from_contents(both))
    only = ArtifactContents(
        {"avx512": base.programs[LEVEL]}, {"avx512": other}, {"avx512": base.constants[LEVEL]}
    )
    save_artifact(tmp_path / "only.tw", only)
    for attempt in (
        lambda: CompiledModel.load(tmp_path / "only.tw"),
        lambda: CompiledModel.from_contents(only),
    ):
        with pytest.raises(ArtifactError, match="This processor cannot run"):
            attempt()


def test_what_is_no_artifact(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data, words in [(b"", "empty"), (b"PK\3\4 and more", "not a tilewright"), (b"T", "not a")]:
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=words):
            CompiledModel.load(path)
    for place, words in [(tmp_path, "a folder, not a tilewright"), (tmp_path / "no", "no such")]:
        with pytest.raises(ArtifactError, match=words):
            CompiledModel.load(place)
    with pytest.raises(ArtifactError, match="cannot be written"):
        save_artifact(tmp_path / "no" / "folder.tw", weighted())


@pytest.mark.parametrize(("version", "way_out"), [(FORMAT + 1, "newer"), (1, "again")])
def test_another_format_is_refused_with_what_to_do(saved: Path, version: int, way_out: str) -> None:
    data = bytearray(saved.read_bytes())
    data[8:12] = struct.pack("<I", version)
    saved.write_bytes(data)
    with pytest.raises(ArtifactError, match=f"format {version}, .* reads format") as caught:
        CompiledModel.load(saved)
    assert way_out in str(caught.value.hint)


def test_damaged_constants(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[data.index(WEIGHTS.tobytes()) + 401] ^= 1
    saved.write_bytes(data)
    with pytest.raises(ArtifactError, match="does not match its digest"):
        CompiledModel.load(saved)
    CompiledModel.load(saved, verify=False)


def test_truncation(saved: Path) -> None:
    data = saved.read_bytes()
    for length in [*range(1, 200, 7), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            CompiledModel.load(saved)
    saved.write_bytes(data + b"\0")
    with pytest.raises(ArtifactError):
        CompiledModel.load(saved)


def small() -> ArtifactContents:
    return contents(chain_program(2, 0), [])


QUIET = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUIET
@given(st.data())
def test_any_damaged_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "small.tw"
    if not path.exists():
        save_artifact(path, small())
    good = path.read_bytes()
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(0, 80), st.integers(0, len(good) - 1)))
        damaged[place] = data.draw(st.integers(0, 255))
    other = tmp_path / "damaged.tw"
    other.write_bytes(damaged)
    x = np.ones((2, 3), np.float32)
    try:
        result = CompiledModel.load(other)(x)
    except ArtifactError:
        return
    # Only bytes between sections may differ without being noticed; they mean nothing.
    np.testing.assert_array_equal(result, CompiledModel.load(path)(x))


def rewrite(path: Path, change: Any) -> None:
    """Change the manifest and make its hash and sizes right again."""
    data = path.read_bytes()
    _, version, header, size, _, _ = struct.unpack("<8sIIQQ32s", data[:64])
    end = len(data) - size
    manifest = json.loads(data[end:])
    change(manifest)
    text = json.dumps(manifest).encode()
    head = struct.pack(
        "<8sIIQQ32s", MAGIC, version, header, len(text), end + len(text),
        hashlib.sha256(text).digest(),
    )  # fmt: skip
    path.write_bytes(head + data[64:end] + text)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([[[]]]),
    st.just(64),
)


@QUIET
@given(st.data())
def test_any_manifest_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "manifest.tw"
    save_artifact(path, small())

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for _ in range(data.draw(st.integers(0, 3))):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            inner = [k for k in keys if isinstance(place[k], (dict, list)) and place[k]]
            if not inner:
                break
            place = place[data.draw(st.sampled_from(inner))]
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        place[data.draw(st.sampled_from(keys))] = data.draw(JUNK)

    rewrite(path, change)
    with contextlib.suppress(ArtifactError):
        CompiledModel.load(path)(np.ones((2, 3), np.float32))


@QUIET
@given(st.data())
def test_any_program_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Numbers in the program that make no sense are refused when the model is made."""
    good = small()
    text = program_to_json(good.programs[LEVEL])
    place: Any = text
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [k for k in keys if isinstance(place[k], (dict, list)) and place[k]]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    place[data.draw(st.sampled_from(keys))] = data.draw(JUNK)

    path = tmp_path / "program.tw"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifact_writer, "program_to_json", lambda program: text)
        save_artifact(path, good)
    with contextlib.suppress(ArtifactError):
        CompiledModel.load(path)
