"""What a policy is asked: ways to compute a kernel, each at any of many block sizes, and prices.

Start with :class:`Problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.shape import Expr, Scope, symbol

# They stand for the block sizes in the price of a space.
BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH = (symbol(f"_block_{n}") for n in ("m", "n", "k"))


@dataclass(frozen=True, order=True)
class BlockSizes:
    """At most so many rows, columns and steps of the depth are one block."""

    rows: int
    columns: int
    depth: int

    def price(self, general: Expr) -> Expr:
        """A price over any block sizes, at these."""
        names = (BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)
        sizes = (self.rows, self.columns, self.depth)
        return general.substitute(dict(zip(map(str, names), sizes, strict=True)))


@dataclass(frozen=True)
class Space:
    """One way to compute a kernel, as code that block sizes are arguments of.

    ``price`` is its time in picoseconds, over the sizes of the kernel, the number of threads,
    ``BLOCK_ROWS``, ``BLOCK_COLUMNS`` and ``BLOCK_DEPTH``.
    """

    price: Expr
    blocks: tuple[BlockSizes, ...]


@dataclass(frozen=True)
class Problem:
    """A kernel: its spaces, the prices of variants that it has anyway, and what sizes may be.

    ``threads`` is the name of the symbol for the number of threads, ``units`` how many cores the
    machine has whose prices they are.
    """

    spaces: tuple[Space, ...]
    others: tuple[Expr, ...]
    scope: Scope
    threads: str
    units: int

    @property
    def sizes(self) -> tuple[str, ...]:
        """The symbols for sizes in the prices, in the order of their names."""
        blocks = {str(name) for name in (BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)}
        prices: Sequence[Expr] = (*(space.price for space in self.spaces), *self.others)
        names = {name for price in prices for name in price.free_symbols}
        return tuple(sorted(names - blocks - {self.threads}))
