"""Where a windowed primitive reads: positions of taps and whether they lie inside the operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.shape import Expr, Scope, constant, equal, less, less_equal, logical_and


@dataclass(frozen=True)
class Tap:
    """One axis of a window: output o and tap t meet at ``o * stride + t * dilation - low``.

    With ``spread`` > 1 the operand has ``spread - 1`` zeros between its elements.
    """

    stride: int
    dilation: int
    spread: int


def tap_position(
    taps: Sequence[Tap],
    outputs: Sequence[Expr],
    inner: Sequence[Expr],
    low: Sequence[Expr],
    sizes: Sequence[Expr],
    scope: Scope,
) -> tuple[list[Expr], Expr]:
    """Operand positions of one tap of one output, and the predicate that they are inside."""
    positions: list[Expr] = []
    inside = constant(1)
    for tap, output, k, before, size in zip(taps, outputs, inner, low, sizes, strict=True):
        wide = output * tap.stride + k * tap.dilation - before
        position = wide if tap.spread == 1 else wide // tap.spread
        if tap.spread != 1:
            inside = logical_and(inside, equal(wide % tap.spread, 0))
        inside = logical_and(inside, less_equal(0, wide))
        inside = logical_and(inside, less(position, size))
        positions.append(position)
    return positions, scope.resolve(inside)
