"""Slow tests take turns with what others try all of, such as levels of instruction sets.

Which turn a test has follows from its name, so that it is the same however the test is run.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")
_turn: list[int] = []  # of the test that runs, if it takes turns


def begin(name: str, takes_turns: bool) -> None:
    """A test begins: it gets all values that :func:`taken` is asked for, or takes turns."""
    _turn[:] = [zlib.crc32(name.encode())] if takes_turns else []


def taken(values: Sequence[_T]) -> tuple[_T, ...]:
    """Of the values, those that the test that runs has to try: all, or the one whose turn it is.

    The next time that the test asks, it is the turn of the next value.
    """
    if not _turn:
        return tuple(values)
    _turn[0] += 1
    return (values[_turn[0] % len(values)],)
