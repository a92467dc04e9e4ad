"""One file per compiled model: header, manifest, programs, code and constants.

Layout: 64 bytes of header (magic, format version, sizes, hash of the manifest), a JSON manifest,
then sections at multiples of 64 bytes. The manifest holds the record of ``info`` and lists each
section with its place, size and digest; equal sections are stored once. Constants are used in place
from the mapped file, which processes share; a change of the file is noticed by the next call. Small
files are read into memory instead. Equal contents give equal bytes. An artifact holds machine code
that is run as it is: load only files you trust; the digests protect against damage, not against
malice.
Imports ``support``, numpy and the rest of the package. Start reading at :func:`save_artifact`,
:func:`open_artifact`, :func:`read_info`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.info import (
    ArtifactInfo,
    MachineInfo,
    Origin,
    level_info,
    specifications,
)
from tilewright.runtime.levels import choose_level
from tilewright.runtime.program import LEVELS, CodeImage, Program
from tilewright.runtime.reading import integer
from tilewright.runtime.sections import digests, equal
from tilewright.support.errors import ArtifactError
from tilewright.support.files import ARTIFACT, require
from tilewright.support.files import ARTIFACT_MAGIC as MAGIC
from tilewright.support.version import VERSION

FORMAT = 3
ALIGNMENT = 64
# Magic, format, size of the header, size of the manifest, size of the file, hash of the manifest.
_HEADER = struct.Struct("<8sIIQQ32s")
_MANIFEST_LIMIT = 1 << 30
# Files up to this size are read into memory: asking before every call whether the file was changed
# would take a notable part of short calls, and there is little that processes could share.
READ_AS_A_WHOLE = 4 << 20

Bytes = np.ndarray[Any, Any] | bytes


@dataclass(frozen=True)
class ArtifactContents:
    """A compiled model: for each level a program, its code, and its constants by position."""

    programs: Mapping[str, Program]
    images: Mapping[str, CodeImage]
    constants: Mapping[str, Sequence[Bytes]]
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True)
class _Section:
    kind: str
    offset: int  # from the first byte after header and manifest, aligned
    size: int
    digest: str


@dataclass(frozen=True)
class _Level:
    """The numbers of the sections of a level."""

    program: int
    image: int
    code: int
    constants: tuple[int, ...]


def save_artifact(path: str | os.PathLike[str], contents: ArtifactContents) -> None:
    """Write the file as a whole or not at all. Raises ArtifactError where it cannot be written."""
    writer = _Writer(contents)
    manifest = {
        "info": writer.info.to_json(),
        "levels": writer.levels,
        "sections": [[s.kind, s.offset, s.size, s.digest] for s in writer.sections],
    }
    text = _json(manifest)
    start = _aligned(_HEADER.size + len(text))
    size = start + writer.end
    digest = hashlib.sha256(text).digest()
    header = _HEADER.pack(MAGIC, FORMAT, _HEADER.size, len(text), size, digest)
    chunks: list[tuple[int, Any]] = [(0, header), (_HEADER.size, text)]
    chunks += [
        (start + section.offset, raw_bytes(data))
        for section, data in zip(writer.sections, writer.data, strict=True)
    ]
    _write_atomically(Path(path), chunks, size)


def describe(contents: ArtifactContents) -> ArtifactInfo:
    """The record that the contents have in a file."""
    return _Writer(contents).info


def _write_atomically(path: Path, chunks: Sequence[tuple[int, Any]], size: int) -> None:
    """Replace the file by one with these bytes, for every process that opens it.

    It is not waited for the disk: what a loss of power leaves unwritten, the digests tell.
    """
    # Made by open and not by tempfile, so that it has the permissions of any other file.
    draft = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            try:
                for offset, data in chunks:
                    file.seek(offset)
                    file.write(data)
                file.truncate(size)
                file.flush()
                os.replace(draft, path)
            except BaseException:
                draft.unlink()
                raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ArtifactError(f"The file cannot be written: {why}", where=str(path)) from error


class _Writer:
    """Collects sections; equal contents of one kind become one section."""

    def __init__(self, contents: ArtifactContents) -> None:
        self.sections: list[_Section] = []
        self.data: list[Bytes] = []
        self.end = 0
        self.found: dict[tuple[str, str], list[int]] = {}
        names = [level for level in LEVELS if level in contents.programs]
        if not names:
            raise ArtifactError("There is nothing to save: the contents have no level")
        self.digests = _digests_of_constants([contents.constants[name] for name in names])
        self.levels = [self.level(name, contents) for name in names]
        self.info = self.describe(names, contents)

    def add(self, kind: str, data: Bytes) -> int:
        view = raw_bytes(data)
        digest = self.digests.get(id(data)) or digests([view])[0]
        known = self.found.setdefault((kind, digest), [])
        for number in known:
            if equal(raw_bytes(self.data[number]), view):
                return number
        offset = _aligned(self.end)
        known.append(len(self.sections))
        self.sections.append(_Section(kind, offset, len(view), digest))
        self.data.append(data)
        self.end = offset + len(view)
        return known[-1]

    def level(self, level: str, contents: ArtifactContents) -> dict[str, Any]:
        image = contents.images[level]
        return {
            "program": self.add("program", _json(contents.programs[level].to_json())),
            "image": self.add("image", _json(image.to_json())),
            "code": self.add("code", image.data),
            "constants": [self.add("constant", c) for c in contents.constants[level]],
        }

    def describe(self, names: Sequence[str], contents: ArtifactContents) -> ArtifactInfo:
        first, origin = contents.programs[names[0]], contents.origin
        return ArtifactInfo(
            format=FORMAT,
            version=VERSION,
            name=first.name,
            source=origin.source,
            source_sha256=origin.source_sha256,
            precision=origin.precision,
            accuracy=origin.accuracy,
            inputs=specifications(first, "input"),
            outputs=specifications(first, "output"),
            dimensions=tuple(first.dimensions),
            operators=tuple(first.operators),
            levels=tuple(
                level_info(
                    name,
                    contents.programs[name],
                    contents.images[name],
                    origin.machines.get(name, MachineInfo()),
                    self.weight_bytes(level["constants"]),
                )
                for name, level in zip(names, self.levels, strict=True)
            ),
            weight_bytes=self.weight_bytes(n for e in self.levels for n in e["constants"]),
            ranges=dict(origin.ranges),
        )

    def weight_bytes(self, numbers: Iterable[int]) -> int:
        """What these sections take, each once."""
        return sum(self.sections[number].size for number in set(numbers))


def _digests_of_constants(levels: Sequence[Sequence[Bytes]]) -> dict[int, str]:
    """The digest of each constant by its identity; those of several levels are read once."""
    each = {id(data): data for constants in levels for data in constants}
    return dict(zip(each, digests([raw_bytes(data) for data in each.values()]), strict=True))


def raw_bytes(data: Bytes) -> memoryview:
    """The contents of a constant in row-major order, one byte per item."""
    if isinstance(data, bytes):
        return memoryview(data)
    array = np.ascontiguousarray(data).reshape(-1)
    return memoryview(cast("Any", array.view(np.uint8)))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


class Artifact:
    """An opened artifact: its manifest, checked, and its sections, read when asked for."""

    def __init__(
        self, path: Path, content: np.ndarray[Any, Any], watch: _native.FileWatch | None, *,
        verify: bool,
    ) -> None:  # fmt: skip
        self.path = path
        self.bytes = content
        self.watch = watch
        self.verify = verify
        manifest, self.start = self._read_manifest()
        try:
            self.info = ArtifactInfo.from_json(manifest["info"])
            self.sections = self._read_sections(manifest["sections"])
            names = [level.name for level in self.info.levels]
            self.levels = dict(zip(names, map(_level, manifest["levels"]), strict=True))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(f"its manifest is malformed ({error!r})") from error

    def _damaged(self, why: str) -> ArtifactError:
        return ArtifactError(
            f"The artifact is damaged: {why}",
            where=str(self.path),
            hint="Copy the file again, or compile the model again",
        )

    def _read_manifest(self) -> tuple[dict[str, Any], int]:
        total = len(self.bytes)
        head = bytes(self.bytes[: _HEADER.size])
        if len(head) < len(MAGIC) or head[: len(MAGIC)] != MAGIC:
            raise ArtifactError("The file is not a tilewright artifact", where=str(self.path))
        if len(head) < _HEADER.size:
            raise self._damaged("it is truncated")
        _, version, header_size, manifest_size, file_size, digest = _HEADER.unpack(head)
        if version != FORMAT:
            reads = f"this version of tilewright reads format {FORMAT}"
            newer = "Install a newer tilewright, or compile the model again with this one"
            older = "Compile the model again with this version"
            raise ArtifactError(
                f"The artifact has format {version}, {reads}",
                where=str(self.path),
                hint=newer if version > FORMAT else older,
            )
        if header_size != _HEADER.size:
            raise self._damaged("its header is malformed")
        if file_size != total:
            raise self._damaged(f"it should have {file_size} bytes, but has {total}")
        if manifest_size > min(total - _HEADER.size, _MANIFEST_LIMIT):
            raise self._damaged("its manifest is longer than the file")
        text = bytes(self.bytes[_HEADER.size : _HEADER.size + manifest_size])
        if hashlib.sha256(text).digest() != digest:
            raise self._damaged("its manifest does not match its hash")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged("its manifest is malformed") from error
        if not isinstance(manifest, dict):
            raise self._damaged("its manifest is malformed")
        return cast("dict[str, Any]", manifest), _aligned(_HEADER.size + manifest_size)

    def _read_sections(self, rows: Any) -> list[_Section]:
        room = len(self.bytes) - self.start
        sections: list[_Section] = []
        for kind, offset, size, digest in rows:
            inside = isinstance(offset, int) and isinstance(size, int) and offset >= 0 and size >= 0
            if not inside or offset % ALIGNMENT or offset + size > max(room, 0):
                raise ValueError(f"a section of {size} bytes at {offset}")
            sections.append(_Section(str(kind), offset, size, str(digest)))
        return sections

    def _section(self, number: int, kind: str) -> np.ndarray[Any, Any]:
        if not 0 <= number < len(self.sections):
            raise ValueError(f"no section {number!r}")
        section = self.sections[number]
        if section.kind != kind:
            raise ValueError(f"section {number} is {section.kind}, not {kind}")
        begin = self.start + section.offset
        return self.bytes[begin : begin + section.size]

    def _checked(self, numbers: Sequence[int], kind: str) -> list[np.ndarray[Any, Any]]:
        """These sections, each compared with its digest once."""
        data = {number: self._section(number, kind) for number in numbers}
        found = digests([memoryview(cast("Any", section)) for section in data.values()])
        for number, digest in zip(data, found, strict=True):
            if digest != self.sections[number].digest:
                raise self._damaged(f"section {number} ({kind}) does not match its digest")
        return [data[number] for number in numbers]

    def choose_level(self, processor: Sequence[str], wanted: str | None = None) -> str:
        """The level that is ``wanted``, or the best that a processor with such features runs."""
        features = {level.name: level.features for level in self.info.levels}
        return choose_level(features, processor, wanted, where=str(self.path))

    def contents(self, levels: Sequence[str]) -> ArtifactContents:
        """These levels. Raises ArtifactError for damaged sections."""
        programs: dict[str, Program] = {}
        images: dict[str, CodeImage] = {}
        entries = {level: self.levels[level] for level in levels}
        try:
            # Weights are checked while programs are read.
            with ThreadPoolExecutor(1) as pool:
                waiting = {name: pool.submit(self._constants, e) for name, e in entries.items()}
                for level, entry in entries.items():
                    (program,) = self._checked([entry.program], "program")
                    (table,) = self._checked([entry.image], "image")
                    (code,) = self._checked([entry.code], "code")
                    programs[level] = Program.from_json(json.loads(bytes(program)))
                    images[level] = CodeImage.from_json(json.loads(bytes(table)), bytes(code))
                constants = {level: found.result() for level, found in waiting.items()}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(f"a section is malformed ({error!r})") from error
        return ArtifactContents(programs, images, constants)

    def _constants(self, level: _Level) -> list[np.ndarray[Any, Any]]:
        if self.verify:
            return self._checked(level.constants, "constant")
        return [self._section(number, "constant") for number in level.constants]

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write the same bytes to another file, as a whole or not at all."""
        if self.watch is not None:
            self.watch.check()
        _write_atomically(Path(path), [(0, self.bytes)], len(self.bytes))


