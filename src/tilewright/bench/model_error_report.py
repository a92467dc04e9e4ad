# pyright: basic
"""Errors of the model in a few numbers, overall and by family.

May import numpy and `model_error`. Start with `summarise_errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.bench.model_error import Priced


@dataclass(frozen=True)
class Errors:
    """Modelled times against measured ones.

    ``bias`` is the geometric mean of their ratios: a machine whose clock is not the described one
    has one. ``median`` and ``p90`` are errors as they are, 0.1 for a tenth; ``spread`` is the
    median error beside the bias, and ``rank`` the rank correlation (NaN for fewer than three).
    """

    count: int
    bias: float
    median: float
    p90: float
    spread: float
    rank: float


def summarise_errors(samples: Sequence[Priced]) -> Errors:
    """Of at least one shape."""
    ratios = np.array([sample.ratio for sample in samples])
    errors = np.abs(ratios - 1)
    bias = float(np.exp(np.mean(np.log(ratios))))
    return Errors(
        len(samples),
        bias,
        float(np.median(errors)),
        float(np.percentile(errors, 90)),
        float(np.median(np.abs(ratios / bias - 1))),
        _rank([s.predicted for s in samples], [s.measured for s in samples]),
    )


def errors_by_family(samples: Sequence[Priced]) -> dict[str, Errors]:
    """The summary of each family, in the order in which they come."""
    families: dict[str, list[Priced]] = {}
    for sample in samples:
        families.setdefault(sample.case.suite, []).append(sample)
    return {family: summarise_errors(own) for family, own in families.items()}


def farthest(samples: Sequence[Priced], count: int) -> list[Priced]:
    """The shapes whose ratio is farthest from the bias, on either side."""
    bias = summarise_errors(samples).bias
    return sorted(samples, key=lambda s: -abs(np.log(s.ratio / bias)))[:count]


def _rank(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's correlation: that of the positions in both orders."""
    if len(predicted) < 3:
        return float("nan")
    one, other = (np.argsort(np.argsort(values)) for values in (predicted, measured))
    return float(np.corrcoef(one, other)[0, 1])
