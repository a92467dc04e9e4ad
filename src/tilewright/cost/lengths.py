"""Lengths and amounts in prices: what only a loop knows is left out, and long sums stay together.

Imports shape.
"""

from __future__ import annotations

from tilewright.shape import Expr, maximum, with_positive_divisors

MOST_TERMS = 4  # of a sum that is multiplied out; a longer one is kept as it is


def short(expression: Expr) -> Expr:
    """The same; a long sum is kept together where it is multiplied."""
    return maximum(expression, 0) if len(expression.terms) > MOST_TERMS else expression


def known(length: Expr) -> Expr:
    """A length of which nothing is left that only a loop or an element knows."""
    left = [name for name in length.free_symbols if _is_local(name)]
    return _bounded(length.substitute(dict.fromkeys(left, 0)) if left else length)


def _is_local(name: str) -> bool:
    """Whether a name is that of a loop or of a position that is read, not of a size."""
    return name[:1] == "_" and name[2:].isdigit()


def _bounded(length: Expr) -> Expr:
    """The same, 0 where it may be less, and of a value where nothing around it runs as well."""
    length = with_positive_divisors(length)
    is_size = length.symbol_name or (length.is_constant and length.value >= 0)
    return length if is_size else maximum(length, 0)


__all__ = ["known", "short"]
