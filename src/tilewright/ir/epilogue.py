"""What is done to the sums of a register tile before they are stored, and how much that is.

Imports ``scalar`` and ``tile``. Start with :func:`is_light`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import Apply, Convert, IndexValue, Load, Store, Value
from tilewright.shape import Expr

COLUMN, ROW = "_n", "_m"
LIGHT = 8  # operations per element up to which a tile is finished in its registers


def is_light(stores: Sequence[Store]) -> bool:
    """Whether a tile is finished in its registers: few operations, none of them lane by lane."""
    seen: set[int] = set()
    stack: list[Value] = [store.value for store in stores]
    count = sum(0 if column_slope(store.offset) == 1 else LIGHT for store in stores)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        match value:
            case Apply(function=function, operands=operands):
                count += SCALAR_FUNCTIONS[function].cost
                stack += operands
            case Convert(operand=operand):
                count += 1
                stack.append(operand)
            case Load(offset=offset):
                count += 1 if column_slope(offset) is not None else LIGHT
            case IndexValue():
                count += LIGHT
            case _:
                pass
    return count <= LIGHT


def column_slope(offset: Expr) -> int | None:
    """0 or 1 element from one column to the next, or None for anything else."""
    if COLUMN not in offset.free_symbols:
        return 0
    affine = offset.affine((COLUMN,))
    if affine is None:
        return None
    slope = affine[0][COLUMN]
    return 1 if slope.is_constant and slope.value == 1 else None
