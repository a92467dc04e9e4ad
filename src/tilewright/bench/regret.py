# pyright: basic
"""How often the cost model is wrong: every variant of every kernel timed at random shapes.

At each shape the compiled program runs with the variants that the runtime would choose, and with
every other variant of one kernel after the other; the regret is the time of what is chosen over
that of the best variant of each kernel. Ablations put less behind the choice. May import compile
and the rest of the package. Start with `measure_regret`; `regret_cases` draws the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.bench.clock import Clock, clock_for
from tilewright.bench.operators import AnyGroup, Problem
from tilewright.bench.regret_cases import Drawn, Setting, draw_groups
from tilewright.bench.suites import AnyCase, Case
from tilewright.bench.turns import time_variants
from tilewright.bench.variants import ONLY, Variants, chosen_variants, variants_of
from tilewright.compile import Compilation, compile_stages
from tilewright.ir.product_nest import ProductNest
from tilewright.runtime.program import Program
from tilewright.target import Target, detect


@dataclass(frozen=True)
class KernelTimes:
    """A kernel with several variants: seconds of the program with each, all else as chosen.

    ``chosen`` is the variant that the runtime takes, ``unmeasured`` the one by the model without
    any measurement of this machine.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    chosen: int
    unmeasured: int

    @property
    def best(self) -> int:
        """The fastest variant, what is chosen among equals."""
        least = min(self.seconds)
        return self.chosen if self.seconds[self.chosen] == least else self.seconds.index(least)


@dataclass(frozen=True)
class Padded:
    """Seconds where the register tile is fixed and all extents are rounded up to it.

    ``chosen`` are those of what the runtime chooses at the rounded extents, ``seconds`` those of
    each variant.
    """

    chosen: float
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Sample:
    """One shape: its kernels that have several variants, and the time of what is chosen and best.

    ``best_seconds`` are those of the program with the best variant of each kernel.
    """

    case: AnyCase
    kernels: tuple[KernelTimes, ...]
    chosen_seconds: float
    best_seconds: float
    padded: Padded | None = None

    @property
    def regret(self) -> float:
        """What the chosen variants take longer than the best, 0.1 for a tenth."""
        return max(0.0, self.chosen_seconds / self.best_seconds - 1.0)

    def regret_of(self, variants: Sequence[int]) -> float:
        """That of other variants; kernels run one after the other, so what each adds is summed."""
        more = sum(
            kernel.seconds[variant] - kernel.seconds[kernel.chosen]
            for kernel, variant in zip(self.kernels, variants, strict=True)
        )
        return max(0.0, (self.chosen_seconds + more) / self.best_seconds - 1.0)

    def names_of(self, variants: Sequence[int]) -> str:
        """Of one variant for each kernel."""
        pairs = zip(self.kernels, variants, strict=True)
        return ", ".join(kernel.names[variant] for kernel, variant in pairs) or ONLY

    @property
    def chosen(self) -> tuple[int, ...]:
        """The variants that the runtime takes."""
        return tuple(kernel.chosen for kernel in self.kernels)

    @property
    def best(self) -> tuple[int, ...]:
        """The fastest of each kernel."""
        return tuple(kernel.best for kernel in self.kernels)

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Those by the model without any measurement."""
        return tuple(kernel.unmeasured for kernel in self.kernels)


# ---------------------------------------------------------------- the run

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class _Compiled:
    """A group, compiled with all that is known of this machine, and without measurements."""

    group: AnyGroup
    problem: Callable[[Any], Problem]
    made: Compilation
    unmeasured: Program
    variants: Variants

    @staticmethod
    def of(group: AnyGroup, setting: Setting) -> _Compiled:
        model, problem = group.prepare()
        target = setting.target
        made = compile_stages(model, dims=group.ranges, fallback="error", target=target)
        other = compile_stages(
            model, dims=group.ranges, fallback="error", target=target or detect()
        )
        (program,) = other.contents.programs.values()
        return _Compiled(group, problem, made, program, Variants(made.contents, setting.threads))

    def chosen_unmeasured(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The variants chosen without measurements; by name, as lists may differ."""
        own, names = self.variants.chosen(sizes), variants_of(self.variants.program)
        others = variants_of(self.unmeasured)
        if len(others) != len(names):
            return own
        chosen = chosen_variants(self.unmeasured, sizes, self.variants.threads)
        return tuple(
            known.index(other[place]) if other[place] in known else mine
            for known, other, place, mine in zip(names, others, chosen, own, strict=True)
        )

    def calls(self, case: AnyCase, models: Sequence[tuple[int, ...]]) -> list[Callable[[], object]]:
        """A call of the model with each of these variants, with the same operands."""
        arrays = tuple(self.problem(case).inputs.values())
        return [partial(self.variants.model(variants), *arrays) for variants in models]


