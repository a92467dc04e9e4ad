"""Streams of this machine: some rows are followed, and something is written."""

from __future__ import annotations

import pytest

from tilewright.target import detect
from tilewright.tune import measure_streams
from tilewright.tune.streams import followed_rows


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ((1.5, 1.0, 1.1, 2.0, 2.1), 4),  # one row alone may be slower than some
        ((1.0, 1.0, 1.0, 1.0, 1.0), 16),
        ((1.0, 2.0, 2.0, 2.0, 2.0), 1),
    ],
)
def test_rows_are_followed_while_their_lines_take_no_longer(
    seconds: tuple[float, ...], rows: int
) -> None:
    assert followed_rows((1, 2, 4, 8, 16), seconds) == rows


def test_this_machine_follows_some_rows_and_writes() -> None:
    found = measure_streams(detect())
    assert found.followed >= 1 and found.written > 0
    assert all(apart >= 0 for _, apart in found.spreads())
