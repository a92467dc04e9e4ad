"""What a compiled model chooses over its declared ranges, and what a choice loses at one shape.

Choices are between the variants of a kernel, and between the ways of a part of the plan. Along a
dimension they are evaluated, not run; at a shape each is timed beside the others. May import
runtime and the rest of the package. Start with :func:`regions_along` and :func:`regrets_at`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.bench.contender import Inputs
from tilewright.bench.shapes import OPEN_END
from tilewright.bench.variants import chosen_variants, restricted
from tilewright.ops.reference import evaluate_payload
from tilewright.policy.prices import evaluated_at
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Choice, Dimension, KernelStep, Program
from tilewright.shape import evaluate_all

_SIZES = 160  # of a dimension at which choices are looked at
_WAY = "way"  # how symbols of choices between ways begin
_TURNS, _CALLS = 4, 2  # of all variants, and of each of them in a turn
_MOST_VARIANTS = 6  # of a kernel that are timed: the cheapest by the model
_NOISE = 0.02  # of a time: a smaller loss is none


@dataclass(frozen=True)
class Region:
    """One choice along a dimension: which of ``names`` is ``taken`` at each size.

    ``kernels`` are the labels of the kernels that choose so, ``is_way`` tells whether ways of the
    plan are chosen among.
    """

    kernels: tuple[str, ...]
    names: tuple[str, ...]
    taken: tuple[int, ...]
    is_way: bool

    def name_of(self, taken: int) -> str:
        """What stands for one of the names: ways are called by their kernels, which are many."""
        return f"way {taken + 1}" if self.is_way else self.names[taken]

    def stretches(self, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """The first and the last of neighbouring sizes at which the same is taken, and what."""
        first = 0
        for place, taken in enumerate(self.taken):
            if place + 1 == len(self.taken) or self.taken[place + 1] != taken:
                yield sizes[first], sizes[place], taken
                first = place + 1


def named_alike(kernels: Sequence[str]) -> str:
    """The first of kernels that are alike, and how many more there are."""
    return kernels[0] + (f" and {len(kernels) - 1} more" if len(kernels) > 1 else "")


@dataclass(frozen=True)
class Regions:
    """The choices that vary along one dimension, while the others stay at their size in ``base``.

    ``steady`` counts those that fall on the same everywhere.
    """

    dimension: str
    sizes: tuple[int, ...]
    base: Mapping[str, int]
    varying: tuple[Region, ...]
    steady: int


def regions_along(
    program: Program, base: Mapping[str, int], dimension: Dimension, threads: int
) -> Regions:
    """What is chosen at sizes over the whole declared range of a dimension, zero left out.

    Choices that depend on values of a call are left out.
    """
    sizes = _spread(dimension)
    points = [
        {**sizes_of(program, {**base, dimension.name: size}), program.threads_symbol: threads}
        for size in sizes
    ]
    found: dict[tuple[tuple[str, ...], tuple[int, ...], bool], list[str]] = {}
    steady = 0
    for choice in program.choices:
        names = {name for cost in choice.costs for name in cost.free_symbols}
        if not points or not names <= points[0].keys():
            continue
        costs = np.array(evaluated_at(choice.costs, points))
        taken = tuple(costs.argmin(axis=0).tolist())
        if len(set(taken)) == 1:
            steady += 1
            continue
        key = choice.names, taken, is_between_ways(choice)
        found.setdefault(key, []).append(choice.label)
    varying = [
        Region(tuple(kernels), names, taken, is_way)
        for (names, taken, is_way), kernels in found.items()
    ]
    varying.sort(key=lambda region: not region.is_way)
    return Regions(dimension.name, sizes, base, tuple(varying), steady)


def sizes_of(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that costs are made of; the sequences of a ragged batch are equally long."""
    ragged = program.ragged
    if ragged is None:
        return sizes
    return {**sizes, ragged.positions: sizes[ragged.name] * sizes[ragged.batch]}


def is_between_ways(choice: Choice) -> bool:
    """Whether ways of the plan are chosen among, not variants of one kernel."""
    return choice.symbol.startswith(_WAY)


