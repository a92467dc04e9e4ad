"""Measured times in the place of modelled ones: at, between and beyond what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.correction import Correction
from tilewright.plan.prices import corrected
from tilewright.shape import symbol
from tilewright.tile.variants import THREADS

PAIRS = {1: [(1000, 3000), (8000, 9000)], 2: [(500, 400)]}


def value(correction: Correction, price: int, threads: int) -> int:
    made = correction.of(symbol("price"), symbol(THREADS))
    return made.evaluate({"price": price, THREADS: threads})


def test_measured_times_stand_where_they_were_measured() -> None:
    correction = Correction.of_times(PAIRS)
    assert correction is not None
    for threads, pairs in PAIRS.items():
        for modelled, measured in pairs:
            assert value(correction, modelled, threads) == pytest.approx(measured, rel=3e-3)
    assert value(correction, 4500, 1) == pytest.approx(6000, rel=2e-3)  # half-way between
    assert value(correction, 100, 1) == pytest.approx(300, rel=1e-2)  # as below the least
    assert value(correction, 80_000, 1) == pytest.approx(90_000, rel=2e-3)  # and the greatest
    assert value(correction, 5000, 16) == pytest.approx(4000, rel=2e-3)  # as with 2 threads
    assert value(correction, 0, 1) == 0


def test_times_that_say_nothing() -> None:
    assert Correction.of_times({1: [(0.0, 5.0)], 2: [(100.0, 90.0)]}) is None
    assert Correction.of_times({}) is None
    # Two sizes that are priced alike are one, and a larger size is never faster than a smaller.
    made = Correction.of_times({1: [(100, 100), (110, 400), (1000, 150)]})
    assert made is not None
    ((_, knots),) = made.curves
    assert knots == ((105, 200), (1000, 200))


@given(
    st.lists(st.tuples(st.integers(1, 10**11), st.integers(1, 10**11)), min_size=1, max_size=5),
    st.lists(st.integers(0, 10**12), min_size=2, max_size=9),
)
def test_more_work_never_takes_less(pairs: list[tuple[int, int]], prices: list[int]) -> None:
    correction = Correction.of_times({1: pairs})
    assert correction is not None
    ordered = sorted(prices)
    found = [value(correction, price, 1) for price in ordered]
    assert found == sorted(found) and found[0] >= 0
    # The planner evaluates in floating point what a call evaluates in whole numbers.
    points = [{THREADS: 1} for _ in ordered]
    # There large terms may cancel, of which digits beyond the 53rd bit are lost.
    steepest = max(measured for _, measured in pairs) / min(modelled for modelled, _ in pairs)
    lost = 2 + ordered[-1] * steepest * 2.0**-50
    assert corrected(correction, ordered, points) == pytest.approx(found, rel=1e-6, abs=lost)