def _level(entry: Any) -> _Level:
    constants = tuple(integer(number) for number in entry["constants"])
    return _Level(
        integer(entry["program"]), integer(entry["image"]), integer(entry["code"]), constants
    )


def read_info(path: str | os.PathLike[str]) -> ArtifactInfo:
    """What an artifact is, from its header and manifest alone. Raises ArtifactError."""
    return open_artifact(path).info


def open_artifact(
    path: str | os.PathLike[str], *, verify: bool = True, copy: bool = False
) -> Artifact:
    """Map an artifact and check its manifest; sections are checked when they are read.

    ``verify=False`` skips the digests of constants only, so that opening takes no time. ``copy``
    reads the file into memory instead, for one that may change, as is done with small ones anyway.
    Raises ArtifactError for what is no artifact, is damaged or comes from another version.
    """
    place = Path(path)
    require(place, ARTIFACT, error=ArtifactError)
    try:
        with place.open("rb") as file:
            if copy or os.fstat(file.fileno()).st_size <= READ_AS_A_WHOLE:
                return Artifact(place, _copied(file), None, verify=verify)
            watch = _native.FileWatch(file.fileno(), str(place))
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"The file cannot be read: {error}", where=str(place)) from error
    content = np.frombuffer(cast("Any", mapping), np.uint8)
    return Artifact(place, content, watch, verify=verify)


def _copied(file: BufferedReader) -> np.ndarray[Any, Any]:
    """The contents of a file in aligned memory; what it has lost meanwhile is missing."""
    content = aligned_memory(os.fstat(file.fileno()).st_size)
    return content[: file.readinto(memoryview(cast("Any", content)))]


def aligned_memory(size: int) -> np.ndarray[Any, Any]:
    """Bytes of memory that begin where kernels want constants to begin."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    offset = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[offset : offset + size]
