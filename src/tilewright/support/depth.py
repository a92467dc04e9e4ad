"""Sizes that are computed in more steps than Python lets functions call each other.

Start with :func:`told_of_depth`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from tilewright.support.errors import UnsupportedError


@contextmanager
def told_of_depth() -> Generator[None]:
    """A RecursionError becomes an error with a way out.

    The limit is not raised here: it is one of the whole process, and how far it may go depends on
    the stack of the thread.
    """
    try:
        yield
    except RecursionError as error:
        raise UnsupportedError(
            "The model computes a size in more steps than Python's limit on recursion allows, "
            f"{sys.getrecursionlimit()}",
            hint="Call sys.setrecursionlimit(10_000) before compiling",
        ) from error