def has_choice(group: AnyGroup, target: Target | None = None) -> bool:
    """Whether a kernel of this program has several variants."""
    model, _ = group.prepare()
    contents = compile_stages(model, dims=group.ranges, fallback="error", target=target).contents
    return any(program.choices for program in contents.programs.values())


def draw(setting: Setting, progress: Progress) -> Drawn:
    """What is measured; programs of a table are compiled to see which have a choice."""

    def choosing(group: AnyGroup) -> bool:
        first = group.cases[0]
        progress(0, f"{first.suite}, {first.name}")
        return has_choice(group, setting.target)

    return draw_groups(setting, choosing)


def measure_regret(
    groups: Sequence[AnyGroup], setting: Setting, progress: Progress, clock: Clock | None = None
) -> Iterator[Sample]:
    """One sample after the other; ``progress`` is called before each with the number done."""
    clock = clock or clock_for(setting.threads)
    each = setting.seconds / sum(len(group.cases) for group in groups)
    done = 0
    for group in groups:
        progress(done, group.cases[0].describe())
        compiled = _Compiled.of(group, setting)
        for case in group.cases:
            progress(done, case.describe())
            yield _sample(compiled, case, each, clock)
            done += 1


def _sample(compiled: _Compiled, case: AnyCase, seconds: float, clock: Clock) -> Sample:
    """The times of one shape: all variants in turns, then the best of each kernel and the chosen.

    The least of several noisy times flatters the best, so these take turns once more.
    """
    kernels, chosen_seconds = _kernel_times(compiled, case, 0.6 * seconds, clock)
    chosen, best = (tuple(getattr(k, which) for k in kernels) for which in ("chosen", "best"))
    ratio = 1.0
    if best != chosen:
        least, again = time_variants(compiled.calls(case, (best, chosen)), clock, 0.2 * seconds)
        ratio = max(1.0, again / least)
    if len(kernels) == 1:
        (kernel,) = kernels
        times = list(kernel.seconds)
        chosen_seconds = times[kernel.chosen] = min(times) * ratio
        kernels = (replace(kernel, seconds=tuple(times)),)
    padded = None
    if isinstance(case, Case) and case.kind != "conv" and len(kernels) == 1:
        padded = _padded(compiled, case, 0.2 * seconds, clock)
    return Sample(case, kernels, chosen_seconds, chosen_seconds / ratio, padded)


def _kernel_times(
    compiled: _Compiled, case: AnyCase, seconds: float, clock: Clock
) -> tuple[tuple[KernelTimes, ...], float]:
    """The kernels that have several variants, and seconds of the program as chosen."""
    names = variants_of(compiled.variants.program)
    chosen = compiled.variants.chosen(case.sizes)
    unmeasured = compiled.chosen_unmeasured(case.sizes)
    departing = [
        (*chosen[:kernel], variant, *chosen[kernel + 1 :])
        for kernel, own in enumerate(names)
        for variant in range(len(own))
        if variant != chosen[kernel]
    ]
    timed = [chosen, *departing]
    if len(timed) == 1:
        return (), 1.0  # nothing to compare
    times = dict(
        zip(timed, time_variants(compiled.calls(case, timed), clock, seconds), strict=True)
    )
    kernels = tuple(
        KernelTimes(
            own,
            tuple(times[(*chosen[:k], v, *chosen[k + 1 :])] for v in range(len(own))),
            chosen[k],
            unmeasured[k],
        )
        for k, own in enumerate(names)
    )
    return kernels, times[chosen]


def _padded(compiled: _Compiled, case: Case, seconds: float, clock: Clock) -> Padded:
    """The shape rounded up to whole register tiles."""
    rows, columns = _tile(compiled)
    sizes = dict(case.sizes)
    # Rows that are read in place would also become aligned, which is another matter.
    units = {"M": rows, "N": columns if case.sizes["trans_b"] else 1}
    for name, unit in units.items():
        if name in compiled.group.ranges:
            sizes[name] = -(-sizes[name] // unit) * unit
    padded = replace(case, sizes=sizes)
    (names,) = variants_of(compiled.variants.program)
    models = [(variant,) for variant in range(len(names))]
    times = time_variants(compiled.calls(padded, models), clock, seconds)
    return Padded(times[compiled.variants.chosen(sizes)[0]], times)


def _tile(compiled: _Compiled) -> tuple[int, int]:
    (level,) = compiled.made.levels.values()
    for kernel in level.lowered:
        nest = ProductNest.find(kernel.variants[0].steps[0].program)
        if nest is not None:
            return nest.registers.rows, nest.registers.columns
    return 1, 1
