"""Several ways to compute one part of a graph, each the cheapest in a region of the shapes.

A plan for all shapes is cheapest in the mean only: where images are narrow, a border that is
computed with its pixels costs more than it saves, and where they are wide, less. So the points at
which the choice for all shapes takes longer than another one by more than the error of prices get a
choice of their own, as long as some do. What a point could have is told by the kernels that are
priced by then; the choice itself is made among all candidates. Every call takes the way with the
least price at its sizes. Start with :func:`ways`.
"""

from __future__ import annotations

import numpy as np

from tilewright.plan.choosing import WORTH, Array, Choice, Choosing, Part
from tilewright.plan.solver import solve

MOST_WAYS = 3  # of one part: each is code of its own


def ways(
    choosing: Choosing, part: Part, first: Choice, weights: Array, least: float
) -> tuple[tuple[int, ...], ...]:
    """The choice for all points, and those by which other points gain more than ``least``."""
    found = [first.chosen]
    prices = [choosing.prices(part, first.chosen)]
    while first.chosen and len(found) < MOST_WAYS:
        possible = _least(choosing, part, weights)
        wanting = np.min(prices, axis=0) * (1 - WORTH) > possible
        if not wanting.any():
            break
        own = np.where(wanting, weights, 0.0)
        start = min(range(len(found)), key=lambda way: float(prices[way] @ own))
        better = choosing.improved(part, found[start], own, least).chosen
        if better in found:
            break
        found.append(better)
        prices.append(choosing.prices(part, better))
    return tuple(found)


def _least(choosing: Choosing, part: Part, weights: Array) -> Array:
    """The least price of any choice of kernels that are priced, at every point with a weight."""
    numbers = [n for n, key in enumerate(part.keys) if choosing.is_priced(key)]
    problem = part.problem.of(numbers)
    costs = np.array([choosing.price(part.problem.kernels[n], part.keys[n]) for n in numbers])
    least = np.full(len(weights), np.inf)
    for point, weight in enumerate(weights):
        if weight > 0:
            least[point] = solve(problem, costs[:, point].tolist(), WORTH / 2).price
    return least


__all__ = ["MOST_WAYS", "ways"]
