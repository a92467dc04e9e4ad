"""What a step of a register tile is said to take, where no machine was measured."""

from __future__ import annotations

from tilewright.cost.tiles import derived_tiles
from tilewright.target import preset


def test_half_a_vector_by_itself_takes_less_than_a_whole_one() -> None:
    """Seven rows start half as many instructions; then sums wait for those of the step before."""
    half, whole = (
        {tile.height: tile.step_ns for tile in derived_tiles(preset("zen4"), "float32", columns)}
        for columns in (8, 16)
    )
    assert half[7] < 0.6 * whole[7]
    assert half[4] == whole[4]
