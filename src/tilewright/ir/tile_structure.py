"""What is equal of parts of tile programs that are written alike, as something to look them up by.

Statements and values are themselves, and equal to no others, so that they can be shared. Start with
:func:`structure_of`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from tilewright.ir.tile import Statement, TileBuffer, Value
from tilewright.shape import Expr

_SAME = "same"  # before the number of a part that was there already


def structure_of(part: Statement | Value | tuple[Any, ...]) -> tuple[Hashable, ...]:
    """All that is in statements and values, in order: names count, and so does what is shared.

    Equal structures are of parts from which a walk finds the same.
    """
    found: list[Hashable] = []
    _enter(part, found, {})
    return tuple(found)


def _enter(part: Any, found: list[Hashable], numbers: dict[int, int]) -> None:
    if isinstance(part, tuple):
        members: tuple[Any, ...] = part
        found.append(len(members))
        for member in members:
            _enter(member, found, numbers)
    elif isinstance(part, Expr | TileBuffer) or not is_dataclass(part):
        # Numbers that are equal, as 0.0 and -0.0 are, need not be written alike.
        found.append(repr(part) if isinstance(part, float) else part)
    elif id(part) in numbers:
        found.extend((_SAME, numbers[id(part)]))
    else:
        numbers[id(part)] = len(numbers)
        found.append(type(part))
        for name in _names(type(part)):
            _enter(getattr(part, name), found, numbers)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


__all__ = ["structure_of"]
