"""Digests of the sections of an artifact, at the speed of memory and by several threads.

The digest of a section is the SHA-256 of the XXH64 sums of its parts, so it finds damage and no
malice, and parts can be summed in any order. Imports numpy and the native extension. Start reading
at :func:`digests`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tilewright.runtime import _native
from tilewright.support.processors import default_threads

PART = 1 << 20  # bytes of one sum
_JOB = 16 * PART  # what a thread does at a time
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def digests(sections: Sequence[memoryview]) -> list[str]:
    """The digest of each section, as 64 hexadecimal digits."""
    jobs = [section[at : at + _JOB] for section in sections for at in range(0, len(section), _JOB)]
    sums = in_threads(part_sums, jobs, sum(map(len, jobs)))
    found: list[str] = []
    position = 0
    for section in sections:
        following = position + -(-len(section) // _JOB)
        found.append(digest_of_sums(sums[position:following]))
        position = following
    return found


def digest_of_sums(sums: Iterable[bytes]) -> str:
    """The digest of a section from the sums of its parts, in their order."""
    return hashlib.sha256(b"".join(sums)).hexdigest()


def equal(first: memoryview, second: memoryview) -> bool:
    """Whether two sections have the same bytes."""
    return len(first) == len(second) and all(
        np.array_equal(
            np.frombuffer(first[at : at + PART], np.uint8),
            np.frombuffer(second[at : at + PART], np.uint8),
        )
        for at in range(0, len(first), PART)
    )


def in_threads(
    function: Callable[[_Item], _Made], items: Sequence[_Item], size: int
) -> list[_Made]:
    """What a function that holds no lock makes of every item; by threads where ``size`` is large.

    ``size`` is the number of bytes that all items have together.
    """
    threads = 1 if size < 2 * _JOB else min(default_threads(), len(items))
    if threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, "tilewright") as pool:
        return list(pool.map(function, items))


def part_sums(data: Any) -> bytes:
    """The sums of all parts of ``data``, of which the last may be shorter, one after the other."""
    return _native.part_checksums(data, PART)
