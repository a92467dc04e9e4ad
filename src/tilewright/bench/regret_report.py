"""Regrets of many shapes in a few numbers, overall and by family.

May import numpy and `regret`. Start with `summarise`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.bench.regret import Sample


@dataclass(frozen=True)
class Regret:
    """The regrets of some shapes: their mean, median, 95th percentile, and the worst ones first."""

    count: int
    mean: float
    median: float
    p95: float
    worst: float
    at: Sample


def summarise(samples: Sequence[Sample]) -> Regret:
    """Of at least one sample."""
    regrets = [sample.regret for sample in samples]
    at = max(samples, key=lambda sample: sample.regret)
    median, p95 = (float(np.percentile(regrets, share)) for share in (50, 95))
    return Regret(len(samples), statistics.fmean(regrets), median, p95, at.regret, at)


def by_family(samples: Sequence[Sample]) -> dict[str, Regret]:
    """The summary of each family, in the order in which they come."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.case.suite, []).append(sample)
    return {family: summarise(own) for family, own in families.items()}


def worst_of(samples: Sequence[Sample], count: int) -> list[Sample]:
    """The samples with the largest regrets, if there is any, the largest first."""
    ordered = sorted(samples, key=lambda sample: -sample.regret)
    return [sample for sample in ordered[:count] if sample.regret > 0]


def ablations(samples: Sequence[Sample]) -> dict[str, float]:
    """Speed of less informed choices, as a mean share of the oracle's.

    "dynamic" is the runtime's choice. "static L0" has one register tile, so all extents are rounded
    up to it; "static L0+L1" also one variant for all shapes, the one that is best most often.
    "no level measured" chooses by a model without any measurement.
    """
    rows = {
        "oracle": [1.0 for _ in samples],
        "dynamic": [1 / (1 + s.regret) for s in samples],
        "no level measured": [1 / (1 + s.regret_of(s.unmeasured)) for s in samples],
    }
    tiled = [(s, s.padded) for s in samples if s.padded is not None]
    if tiled:
        # What is gained by alignment does not count: the shape itself has not got it.
        rows["static L0"] = [min(1.0, s.best_seconds / padded.chosen) for s, padded in tiled]
        usual = most_often_best([s for s, _ in tiled])
        rows["static L0+L1"] = [
            min(1.0, s.best_seconds / padded.seconds[s.kernels[0].names.index(usual)])
            for s, padded in tiled
            if usual in s.kernels[0].names
        ]
    return {name: statistics.fmean(values) for name, values in rows.items() if values}


def most_often_best(samples: Sequence[Sample]) -> str:
    """The name of the variant that wins most kernels, the first of equals."""
    wins: dict[str, int] = {}
    for kernel in (kernel for sample in samples for kernel in sample.kernels):
        name = kernel.names[kernel.best]
        wins[name] = wins.get(name, 0) + 1
    return max(wins, key=lambda name: wins[name])


def wins_of(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """How often each variant is the best of its kernel, and how often it is chosen."""
    kernels = [kernel for sample in samples for kernel in sample.kernels]
    names = dict.fromkeys(name for kernel in kernels for name in kernel.names)
    return {
        name: (
            sum(kernel.names[kernel.best] == name for kernel in kernels),
            sum(kernel.names[kernel.chosen] == name for kernel in kernels),
        )
        for name in names
    }
