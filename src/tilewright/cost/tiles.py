"""The innermost level: what one step along k of a register tile costs.

Times are measured on a machine, or derived from the loads and multiply-adds that its pipes take. A
:class:`TileLine` sums them up for all heights of one width, since a block of rows is covered by two
neighbouring heights. Imports target. Start with :func:`tile_line`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.target import Target

_MOST_ROWS = 12
_LEAST_BYTES = 16  # of a vector


@dataclass(frozen=True)
class TileTime:
    """A register tile of ``height`` x ``columns`` elements of float32.

    ``step_ns`` is what a step along k takes with both operands in the first-level cache.
    """

    height: int
    columns: int
    step_ns: float


@dataclass(frozen=True)
class TileLine:
    """Picoseconds of a step along k over all tiles of one panel.

    ``rows`` rows in ``tiles`` tiles take ``per_row * rows + per_tile * tiles``, and ``least`` at
    the least.
    """

    per_row: int
    per_tile: int
    least: int

    def at(self, height: int) -> int:
        """Picoseconds of one tile."""
        return max(self.per_row * height + self.per_tile, self.least)


def lanes_along(depth: int | None, lanes: int, size: int) -> int:
    """Lanes of the vectors that run along so many elements of ``size`` bytes, if that is known.

    Vectors of ``lanes`` of which a half is enough would be halved once more when their lanes are
    added up.
    """
    least = _LEAST_BYTES // size
    while depth is not None and depth <= lanes // 2 and least <= lanes // 2:
        lanes //= 2
    return lanes


def derived_tiles(target: Target, dtype: str, columns: int) -> tuple[TileTime, ...]:
    """All heights of one width, as the multiply-adds and loads of ``target`` allow."""
    vectors = -(-columns // target.lanes(dtype))
    heights = range(1, max(3, min(_MOST_ROWS, (target.vector_registers - 1) // vectors)) + 1)
    return tuple(TileTime(height, columns, _derived(target, height, vectors)) for height in heights)


def _derived(target: Target, height: int, vectors: int) -> float:
    adding = height * vectors / target.fma_pipes
    loading = (height + vectors) / target.loads_per_cycle
    return max(adding, loading) / target.clock_ghz


def tile_line(tiles: Sequence[TileTime], columns: int, most: int) -> TileLine | None:
    """The line through the heights 2 to ``most``; None where there are fewer than two."""
    times = {
        tile.height: 1000.0 * tile.step_ns
        for tile in tiles
        if tile.columns == columns and tile.height <= most
    }
    heights = [height for height in times if height > 1]
    if len(heights) < 2:
        return None
    middle = sum(heights) / len(heights)
    mean = sum(times[h] for h in heights) / len(heights)
    spread = sum((h - middle) ** 2 for h in heights)
    slope = max(0.0, sum((h - middle) * (times[h] - mean) for h in heights) / spread)
    least = times.get(1, min(times.values()))
    return TileLine(round(slope), max(0, round(mean - slope * middle)), round(least))
