"""One disturbed block does not move the median of blocks; several show in their spread."""

from __future__ import annotations

import pytest

from tilewright.tune.blocks import spread, typical


def test_a_disturbed_block_moves_nothing() -> None:
    quiet = [10.0, 10.1, 10.2, 10.0, 10.1]
    disturbed = [10.0, 30.0, 10.2, 10.0, 10.1]
    assert typical(disturbed) == typical(quiet) == 10.1
    assert spread(disturbed) == pytest.approx(0.2 / 10.1)


def test_several_disturbed_blocks_are_seen() -> None:
    assert spread([10.0, 30.0, 31.0, 10.0, 29.0]) > 0.5


def test_one_block_and_nothing_tell_nothing() -> None:
    assert spread([3.0]) == 0.0
    assert spread([0.0, 0.0, 0.0]) == 0.0
