"""By how much expressions change from one size to the next: bounds hold at every size."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tilewright.shape import (
    Interval,
    Scope,
    ceil_div,
    equal,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
    symbol,
)
from tilewright.shape.slopes import slope

N = symbol("n")
HIGHEST = 40


def scope():
    made = Scope()
    made.declare("n", 0, HIGHEST)
    return made


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (3 * N + 1, Interval(3, 3)),
        (N - minimum(N, 12), Interval(0, 1)),
        (less_equal(N, 12), Interval(-1, 0)),
        (logical_not(less_equal(N, 12)), Interval(0, 1)),
        (N // 4, Interval(0, 1)),
        (12 // maximum(N, 1), Interval(-12, 0)),
        (N % 4, Interval(-3, 3)),
        (12 // N, None),
    ],
)
def test_slopes_of_usual_sizes(expression, expected):
    assert slope(expression, "n", scope()) == expected


def random_expression(generator, depth):
    if depth == 0:
        shift = generator.randint(-9, 9)
        return generator.choice([N, N, N + shift, N * 0 + shift])
    a, b = (random_expression(generator, depth - 1) for _ in range(2))
    number = generator.choice([1, 2, 3, 7, -2, -3])
    made = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: a * number,
        lambda: a // number,
        lambda: ceil_div(a, number),
        lambda: a % number,
        lambda: a // maximum(b, 1),
        lambda: minimum(a, b),
        lambda: maximum(a, b),
        lambda: less_equal(a, b),
        lambda: equal(a, b),
        lambda: logical_or(less_equal(a, b), equal(b, number)),
        lambda: logical_and(less_equal(a, b), less_equal(number, a)),
        lambda: select(less_equal(a, b), a, b),
    ]
    return generator.choice(made)()


@pytest.mark.parametrize("seed", range(40))
def test_bounds_of_random_expressions_hold_at_every_size(seed):
    generator = random.Random(seed)
    for _ in range(20):
        expression = random_expression(generator, generator.randint(1, 3))
        found = slope(expression, "n", scope())
        if found is None:
            continue
        values = [expression.evaluate({"n": n}) for n in range(HIGHEST + 1)]
        for before, after in pairwise(values):
            assert after - before in found, (str(expression), found)
