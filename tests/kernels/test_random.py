"""Random graphs: whatever the planner makes of them, the numbers must come out right."""

from __future__ import annotations

import pytest
from graph_kit import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import build, fill, largest

SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]
NUMBERS = st.lists(st.integers(0, 1 << 16), min_size=12, max_size=90)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def compare(numbers: list[int], steps: int) -> None:
    graph = build(numbers, steps)
    for sizes in SIZES:
        largest(graph, sizes)
    scale = max(largest(graph, sizes) for sizes in SIZES)
    check(graph, SIZES, length=400 * steps, scale=scale, fill=fill, levels=("x86-64",))


@given(NUMBERS, st.integers(3, 8))
@settings(max_examples=8, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_small_random_graphs(numbers: list[int], steps: int) -> None:
    compare(numbers, steps)


@pytest.mark.slow
@given(NUMBERS, st.integers(5, 14))
@settings(max_examples=150, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_many_random_graphs(numbers: list[int], steps: int) -> None:
    compare(numbers, steps)
