"""Level 0 for products on vectors: which register tiles a machine allows, and how many it keeps.

The filters are those of Vortex (FilterByISA, section 5.1) and FTuner (compute-to-memory ratio,
section IV): the sums of a tile, a row of columns and one value of the left operand fit the
registers, the general registers hold where its rows begin, its loads hide behind its multiply-adds,
and it loads little more for each sum than the best of all. Of each width the tallest tile counts,
since rows are covered by two neighbouring heights. Imports target. Start with
:func:`product_tiles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.policy.cover import Bound, cover
from tilewright.policy.prices import other_prices, samples_of
from tilewright.policy.space import Problem
from tilewright.target import Target
from tilewright.target.core_model import ADDRESSED_ROWS, tallest

FELT = 0.01  # a part of a time: of two that differ by less, neither is better
# Times the loads for each sum that the best tile has. A limit of effort, as loads hide already:
# what is left is priced, and each tile more is code for every product.
_INTENSITY = 1.25
# The usual tile stays where no other is felt to be faster.
CLOSE = Bound(mean=FELT, worst=0.05, most=1)


@dataclass(frozen=True)
class TileSize:
    """``rows`` x ``vectors`` of sums; ``share`` of the peak that loads and latencies allow."""

    rows: int
    vectors: int
    share: float

    @property
    def sums(self) -> int:
        """Vectors of sums."""
        return self.rows * self.vectors

    @property
    def loads(self) -> float:
        """Operands that a step loads for each of its multiply-adds."""
        return (self.rows + self.vectors) / self.sums


@dataclass(frozen=True)
class Sieved:
    """The tiles that are left, the usual one first, and how many each filter let through."""

    tiles: tuple[TileSize, ...]
    counts: tuple[tuple[str, int], ...]


def product_tiles(target: Target, dtype: str) -> Sieved:
    """The register tiles for products of ``dtype`` with the vectors of ``target``.

    The usual tile comes first, for sizes of which nothing is known: of the widths that leave the
    least of sizes that are multiples of powers of two, which are such powers themselves, the one
    that has the most sums, then loads the least.
    """
    registers = target.free_registers
    fitting = [
        (rows, vectors)
        for vectors in range(1, registers)
        for rows in range(1, registers)
        if rows * vectors + vectors + 1 <= registers
    ]
    addressed = [(rows, vectors) for rows, vectors in fitting if rows <= ADDRESSED_ROWS]
    highest = [size for size in addressed if size[0] == tallest(registers, size[1])]
    found = [TileSize(*size, _share(target, dtype, *size)) for size in highest]
    best = max((tile.share for tile in found), default=0.0)
    busy = [tile for tile in found if tile.share >= best - FELT]
    least = min((tile.loads for tile in busy), default=0.0)
    frugal = [tile for tile in busy if tile.loads <= _INTENSITY * least]
    usual = _usual(frugal) or _usual(found) or TileSize(1, 1, 1.0)
    tiles = (usual, *(tile for tile in frugal if tile != usual))
    counts = (
        ("multiples of a vector", sum(registers // v for v in range(1, registers))),
        ("sums fit the registers", len(fitting)),
        ("rows have addresses", len(addressed)),
        ("tallest of their width", len(highest)),
        ("loads and latencies hide", len(busy)),
        ("few loads for each sum", len(frugal)),
    )
    return Sieved(tiles, counts)


def _usual(found: Sequence[TileSize]) -> TileSize | None:
    powers = [tile for tile in found if tile.vectors & (tile.vectors - 1) == 0]
    return max(powers, key=lambda tile: (tile.share, tile.sums, -tile.loads), default=None)


def _share(target: Target, dtype: str, rows: int, vectors: int) -> float:
    """Of the peak: sums that are in flight, and loads of a step beside its multiply-adds."""
    rate = target.multiply_adds_per_cycle(dtype) / target.lanes(dtype) or target.fma_pipes
    computing = rows * vectors / rate
    waiting = max(computing, target.fma_latency)
    loading = (rows + vectors) / target.loads_per_cycle
    return computing / max(waiting, loading)


def covering_tiles(problem: Problem, bound: Bound = CLOSE) -> tuple[int, ...]:
    """Which tiles of a kernel become code, by the prices of each in ``problem.others``.

    The first one is the usual tile, and is enough where no other is felt to be faster anywhere in
    the ranges; else it is the fewest whose regret stays within the bound, ascending.
    """
    prices = other_prices(problem, samples_of(problem))
    over = prices[0] / np.maximum(prices.min(axis=0), 1.0) - 1.0
    if over.mean() <= bound.mean and over.max() <= bound.worst:
        return (0,)
    return cover(prices, prices[:0], bound)
