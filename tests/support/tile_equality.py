"""Whether two tile programs are the same, field by field, however they are printed.

Whatever fields the classes of statements and values have is compared, those that are added later as
well. Start with :func:`difference`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from tilewright.ir.tile import Apply, Convert, Guarded, Load, TileProgram
from tilewright.shape import Expr

COMPUTED = (Load, Apply, Convert, Guarded)


def difference(left: TileProgram, right: TileProgram) -> str | None:
    """Where two programs differ first, or None if they are the same.

    What is computed once for several places in one is computed once for the same places in the
    other.
    """
    return _Comparison().different(left, right, "program")


class _Comparison:
    def __init__(self) -> None:
        self._partners: tuple[dict[int, Any], dict[int, Any]] = ({}, {})

    def different(self, left: Any, right: Any, where: str) -> str | None:
        if type(left) is not type(right):
            return f"{where}: {left!r} is not {right!r}"
        if isinstance(left, Expr):
            return None if left is right else f"{where}: {left} is not {right}"
        if isinstance(left, float):
            same = left == right and math.copysign(1, left) == math.copysign(1, right)
            same = same or (math.isnan(left) and math.isnan(right))
            return None if same else f"{where}: {left!r} is not {right!r}"
        if isinstance(left, tuple):
            return self._sequences(cast("Sequence[Any]", left), right, where)
        if is_dataclass(left) and not isinstance(left, type):
            return self._objects(left, right, where)
        return None if left == right else f"{where}: {left!r} is not {right!r}"

    def _sequences(self, left: Sequence[Any], right: Sequence[Any], where: str) -> str | None:
        if len(left) != len(right):
            return f"{where}: {len(left)} are not {len(right)}"
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            found = self.different(a, b, f"{where}[{place}]")
            if found is not None:
                return found
        return None

    def _objects(self, left: Any, right: Any, where: str) -> str | None:
        if isinstance(left, COMPUTED):
            mine, theirs = self._partners
            if mine.get(id(left), right) is not right or theirs.get(id(right), left) is not left:
                return f"{where}: shared with other places"
            if id(left) in mine:
                return None
            mine[id(left)], theirs[id(right)] = right, left
        for field in fields(left):
            name = field.name
            found = self.different(getattr(left, name), getattr(right, name), f"{where}.{name}")
            if found is not None:
                return found
        return None
