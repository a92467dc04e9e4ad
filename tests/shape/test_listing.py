"""Expressions as rows of plain values: read back to the same object, each part stored once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from support.generating import Tree, build, trees
from tilewright.shape import Expr, Listing, minimum, parse, read_listing, select, symbol
from tilewright.support.errors import DimensionError


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(trees, trees)
def test_what_is_read_is_the_very_expression(first: Tree, second: Tree) -> None:
    try:
        expressions = [build(first), build(second)]
    except DimensionError:
        return
    listing = Listing()
    numbers = [listing.number(expression) for expression in expressions]
    read = read_listing(json.loads(json.dumps(listing.rows)))
    assert [read[number] for number in numbers] == expressions
    assert all(row is other for row, other in zip(read, read_listing(listing.rows), strict=True))


def test_a_part_of_many_expressions_is_one_row() -> None:
    """Costs of variants contain each other: their texts together are long, their rows are few."""
    cost, costs = symbol("n"), list[Expr]()
    for number in range(9):
        cost = select(symbol("m") - number, minimum(cost + number, 2 * cost), cost)
        costs.append(cost)
    listing = Listing()
    assert len({listing.number(cost) for cost in costs}) == len(costs)
    assert len(listing.rows) < 100
    assert sum(len(str(cost)) for cost in costs) > 10000


def test_canonical_text_means_the_same_row() -> None:
    listing = Listing()
    texts = ["2*n + 1", "1 + n + n", "n*m", "m*n", "7", "n"]
    numbers = [listing.number(parse(text)) for text in texts]
    assert numbers[0] == numbers[1] and numbers[2] == numbers[3]
    assert listing.rows[numbers[4]] == 7 and listing.rows[numbers[5]] == "n"


@pytest.mark.parametrize(
    "rows",
    [
        [None],
        [True],
        [1.5],
        [{}],
        [[]],
        ["not a name"],
        [[5]],
        ["n", [5, 0]],
        ["n", [5, 0, 0, 0]],
        ["n", [5, 0, 1]],
        ["n", [5, 0, 2]],
        ["n", [5, 0, -1]],
        ["n", [1, 0]],
        ["n", [2, 0, 0]],
        ["n", [99, 0, 0]],
        ["n", [0, [1, 0.0]]],
        ["n", [0, ["1", 0]]],
        ["n", [0, []]],
        [3, [0, [1, 0]]],
    ],
)
def test_rows_that_are_no_expressions(rows: list[Any]) -> None:
    with pytest.raises((ValueError, TypeError, IndexError, DimensionError)):
        read_listing(rows)
