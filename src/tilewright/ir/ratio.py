"""Fractions of shape expressions: what sizes are between a division or scaling and its rounding.

``floor(h * 0.5)`` on floats is ``h // 2``. A :class:`Ratio` is followed only where floats of any
width give the exact result for sizes of real tensors. May import ``shape``; used by ``symbolic``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    exact_quotient,
    less,
    less_equal,
    select,
)

# A float32 holds the product of such a factor and any size up to 2**16 without rounding.
LARGEST_FACTOR = 2**8


@dataclass(frozen=True)
class Ratio:
    """``numerator / denominator`` in lowest terms; the denominator is more than 1."""

    numerator: Expr
    denominator: int

    @property
    def is_exact(self) -> bool:
        """Whether a float holds the value itself, and not only one that rounds as it does."""
        return self.denominator & (self.denominator - 1) == 0


Element = Expr | Ratio


def ratio_of(number: float) -> Ratio | None:
    """A float that is not whole, or None where products with it may be rounded."""
    numerator, denominator = number.as_integer_ratio() if abs(number) < LARGEST_FACTOR else (0, 0)
    if denominator < 2 or max(abs(numerator), denominator) > LARGEST_FACTOR:
        return None
    return Ratio(constant(numerator), denominator)


def _reduced(numerator: Expr, denominator: int) -> Element:
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    common = gcd(denominator, *(size for _, size in numerator.terms))
    quotient = exact_quotient(numerator, constant(common))
    assert quotient is not None
    return quotient if denominator == common else Ratio(quotient, denominator // common)


def ratio_result(function: str, x: list[Element]) -> Element | None:
    """A scalar function of floats of which some may be fractions; None where it is not exact."""
    if function in ("floor", "ceil", "truncate", "round_even"):
        return _rounded(function, x[0])
    if not all(isinstance(e, Expr) or e.is_exact for e in x):
        return None
    parts = [(e, 1) if isinstance(e, Expr) else (e.numerator, e.denominator) for e in x]
    match function, parts:
        case "negate", [(a, p)]:
            return _reduced(-a, p)
        case "is_not_zero", [(a, p)]:
            return equal(equal(a, 0), 0)
        case "add", [(a, p), (b, q)]:
            return _reduced(a * q + b * p, p * q)
        case "subtract", [(a, p), (b, q)]:
            return _reduced(a * q - b * p, p * q)
        case "multiply", [(a, p), (b, q)]:
            return _reduced(a * b, p * q)
        case "divide", [(a, p), (b, q)]:
            return _reduced(a * q, p * b.value) if b.is_constant and b.value else None
        case "equal", [(a, p), (b, q)]:
            return equal(a * q, b * p)
        case "less", [(a, p), (b, q)]:
            return less(a * q, b * p)
        case "less_equal", [(a, p), (b, q)]:
            return less_equal(a * q, b * p)
        case _:
            return None


def _rounded(function: str, x: Element) -> Expr:
    if isinstance(x, Expr):
        return x
    a, p = x.numerator, x.denominator
    match function:
        case "floor":
            return a // p
        case "ceil":
            return ceil_div(a, p)
        case "truncate":
            return select(less(a, 0), ceil_div(a, p), a // p)
        case _:
            # Half up, and one less where that was a tie and the result is odd.
            nearest = (a * 2 + p) // (p * 2)
            return nearest - select(equal((a * 2 + p) % (p * 2), 0), nearest % 2, 0)
