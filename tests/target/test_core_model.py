"""Entries of the price list of a core that others follow from."""

from __future__ import annotations

import pytest

from tilewright.target.core_model import (
    LINE_BYTES,
    VECTORS_TOGETHER,
    spread_elements,
    spread_row,
    vectors_together,
)
from tilewright.target.loop_costs import HALVED, NARROW, WIDE, LoopCosts


@pytest.mark.parametrize("costs", [HALVED, NARROW, WIDE])
def test_vectors_together_hide_the_latency_of_what_combines_them(costs: LoopCosts) -> None:
    assert round(costs.latency / costs.addition) == VECTORS_TOGETHER


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_rows_are_spread_by_a_line(size: int) -> None:
    assert spread_elements(size) * size == LINE_BYTES


@pytest.mark.parametrize(
    ("registers", "together"), [(16, (VECTORS_TOGETHER, 1, 1)), (32, (VECTORS_TOGETHER, 4, 2, 2))]
)
def test_vectors_side_by_side_fit_the_registers(registers: int, together: tuple[int, ...]) -> None:
    """Those with no function, one, two and more."""
    found = [vectors_together(functions, registers) for functions in range(len(together))]
    assert found == list(together)


def test_rows_that_make_pages_are_spread() -> None:
    lengths = (0, 1, 256, 500, 512, 1024, 1025, 1536, 2048)
    spread = [length for length in lengths if spread_row(length, 4) != length]
    assert spread == [512, 1024, 1536, 2048]
    for length in spread:
        assert spread_row(length, 4) == length + spread_elements(4)
        assert spread_row(length, 4) % 32, "lines from row to row are odd in number"
