"""What a policy is asked: ways to compute a kernel, each at any of many block sizes, and prices.

Start with :class:`Problem`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.shape import Expr, Scope, symbol
from tilewright.target import Target

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
class Extents:
    """A product: ``batch`` times m × n sums over k, of elements of so many bytes."""

    batch: Expr
    m: Expr
    n: Expr
    k: Expr
    element: int = 4


@dataclass(frozen=True)
class Space:
    """One way to compute a kernel, as code that block sizes are arguments of.

    ``price`` is its time in picoseconds, over the sizes of the kernel, the number of threads,
    ``BLOCK_ROWS``, ``BLOCK_COLUMNS`` and ``BLOCK_DEPTH``.
    """

    price: Expr
    blocks: tuple[BlockSizes, ...]
    extents: Extents


@dataclass(frozen=True)
class Kept:
    """Block sizes that become a variant, and the cost by which the runtime compares it."""

    sizes: BlockSizes
    cost: Expr


@dataclass(frozen=True)
class Chosen:
    """What a policy keeps of each space, in ascending order of the block sizes.

    ``with_others`` says that the costs are picoseconds, so that variants of other kinds stay; a
    policy with scores of its own has none beside it.
    """

    kept: tuple[tuple[Kept, ...], ...]
    with_others: bool = True


@dataclass(frozen=True)
class Problem:
    """A kernel: its spaces, the prices of variants that it has anyway, and what sizes may be.

    ``threads`` is the name of the symbol for the number of threads, ``target`` the machine whose
    prices they are.
    """

    spaces: tuple[Space, ...]
    others: tuple[Expr, ...]
    scope: Scope
    threads: str
    target: Target

    @property
    def sizes(self) -> tuple[str, ...]:
        """The symbols for sizes in the prices, in the order of their names."""
        blocks = {str(name) for name in (BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)}
        prices: Sequence[Expr] = (*(space.price for space in self.spaces), *self.others)
        names = {name for price in prices for name in price.free_symbols}
        return tuple(sorted(names - blocks - {self.threads}))


def chosen_rows(problem: Problem, costs: Mapping[int, Expr | None]) -> tuple[tuple[Kept, ...], ...]:
    """What is kept of each space, by numbers that count the candidates of all spaces.

    A candidate without a cost of its own has its price.
    """
    spaces: list[tuple[Kept, ...]] = []
    first = 0
    for space in problem.spaces:
        kept: list[Kept] = []
        for number, block in enumerate(space.blocks, start=first):
            if number in costs:
                own = costs[number]
                kept.append(Kept(block, block.price(space.price) if own is None else own))
        spaces.append(tuple(kept))
        first += len(space.blocks)
    return tuple(spaces)
