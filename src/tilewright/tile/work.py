"""A rough time for a tile program, as an expression in nanoseconds on one thread.

It decides how many threads a kernel gets, so a factor of two either way does not matter; what
matters is that tiny kernels stay on one thread and large ones do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.scalar import ADDING, SCALAR_FUNCTIONS
from tilewright.ir.stage_axis import Role
from tilewright.ir.tile import (
    Apply,
    Check,
    Convert,
    Guarded,
    Let,
    LetDistance,
    LetIndex,
    Load,
    Loop,
    Product,
    Stage,
    Statement,
    Store,
    TransposeBlock,
    Value,
)
from tilewright.shape import Expr, constant, product

UNITS_PER_NANOSECOND = 32  # iterations of loops as light as most

# Tasks to make at least where there is enough for them: for the threads of a small machine, none of
# which waits for long; and where tasks are short, so that threads take several.
SHARES, MANY_SHARES = 8, 16
MOST_COLUMNS = 512  # of a task: long runs of memory, whose sums stay in the first-level cache
# Of what is summed by several threads: as many as these, whatever their number, so that results do
# not depend on it, and few enough for registers to hold one vector of each.
PARTS = SHARES
TRANSPOSED_COLUMNS = 64  # of one block, at most
SHORT_LENGTH = 8  # of a loop that the first task does not enter


def estimate(grid: Sequence[tuple[str, Expr]], body: Iterable[Statement]) -> Expr:
    """Nanoseconds of all tasks of a loop program; loop lengths that vary count as one pass."""
    units = _statements(body, {str(name): size for name, size in grid})
    return (product([size for _, size in grid]) * units) // UNITS_PER_NANOSECOND + 1


def _statements(body: Iterable[Statement], known: dict[str, Expr]) -> Expr:
    units = constant(0)
    for statement in body:
        match statement:
            case Loop(begin=begin, end=end, body=inner, accumulators=accumulators):
                own = sum(_value(a.value, set()) + 1 for a in accumulators)
                length = _length(begin, end)
                units = units + (_statements(inner, known) + own) * length + 8
            case Store(value=value):
                units = units + _value(value, set()) + 2
            case TransposeBlock(rows=rows):
                units = units + _length(constant(0), rows) * TRANSPOSED_COLUMNS * 8
            case Product(rows=rows, columns=columns, depth=depth):
                units = units + product([_length(*bounds) for bounds in (rows, columns, depth)])
            case Let(value=value) | Check(value=value):
                units = units + _value(value, set()) + 1
            case LetIndex(value=value):
                units = units + _value(value, set()) + 8
            case LetDistance():
                units = units + 1
            case Stage(axes=axes):
                count = product([a.count for a in axes if a.role is Role.REDUCTION])
                inner = (*statement.load, *statement.body, *statement.store)
                units = units + _statements(inner, known) * count
    return units


def _length(begin: Expr, end: Expr) -> Expr:
    length = end - begin
    local = {name: 0 for name in length.free_symbols if _is_local(name)}
    if not local:
        return length
    # The first task's, which is as long as any: only the last one is shorter.
    first = length.substitute(local)
    is_known = not first.is_constant or first.value > 0
    return first if is_known else constant(SHORT_LENGTH)


def _is_local(name: str) -> bool:
    return name[:1] == "_" and name[2:].isdigit()


def _value(value: Value, seen: set[int]) -> int:
    if id(value) in seen:
        return 0
    seen.add(id(value))
    match value:
        case Load():
            return 3
        case Apply(function=function, operands=operands):
            own = 4 * (1 if function in ADDING else SCALAR_FUNCTIONS[function].cost)
            return own + sum(_value(o, seen) for o in operands)
        case Convert(operand=operand):
            return 2 + _value(operand, seen)
        case Guarded(inside=inside, outside=outside):
            return 16 + _value(inside, seen) + _value(outside, seen)
        case _:
            return 0
