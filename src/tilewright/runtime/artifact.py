"""One file per compiled model: header, constants, programs, code and manifest.

Layout: 64 bytes of header (magic, format version, sizes, hash of the manifest), sections at
multiples of 64 bytes, of which large constants are the first, and at the end a JSON manifest: what
comes last can be written when all else is known. It holds the record of ``info`` and lists each
section with its place, size and digest. Constants are used in place from the mapped file, which
processes share; a change of the file is noticed by the next call. Small files are read into memory
instead. An artifact holds machine code that is run as it is: load only files you trust; the digests
protect against damage, not against malice. ``artifact_writer`` writes such files.
Imports ``support``, numpy and the rest of the package. Start reading at :func:`open_artifact`,
:func:`read_info`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.draft import Draft
from tilewright.runtime.info import ArtifactInfo, Origin
from tilewright.runtime.levels import choose_level
from tilewright.runtime.program import CodeImage, Program
from tilewright.runtime.program_json import program_from_json
from tilewright.runtime.reading import REPAIR, integer
from tilewright.runtime.sections import digests
from tilewright.support.errors import ArtifactError
from tilewright.support.files import ARTIFACT, require
from tilewright.support.files import ARTIFACT_MAGIC as MAGIC

FORMAT = 8  # of artifacts, of which this version reads no other
ALIGNMENT = 64  # bytes, of sections: kernels read constants where a file is mapped
# Magic, format, size of the header, size of the manifest, size of the file, hash of the manifest.
HEADER = struct.Struct("<8sIIQQ32s")
_MANIFEST_LIMIT = 1 << 30  # bytes: a damaged header may ask for any number of them
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
class Section:
    """Where a piece of an artifact lies in its file, at a multiple of ``ALIGNMENT``."""

    kind: str
    offset: int
    size: int
    digest: str


@dataclass(frozen=True)
class _Level:
    """The numbers of the sections of a level."""

    program: int
    image: int
    code: int
    constants: tuple[int, ...]


def raw_bytes(data: Bytes) -> memoryview:
    """The contents of a constant in row-major order, one byte per item."""
    if isinstance(data, bytes):
        return memoryview(data)
    array = np.ascontiguousarray(data).reshape(-1)
    return memoryview(cast("Any", array.view(np.uint8)))


def aligned(offset: int) -> int:
    """The first multiple of ``ALIGNMENT`` from ``offset`` on."""
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
        manifest, self.end = self._read_manifest()
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
            hint=REPAIR,
        )

    def _read_manifest(self) -> tuple[dict[str, Any], int]:
        """The manifest, and where it begins, which is where sections end."""
        total = len(self.bytes)
        head = bytes(self.bytes[: HEADER.size])
        if len(head) < len(MAGIC) or head[: len(MAGIC)] != MAGIC:
            raise ArtifactError(
                "The file is not a tilewright artifact",
                where=str(self.path),
                hint="Give the file that tilewright compile has made of a model",
            )
        if len(head) < HEADER.size:
            raise self._damaged("it is truncated")
        _, version, header_size, manifest_size, file_size, digest = HEADER.unpack(head)
        if version != FORMAT:
            reads = f"this version of tilewright reads format {FORMAT}"
            newer = "Install a newer tilewright, or compile the model again with this one"
            older = "Compile the model again with this version"
            raise ArtifactError(
                f"The artifact has format {version}, {reads}",
                where=str(self.path),
                hint=newer if version > FORMAT else older,
            )
        if header_size != HEADER.size:
            raise self._damaged("its header is malformed")
        if file_size != total:
            raise self._damaged(f"it should have {file_size} bytes, but has {total}")
        if manifest_size > min(total - HEADER.size, _MANIFEST_LIMIT):
            raise self._damaged("its manifest is longer than the file")
        begin = total - manifest_size
        text = bytes(self.bytes[begin:])
        if hashlib.sha256(text).digest() != digest:
            raise self._damaged("its manifest does not match its hash")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged("its manifest is malformed") from error
        if not isinstance(manifest, dict):
            raise self._damaged("its manifest is malformed")
        return cast("dict[str, Any]", manifest), begin

    def _read_sections(self, rows: Any) -> list[Section]:
        sections: list[Section] = []
        for kind, offset, size, digest in rows:
            whole = isinstance(offset, int) and isinstance(size, int) and size >= 0
            if not whole or offset % ALIGNMENT or not HEADER.size <= offset <= self.end - size:
                raise ValueError(f"a section of {size} bytes at {offset}")
            sections.append(Section(str(kind), offset, size, str(digest)))
        return sections

    def _section(self, number: int, kind: str) -> np.ndarray[Any, Any]:
        if not 0 <= number < len(self.sections):
            raise ValueError(f"no section {number!r}")
        section = self.sections[number]
        if section.kind != kind:
            raise ValueError(f"section {number} is {section.kind}, not {kind}")
        return self.bytes[section.offset : section.offset + section.size]

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
                    programs[level] = program_from_json(json.loads(bytes(program)))
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
        with Draft(path) as draft:
            draft.write(0, self.bytes)
            draft.take_place(len(self.bytes))


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
