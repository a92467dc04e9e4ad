"""Errors for people: what went wrong, where, why, and what to try.

Every error that a user of tilewright can cause derives from :class:`TilewrightError`. A message is
a sentence; ``where`` names the node, input, axis, file or section concerned; ``hint`` says what to
do. Messages and hints start with a capital letter, or with a name as it is written, and end without
a full stop. This module imports nothing of the project.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*(?=[\s,:;]|\Z)")


class TilewrightError(Exception):
    """Base of all errors raised on purpose.

    ``message`` says what happened and why, ``where`` names the place, ``hint`` names a way out.
    ``str(error)`` is the message followed by one indented line for each of the two that is given.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = sentence(message)
        self.where = where
        self.hint = None if hint is None else sentence(hint)
        lines = [self.message]
        if where is not None:
            lines.append(f"  where: {where}")
        if self.hint is not None:
            lines.append(f"  try: {self.hint}")
        super().__init__("\n".join(lines))


def sentence(text: str) -> str:
    """The text in the one style of all messages, wherever its parts come from.

    A first word of small letters gets a capital one; a name such as ``num_threads`` stays as it is.
    A full stop at the end goes.
    """
    if _WORD.match(text):
        text = text[0].upper() + text[1:]
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


class InvalidModelError(TilewrightError):
    """The model file cannot be read, or is not a valid model."""


class UnsupportedError(TilewrightError):
    """The model is valid, but asks for something that tilewright does not do."""


class DimensionError(TilewrightError):
    """A dimension is unknown, out of its range, unequal to its twin, or overflows."""


class InputError(TilewrightError):
    """An argument of a call does not fit: name, number, dtype, rank or layout."""


class ArtifactError(TilewrightError):
    """An artifact is damaged, from another version, or made for another machine."""


class ExecutionError(TilewrightError):
    """A kernel found values it cannot work with, such as an index out of bounds."""


class ResourceError(TilewrightError):
    """More memory or threads are needed than are allowed or present."""


class InternalError(TilewrightError):
    """A defect of tilewright itself, which no model and no argument should be able to cause.

    It is never caught to go on in another way: a wrong result would be worse than none.
    """
