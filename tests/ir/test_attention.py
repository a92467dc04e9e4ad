"""Attention is found by its primitives: what counts as one, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.attention import attention_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node, topological
from tilewright.ir.primitives import Broadcast, Constant, Contract, Input, Map, Reduce
from tilewright.shape import Scope, constant

SCOPE = Scope()
ROWS, KEYS = SCOPE.declare("rows", 0, 64), SCOPE.declare("keys", 0, 64)
QUERIES = node(Input("q", DType.FLOAT32, (ROWS, constant(8))))
KEY = node(Input("k", DType.FLOAT32, (KEYS, constant(8))))
VALUES = node(Input("v", DType.FLOAT32, (KEYS, constant(8))))
SCORES = node(Contract((), ((1, 1),)), QUERIES, KEY)


def spread(values: Node) -> Node:
    return node(Broadcast(SCORES.shape, tuple(range(values.rank))), values)


def softmax(x: Node, kinds: tuple[str, str] = ("maximum", "sum"), base: Node | None = None) -> Node:
    greatest = node(Reduce(kinds[0], (1,)), base or x)
    powers = node(Map("exponential"), node(Map("subtract"), x, spread(greatest)))
    return node(Map("divide"), powers, spread(node(Reduce(kinds[1], (1,)), powers)))


def found(weights: Node, summed: int = 1) -> bool:
    context = node(Contract((), ((summed, 0),)), weights, VALUES)
    within = {n for n in topological([context]) if n not in (QUERIES, KEY, VALUES)}
    return attention_of(SCORES, context, within) is not None


def test_a_softmax_between_two_products() -> None:
    assert found(softmax(SCORES))


def test_scores_that_are_scaled() -> None:
    half = spread(node(Constant.of(np.asarray(0.5, np.float32))))
    assert found(softmax(node(Map("multiply"), SCORES, half)))


def test_weights_that_are_cleared_where_they_are_no_numbers() -> None:
    weights, zero = softmax(SCORES), spread(node(Constant.of(np.asarray(0.0, np.float32))))
    assert found(node(Map("select"), node(Map("is_nan"), weights), zero, weights))


def guarded(least: float = -np.inf) -> Node:
    """A softmax in which rows that show nothing but minus infinity have weights of 0."""

    def number(value: float, shape: Node) -> Node:
        literal = node(Constant.of(np.asarray(value, np.float32)))
        return node(Broadcast(shape.shape, ()), literal)

    def instead(reduction: Node, found: float, taken: float) -> Node:
        asks = node(Map("equal"), reduction, number(found, reduction))
        return node(Map("select"), asks, number(taken, reduction), reduction)

    rows = tuple(range(SCORES.rank - 1))
    highest = instead(node(Reduce("maximum", (SCORES.rank - 1,)), SCORES), least, 0.0)
    lower = node(Map("subtract"), SCORES, node(Broadcast(SCORES.shape, rows), highest))
    powers = node(Map("exponential"), lower)
    total = instead(node(Reduce("sum", (SCORES.rank - 1,)), powers), 0.0, 1.0)
    return node(Map("divide"), powers, node(Broadcast(SCORES.shape, rows), total))


def test_weights_of_rows_that_show_nothing() -> None:
    assert found(guarded())


OTHERS: dict[str, Callable[[], Node]] = {
    "no softmax": lambda: node(Map("exponential"), SCORES),
    "shares of the maximum": lambda: softmax(SCORES, ("maximum", "maximum")),
    "less the minimum": lambda: softmax(SCORES, ("minimum", "sum")),
    "the maximum of something else": lambda: softmax(SCORES, base=node(Map("negate"), SCORES)),
    "guarded against another number": lambda: guarded(-1.0),
    "cleared to one": lambda: node(
        Map("select"),
        node(Map("is_nan"), softmax(SCORES)),
        spread(node(Constant.of(np.asarray(1.0, np.float32)))),
        softmax(SCORES),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_none(name: str) -> None:
    assert not found(OTHERS[name]())
