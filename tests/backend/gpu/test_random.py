"""Random graphs in Triton: what there is code for comes out right, whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gpu_kit import check_what_can_be_written, needs_triton
from support.random_graphs import build, fill, largest

pytestmark = needs_triton

SIZES = [{"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 7, "b": 19}]
NUMBERS = st.lists(st.integers(0, 1 << 16), min_size=12, max_size=90)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def compare(numbers: list[int], steps: int) -> None:
    graph = build(numbers, steps)
    scale = max(largest(graph, sizes) for sizes in SIZES)
    check_what_can_be_written(graph, SIZES, length=400 * steps, scale=scale, fill=fill)


@given(NUMBERS, st.integers(3, 8))
@settings(max_examples=8, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_small_random_graphs(numbers: list[int], steps: int) -> None:
    compare(numbers, steps)


@pytest.mark.slow
@given(NUMBERS, st.integers(5, 20))
@settings(max_examples=24, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_many_random_graphs(numbers: list[int], steps: int) -> None:
    compare(numbers, steps)
