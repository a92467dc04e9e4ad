"""What the text of a tile program leaves out of values, and how readers know it all the same.

``tile_print`` leaves a type out where these rules give it; ``tile_parse`` puts it there again.
Start with :func:`applied_type`.
"""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.scalar import ADDING, SCALAR_FUNCTIONS, result_type

STEP = "  "  # by so much a block stands to the right of the line that it belongs to
NEUTRAL_TYPE = DType.FLOAT32  # of a reduction's neutral element
INDEX_TYPE = DType.INT64  # of an index expression as a value


def number_type(number: float | bool) -> DType:
    """The type of a number that is written without one."""
    if isinstance(number, bool):
        return DType.BOOL
    return DType.INT64 if isinstance(number, int) else DType.FLOAT32


def applied_type(function: str, operands: tuple[DType, ...]) -> DType | None:
    """The type of a function's result that follows from its operands; None if none does."""
    if function in ADDING:
        return operands[-1] if operands else None
    try:
        return result_type(SCALAR_FUNCTIONS[function], operands)
    except (KeyError, ValueError):
        return None


__all__ = ["INDEX_TYPE", "NEUTRAL_TYPE", "STEP", "applied_type", "number_type"]
