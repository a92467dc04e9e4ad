"""Writing an artifact: large constants while they are made, if wanted, and the rest at the end.

What the file holds and where depends on the contents alone, not on how it is written: large
constants come first, in the order in which the levels name them. Imports ``support``, numpy and the
rest of the package. Start reading at :func:`save_artifact`, :class:`ArtifactDraft`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.runtime.artifact import (
    FORMAT,
    HEADER,
    MAGIC,
    ArtifactContents,
    Bytes,
    Section,
    aligned,
    raw_bytes,
)
from tilewright.runtime.draft import Draft
from tilewright.runtime.info import (
    ArtifactInfo,
    level_info,
    specifications,
)
from tilewright.runtime.program import LEVELS
from tilewright.runtime.program_json import program_to_json
from tilewright.runtime.sections import digest_of_sums, digests, equal, part_sums
from tilewright.support.errors import ArtifactError
from tilewright.support.version import VERSION

LARGE = 1 << 20  # bytes from which on a constant is among the first sections


def save_artifact(path: str | os.PathLike[str], contents: ArtifactContents) -> None:
    """Write the file as a whole or not at all. Raises ArtifactError where it cannot be written."""
    with ArtifactDraft(path) as draft:
        draft.finish(contents)


def artifact_bytes(contents: ArtifactContents) -> np.ndarray[Any, Any]:
    """The bytes that the file of these contents has."""
    pieces = [*_Layout().pieces(contents)]
    out = np.zeros(max(offset + len(data) for offset, data in pieces), np.uint8)
    for offset, data in pieces:
        out[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return out


def describe(contents: ArtifactContents) -> ArtifactInfo:
    """The record that the contents have in a file."""
    return _Layout().filled(contents)


class ArtifactDraft:
    """An artifact that is begun before all of it is known; ``with`` removes it unless finished.

    Raises ArtifactError where the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._draft = Draft(path)
        self._layout = _Layout()

    def __enter__(self) -> ArtifactDraft:
        return self

    def __exit__(self, *_: object) -> None:
        self._draft.__exit__()

    def reserve(self, size: int) -> WrittenConstant:
        """Room for the next large constant, of at least ``LARGE`` bytes, in the order of use."""
        return WrittenConstant(self._draft, self._layout, self._layout.reserve(size))

    def finish(self, contents: ArtifactContents) -> None:
        """Write what is not yet in the file, which then takes its place."""
        size = 0
        for offset, data in self._layout.pieces(contents):
            self._draft.write(offset, data)
            size = max(size, offset + len(data))
        self._draft.take_place(size)


