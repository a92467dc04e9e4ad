"""How large the numbers that a value stands for may be, where literals and types tell.

Start with :func:`magnitude`.
"""

from __future__ import annotations

import math

from tilewright.ir.tile import Apply, Convert, Literal, Value

UNKNOWN = math.inf


def magnitude(value: Value, known: dict[int, float] | None = None) -> float:
    """A bound of the absolute value, which is a number then; infinite where nothing is known.

    Roundings may exceed it by a few units in the last place. ``known`` are those of shared parts.
    """
    found = {} if known is None else known
    if id(value) not in found:
        found[id(value)] = _magnitude(value, found)
    return found[id(value)]


def _magnitude(value: Value, known: dict[int, float]) -> float:
    match value:
        case Literal(value=number):
            return UNKNOWN if math.isnan(number) else abs(float(number))
        case Convert(operand=operand, dtype=dtype):
            if operand.dtype.is_integer and dtype.is_float:
                return 2.0 ** (8 * operand.dtype.bytes)
            return UNKNOWN
        case Apply(function="divide", operands=(part, Literal(value=number))) if number:
            return magnitude(part, known) / abs(float(number))
        case Apply(function="select", operands=(_, *parts)):
            return max(magnitude(part, known) for part in parts)
        case Apply(function=function, operands=operands):
            bounds = [magnitude(operand, known) for operand in operands]
            if UNKNOWN in bounds:
                return UNKNOWN
            if function in ("add", "subtract"):
                return sum(bounds)
            if function == "multiply":
                return math.prod(bounds)
            return max(bounds) + 1 if function in ("maximum", "minimum", "round_even") else UNKNOWN
        case _:
            return UNKNOWN


__all__ = ["magnitude"]
