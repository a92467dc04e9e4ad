"""Ranges of integers with open ends, and the arithmetic on them; all of it is sound (never narrow).

Imports nothing of the package but the operation table. Start reading at :class:`Interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.shape.table import BOOLEANS, Operation


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers from `low` to `high`, both included; None is no bound on that side."""

    low: int | None
    high: int | None

    @property
    def is_point(self) -> bool:
        """Whether this is exactly one integer."""
        return self.low is not None and self.low == self.high

    @property
    def is_empty(self) -> bool:
        """Whether no integer lies in it."""
        return self.low is not None and self.high is not None and self.low > self.high

    def __contains__(self, value: int) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = "" if self.low is None else self.low
        return f"{low}..{'' if self.high is None else self.high}"


EVERYTHING = Interval(None, None)
TRUTH_VALUES = Interval(0, 1)


def intersect(left: Interval, right: Interval) -> Interval:
    """The integers in both."""
    low = right.low if left.low is None else left.low
    if left.low is not None and right.low is not None:
        low = max(left.low, right.low)
    high = right.high if left.high is None else left.high
    if left.high is not None and right.high is not None:
        high = min(left.high, right.high)
    return Interval(low, high)


def hull(left: Interval, right: Interval) -> Interval:
    """The least interval that holds both."""
    low = None if left.low is None or right.low is None else min(left.low, right.low)
    high = None if left.high is None or right.high is None else max(left.high, right.high)
    return Interval(low, high)


def add(left: Interval, right: Interval) -> Interval:
    """The sums."""
    low = None if left.low is None or right.low is None else left.low + right.low
    high = None if left.high is None or right.high is None else left.high + right.high
    return Interval(low, high)


def negate(interval: Interval) -> Interval:
    """The negatives."""
    low = None if interval.high is None else -interval.high
    return Interval(low, None if interval.low is None else -interval.low)


def scale(interval: Interval, factor: int) -> Interval:
    """The products with one integer."""
    if factor == 0:
        return Interval(0, 0)
    if factor < 0:
        return scale(negate(interval), -factor)
    low = None if interval.low is None else interval.low * factor
    return Interval(low, None if interval.high is None else interval.high * factor)


def multiply(left: Interval, right: Interval) -> Interval:
    """The products of two independent values."""
    if left.is_point and left.low is not None:
        return scale(right, left.low)
    if right.is_point and right.low is not None:
        return scale(left, right.low)
    if left.low is not None and left.low >= 0:
        return _multiply_by_natural(right, left.low, left.high)
    if left.high is not None and left.high <= 0:
        return negate(multiply(negate(left), right))
    if right.low is not None and right.low >= 0:
        return _multiply_by_natural(left, right.low, right.high)
    if right.high is not None and right.high <= 0:
        return negate(multiply(left, negate(right)))
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return EVERYTHING
    corners = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
    return Interval(min(corners), max(corners))


def _multiply_by_natural(interval: Interval, low: int, high: int | None) -> Interval:
    """Products with a value in low..high, 0 <= low."""
    least: int | None
    if interval.low is None:
        least = None
    elif interval.low >= 0:
        least = interval.low * low
    else:
        least = None if high is None else interval.low * high
    most: int | None
    if interval.high is None:
        most = None
    elif interval.high <= 0:
        most = interval.high * low
    else:
        most = None if high is None else interval.high * high
    return Interval(least, most)


def power(interval: Interval, exponent: int) -> Interval:
    """The powers of one value, `exponent` >= 1; tighter than a product of independent values."""
    low = None if interval.low is None else interval.low**exponent
    high = None if interval.high is None else interval.high**exponent
    if exponent % 2:
        return Interval(low, high)
    most = None if low is None or high is None else max(low, high)
    if interval.low is not None and interval.low >= 0:
        return Interval(low, most)
    if interval.high is not None and interval.high <= 0:
        return Interval(high, most)
    return Interval(0, most)


def floor_divide(numerator: Interval, denominator: Interval) -> Interval:
    """The quotients rounded down; everything where the divisor may have either sign."""
    if denominator.high is not None and denominator.high < 0:
        return floor_divide(negate(numerator), negate(denominator))
    if denominator.low is None or denominator.low < 0:
        return _bound_by_magnitude(numerator)
    # A divisor of zero is an error, so the least divisor is one.
    least, most = max(denominator.low, 1), denominator.high
    if most is not None and most < least:
        return EVERYTHING
    low: int | None = None
    high: int | None = None
    if numerator.low is not None:
        divisor = most if numerator.low >= 0 else least
        low = 0 if divisor is None else numerator.low // divisor
    if numerator.high is not None:
        divisor = least if numerator.high >= 0 else most
        high = -1 if divisor is None else numerator.high // divisor
    return Interval(low, high)


def _bound_by_magnitude(numerator: Interval) -> Interval:
    """Quotients by a non-zero divisor of unknown sign lie within plus and minus the numerator."""
    return hull(numerator, negate(numerator))


def ceil_divide(numerator: Interval, denominator: Interval) -> Interval:
    """The quotients rounded up."""
    return negate(floor_divide(negate(numerator), denominator))


def modulo(numerator: Interval, denominator: Interval) -> Interval:
    """The remainders, with the sign of the divisor."""
    if denominator.high is not None and denominator.high < 0:
        return negate(modulo(negate(numerator), negate(denominator)))
    high = None if denominator.high is None else max(denominator.high - 1, 0)
    if denominator.low is None or denominator.low < 0:
        low = None if denominator.low is None else denominator.low + 1
        return Interval(low, high)
    if numerator.low is None or numerator.high is None:
        return Interval(0, high)
    if denominator.is_point and denominator.low:
        divisor = denominator.low
        if numerator.low // divisor == numerator.high // divisor:
            return Interval(numerator.low % divisor, numerator.high % divisor)
    if numerator.low >= 0:
        if numerator.high < denominator.low:
            return numerator
        return intersect(Interval(0, high), Interval(0, numerator.high))
    return Interval(0, high)


def minimum_of(intervals: Sequence[Interval]) -> Interval:
    """The least of one value of each."""
    lows = [interval.low for interval in intervals]
    highs = [interval.high for interval in intervals if interval.high is not None]
    known = [low for low in lows if low is not None]
    low = min(known) if len(known) == len(lows) else None
    return Interval(low, min(highs, default=None))


def maximum_of(intervals: Sequence[Interval]) -> Interval:
    """The greatest of one value of each."""
    return negate(minimum_of([negate(interval) for interval in intervals]))


def apply_to_intervals(operation: Operation, operands: Sequence[Interval]) -> Interval:
    """Bounds on the value of an application from bounds on its operands."""
    if operation in BOOLEANS:
        return TRUTH_VALUES
    match operation:
        case Operation.FLOORDIV:
            return floor_divide(operands[0], operands[1])
        case Operation.CEILDIV:
            return ceil_divide(operands[0], operands[1])
        case Operation.MOD:
            return modulo(operands[0], operands[1])
        case Operation.MINIMUM:
            return minimum_of(operands)
        case Operation.MAXIMUM:
            return maximum_of(operands)
        case Operation.SELECT:
            return hull(operands[1], operands[2])
        case _:
            return EVERYTHING
