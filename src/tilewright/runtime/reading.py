"""Values of parsed JSON with their types checked, and what is said where programs make no sense.

A value that is not what it should be is a TypeError. Imports errors only. Start with
:func:`integer` and :func:`damaged_payload`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tilewright.support.errors import ArtifactError

REPAIR = "Copy the file again, or compile the model again"  # what to do about a damaged artifact


def damaged_payload(error: Exception) -> ArtifactError:
    """The error where the payload of a step cannot be read."""
    return ArtifactError(f"The program is damaged: a step's payload ({error!r})", hint=REPAIR)


def contradiction(what: str, program: str) -> ArtifactError:
    """The error where parts of the program of this name do not fit each other."""
    return ArtifactError(
        f"The program contradicts itself: {what}", where=f"program '{program}'", hint=REPAIR
    )


def mapping(value: Any) -> list[tuple[str, Any]]:
    """The items of a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"an object is expected, not {value!r}")
    return list(cast("dict[str, Any]", value).items())


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, not {value!r}")
    return value


def texts(values: Iterable[Any]) -> tuple[str, ...]:
    """Texts in a list."""
    return tuple(text(value) for value in values)


def integer(value: Any) -> int:
    """An integer of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise TypeError(f"a 64-bit integer is expected, not {value!r}")
    return value


def optional_integer(value: Any) -> int | None:
    """An integer of 64 bits, or null."""
    return None if value is None else integer(value)


def integers(values: Iterable[Any]) -> tuple[int, ...]:
    """Integers of 64 bits in a list."""
    return tuple(integer(value) for value in values)
