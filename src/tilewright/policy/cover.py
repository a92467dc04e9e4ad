"""The fewest candidates that are nowhere much worse than the best of all.

Start with :func:`cover`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

_PARTS = 1_000_000  # regrets are counted in these, so that their sums are exact on every machine


@dataclass(frozen=True)
class Bound:
    """How far a cover may be from the best: in the mean and at worst, as parts of its time.

    ``most`` candidates are kept even if they do not reach that: each costs time at every new shape.
    """

    mean: float
    worst: float
    most: int


def cover(prices: Array, others: Array, bound: Bound) -> tuple[int, ...]:
    """Rows of ``prices`` (candidates, samples) that keep within ``bound`` of the best of all rows.

    What is the best at a sample counts ``others`` (variants, samples) as well, which are there
    anyway. The candidate that takes most of the mean regret away comes next, of equals the one that
    is the best by itself, until the bound is kept; then those that the later ones made unnecessary
    are dropped. At least one is kept. The rows come in ascending order. This is the greedy
    algorithm for weighted covers (Chvátal 1979).
    """
    best = np.concatenate([prices, others]).min(axis=0)
    regrets = _regrets(prices, best)
    current = np.full(best.shape, np.iinfo(np.int64).max >> 20, np.int64)
    if len(others):
        current = np.minimum(current, _regrets(others, best).min(axis=0))
    start, kept = current, list[int]()
    alone = regrets.sum(axis=1)
    while not kept or (len(kept) < bound.most and not _within(current, bound)):
        together = np.minimum(regrets, current)
        added = int(np.lexsort((alone, together.sum(axis=1)))[0])
        if added in kept:
            break
        kept.append(added)
        current = together[added]
    for candidate in tuple(kept[:-1]):
        rest = [k for k in kept if k != candidate]
        without = np.minimum(start, regrets[rest].min(axis=0))
        if _within(without, bound) or bool((without == current).all()):
            kept = rest
    return tuple(sorted(kept))


def _regrets(prices: Array, best: Array) -> Any:
    """Parts of the best time that each row takes more; nothing of what costs nothing."""
    parts = np.rint((prices / np.maximum(best, 1.0) - 1.0) * _PARTS)
    return np.minimum(np.maximum(parts, 0), 2.0**40).astype(np.int64)


def _within(regrets: Any, bound: Bound) -> bool:
    mean = int(regrets.sum()) <= round(bound.mean * _PARTS) * regrets.size
    return mean and int(regrets.max()) <= round(bound.worst * _PARTS)
