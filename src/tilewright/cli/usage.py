"""Wrong usage: what a command was given is not what it takes, and nothing has happened yet.

Start with :func:`as_usage`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tilewright.support.errors import DimensionError, InputError, TilewrightError, UnsupportedError


class UsageError(TilewrightError):
    """An error whose cause is the command line; the command ends with its own exit code."""


@contextmanager
def as_usage() -> Generator[None]:
    """Errors of what reads arguments are errors of usage."""
    try:
        yield
    except (DimensionError, InputError, UnsupportedError) as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from error
