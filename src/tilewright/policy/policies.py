"""The published ways to choose, over shared candidates and prices. Start with :class:`Policy`.

Every policy sees the same candidates, which the machine's description gave, and the same prices;
which of them become variants of the kernel is its choice, and by which cost the runtime compares
them at the actual sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.policy.cover import Bound, cover
from tilewright.policy.dietcode import DietCode
from tilewright.policy.ftuner import FTuner
from tilewright.policy.prices import other_prices, promising, samples_of, space_prices
from tilewright.policy.space import Chosen, Problem, chosen_rows


class Policy(Protocol):
    """A way to choose the variants of a kernel."""

    def choose(self, problem: Problem) -> Chosen:
        """What is kept of each space of the problem; at least one in all."""
        ...


@dataclass(frozen=True)
class Covering:
    """Few variants whose modelled regret stays below a bound over the whole range of shapes."""

    bound: Bound

    def choose(self, problem: Problem) -> Chosen:
        """See :meth:`Policy.choose`; costs are the prices."""
        samples = samples_of(problem)
        problem = promising(problem, samples)
        prices = np.concatenate([space_prices(space, samples) for space in problem.spaces])
        rows = cover(prices, other_prices(problem, samples), self.bound)
        return Chosen(chosen_rows(problem, {row: None for row in rows}))


# One variant, for a kernel that is itself a part of a variant.
ALONE = Covering(Bound(mean=0.0, worst=0.0, most=1))

# For kernels whose blocks are code of their own, and a lot of it.
FEW = Covering(Bound(mean=0.005, worst=0.05, most=3))

POLICIES: Mapping[str, Policy] = {
    # Every variant costs a part of a microsecond at a new shape, which small kernels feel.
    "auto": Covering(Bound(mean=0.005, worst=0.05, most=8)),
    # Vortex (section 5) keeps every candidate of its sieve, and evaluates its model for all of
    # them at run time; a cover with a tight bound chooses as well with a fraction of the time.
    "vortex": Covering(Bound(mean=0.001, worst=0.01, most=24)),
    "dietcode": DietCode(),
    "ftuner": FTuner(),
}
