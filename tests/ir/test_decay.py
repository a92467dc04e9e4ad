"""Exponentials of the distance below a maximum are found, and no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.graph_kit import F32, F64, Array, Space, apply, check
from tilewright.ir.decay import decays, greatest_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Input, Map, Reduce
from tilewright.shape import constant

SQUARE = (constant(4), constant(4))


def power(x: Node, greatest: Node, axes: tuple[int, ...]) -> Node:
    """exp(x - greatest), which has the given axes of x."""
    return apply("exponential", apply("subtract", x, node(Broadcast(x.shape, axes), greatest)))


def _power_above(x: Node, greatest: Node) -> Node:
    return apply("exponential", apply("subtract", node(Broadcast(SQUARE, (0,)), greatest), x))


def test_the_distance_below_the_greatest_of_rows_or_columns() -> None:
    x = node(Input("x", F32, SQUARE))
    rows, columns = (node(Reduce("maximum", (axis,)), x) for axis in (1, 0))
    assert greatest_of(power(x, rows, (0,))) is rows
    assert greatest_of(power(x, columns, (1,))) is columns
    whole = node(Reduce("maximum", (0, 1)), x)
    assert greatest_of(power(x, whole, ())) is whole


@pytest.mark.parametrize(
    "other",
    [
        lambda x, rows: power(x, rows, (1,)),  # the greatest of another row
        lambda x, rows: power(node(Map("negate"), x), rows, (0,)),
        lambda x, rows: power(x, node(Reduce("minimum", (1,)), x), (0,)),
        lambda x, rows: _power_above(x, rows),
        lambda x, rows: apply("exponential", x),
    ],
    ids=["another row", "other elements", "least", "above", "alone"],
)
def test_what_may_be_positive(other: Callable[[Node, Node], Node]) -> None:
    x = node(Input("x", F32, SQUARE))
    assert not decays(other(x, node(Reduce("maximum", (1,)), x)))


@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda d: d.value)
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_far_below_the_greatest_become_nothing(dtype: DType, axis: int) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", dtype, a, b)
    kept = (1 - axis,)
    powers = power(x, node(Reduce("maximum", (axis,)), x), kept)
    total = node(Broadcast(x.shape, kept), node(Reduce("sum", (axis,)), powers))

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = np.random.default_rng(5).uniform(-1500, 1500, shape)
        made[::2] = made[::2] % 90
        made[:, ::3] = -np.inf
        made[:, :1] = 3.0
        made[:1, :] = 2.0
        return made.astype(dtype.numpy)

    sizes = [{"a": 5, "b": n} for n in (1, 7, 8, 9, 33, 130)] + [{"a": 40, "b": 17}]
    check(space.graph(apply("divide", powers, total)), sizes, length=130, fill=fill)
