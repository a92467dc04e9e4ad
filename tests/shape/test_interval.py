"""Interval arithmetic holds every result; tried on all small ranges, open ends too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from tilewright.shape.evaluation import evaluate_operation
from tilewright.shape.interval import (
    Interval,
    add,
    apply_to_intervals,
    hull,
    intersect,
    multiply,
    negate,
    power,
    scale,
)
from tilewright.shape.table import Operation

# Values past the finite ends of the ranges below stand for what an open end lets in.
FAR = 9
ENDS = (-4, -1, 0, 1, 3)
RANGES = [
    Interval(low, high)
    for low, high in itertools.product((None, *ENDS), (*ENDS, None))
    if low is None or high is None or low <= high
]


def values(interval: Interval) -> range:
    low = -FAR if interval.low is None else interval.low
    return range(low, (FAR if interval.high is None else interval.high) + 1)


@pytest.mark.parametrize(
    ("combine", "value"),
    [(add, lambda x, y: x + y), (multiply, lambda x, y: x * y), (hull, lambda x, y: x)],
)
def test_sums_products_and_hulls(
    combine: Callable[[Interval, Interval], Interval], value: Callable[[int, int], int]
):
    for left, right in itertools.product(RANGES, repeat=2):
        result = combine(left, right)
        for x, y in itertools.product(values(left), values(right)):
            assert value(x, y) in result, (left, right)


def test_products_of_bounded_ranges_are_exact():
    bounded = [r for r in RANGES if r.low is not None and r.high is not None]
    for left, right in itertools.product(bounded, repeat=2):
        products = [x * y for x in values(left) for y in values(right)]
        assert multiply(left, right) == Interval(min(products), max(products))


def test_negatives_multiples_powers_and_intersections():
    for interval in RANGES:
        for x in values(interval):
            assert -x in negate(interval)
            for factor in (-3, 0, 2):
                assert factor * x in scale(interval, factor)
            for exponent in (1, 2, 3, 4):
                assert x**exponent in power(interval, exponent)
        for other in RANGES:
            both = set(values(interval)) & set(values(other))
            assert both == {x for x in range(-FAR, FAR + 1) if x in intersect(interval, other)}


@pytest.mark.parametrize(
    "operation",
    [Operation.FLOORDIV, Operation.CEILDIV, Operation.MOD, Operation.MINIMUM, Operation.MAXIMUM],
)
def test_divisions_and_extremes(operation: Operation):
    for left, right in itertools.product(RANGES, repeat=2):
        result = apply_to_intervals(operation, [left, right])
        for x, y in itertools.product(values(left), values(right)):
            if y or operation in (Operation.MINIMUM, Operation.MAXIMUM):
                assert evaluate_operation(operation, [x, y]) in result, (left, right, x, y)


def test_division_by_a_constant_is_exact():
    for interval, divisor in itertools.product(RANGES, (-3, -1, 1, 2, 5)):
        if interval.low is None or interval.high is None:
            continue
        by = Interval(divisor, divisor)
        quotients = [x // divisor for x in values(interval)]
        expected = Interval(min(quotients), max(quotients))
        assert apply_to_intervals(Operation.FLOORDIV, [interval, by]) == expected


def test_selection_and_truth_values():
    operands: Sequence[Interval] = [Interval(0, 1), Interval(2, 3), Interval(7, None)]
    assert apply_to_intervals(Operation.SELECT, operands) == Interval(2, None)
    assert apply_to_intervals(Operation.LESS_EQUAL, operands[:2]) == Interval(0, 1)


def test_points_empty_ranges_and_text():
    assert Interval(2, 2).is_point
    assert not Interval(None, None).is_point
    assert Interval(3, 2).is_empty
    assert not Interval(None, 2).is_empty
    assert str(Interval(0, 64)) == "0..64"
    assert str(Interval(1, None)) == "1.."
