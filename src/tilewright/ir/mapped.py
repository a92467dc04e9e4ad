"""Weights that stay in their file: mapped into memory, read where they are used, given back.

A mapped array looks like any other. Its pages count as memory of the process once they were read,
so whoever has copied what it wants calls :func:`release`. Imports numpy. Start with
:func:`map_file`.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, cast

import numpy as np

Array = np.ndarray[Any, Any]


def map_file(path: Path) -> Array:
    """The bytes of a file, which are read as they are used. Raises OSError."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.empty(0, np.uint8)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(cast("Any", mapping), np.uint8)


def is_mapped(array: Array) -> bool:
    """Whether the array lies in a file."""
    return _mapping(array) is not None


def release(array: Array) -> None:
    """Give back the memory of what was read of a mapped array; it can be read again.

    Where a mapping may be written to, as one of the user's own, nothing is given back: what was
    written to a private one is in memory only.
    """
    mapping = _mapping(array)
    if mapping is None or not array.nbytes or not memoryview(mapping).readonly:
        return
    begin = array.__array_interface__["data"][0] - _base(mapping)
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    first = (begin + sum(min(step, 0) for step in steps)) // mmap.PAGESIZE * mmap.PAGESIZE
    end = begin + sum(max(step, 0) for step in steps) + array.itemsize
    mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


def _base(mapping: mmap.mmap) -> int:
    return np.frombuffer(cast("Any", mapping), np.uint8).__array_interface__["data"][0]


def _mapping(array: Array) -> mmap.mmap | None:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = cast("Any", owner).base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
