"""The loops of tile programs, for tests of what they look like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.ir.tile import Loop, Statement


def innermost(body: Iterable[Statement]) -> Iterator[Loop]:
    """The loops that have none within, in order."""
    for statement in body:
        if isinstance(statement, Loop):
            inside = list(innermost(statement.body))
            yield from inside or [statement]
