"""Ranges of dimensions that the model itself implies.

A table of 512 positions makes sense for at most 512 tokens: the import then demands it of every
call. :func:`implied` reads such demands back as ranges, for dimensions whose range nobody gave, so
that the import can start again and rely on them; the demands themselves then disappear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tilewright.frontend.onnx.dims import Dim
from tilewright.frontend.onnx.report import DimensionReport
from tilewright.shape import Guard
from tilewright.support.errors import DimensionError

_SMALL = range(65)


def implied(guards: Iterable[Guard], dimensions: Iterable[DimensionReport]) -> dict[str, Dim]:
    """Narrower ranges, by the model's name of the dimension; empty if there are none.

    Only demands on a single dimension count. Where one holds at neither end of a range, but in the
    middle, the range becomes the middle.
    """
    free = {d.name: d for d in dimensions if d.origin == "default"}
    found: dict[str, Dim] = {}
    for guard in guards:
        symbols = guard.condition.free_symbols
        if len(symbols) != 1 or symbols[0] not in free:
            continue
        row = free[symbols[0]]
        before = found.get(row.text, Dim(row.low, row.high, row.multiple_of))
        after = _narrowed(guard, row.name, before)
        if after != Dim(row.low, row.high, row.multiple_of):
            found[row.text] = after
    return found


def _narrowed(guard: Guard, name: str, dim: Dim) -> Dim:
    def holds(value: int) -> bool:
        try:
            return guard.condition.evaluate({name: value}) != 0
        except DimensionError:
            return False

    samples = [v for v in _samples(str(guard.condition), dim) if dim.low <= v <= dim.high]
    good = [v for v in samples if holds(v)]
    if not good or len(good) == len(samples):
        return dim
    below = [v for v in samples if v < good[0]]
    above = [v for v in samples if v > good[-1]]
    low = _edge(good[0], below[-1], holds) if below else good[0]
    high = _edge(good[-1], above[0], holds) if above else good[-1]
    return Dim(low, high, dim.multiple_of)


def _samples(text: str, dim: Dim) -> list[int]:
    """Small sizes, those around powers of two, and those around the numbers in the condition."""
    values = {*_SMALL, dim.low, dim.high}
    power = 1
    while power <= dim.high:
        values.update((power - 1, power, power + 1))
        power *= 2
    for number in re.findall(r"(?<![A-Za-z0-9_])\d{1,9}", text):
        values.update((int(number) - 1, int(number), int(number) + 1))
    return sorted(values)


def _edge(inside: int, outside: int, holds: Callable[[int], bool]) -> int:
    """The value nearest to ``outside`` up to which the condition holds, by halving."""
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside
