"""What a scoped rule may ask: bounds, divisibility and proofs of an order. `Bounds` answers.

A `True` is proved; a `False` only means that no proof was found. Imports `expr` and `interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.shape.expr import Expr
from tilewright.shape.interval import Interval


class Prover(Protocol):
    """What is known of symbols. `context` names those known to have a value within their range."""

    def interval(self, expression: Expr) -> Interval:
        """Bounds of the value."""
        ...

    def proves_nonnegative(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether the value is surely >= 0 where the symbols of `context` have values."""
        ...

    def proves_nonzero(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether the value is surely not 0 where the symbols of `context` have values."""
        ...

    def known_divisor(self, expression: Expr) -> int:
        """The greatest integer known to divide the value; 0 if the value is surely 0."""
        ...

    def where(self, expression: Expr, bounds: Interval) -> Prover | None:
        """What holds where the value lies in `bounds` too; None where it surely never does."""
        ...
