"""Columns that lie side by side: a loop over them in vectors, and combinations of their elements.

Start with :func:`side_by_side`; several rows go through such a loop at once (`row_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Let, Loop, Statement, Store, Value
from tilewright.ir.tile_walk import is_side_by_side, may_fault, value_parts
from tilewright.shape import Expr, constant, maximum
from tilewright.tile.values.lowering import Lowering

ROWS = 4  # taken into running values at once, which are read and written once for all of them


def side_by_side(variable: str, count: Expr, body: Iterable[Statement]) -> Loop:
    """A loop over neighbouring columns that do not depend on each other, in vectors to its end."""
    loop = Loop(variable, constant(0), count, tuple(body), independent=True)
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    faults = any(may_fault(part) for value in values for part in value_parts(value))
    return replace(loop, masked=is_side_by_side(loop) and not faults)


def row_groups(
    lowering: Lowering,
    bounds: tuple[Expr, Expr],
    row: Expr,
    along: Callable[[Sequence[Expr]], Loop],
) -> tuple[Statement, ...]:
    """A loop over groups of rows within ``bounds``, each ``along`` columns, and one over the rest.

    Groups read the running values of the columns once. The loop over the rest counts ``row``.
    """
    begin, end = bounds
    groups = (end - begin) // ROWS
    group = lowering.variable(groups)
    together = along([begin + group * ROWS + i for i in range(ROWS)])
    rest = along([row])
    return (
        Loop(str(group), constant(0), groups, (together,)),
        Loop(str(row), maximum(begin, begin + groups * ROWS), end, (rest,)),
    )


def combined(kind: str, values: Sequence[Value]) -> Value:
    """Values of one type combined, neighbours first, so that few of them wait for each other."""
    made = list(values)
    while len(made) > 1:
        pairs = zip(made[::2], made[1::2], strict=False)
        left = made[len(made) & ~1 :]
        made = [*(Apply(COMBINE[kind], (a, b), a.dtype) for a, b in pairs), *left]
    return made[0]
