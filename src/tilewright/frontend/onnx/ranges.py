"""Ranges of dimensions that the model itself implies.

A table of 512 positions makes sense for at most 512 tokens: the import then demands it of every
call. :func:`implied` reads such demands back as ranges, for dimensions whose range nobody gave, so
that the import can start again and rely on them; the demands themselves then disappear. A demand
that is not proved to hold on one side of a size only, such as one for multiples, stays with the
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.frontend.onnx.dims import Dim, Implied
from tilewright.frontend.onnx.report import DimensionReport
from tilewright.shape import Expr, Guard, Interval, Scope, symbol
from tilewright.shape.interval import hull, intersect
from tilewright.shape.slopes import slope
from tilewright.shape.table import Operation

_NOTHING = Interval(0, -1)


def implied(guards: Iterable[Guard], dimensions: Iterable[DimensionReport]) -> dict[str, Implied]:
    """Narrower ranges, by the model's name of the dimension; empty if there are none.

    Only demands on a single dimension count. One that leaves nothing of the range is left to the
    call, which raises it.
    """
    free = {d.name: d for d in dimensions if d.origin != "given"}
    found: dict[str, Implied] = {}
    for guard in guards:
        symbols = guard.condition.free_symbols
        if len(symbols) != 1 or symbols[0] not in free:
            continue
        row = free[symbols[0]]
        before = Dim(row.low, row.high, row.multiple_of)
        if row.text in found:
            before = found[row.text].dim
        after = _narrowed(guard.condition, row.name, before)
        if after != before:
            found[row.text] = Implied(after, guard.message)
    return found


def relied_on(
    facts: Sequence[Guard], dimensions: Sequence[DimensionReport], scope: Scope
) -> dict[str, Implied]:
    """The narrower ranges of what holds in every call; ``scope`` learns those of given ranges.

    A range that the caller gave is shown as it was given.
    """
    for row in dimensions:
        for known in implied(facts, [replace(row, origin="model")]).values():
            if row.origin == "given":
                scope.declare(row.name, known.dim.low, known.dim.high)
    return implied(facts, dimensions)


def _narrowed(condition: Expr, name: str, dim: Dim) -> Dim:
    """The part of the range outside of which the condition surely fails."""
    scope = Scope()
    scope.declare(name, dim.low, dim.high)
    atom = condition.atom
    together = atom is not None and atom.operation is Operation.AND
    for part in atom.operands if atom is not None and together else (condition,):
        found = _solutions(part, name, scope)
        narrower = None if found is None else intersect(found, Interval(dim.low, dim.high))
        if narrower is None or narrower.low is None or narrower.high is None:
            continue
        if not narrower.is_empty:
            dim = Dim(narrower.low, narrower.high, dim.multiple_of)
    return dim


def _solutions(condition: Expr, name: str, scope: Scope) -> Interval | None:
    """All sizes within the scope for which the condition holds, if they are known to be a range."""
    every = scope.bounds(symbol(name))
    if condition.is_constant:
        return every if condition.value else _NOTHING
    atom = condition.atom
    if atom is None:
        return None
    match atom.operation:
        case Operation.LESS_EQUAL:
            return _sizes_with_order(atom.operands[1] - atom.operands[0], name, scope)
        case Operation.EQUAL:
            difference = atom.operands[1] - atom.operands[0]
            sides = [_sizes_with_order(d, name, scope) for d in (difference, -difference)]
            return _joined(sides, every, intersect)
        case Operation.AND:
            sides = [_solutions(operand, name, scope) for operand in atom.operands]
            return _joined(sides, every, intersect)
        case Operation.OR:
            sides = [_solutions(operand, name, scope) for operand in atom.operands]
            return _joined(sides, _NOTHING, _union)
        case _:
            return None


def _joined(
    sides: list[Interval | None],
    start: Interval,
    join: Callable[[Interval, Interval], Interval | None],
) -> Interval | None:
    """The ranges joined one after another; None where one is not known or no range results."""
    found: Interval | None = start
    for side in sorted((s for s in sides if s is not None), key=_low):
        found = None if found is None else join(found, side)
    return found if None not in sides else None


def _low(interval: Interval) -> int:
    return 0 if interval.low is None else interval.low


def _union(left: Interval, right: Interval) -> Interval | None:
    """The sizes in either, if that is a range; ``left`` does not begin after ``right``."""
    if left.is_empty or right.is_empty:
        return right if left.is_empty else left
    gap = left.high is not None and right.low is not None and left.high + 1 < right.low
    return None if gap else hull(left, right)


def _sizes_with_order(difference: Expr, name: str, scope: Scope) -> Interval | None:
    """Sizes for which ``difference`` is 0 or more, where it only rises or only falls with them."""
    change, every = slope(difference, name, scope), scope.bounds(symbol(name))
    if change is None or every.low is None or every.high is None:
        return None

    def holds(size: int) -> bool:
        return difference.evaluate({name: size}) >= 0

    if change.low is not None and change.low >= 0:
        return _NOTHING if not holds(every.high) \
            else Interval(_first(every.low, every.high, holds), every.high)  # fmt: skip
    if change.high is not None and change.high <= 0:
        return _NOTHING if not holds(every.low) \
            else Interval(every.low, _last(every.low, every.high, holds))  # fmt: skip
    return None


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least value at which what holds at ``high``, and from some value on, holds."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The greatest value at which what holds at ``low``, and up to some value, holds."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
