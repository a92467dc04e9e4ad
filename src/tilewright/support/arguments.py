"""Checks of what users pass as arguments: each gives the value, or an error that says what to pass.

Numbers may be of any type that can stand for an index, numpy's included; truth values are none.
Start with :func:`whole_number`. Imports the errors only.
"""

from __future__ import annotations

import operator
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

from tilewright.support.errors import InputError, TilewrightError, UnsupportedError
from tilewright.support.text import article

LARGEST = (1 << 63) - 1  # the largest number that compiled code holds
MOST_THREADS = (1 << 31) - 1
_BYTES = re.compile(r"([0-9]{1,19})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def show(value: object) -> str:
    """A value in a message: short, whatever it is."""
    try:
        return reprlib.repr(value)
    except Exception:  # a foreign type may fail in any way when it is printed
        return article(type(value).__name__)


def as_integer(value: object) -> int | None:
    """The integer that a value is, or None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(cast("Any", value))
    except Exception:  # a foreign type may fail in any way
        return None


def whole_number(
    name: str,
    value: object,
    least: int,
    error: type[TilewrightError] = InputError,
    most: int = LARGEST,
) -> int:
    """The value of an argument that is a whole number from ``least`` to ``most``."""
    number = as_integer(value)
    if number is None or not least <= number <= most:
        problem = "no whole number" if number is None else "out of range"
        hint = f"Give a whole number from {least} to {most}"
        raise error(f"'{name}' is {show(value)}, which is {problem}", hint=hint)
    return number


def limit(name: str, value: object, most: int = LARGEST) -> int | None:
    """The value of an argument that is a whole number above 0, or None for no limit."""
    return None if value is None else whole_number(name, value, 1, most=most)


def byte_count(text: str) -> int | None:
    """The number of bytes that a text such as "2147483648", "500M" or "2 GiB" says, or None."""
    found = _BYTES.fullmatch(text.strip())
    return None if found is None else int(found[1]) << _SHIFTS[found[2].upper()]


def byte_limit(name: str, value: object) -> int | None:
    """The value of an argument that is a number of bytes, or None for no limit."""
    if value is None:
        return None
    count = byte_count(value) if isinstance(value, str) else as_integer(value)
    if count is None or not 1 <= count <= LARGEST:
        raise InputError(
            f"'{name}' is {show(value)}",
            hint="Give a number of bytes, such as 67108864 or '64M', or None",
        )
    return count


def switch(name: str, value: object) -> bool:
    """The value of an argument that is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"'{name}' is {show(value)}", hint="Give True or False")
    return value


def file_path(value: object) -> str | os.PathLike[str]:
    """The value of an argument that names a file."""
    if isinstance(value, str | os.PathLike):
        name = os.fspath(cast("Any", value))
        if isinstance(name, str) and name and "\0" not in name:
            return cast("str | os.PathLike[str]", value)
    raise InputError(f"{show(value)} names no file", hint="Give the path of a file as a text")


def choice(what: str, value: object, known: Iterable[str]) -> str:
    """The value of an argument that is one of some names."""
    names = tuple(known)
    if isinstance(value, str) and value in names:
        return value
    raise UnsupportedError(
        f"There is no {what} {show(value)}", hint=f"Choose from {', '.join(names)}"
    )


def choices(what: str, value: object, known: Iterable[str]) -> Sequence[str]:
    """The value of an argument that is one name or several, in the order of the known ones."""
    names = tuple(known)
    try:
        given = [value] if isinstance(value, str) else list(cast("Iterable[object]", value))
    except Exception:  # no list, and a foreign type may fail in any way
        given = [value]
    if not given:
        raise UnsupportedError(f"No {what} is named", hint=f"Choose from {', '.join(names)}")
    chosen = {choice(what, name, names) for name in given}
    return [name for name in names if name in chosen]
