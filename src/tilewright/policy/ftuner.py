"""FTuner: micro-kernels that pad little and fill the cores, ranked by a score at run time.

After Mu et al., "FTuner: A Fast Dynamic Shape Tensors Program Auto-Tuner for Deep Learning
Compilers", sections IV and V. A uKernel is a block of a task. Two sizes of uKernels that cover the
main axis without padding (algorithm 2) are what a block of rows has here at every shape: its
register tiles have two neighbouring heights that cover the rows exactly. So padding is that of the
blocks. Start with :class:`FTuner`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.policy.prices import Array, Samples, samples_of, space_prices
from tilewright.policy.space import (
    BLOCK_COLUMNS,
    BLOCK_DEPTH,
    BLOCK_ROWS,
    Chosen,
    Extents,
    Problem,
    Space,
    chosen_rows,
)
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, symbol

_SCALE = 10_000  # of a share as an integer


@dataclass(frozen=True)
class FTuner:
    """The policy.

    The filter starts at ``padding`` (least share that is no padding) and ``occupancy`` (least share
    of the cores in use); each step raises one by ``padding_step`` and lowers the other by a tenth
    of that (section IV-B). ``intensity`` is the least share of computing (equation 6).
    ``most`` uKernels are kept; those that have the best score at most samples.
    """

    padding: float = 0.5
    occupancy: float = 0.95
    padding_step: float = 0.01
    intensity: float = 0.5
    most: int = 16

    def choose(self, problem: Problem) -> Chosen:
        """See :meth:`tilewright.policy.Policy.choose`; costs fall as scores (equation 1) rise."""
        samples = samples_of(problem)
        templates = [_score(problem, space.extents) for space in problem.spaces]
        tables = [
            self._scores(space, template, samples)
            for space, template in zip(problem.spaces, templates, strict=True)
        ]
        scores = np.concatenate(tables)
        winners = np.bincount(scores.argmax(axis=0), minlength=len(scores))
        order = set(np.argsort(-winners, kind="stable")[: self.most].tolist())
        costs: dict[int, Expr | None] = {}
        first = 0
        for space, template in zip(problem.spaces, templates, strict=True):
            for number, block in enumerate(space.blocks, start=first):
                if number in order and winners[number]:
                    costs[number] = block.price(template.cost)
            first += len(space.blocks)
        return Chosen(chosen_rows(problem, costs), with_others=False)

    def _scores(self, space: Space, score: _Score, samples: Samples) -> Array:
        """Of every candidate at every sample; far below all others where it is filtered out."""
        pad, used, compute = (
            space_prices(replace(space, price=part), samples) / _SCALE
            for part in (score.padding, score.occupancy, score.intensity)
        )
        # Both bounds hold at one of the steps at least.
        steps = np.floor((pad - self.padding) / self.padding_step)
        passes = (steps >= 0) & (used >= self.occupancy - steps * self.padding_step / 10)
        passes &= compute >= self.intensity
        return pad + used + compute - np.where(passes, 0.0, 10.0)


@dataclass(frozen=True)
class _Score:
    """Equations 2, 3 and 7 in parts of ``_SCALE``, over the sizes, the threads and the blocks."""

    padding: Expr
    occupancy: Expr
    intensity: Expr

    @property
    def cost(self) -> Expr:
        """Falls as the score rises, and is never negative."""
        return constant(3 * _SCALE) - self.padding - self.occupancy - self.intensity


def _score(problem: Problem, extents: Extents) -> _Score:
    threads = symbol(problem.threads)
    rows = ceil_div(extents.m, BLOCK_ROWS)
    columns = ceil_div(extents.n, BLOCK_COLUMNS)
    across = _SCALE * extents.m // maximum(rows * BLOCK_ROWS, 1)
    padding = across * extents.n // maximum(columns * BLOCK_COLUMNS, 1)
    tasks = maximum(extents.batch * rows * columns, 1)
    occupancy = _SCALE * tasks // (ceil_div(tasks, threads) * threads)
    return _Score(padding, occupancy, _intensity(problem, extents))


def _intensity(problem: Problem, extents: Extents) -> Expr:
    """The share of computing in the cycles of computing and moving data, from memory or the cache.

    The paper adds the ratio of both itself to two shares; as a share it cannot outweigh these.
    """
    target = problem.target
    rate = target.multiply_adds_per_cycle("float64" if extents.element == 8 else "float32")
    near, far = target.levels[1].bandwidth, target.levels[-1].bandwidth
    depth = minimum(extents.k, BLOCK_DEPTH)
    result, operands = BLOCK_ROWS * BLOCK_COLUMNS, (BLOCK_ROWS + BLOCK_COLUMNS) * depth
    # In thousandths of cycles.
    computing = result * depth * round(1000 / rate)
    from_memory = (operands + result) * round(1000 * extents.element / far)
    from_cache = operands * round(1000 * extents.element / near)
    both = maximum((computing + maximum(from_memory, from_cache)) // _SCALE, 1)
    return minimum(computing // both, _SCALE)
