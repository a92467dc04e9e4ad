"""Covers: few rows, near the best everywhere, and never without one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.policy.cover import Bound, cover

Array = np.ndarray[Any, np.dtype[np.float64]]


def regret(prices: Array, others: Array, kept: tuple[int, ...]) -> Array:
    together = np.concatenate([prices, others]).min(axis=0)
    return np.concatenate([prices[list(kept)], others]).min(axis=0) / together - 1


def test_what_is_best_everywhere_is_enough() -> None:
    prices = np.array([[3.0, 5.0, 9.0], [2.0, 4.0, 8.0], [4.0, 4.0, 8.0]])
    assert cover(prices, np.empty((0, 3)), Bound(0.0, 0.0, 3)) == (1,)


def test_a_bound_trades_candidates_for_regret() -> None:
    prices = np.array([[100.0, 200.0], [200.0, 100.0], [110.0, 110.0]]) * 1e6
    none = np.empty((0, 2))
    assert cover(prices, none, Bound(0.1, 0.1, 3)) == (2,)
    assert cover(prices, none, Bound(0.0, 0.0, 3)) == (0, 1)
    assert cover(prices, none, Bound(0.0, 0.0, 1)) == (2,)


def test_other_variants_count() -> None:
    prices = np.array([[100.0, 200.0], [200.0, 100.0]])
    assert cover(prices, np.array([[300.0, 50.0]]), Bound(0.0, 0.0, 2)) == (0,)
    assert len(cover(prices, np.array([[1.0, 1.0]]), Bound(0.0, 0.0, 2))) == 1


def test_what_costs_nothing_has_no_regret() -> None:
    prices = np.array([[0.0, 7.0], [0.0, 5.0]])
    assert cover(prices, np.empty((0, 2)), Bound(0.0, 0.0, 2)) == (1,)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_the_bound_is_kept_with_about_as_few_as_can_be(
    rows: int, samples: int, more: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    prices = np.round(generator.uniform(1e3, 2e3, (rows, samples)))
    others = np.round(generator.uniform(1e3, 2e3, (more, samples)))
    bound = Bound(0.05, 0.2, rows)
    kept = cover(prices, others, bound)
    assert kept and kept == tuple(sorted(set(kept)))
    found = regret(prices, others, kept)
    assert found.mean() <= 0.05 + 1e-5 and found.max() <= 0.2 + 1e-5
    for count in range(1, len(kept)):
        for fewer in combinations(range(rows), count):
            worse = regret(prices, others, fewer)
            if worse.mean() <= 0.05 and worse.max() <= 0.2:
                # The greedy choice is at most the harmonic number of the samples away.
                assert len(kept) <= count * (1 + np.log(samples) + 1)
