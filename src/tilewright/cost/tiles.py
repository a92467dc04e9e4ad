"""The innermost level: what one step along k of a register tile costs.

Times are measured on a machine, or derived from the loads and multiply-adds that its pipes take; a
step over words of several narrow elements is what their unit takes: an instruction for dot products
of words, a matrix unit, or plain instructions where the machine has neither. A
:class:`TileLine` sums them up for all heights of one width, since a block of rows is covered by two
neighbouring heights. Imports target. Start with :func:`tile_line` and :func:`word_line`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.target import InstructionTile, Target, TileTime
from tilewright.target.core_model import (
    ADDRESSED_ROWS,
    WORD_BYTES,
    copies_of,
    ends_in_half,
    is_halved,
)
from tilewright.target.description import element_bytes


@dataclass(frozen=True)
class _TakenApart:
    """Instructions without a unit: for a vector of either operand, and for the products of two.

    ``multiplied`` of the latter need a pipe that multiplies. See ``backend.cpu.narrow_dots``.
    """

    operand: int
    products: int
    multiplied: int = 2


_TAKEN_APART = {"bfloat16": _TakenApart(2, 2), "int8": _TakenApart(3, 4)}


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


def derived_tiles(target: Target, dtype: str, columns: int) -> tuple[TileTime, ...]:
    """All heights of one width, as the multiply-adds and loads of ``target`` allow."""
    lanes = target.lanes(dtype)
    vectors = -(-columns // lanes)
    heights = range(1, max(3, min(ADDRESSED_ROWS, (target.vector_registers - 1) // vectors)) + 1)
    is_half = is_halved(target.vector_bytes, target.fma_pipes)
    is_half = is_half and ends_in_half(columns, lanes, target.vector_bytes)
    taken = vectors - 0.5 if is_half else vectors
    return tuple(TileTime(height, columns, _derived(target, height, taken)) for height in heights)


def _derived(target: Target, height: int, vectors: float) -> float:
    adding = height * vectors / target.fma_pipes
    waiting = target.fma_latency / copies_of(height)  # for the sums of the step before
    return max(adding, waiting, _loading(target, height, vectors)) / target.clock_ghz


def _loading(target: Target, height: int, vectors: float) -> float:
    """Cycles of the loads of a step: vectors of the right operand, elements of the left one.

    Where vectors are computed in halves a port takes a whole one in two turns, an element in one.
    """
    elements = height / 2 if is_halved(target.vector_bytes, target.fma_pipes) else height
    return (elements + vectors) / target.loads_per_cycle


def unit_of(target: Target, narrow: str) -> InstructionTile | None:
    """The fastest instruction for sums of products of narrow elements, None where there is none."""
    units = [tile for tile in target.instruction_tiles if tile.dtype == narrow]
    return max(units, key=lambda tile: tile.per_cycle, default=None)


def word_line(target: Target, narrow: str, columns: int, most: int, simple: float) -> TileLine:
    """The tiles of ``columns`` sums over words of ``narrow`` elements.

    ``simple`` vector pipes for each that multiplies start an instruction in a cycle.
    """
    unit = unit_of(target, narrow)
    if unit is not None and unit.m > 1:
        return _matrix_line(target, unit, columns)
    vectors = -(-columns * WORD_BYTES // target.vector_bytes)
    heights = range(1, max(3, min(ADDRESSED_ROWS, most)) + 1)
    tiles = [
        TileTime(height, columns, _words(target, narrow, unit, (height, vectors), simple))
        for height in heights
    ]
    line = tile_line(tiles, columns, max(most, 3))
    assert line is not None, "three heights make a line"
    return line


def _words(
    target: Target, narrow: str, unit: InstructionTile | None, tile: tuple[int, int],
    simple: float,
) -> float:  # fmt: skip
    """Nanoseconds of a step of ``tile`` (rows, vectors): its busiest pipes decide."""
    height, vectors = tile
    loading = _loading(target, height, vectors)
    if unit is not None:
        starts = unit.per_cycle / (unit.m * unit.n * unit.k)
        return max(height * vectors / starts, loading) / target.clock_ghz
    apart = _TAKEN_APART[narrow]
    multiplying = apart.multiplied * height * vectors / target.fma_pipes
    instructions = apart.products * height * vectors + apart.operand * (height + vectors)
    together = instructions / (simple * target.fma_pipes)
    return max(multiplying, together, loading) / target.clock_ghz


def _matrix_line(target: Target, unit: InstructionTile, columns: int) -> TileLine:
    """Tiles of a matrix unit, whose instruction takes time for each of its rows.

    A few rows wait for the right operand, which arrives line by line as vectors do.
    """
    words = unit.k * element_bytes(unit.dtype) // WORD_BYTES
    across = -(-columns // unit.n)
    row = across * unit.n * unit.k / unit.per_cycle / words
    least = across * unit.n * WORD_BYTES / target.vector_bytes / target.loads_per_cycle
    cycle = 1000.0 / target.clock_ghz
    return TileLine(round(row * cycle), 0, round(least * cycle))


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
