"""What is done to the sums of a register tile before they are stored, and how much that is.

Imports ``scalar``, ``tile`` and ``tile_walk``. Start with :func:`is_light`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import Apply, Convert, IndexValue, Load, Store, TileBuffer, Value
from tilewright.ir.tile_walk import slope, value_loads
from tilewright.shape import Expr

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


def met_elements(stores: Sequence[Store]) -> list[tuple[TileBuffer, Expr, bool]]:
    """Where a tile meets an element for each of its own, side by side, and whether it is written.

    These are results, and tensors of their shape that are added, say: operands that all rows or all
    columns have in common are left out.
    """
    met = dict[tuple[TileBuffer, Expr], bool]()
    for store in stores:
        for load in value_loads(store.value):
            if ROW in load.offset.free_symbols:
                met.setdefault((load.buffer, load.offset), False)
    met |= {(store.buffer, store.offset): True for store in stores}
    return [(*place, to) for place, to in met.items() if slope(place[1], COLUMN) == 1]
