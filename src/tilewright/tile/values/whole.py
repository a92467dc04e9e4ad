"""Numbers that are rounded to bytes and made floats again at once: they stay floats.

A sum that is quantised, dequantised and added to others passes through bytes that nobody stores.
Limits on the rounded number mean the same, but for a NaN, which becomes the byte 0; so does what
the dequantisation subtracts. Start with :func:`as_float`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Convert, Literal, Value

LIMITS = {DType.INT8: (-128.0, 127.0), DType.UINT8: (0.0, 255.0)}
MOST_ADDED = 256.0  # beyond, a limited number plus another one is not certain to be exact


def as_float(value: Value) -> Value | None:
    """A byte, rounded and limited, as float32 without the conversions; None of another value."""
    if not isinstance(value, Convert) or value.dtype not in LIMITS:
        return None
    found = _limited(value.operand)
    low, high = LIMITS[value.dtype]
    if found is None or not low <= found.low <= found.high <= high:
        return None
    return replace(found, of_nan=0.0).value()


def minus(value: Value, number: Value) -> Value | None:
    """What :func:`as_float` gave minus a whole number, by one operation less."""
    if not isinstance(number, Literal) or not isinstance(value, Apply):
        return None
    if value.function != "select" or not isinstance(value.operands[1], Literal):
        return None
    taken = float(number.value)
    found = _limited(value.operands[2])
    if found is None or not taken.is_integer() or abs(taken) > MOST_ADDED:
        return None
    truth = value.operands[0]
    if not isinstance(truth, Apply) or truth.operands[0] is not found.rounded:
        return None
    moved = _Limited(found.rounded, found.added - taken, found.low - taken, found.high - taken)
    return replace(moved, of_nan=float(value.operands[1].value) - taken).value()


@dataclass(frozen=True)
class _Limited:
    """``rounded`` + ``added``, no less than ``low``, no more than ``high``; ``of_nan`` of a NaN."""

    rounded: Value
    added: float
    low: float
    high: float
    of_nan: float = 0.0

    def value(self) -> Value:
        kind = DType.FLOAT32
        made = self.rounded
        if self.added:
            made = Apply("add", (made, Literal(self.added, kind)), kind)
        made = Apply("maximum", (made, Literal(self.low, kind)), kind)
        made = Apply("minimum", (made, Literal(self.high, kind)), kind)
        is_nan = Apply("is_nan", (self.rounded,), DType.BOOL)
        return Apply("select", (is_nan, Literal(self.of_nan, kind), made), kind)


def _limited(value: Value) -> _Limited | None:
    """A rounded number plus a whole one within limits, if ``value`` is that."""
    upper = _with_number(value, "minimum")
    lower = None if upper is None else _with_number(upper[0], "maximum")
    if upper is None or lower is None or value.dtype is not DType.FLOAT32:
        return None
    inner, added = _with_number(lower[0], "add") or (lower[0], 0.0)
    is_rounded = isinstance(inner, Apply) and inner.function == "round_even"
    if not is_rounded or abs(added) > MOST_ADDED:
        return None
    return _Limited(inner, added, lower[1], upper[1])


def _with_number(value: Value, function: str) -> tuple[Value, float] | None:
    """The other operand of a function of a value and a whole number, and that."""
    if not isinstance(value, Apply) or value.function != function:
        return None
    other, number = value.operands
    if not isinstance(number, Literal) or not float(number.value).is_integer():
        return None
    return other, float(number.value)


__all__ = ["as_float", "minus"]