def _spread(dimension: Dimension) -> tuple[int, ...]:
    """Sizes of a range, evenly in their logarithm."""
    step = dimension.multiple_of
    high = (OPEN_END if dimension.high is None else dimension.high) // step
    low = max(1, -(-dimension.low // step))
    if high < low:
        return ()
    places = range(low, high + 1)
    if len(places) > _SIZES:
        places = np.unique(np.geomspace(low, high, _SIZES).round())
    return tuple(step * int(place) for place in places)


@dataclass(frozen=True)
class Regret:
    """One choice at a shape: seconds of what is taken, and of the fastest of those timed.

    It is that of several kernels where these are alike; then they were changed together.
    """

    kernels: tuple[str, ...]
    taken: str
    fastest: str
    seconds: float
    least: float
    timed: int

    @property
    def lost(self) -> float:
        """What is taken longer than the fastest; 0 within the noise of measuring."""
        lost = self.seconds - self.least
        return lost if lost > _NOISE * self.seconds else 0.0


@dataclass(frozen=True)
class Regrets:
    """The choices that take the longest at a shape.

    ``share`` is the part of the time of all kernels that they make, ``others`` counts the choices
    that were not timed, which take less.
    """

    found: tuple[Regret, ...]
    share: float
    others: int

    @property
    def lost(self) -> float:
        """The part of the time of what was timed that the fastest would save."""
        total = sum(regret.seconds for regret in self.found)
        return sum(regret.lost for regret in self.found) / total if total else 0.0


def regrets_at(
    contents: ArtifactContents, model: CompiledModel, sizes: Mapping[str, int], inputs: Inputs,
    seconds: float,
) -> Regrets:  # fmt: skip
    """Time the choices of a call with ``inputs`` one after the other, for about so many seconds.

    All else is chosen as usual. The fastest is timed once more beside what is taken, as the least
    of several times that vary flatters it.
    """
    program = model.program
    environment = {**sizes_of(program, sizes), program.threads_symbol: model.num_threads}
    usual = chosen_variants(program, environment, model.num_threads)
    timed = _Timed(contents, model.num_threads, inputs)
    steps = timed.steps(usual)
    alike: dict[object, list[int]] = {}
    for number, choice in enumerate(program.choices):
        if {n for cost in choice.costs for n in cost.free_symbols} <= environment.keys():
            alike.setdefault((choice.names, choice.costs), []).append(number)
    groups = [_Group.of(program, tuple(numbers), steps) for numbers in alike.values()]
    groups = sorted((g for g in groups if g.seconds > 0), key=lambda group: -group.seconds)
    found: list[Regret] = []
    started = time.perf_counter()
    for group in groups:
        if time.perf_counter() - started > seconds:
            break
        costs = evaluate_all(program.choices[group.numbers[0]].costs, environment)
        found.append(_regret(program, group, usual, costs, timed))
    share = sum(g.seconds for g in groups[: len(found)]) / (sum(steps.values()) or 1.0)
    return Regrets(tuple(found), min(share, 1.0), len(groups) - len(found))


@dataclass(frozen=True)
class _Group:
    """Choices that are alike, by number, with the steps that they decide about."""

    numbers: tuple[int, ...]
    steps: frozenset[int]
    seconds: float

    @staticmethod
    def of(program: Program, numbers: tuple[int, ...], times: Mapping[int, float]) -> _Group:
        steps = frozenset(s for n in numbers for s in _steps(program, program.choices[n]))
        return _Group(numbers, steps, sum(times.get(step, 0.0) for step in steps))


def _regret(
    program: Program, group: _Group, usual: tuple[int, ...], costs: Sequence[int], timed: _Timed
) -> Regret:
    """Time the cheapest variants of kernels that are alike."""
    own = usual[group.numbers[0]]

    def with_variant(variant: int) -> tuple[int, ...]:
        return tuple(variant if n in group.numbers else old for n, old in enumerate(usual))

    cheapest = sorted(range(len(costs)), key=costs.__getitem__)[:_MOST_VARIANTS]
    variants = dict.fromkeys((own, *cheapest))
    times = timed.turns({variant: with_variant(variant) for variant in variants}, group.steps)
    best = min(times, key=times.__getitem__)
    if best != own:
        again = {variant: with_variant(variant) for variant in (own, best)}
        times |= timed.turns(again, group.steps)
    first = program.choices[group.numbers[0]]
    return Regret(
        tuple(program.choices[n].label for n in group.numbers), first.names[own],
        first.names[best], times[own], min(times[own], times[best]), len(times),
    )  # fmt: skip


def _steps(program: Program, choice: Choice) -> frozenset[int]:
    """The steps that a choice decides about."""
    return frozenset(
        number
        for number, step in enumerate(program.steps)
        if isinstance(step, KernelStep) and choice.symbol in step.used.free_symbols
    )


@dataclass
class _Timed:
    """Calls of a model with its choices fixed."""

    contents: ArtifactContents
    threads: int
    inputs: Inputs

    def model(self, variants: tuple[int, ...]) -> CompiledModel:
        return CompiledModel.from_contents(
            restricted(self.contents, variants), evaluate=evaluate_payload,
            num_threads=self.threads,
        )  # fmt: skip

    def steps(self, variants: tuple[int, ...]) -> dict[int, float]:
        """Seconds of every step of a call."""
        model = self.model(variants)
        model.profile(**self.inputs)
        return {step.step: step.nanoseconds / 1e9 for step in model.profile(**self.inputs)}

    def turns(
        self, every: Mapping[int, tuple[int, ...]], steps: frozenset[int]
    ) -> dict[int, float]:
        """Seconds of some steps, in the fastest of several turns of calls."""
        models = {key: self.model(variants) for key, variants in every.items()}
        least = dict.fromkeys(every, float("inf"))
        for _ in range(_TURNS):
            for key, model in models.items():
                model.profile(**self.inputs)
                times = [self._sum(model, steps) for _ in range(_CALLS)]
                least[key] = min(least[key], statistics.median(times))
        return least

    def _sum(self, model: CompiledModel, steps: frozenset[int]) -> float:
        taken = (s.nanoseconds for s in model.profile(**self.inputs) if s.step in steps)
        return sum(taken) / 1e9


__all__ = [
    "Region",
    "Regions",
    "Regret",
    "Regrets",
    "is_between_ways",
    "named_alike",
    "regions_along",
    "regrets_at",
]
