"""Decision trees: which category a shape belongs to, as an expression over its sizes.

Trees are grown as CART does (Breiman et al. 1984): the cut that leaves the least Gini impurity
comes next. Here every sample weighs what the wrong category would cost. Start with :func:`grow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.shape import Expr, constant, less_equal, select, symbol

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Leaf:
    """All samples that come here are of one category, or cannot be told apart."""

    category: int

    def expression(self) -> Expr:
        """The category."""
        return constant(self.category)


@dataclass(frozen=True)
class Cut:
    """Samples with at most ``most`` in ``name`` go to ``low``."""

    name: str
    most: int
    low: Cut | Leaf
    high: Cut | Leaf

    def expression(self) -> Expr:
        """The category, over the names that are cut."""
        inside = less_equal(symbol(self.name), self.most)
        return select(inside, self.low.expression(), self.high.expression())


def grow(
    names: Sequence[str], samples: Integers, categories: Integers, weights: Integers, depth: int
) -> Cut | Leaf:
    """A tree of at most ``depth`` cuts on a path.

    ``samples`` has a row for each name and a column for each sample; the others an entry for each.
    Weights are integers, so that equal samples give an equal tree on every machine.
    """
    totals = np.bincount(categories, weights).astype(np.int64)
    leaf = Leaf(int(totals.argmax()))
    if depth == 0 or (totals > 0).sum() <= 1:
        return leaf
    found = [_best_cut(samples[row], categories, weights) for row in range(len(names))]
    purest = min(range(len(names)), key=lambda row: found[row][0])
    most = found[purest][1]
    if most is None:
        return leaf
    low = samples[purest] <= most
    parts = [
        grow(names, samples[:, side], categories[side], weights[side], depth - 1)
        for side in (low, ~low)
    ]
    if parts[0] == parts[1]:
        return parts[0]
    return Cut(names[purest], most, *parts)


def _best_cut(
    values: Integers, categories: Integers, weights: Integers
) -> tuple[float, int | None]:
    """(impurity, greatest value below) of the best cut of one size; None where all are equal."""
    order = np.argsort(values, kind="stable")
    ordered, kinds = values[order], categories[order]
    onehot = np.zeros((len(order), int(categories.max()) + 1))
    onehot[np.arange(len(order)), kinds] = weights[order]
    below = np.cumsum(onehot, axis=0)[:-1]
    above = onehot.sum(axis=0) - below
    places = np.flatnonzero(ordered[:-1] < ordered[1:])
    if not len(places):
        return float("inf"), None
    impurity = _gini(below[places]) + _gini(above[places])
    best = int(impurity.argmin())
    return float(impurity[best]), int(ordered[places[best]])


def _gini(totals: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weight of a side times its impurity."""
    whole = np.maximum(totals.sum(axis=1), 1.0)
    return whole - (totals**2).sum(axis=1) / whole
