"""DietCode: categories of shapes that share a micro-kernel, and a decision tree that finds them.

After Zheng et al., "DietCode: Automatic Optimization for Dynamic Tensor Programs" (MLSys 2022),
section 5. Differences: shapes are those that fill the declared ranges unless a sample of them is
given, and what a micro-kernel does by itself (f_local) comes from the model of the machine, where
the paper measures it. Equation 4 is written for the time; its inverse is the share of the speed.
Start with :class:`DietCode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.policy.prices import (
    Array,
    Samples,
    evaluated,
    promising,
    samples_of,
    space_prices,
)
from tilewright.policy.space import Chosen, Problem, Space, chosen_rows
from tilewright.policy.tree import grow
from tilewright.shape import constant, equal, select


@dataclass(frozen=True)
class DietCode:
    """The policy.

    ``slope`` is k of equation 4; each category has to make up for ``size_price``, a part of the
    speed (equation 2: speed against the size of the binary). ``depth`` of the decision tree.
    """

    slope: float = 0.5
    size_price: float = 0.002
    most_votes: int = 6
    depth: int = 8

    def choose(self, problem: Problem) -> Chosen:
        """See :meth:`tilewright.policy.Policy.choose`; a cost is 0 where the tree says so, else 1.

        Every shape votes for its best micro-kernels, one to ``most_votes`` of them: the more votes,
        the fewer categories. That number is taken which is worth the most.
        """
        samples = samples_of(problem)
        problem = promising(problem, samples)
        speeds = np.concatenate([self._speeds(problem, s, samples) for s in problem.spaces])
        work = evaluated_work(problem, samples)
        best: tuple[float, np.ndarray[Any, np.dtype[np.int64]]] | None = None
        for votes in range(1, min(self.most_votes, len(speeds)) + 1):
            categories = _categories(speeds, work, votes)
            reached = speeds[categories, np.arange(samples.count)] / speeds.max(axis=0)
            worth = float(reached.mean()) - self.size_price * len(set(categories.tolist()))
            if best is None or worth > best[0] + 1e-9:
                best = worth, categories
        assert best is not None, "there is at least one candidate"
        kept, numbered = np.unique(best[1], return_inverse=True)
        names = (*problem.sizes, problem.threads)
        rows = [np.broadcast_to(samples.values[n], (1, samples.count))[0] for n in names]
        columns = np.rint(np.stack(rows)).astype(np.int64)
        weights = np.ones(samples.count, np.int64)
        tree = grow(names, columns, numbered.astype(np.int64), weights, self.depth).expression()
        costs = {
            int(row): select(equal(tree, constant(number)), 0, 1) for number, row in enumerate(kept)
        }
        return Chosen(chosen_rows(problem, costs), with_others=False)

    def _speeds(self, problem: Problem, space: Space, samples: Samples) -> Array:
        """Equation 3: the speed of every candidate at every sample, of any unit."""
        blocks = np.array([(b.rows, b.columns, b.depth) for b in space.blocks], np.float64)
        if not len(blocks):
            return np.empty((0, samples.count))
        sizes = {n: samples.values[n] for n in problem.sizes}
        batch, m, n, _ = (
            np.maximum(evaluated(e, sizes), 1.0)
            for e in (space.extents.batch, space.extents.m, space.extents.n, space.extents.k)
        )
        rows = np.ceil(m / blocks[:, 0, None])
        columns = np.ceil(n / blocks[:, 1, None])
        padded = rows * blocks[:, 0, None] * columns * blocks[:, 1, None]
        pieces, threads = batch * rows * columns, samples.values[problem.threads]
        waves = np.ceil(pieces / threads) * threads
        spatial = 1.0 / (self.slope * waves / pieces + 1.0 - self.slope)
        speed = _local(problem, space, samples) * spatial * (m * n / padded)
        return np.broadcast_to(speed, (len(blocks), samples.count))


def _local(problem: Problem, space: Space, samples: Samples) -> Array:
    """The speed of each micro-kernel by itself: in the largest product, on one thread."""
    work = evaluated_work(problem, samples)
    alone = {name: column[:, [int(work.argmax())]] for name, column in samples.values.items()}
    alone[problem.threads] = np.ones((1, 1))
    prices = space_prices(space, Samples(alone, 1))
    return float(work.max()) / np.maximum(prices, 1.0)


def evaluated_work(problem: Problem, samples: Samples) -> Array:
    """Multiply-adds of each sample."""
    extents = problem.spaces[0].extents
    parts = (extents.batch, extents.m, extents.n, extents.k)
    sizes = {n: samples.values[n] for n in problem.sizes}
    work = np.ones((1, samples.count))
    for part in parts:
        work = work * np.maximum(evaluated(part, sizes), 1.0)
    return np.broadcast_to(work, (1, samples.count))[0]


def _categories(speeds: Array, work: Array, votes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The candidate of each sample (equation 1): the one with most weighted votes comes first."""
    ranked = np.argsort(-speeds, axis=0, kind="stable")[:votes]
    voted = np.zeros(speeds.shape, bool)
    np.put_along_axis(voted, ranked, values=True, axis=0)
    # The exact integer logarithm keeps large shapes from deciding alone, and sums exact.
    weighted = np.where(voted, np.rint(np.log2(work + 1) * 1000) * np.rint(_shares(speeds)), 0)
    categories = np.full(speeds.shape[1], -1, np.int64)
    while (categories < 0).any():
        waiting = categories < 0
        winner = int(weighted[:, waiting].sum(axis=1).argmax())
        categories[waiting & voted[winner]] = winner
    return categories


def _shares(speeds: Array) -> Array:
    """Each speed in thousandths of the best of its sample."""
    return 1000.0 * speeds / speeds.max(axis=0)
