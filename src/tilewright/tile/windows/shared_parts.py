"""What neighbouring windows share is combined once. Start with :func:`combined_in_pairs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.ir.tile import Value

Part = TypeVar("Part")


def combined_in_pairs(
    windows: Sequence[Sequence[Part]],
    added: Callable[[Value | None, Sequence[Part]], Value | None],
    let: Callable[[Value], Value],
) -> list[Value | None]:
    """All parts of each window; what two that follow each other share is combined once.

    ``added`` puts parts on top of a value, ``let`` gives one a name.
    """
    made: list[Value | None] = []
    for one, other in zip(windows[::2], [*windows[1::2], []], strict=False):
        shared = [part for part in one if part in other]
        start: Value | None = None
        if len(shared) > 1 and (together := added(None, shared)) is not None:
            start = let(together)
        else:
            shared = []
        pair = (one, other)[: 2 if len(made) + 1 < len(windows) else 1]
        made += [added(start, [part for part in own if part not in shared]) for own in pair]
    return made


__all__ = ["combined_in_pairs"]
