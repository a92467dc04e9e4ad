"""What is done to the sums of a register tile before they are stored, and how much that is.

Imports ``scalar``, ``tile`` and ``tile_walk``. Start with :func:`is_light`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import Apply, Convert, IndexValue, Load, Store, Value
from tilewright.ir.tile_walk import slope

COLUMN, ROW = "_n", "_m"
LIGHT = 8  # operations per element up to which a tile is finished in its registers


def is_light(stores: Sequence[Store]) -> bool:
    """Whether a tile is finished in its registers: few operations, none of them lane by lane."""
    seen: set[int] = set()
    stack: list[Value] = [store.value for store in stores]
    count = sum(0 if slope(store.offset, COLUMN) == 1 else LIGHT for store in stores)
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
                count += 1 if slope(offset, COLUMN) is not None else LIGHT
            case IndexValue():
                count += LIGHT
            case _:
                pass
    return count <= LIGHT
