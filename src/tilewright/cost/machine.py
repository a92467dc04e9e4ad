"""A machine as prices see it: its description and the price list of its cores.

Imports target and shape. Start with :class:`Machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tilewright.cost.tiles import TileLine, derived_tiles, tile_line, word_line
from tilewright.ir.dtype import DType
from tilewright.ir.tile import LINE_BYTES
from tilewright.shape import Expr, constant, less_equal, maximum, minimum, select
from tilewright.target import CoreModel, InstructionTile, MemoryLevel, Target
from tilewright.target.core_model import THREAD_NS, usual_core

if TYPE_CHECKING:
    from tilewright.cost.phases import LoopPrice

SIXTEENTHS = 16  # steps from all that a cache keeps to nothing of it


@dataclass(frozen=True)
class Machine:
    """A target and the price list of its cores: as measured, or else the one of cores like it.

    A call reads ``constants`` bytes of weights: so much is between two uses of each of them.
    """

    target: Target
    own_core: CoreModel | None = None
    constants: int = 0

    @cached_property
    def core(self) -> CoreModel:
        """What everything beside the peak rates costs."""
        return self.own_core or usual_core(self.target)

    @cached_property
    def known_prices(self) -> dict[Hashable, LoopPrice]:
        """Prices of programs by all that they depend on, for as long as the machine is there."""
        return {}

    @cached_property
    def known_rates(self) -> dict[Expr, Expr]:
        """Picoseconds of a line, by how much is touched until it is read again."""
        return {}

    def limited(self, uses: Callable[[InstructionTile], bool]) -> Machine:
        """The machine as code sees it that ``uses`` only some of its instruction tiles."""
        tiles = tuple(tile for tile in self.target.instruction_tiles if uses(tile))
        return replace(self, target=replace(self.target, instruction_tiles=tiles))

    def line(self, dtype: DType, columns: int, most: int, narrow: DType | None = None) -> TileLine:
        """The tiles of ``columns`` columns, for float32 as measured.

        With ``narrow`` a step takes words of several such elements, by what multiplies them.
        """
        if narrow is not None:
            element = "bfloat16" if narrow is DType.BFLOAT16 else "int8"
            simple = self.core.tile.simple_pipes
            return word_line(self.target, element, columns, most, simple)
        name = "float64" if dtype.bytes == 8 else "float32"
        tiles = self.core.tiles if dtype is DType.FLOAT32 else ()
        derived = derived_tiles(self.target, name, columns)
        line = tile_line(tiles, columns, most) or tile_line(derived, columns, max(most, 3))
        assert line is not None, "three heights make a line"
        return line

    def picoseconds(self, cycles: float) -> int:
        """Of so many cycles."""
        return round(1000.0 * cycles / self.target.clock_ghz)

    def holds(self, level: int, elements: Expr, size: int) -> Expr:
        """Whether so many elements of ``size`` bytes stay in a level of the memory."""
        return less_equal(elements, self.target.levels[level].room // size)

    @property
    def room(self) -> int:
        """Bytes that stay in the second cache: those that a task may have there together."""
        return self.target.levels[2].room

    def reading(self, elements: Expr, size: int, nearest: int, scattered: Expr | int = 2) -> Expr:
        """Picoseconds for 64 of so many elements, read from the level that holds them all.

        That is ``nearest`` or farther away; ``scattered`` is twice the share for memory itself.
        Of the last cache, which others use as well, only a part is counted on.
        """
        levels = self.target.levels
        rates = [self.picoseconds(64 * size / level.bandwidth) for level in levels]
        last, part = len(levels) - 2, self.core.streams.scattered_near
        rate = constant(rates[-1]) * scattered // 2
        if nearest <= last:
            near = constant(rates[last]) * (scattered + part - 2) // part
            kept = self.core.loops.kept
            rate = near + beyond(elements * size, levels[last], kept) * (rate - near) // SIXTEENTHS
        for number in range(last - 1, nearest - 1, -1):
            rate = select(self.holds(number, elements, size), rates[number], rate)
        return rate

    @cached_property
    def unforeseen(self) -> int:
        """Twice how many times as long memory takes for what hardware does not foresee.

        As many lines as a core waits for at a time arrive in one latency.
        """
        memory, core = self.target.levels[-1], self.core.streams
        least = memory.latency / (core.misses * LINE_BYTES)  # cycles of a byte
        return max(2, round(2 * least * memory.bandwidth))


def beyond(distance: Expr, level: MemoryLevel, kept: float) -> Expr:
    """Sixteenths of so many bytes that are not in a level: none of a share of it, then more."""
    first = round(kept * level.capacity)
    part = max((level.capacity - first) // SIXTEENTHS, 1)
    return minimum(maximum((distance - first) // part, 0), SIXTEENTHS)


def workers_for(alone: Expr, threads: Expr | int) -> Expr:
    """How many threads share what takes so many picoseconds on one, as the runtime decides it."""
    return maximum(minimum(threads, alone // (1000 * THREAD_NS)), 1)


__all__ = ["SIXTEENTHS", "Machine", "beyond", "workers_for"]
