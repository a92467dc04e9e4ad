"""The published ways to choose, over shared candidates and prices. Start with :class:`Policy`.

Every policy sees the same candidates, which the machine's description gave, and the same prices;
which of them become variants of the kernel is its choice. At run time the cheapest variant at the
actual sizes is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.policy.cover import Bound, cover
from tilewright.policy.prices import other_prices, promising, samples_of, space_prices
from tilewright.policy.space import BlockSizes, Problem


class Policy(Protocol):
    """A way to choose the variants of a kernel."""

    def choose(self, problem: Problem) -> tuple[tuple[BlockSizes, ...], ...]:
        """For each space of the problem the block sizes that are kept, in ascending order."""
        ...


@dataclass(frozen=True)
class Covering:
    """Few variants whose modelled regret stays below a bound over the whole range of shapes."""

    bound: Bound

    def choose(self, problem: Problem) -> tuple[tuple[BlockSizes, ...], ...]:
        """See :meth:`Policy.choose`; at least one is kept in all."""
        samples = samples_of(problem)
        problem = promising(problem, samples)
        prices = np.concatenate([space_prices(space, samples) for space in problem.spaces])
        kept = set(cover(prices, other_prices(problem, samples), self.bound))
        chosen: list[tuple[BlockSizes, ...]] = []
        first = 0
        for space in problem.spaces:
            numbered = enumerate(space.blocks, start=first)
            chosen.append(tuple(block for number, block in numbered if number in kept))
            first += len(space.blocks)
        return tuple(chosen)


# One variant, for a kernel that is itself a part of a variant.
ALONE = Covering(Bound(mean=0.0, worst=0.0, most=1))

POLICIES: Mapping[str, Policy] = {
    # Every variant costs a part of a microsecond at a new shape, which small kernels feel.
    "auto": Covering(Bound(mean=0.005, worst=0.05, most=8)),
    # Vortex (section 5) keeps every candidate of its sieve, and evaluates its model for all of
    # them at run time; a cover with a tight bound chooses as well with a fraction of the time.
    "vortex": Covering(Bound(mean=0.001, worst=0.01, most=24)),
}
