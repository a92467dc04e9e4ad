"""Integers that follow from indices alone, against numpy's meaning of the same nodes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Dimension,
    Input,
    Iota,
    Map,
    Reshape,
    Transpose,
)
from tilewright.ir.progressions import is_known_below, known_integer, progression
from tilewright.shape import Scope, constant, symbol

H, W = symbol("h"), symbol("w")


def numbers(*values: object) -> Node:
    """A constant of int64."""
    return node(Constant.of(np.array(values, np.int64)))


def iota(size: int) -> Node:
    return node(Iota((constant(size),), 0))


def spread(x: Node, *shape: int, axis: int) -> Node:
    return node(Broadcast(tuple(map(constant, shape)), (axis,)), x)


def both(function: str, left: Node, right: Node) -> Node:
    return node(Map(function), left, right)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(7), (7, ())),
        (np.arange(5), (0, (1,))),
        (3 - 2 * np.arange(4), (3, (-2,))),
        (np.array([9]), (9, (0,))),
        (np.arange(3)[:, None] + np.arange(4), (0, (1, 1))),
        (np.arange(3)[:, None] * 10 + 2 * np.arange(4) + 1, (1, (10, 2))),
        (np.array([0, 1, 3]), None),
        (np.array([[0, 1], [1, 3]]), None),
        (np.array([[0, 1], [2, 3]], np.int32), None),
        (np.empty((0, 2), np.int64), None),
        (np.array([2**63 - 1, -(2**63)]), None),
    ],
)
def test_constants_that_grow_evenly(
    array: np.ndarray, expected: tuple[int, tuple[int, ...]] | None
) -> None:
    assert progression(node(Constant.of(np.asarray(array)))) == expected


def test_sums_of_positions() -> None:
    """A window of 3 with a dilation of 2 over 6 places, through views."""
    taps = spread(both("multiply", iota(3), spread(numbers(2), 3, axis=0)), 3, 6, axis=0)
    places = both("add", taps, spread(iota(6), 3, 6, axis=1))
    turned = node(Transpose((1, 0)), places)
    flat = node(Reshape((constant(18),)), turned)
    scope = Scope()
    wanted = (np.arange(6)[:, None] + 2 * np.arange(3)).reshape(18)
    for i in range(18):
        found = known_integer(flat, [constant(i)], scope)
        assert found is not None and scope.resolve(found).value == wanted[i]
    for at in product(range(6), range(3)):
        found = known_integer(turned, [constant(i) for i in at], scope)
        assert found is not None and found.value == at[0] + 2 * at[1]
    assert is_known_below(flat, constant(10), scope)
    assert not is_known_below(flat, constant(9), scope)
    below = both("subtract", places, spread(numbers(1), 3, 6, axis=0))
    assert not is_known_below(below, constant(10), scope)


def test_positions_below_a_size_that_is_not_known() -> None:
    scope = Scope()
    scope.declare("h", 0, 100)
    shape = (constant(3), H)
    rows = node(Broadcast(shape, (1,)), node(Iota((H,), 0)))
    taps = node(Broadcast(shape, (0,)), numbers(0, 1, 2))
    places = both("add", rows, taps)
    assert is_known_below(places, H + 2, scope)
    assert not is_known_below(places, H + 1, scope)


def test_what_is_not_known() -> None:
    given = node(Input("x", DType.INT64, (H,)))
    scope = Scope()
    assert known_integer(given, [constant(0)], scope) is None
    assert known_integer(both("add", given, given), [constant(0)], scope) is None
    squares = both("multiply", iota(4), iota(4))
    assert known_integer(squares, [symbol("i")], scope) is None
    assert known_integer(node(Dimension(W)), [], scope) is W
    narrow = node(Cast(DType.INT32), iota(4))
    assert known_integer(narrow, [constant(1)], scope) is None
