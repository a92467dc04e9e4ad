"""Random graphs: whatever rewriting and planning make of them, the numbers must come out right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.graph_kit import F32, check, exact, inputs_at, tolerance
from support.meanings import BothMeanings
from support.random_graphs import build, fill, largest
from tilewright.backend.cpu.machine import host_levels
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify

SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]
NUMBERS = st.lists(st.integers(0, 1 << 16), min_size=12, max_size=90)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def compare(numbers: list[int], steps: int, rewrite: bool) -> None:
    graph = build(numbers, steps)
    scale = max(largest(graph, sizes) for sizes in SIZES)
    if rewrite:
        graph = prepare(simplify(graph))
    check(graph, SIZES, length=400 * steps, scale=scale, fill=fill, levels=("x86-64",))


@pytest.mark.slow
@given(NUMBERS, st.integers(3, 8), st.booleans())
@settings(max_examples=8, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_small_random_graphs(numbers: list[int], steps: int, rewrite: bool) -> None:
    compare(numbers, steps, rewrite)


@pytest.mark.slow
@given(NUMBERS, st.integers(5, 20), st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_many_random_graphs(numbers: list[int], steps: int, rewrite: bool) -> None:
    compare(numbers, steps, rewrite)


@given(NUMBERS, st.integers(3, 20))
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_rewritten_graphs_mean_the_same(numbers: list[int], steps: int) -> None:
    graph = build(numbers, steps)
    rewritten = prepare(simplify(graph))
    for sizes in SIZES:
        inputs = inputs_at(graph, sizes, fill)
        # Folded constants are float32, whatever type the graph is evaluated in.
        allowed = tolerance(F32, 4 * steps, largest(graph, sizes))
        with np.errstate(all="ignore"):
            before, after = exact(graph, inputs, sizes), exact(rewritten, inputs, sizes)
        for name, want in before.items():
            np.testing.assert_allclose(after[name], want, rtol=0, atol=allowed)


def test_a_few_kernels_as_code_and_as_numpy() -> None:
    both = BothMeanings(1, ("x86-64",))
    while len(both.kernels) < 20:
        both.compare()


@pytest.mark.slow
def test_many_kernels_as_code_and_as_numpy() -> None:
    """``scripts/interpret_kernels.py`` runs any number of them."""
    both = BothMeanings(2, [level.name for level in host_levels()])
    while len(both.kernels) < 50:
        both.compare()