class WrittenConstant:
    """A constant that is written part by part, in any order and by any thread."""

    def __init__(self, draft: Draft, layout: _Layout, number: int) -> None:
        self._draft = draft
        self._layout = layout
        self._number = number
        self._sums: dict[int, bytes] = {}

    def write(self, begin: int, data: Any) -> None:
        """Write bytes that begin at a multiple of ``PART`` and end at one, or at the end."""
        self._sums[begin] = part_sums(data)
        self._draft.write(self._layout.sections[self._number].offset + begin, data)

    def finished(self, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The constant, all of which was written, mapped from the file.

        Contents that hold this very array have it in the file already.
        """
        section = self._layout.sections[self._number]
        content = self._draft.mapped(section.offset, section.size).view(dtype).reshape(shape)
        digest = digest_of_sums(sums for _, sums in sorted(self._sums.items()))
        self._layout.complete(self._number, digest, content)
        return content


class _Layout:
    """Which section lies where; equal contents of one kind become one section."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.data: dict[int, Bytes] = {}  # what is not in the file yet, by section
        self.levels: list[dict[str, Any]] = []
        self.end = HEADER.size
        self._numbers: dict[int, int] = {}  # of sections, by the identity of constants
        self._owners: list[Bytes] = []  # keep these identities
        self._found: dict[tuple[str, str], list[int]] = {}  # by kind and digest

    def reserve(self, size: int) -> int:
        """The number of a new section, whose digest is not known yet."""
        return self._append(Section("constant", aligned(self.end), size, ""))

    def complete(self, number: int, digest: str, content: Bytes) -> None:
        """The section was written; ``content`` stands for it from now on."""
        self.sections[number] = replace(self.sections[number], digest=digest)
        self._numbers[id(content)] = number
        self._owners.append(content)

    def pieces(self, contents: ArtifactContents) -> Iterator[tuple[int, bytes | memoryview]]:
        """What is not in the file yet, and where it belongs; the manifest ends the file."""
        info = self.filled(contents)
        manifest = {
            "info": info.to_json(),
            "levels": self.levels,
            "sections": [[s.kind, s.offset, s.size, s.digest] for s in self.sections],
        }
        text = _json(manifest)
        for number, data in self.data.items():
            yield self.sections[number].offset, raw_bytes(data)
        yield self.end, text
        size, digest = self.end + len(text), hashlib.sha256(text).digest()
        yield 0, HEADER.pack(MAGIC, FORMAT, HEADER.size, len(text), size, digest)

    def filled(self, contents: ArtifactContents) -> ArtifactInfo:
        """Give everything else its place; the record of all."""
        names = [level for level in LEVELS if level in contents.programs]
        if not names:
            raise ArtifactError("There is nothing to save: the contents have no level")
        self._place_constants([c for name in names for c in contents.constants[name]])
        self.levels = [self._level(name, contents) for name in names]
        return self._record(names, contents)

    def _append(self, section: Section) -> int:
        self.sections.append(section)
        self.end = section.offset + section.size
        return len(self.sections) - 1

    def _place_constants(self, constants: Sequence[Bytes]) -> None:
        """All that are not in the file, each read once; large ones first."""
        each = {id(data): data for data in constants if id(data) not in self._numbers}
        self._owners += each.values()
        found = digests([raw_bytes(data) for data in each.values()])
        placed = sorted(zip(each.values(), found, strict=True), key=_is_small)
        for data, digest in placed:
            self._numbers[id(data)] = self._add("constant", data, digest)

    def _add(self, kind: str, data: Bytes, digest: str | None = None) -> int:
        view = raw_bytes(data)
        digest = digest or digests([view])[0]
        known = self._found.setdefault((kind, digest), [])
        for number in known:
            if equal(raw_bytes(self.data[number]), view):
                return number
        known.append(self._append(Section(kind, aligned(self.end), len(view), digest)))
        self.data[known[-1]] = data
        return known[-1]

    def _level(self, level: str, contents: ArtifactContents) -> dict[str, Any]:
        image = contents.images[level]
        return {
            "program": self._add("program", _json(program_to_json(contents.programs[level]))),
            "image": self._add("image", _json(image.to_json())),
            "code": self._add("code", image.data),
            "constants": [self._numbers[id(c)] for c in contents.constants[level]],
        }

    def _record(self, names: Sequence[str], contents: ArtifactContents) -> ArtifactInfo:
        first, origin = contents.programs[names[0]], contents.origin
        return ArtifactInfo(
            format=FORMAT,
            version=VERSION,
            name=first.name,
            source=origin.source,
            source_sha256=origin.source_sha256,
            precision=origin.precision,
            accuracy=origin.accuracy,
            policy=origin.policy,
            plan=origin.plan,
            inputs=specifications(first, "input"),
            outputs=specifications(first, "output"),
            dimensions=tuple(first.dimensions),
            operators=tuple(first.operators),
            levels=tuple(
                level_info(
                    name,
                    contents.programs[name],
                    contents.images[name],
                    origin,
                    self._bytes(level["constants"]),
                )
                for name, level in zip(names, self.levels, strict=True)
            ),
            weight_bytes=self._bytes(n for e in self.levels for n in e["constants"]),
            ranges=dict(origin.ranges),
        )

    def _bytes(self, numbers: Iterable[int]) -> int:
        """What these sections take, each once."""
        return sum(self.sections[number].size for number in set(numbers))


def _is_small(placed: tuple[Bytes, str]) -> bool:
    return len(raw_bytes(placed[0])) < LARGE


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
