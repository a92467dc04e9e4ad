"""Entries of the price list of a core that others follow from."""

from __future__ import annotations

import pytest

from tilewright.target.core_model import LINE_BYTES, VECTORS_TOGETHER, spread_elements
from tilewright.target.loop_costs import HALVED, NARROW, WIDE, LoopCosts


@pytest.mark.parametrize("costs", [HALVED, NARROW, WIDE])
def test_vectors_together_hide_the_latency_of_what_combines_them(costs: LoopCosts) -> None:
    assert round(costs.latency / costs.addition) == VECTORS_TOGETHER


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_rows_are_spread_by_a_line(size: int) -> None:
    assert spread_elements(size) * size == LINE_BYTES
