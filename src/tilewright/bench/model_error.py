# pyright: basic
"""How far the modelled time of kernels is from the measured one, at random shapes.

The price of a program is the sum of what its kernels' chosen variants are said to take; measured is
the sum of their steps in a profiled call, the fastest of many. What a resource adds to a price is
what the price loses where that resource costs next to nothing; the largest share decides.
May import compile and the rest of the package. Start with `measure_errors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import itemgetter
from typing import Any

from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.bench.operators import AnyGroup, Problem
from tilewright.bench.regret_cases import Drawn, Setting, draw_groups
from tilewright.bench.suites import AnyCase
from tilewright.compile import Compilation, compile_stages
from tilewright.compile_machines import host_machine
from tilewright.cost import Machine, contraction_time
from tilewright.cost.tiles import derived_tiles
from tilewright.ir.kernel import KernelKind
from tilewright.ir.product_nest import ProductNest
from tilewright.runtime.model import CompiledModel
from tilewright.target import CoreModel
from tilewright.tile.lower import LoweredKernel, lower_kernel

_FEWEST_CALLS = 5  # that are timed, however long they take
_MOST_VECTORS = 4  # side by side in a register tile
_CHEAPER = 64.0  # times, a resource that is left out: prices in whole picoseconds stay above 0

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Priced:
    """One shape: seconds as modelled and as measured, and the variants that ran.

    ``shares`` are what each resource adds to the modelled time, as parts of it; several may lie
    beside each other, so that they need not add up to 1.
    """

    case: AnyCase
    variants: str
    predicted: float
    measured: float
    shares: Callable[[], Mapping[str, float]]

    @property
    def ratio(self) -> float:
        """The modelled time over the measured one."""
        return self.predicted / self.measured


@dataclass(frozen=True)
class Unpriced:
    """A program with a kernel that has no price, as it has one variant only."""

    case: AnyCase


def measure_errors(setting: Setting, progress: Progress) -> Iterator[Priced | Unpriced]:
    """One shape after the other; ``progress`` is called before each with the number done."""
    drawn: Drawn = draw_groups(setting, lambda group: True)
    each = setting.seconds / sum(len(group.cases) for group in drawn.groups)
    done = 0
    for group in drawn.groups:
        progress(done, group.cases[0].describe())
        compiled = _Compiled.of(group, setting)
        for case in group.cases:
            progress(done, case.describe())
            yield compiled.priced(case, each)
            done += 1


@dataclass(frozen=True)
class _Compiled:
    """A group, compiled for this machine."""

    problem: Callable[[Any], Problem]
    made: Compilation
    model: CompiledModel
    threads: int
    machine: Machine

    @staticmethod
    def of(group: AnyGroup, setting: Setting) -> _Compiled:
        model, problem = group.prepare()
        target, threads = setting.target, setting.threads
        made = compile_stages(model, dims=group.ranges, fallback="error", target=target)
        ready = CompiledModel.from_contents(made.contents, num_threads=threads)
        machine = host_machine() if target is None else Machine(target)
        return _Compiled(problem, made, ready, threads, machine)

    def priced(self, case: AnyCase, seconds: float) -> Priced | Unpriced:
        (compiled,) = self.made.levels.values()
        sizes = {**case.sizes, compiled.program.threads_symbol: self.threads}
        prices = [_price(lowered, sizes) for lowered in compiled.lowered]
        if not all(price for price, _ in prices):
            return Unpriced(case)
        names = ", ".join(name for _, name in prices if name)
        predicted = sum(price for price, _ in prices) / 1e12
        measured = self._measured(tuple(self.problem(case).inputs.values()), seconds)
        return Priced(case, names, predicted, measured, lambda: self._shares(sizes, predicted))

    def _measured(self, arrays: Sequence[Any], seconds: float) -> float:
        """The fastest call: what else runs on the machine only ever makes one slower."""
        started, calls, best = time.perf_counter(), 0, float("inf")
        while calls < _FEWEST_CALLS or time.perf_counter() - started < seconds:
            best = min(best, sum(step.nanoseconds for step in self.model.profile(*arrays)))
            calls += 1
        return max(best, 1.0) / 1e9

    def _shares(self, sizes: Mapping[str, int], predicted: float) -> dict[str, float]:
        (compiled,) = self.made.levels.values()
        machine = self.machine
        found: dict[str, float] = {}
        for name, cheaper in without_each(machine).items():
            saved = sum(
                self._saved(lowered, machine, cheaper, sizes) for lowered in compiled.lowered
            )
            found[name] = min(max(0.0, saved / 1e12 / predicted), 1.0)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _saved(
        self, lowered: LoweredKernel, machine: Machine, cheaper: Machine, sizes: Mapping[str, int]
    ) -> float:
        """Picoseconds that the variant which runs would take less on a cheaper machine.

        Blocks of a product are those that were chosen; of another kernel the variant of the same
        name counts, and one that would no longer be kept does not live by that resource.
        """
        price, name = _price(lowered, sizes)
        variant = next(v for v in lowered.variants if v.name == name)
        nests = [ProductNest.find(step.program) for step in variant.steps]
        nest = next((nest for nest in nests if nest is not None), None)
        if nest is not None and lowered.kernel.kind is KernelKind.CONTRACTION:
            before, after = (
                contraction_time(nest, each, self.threads).evaluate(sizes)
                for each in (machine, cheaper)
            )
            return before - after
        (level,) = self.made.levels
        again = lower_kernel(
            lowered.kernel, self.made.graph.scope, register_tile(LEVELS[level]), machine=cheaper
        )
        prices = {variant.name: variant.cost for variant in again.variants}
        return price - prices[name].evaluate(sizes) if name in prices else 0.0


def _price(lowered: LoweredKernel, sizes: Mapping[str, int]) -> tuple[int, str]:
    """Picoseconds and name of the variant that the runtime takes."""
    prices = [(variant.cost.evaluate(sizes), variant.name) for variant in lowered.variants]
    return min(prices, key=itemgetter(0))


# ---------------------------------------------------------------- resources


def without_each(machine: Machine) -> dict[str, Machine]:
    """The machine with one resource after the other that costs next to nothing, by its name."""
    target, core = machine.target, machine.core
    lanes = target.lanes("float32")
    tiles = [
        replace(tile, step_ns=tile.step_ns / _CHEAPER)
        for vectors in range(1, _MOST_VECTORS + 1)
        for tile in derived_tiles(target, "float32", vectors * lanes)
    ]
    met = replace(target, sync_ns=target.sync_ns / _CHEAPER)
    found = {
        "steps of register tiles": Machine(target, replace(core, tiles=tuple(tiles))),
        "meetings": Machine(met, core),
    }
    for number, level in enumerate(target.levels[1:], start=1):
        wide = replace(
            level,
            bandwidth=level.bandwidth * _CHEAPER,
            total_bandwidth=level.total_bandwidth * _CHEAPER,
        )
        levels = (*target.levels[:number], wide, *target.levels[number + 1 :])
        found[level.name] = Machine(replace(target, levels=levels), core)
    for field in fields(CoreModel):
        group = getattr(core, field.name)
        if is_dataclass(group):
            cheaper = replace(core, **{field.name: _cheaper(group)})
            found[f"core: {field.name}"] = Machine(target, cheaper)
    return found


def _cheaper(group: Any) -> Any:
    """A part of the price list with less cycles; counts and shares stay."""
    given = {field.name: getattr(group, field.name) for field in fields(group)}
    return replace(group, **{name: _less(value) for name, value in given.items()})


def _less(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_less(each) for each in value)
    return value / _CHEAPER if isinstance(value, float) else value
