"""Wrong usage: what a command was given is not what it takes, and nothing has happened yet.

Start with :func:`as_usage`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import typer

from tilewright.support.errors import DimensionError, InputError, TilewrightError, UnsupportedError

_OF_ARGUMENTS = (DimensionError, InputError, UnsupportedError)


class UsageError(TilewrightError):
    """An error whose cause is the command line; the command ends with its own exit code."""


def listed(option: typer.CallbackParam, value: Any) -> Any:
    """The value of an option: words that its metavar lists, or nothing. Raises UsageError."""
    words = str(option.metavar).split("|")
    given = cast("list[Any]", value) if isinstance(value, list) else [value]
    for word in given:
        if word and word not in words:
            raise UsageError(
                f"There is no {option.name} {word!r}", hint=f"Choose from {', '.join(words)}"
            )
    return value


@contextmanager
def as_usage(*, unsupported: bool = True) -> Generator[None]:
    """Errors of what reads arguments are errors of usage.

    With ``unsupported`` so is what tilewright does not support; of a model, that is a failure.
    """
    kinds = _OF_ARGUMENTS if unsupported else (DimensionError, InputError)
    try:
        yield
    except kinds as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from error
