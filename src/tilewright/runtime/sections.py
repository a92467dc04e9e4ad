"""Digests of the sections of an artifact, at the speed of memory and by several threads.

The digest of a section is the SHA-256 of the XXH64 sums of its parts, so it finds damage and no
malice. Imports numpy and the native extension. Start reading at :func:`digests`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tilewright.runtime import _native
from tilewright.support.processors import default_threads

_PART = 1 << 20  # bytes of one sum
_JOB = 16 * _PART  # what a thread does at a time
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def digests(sections: Sequence[memoryview]) -> list[str]:
    """The digest of each section, as 64 hexadecimal digits."""
    jobs = [section[at : at + _JOB] for section in sections for at in range(0, len(section), _JOB)]
    sums = in_threads(_sums, jobs, sum(map(len, jobs)))
    found: list[str] = []
    position = 0
    for section in sections:
        following = position + -(-len(section) // _JOB)
        found.append(hashlib.sha256(b"".join(sums[position:following])).hexdigest())
        position = following
    return found


def equal(first: memoryview, second: memoryview) -> bool:
    """Whether two sections have the same bytes."""
    return len(first) == len(second) and all(
        np.array_equal(
            np.frombuffer(first[at : at + _PART], np.uint8),
            np.frombuffer(second[at : at + _PART], np.uint8),
        )
        for at in range(0, len(first), _PART)
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


def _sums(data: Any) -> bytes:
    return _native.part_checksums(data, _PART)
