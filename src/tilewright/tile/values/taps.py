"""Where a windowed primitive reads: positions of taps and whether they lie inside the operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve
from tilewright.shape import (
    Expr,
    Scope,
    Truth,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_and,
)


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


def geometry(primitive: Convolve) -> list[Tap]:
    """A window's axes."""
    rows = zip(primitive.strides, primitive.dilations, primitive.spread, strict=True)
    return [Tap(*row) for row in rows]


def has_one_tap(node: Node) -> bool:
    """Whether the results of a Convolve read one pixel each."""
    return all(size.value == 1 for size in node.inputs[1].shape[2:])


def is_dense(primitive: Convolve) -> bool:
    """Whether there are no zeros before the operand's first element and between its elements."""
    return all(e.is_constant and e.value == 0 for e in primitive.low) and all(
        size == 1 for size in primitive.spread
    )


def is_inside(node: Node, scope: Scope) -> bool:
    """Whether every result of one tap reads an element of the data: there are no zeros around."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    sizes = node.inputs[0].shape[primitive.spatial]
    read = [ceil_div(size, s) for size, s in zip(sizes, primitive.strides, strict=True)]
    pairs = zip(primitive.sizes, read, strict=True)
    return is_dense(primitive) and all(
        scope.is_equal(made, most) is Truth.YES for made, most in pairs
    )


def is_pointwise(node: Node) -> bool:
    """Whether a Convolve has a result for every pixel, and of that pixel alone."""
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    return (
        has_one_tap(node)
        and is_dense(primitive)
        and all(stride == 1 for stride in primitive.strides)
        and primitive.sizes == node.inputs[0].shape[primitive.spatial]
    )
