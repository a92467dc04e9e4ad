# pyright: basic
"""How often the cost model is wrong: every variant of a contraction timed at random shapes.

Shapes are drawn log-uniformly. At each of them the compiled program runs once for every variant,
each time restricted to one of them; the regret is the time of the variant that the runtime would
choose over that of the best. Ablations put less behind the choice. May import compile and the rest
of the package. Start with `measure_regret`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilewright.bench.measure import Clock, SystemClock
from tilewright.bench.operators import Group, build_model, make_problem, make_weight
from tilewright.bench.suites import Case, convolved
from tilewright.compile import Compilation, compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.ir.product_nest import ProductNest
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Buffer, KernelStep, Program, Step
from tilewright.support.errors import InputError
from tilewright.target import detect

KINDS = ("gemm", "bmm", "conv")
LARGEST_BYTES = 1 << 30
LARGEST_FLOPS = 4e9

_HOPELESS = 1.5  # times the best after some turns: a variant is not timed again
_FAIR_TURNS = 5
_MOST_TURNS = 1000
_SAMPLE_SECONDS = 2e-4
_MOST_CALLS = 1000
_CHANNELS, _PIXELS, _BATCH = 512, 64, 16


class ProcessClock:
    """The processor time of this process, which other processes hardly change."""

    def now(self) -> float:
        """Seconds of all threads."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Give the processor up for that long."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Setting:
    """What to draw and how to time it; ``seconds`` for all, ``sizes`` the range of an axis."""

    kind: str = "gemm"
    constant: str = "none"
    samples: int = 100
    sizes: tuple[int, int] = (1, 4096)
    threads: int = 1
    seed: int = 0
    seconds: float = 300.0
    largest_flops: float = LARGEST_FLOPS


@dataclass(frozen=True)
class Sample:
    """One shape: seconds of each variant, the variant chosen, and those chosen by other models.

    ``padded`` is the time where the register tile is fixed and all extents are rounded up to it.
    """

    case: Case
    names: tuple[str, ...]
    seconds: tuple[float, ...]
    chosen: int
    unmeasured: int
    padded: float | None = None
    padded_seconds: tuple[float, ...] = ()

    @property
    def best(self) -> int:
        """The fastest variant."""
        return self.seconds.index(min(self.seconds))

    def regret_of(self, variant: int) -> float:
        """What a variant takes longer than the best, 0.1 for a tenth."""
        return self.seconds[variant] / min(self.seconds) - 1.0

    @property
    def regret(self) -> float:
        """That of the variant chosen."""
        return self.regret_of(self.chosen)


def draw_cases(setting: Setting) -> tuple[Case, ...]:
    """Shapes of one kind, the same for the same seed; larger ones than allowed are drawn again."""
    if setting.kind not in KINDS:
        raise InputError(f"There is no kind {setting.kind!r}.", hint=f"use {', '.join(KINDS)}")
    low, high = setting.sizes
    if not 1 <= low <= high:
        raise InputError(f"The range {low}..{high} is empty.", hint="write 1..4096, for example")
    generator = np.random.default_rng(setting.seed)

    def draw(most: int = high) -> int:
        return round(float(np.exp(generator.uniform(np.log(min(low, most)), np.log(most)))))

    cases: list[Case] = []
    for _ in range(1000 * setting.samples):
        case = _draw(setting.kind, draw, generator, min(high, 64), len(cases))
        if case is None or case.bytes > LARGEST_BYTES or case.flops > setting.largest_flops:
            continue
        cases.append(case)
        if len(cases) == setting.samples:
            return tuple(cases)
    raise InputError("Hardly any shape of this range is small enough.", hint="lower the range")


def _draw(
    kind: str,
    draw: Callable[..., int],
    generator: np.random.Generator,
    batch: int,
    number: int,
) -> Case | None:
    if kind != "conv":
        sizes = {"B": draw(batch)} if kind == "bmm" else {}
        sizes |= {"M": draw(), "N": draw(), "K": draw()}
        sizes |= {"trans_a": 0, "trans_b": int(generator.integers(2))}
        return Case("regret", str(number), kind, sizes)
    pixels, taps = draw(_PIXELS), int(generator.choice([1, 1, 3, 3, 5]))
    stride = int(generator.choice([1, 1, 2]))
    sizes = {"N": draw(_BATCH), "C": draw(_CHANNELS), "H": pixels, "W": pixels}
    sizes |= {"K": draw(_CHANNELS), "R": taps, "S": taps, "pad_h": taps // 2, "pad_w": taps // 2}
    sizes |= {"stride_h": stride, "stride_w": stride, "dilation": 1, "groups": 1}
    return Case("regret", str(number), kind, sizes) if min(convolved(sizes)) > 0 else None


def groups_of(cases: Sequence[Case], constant_operand: str) -> tuple[Group, ...]:
    """What is compiled once: all cases of run-time operands together, others one by one."""
    kind = cases[0].kind
    if kind == "conv":
        return tuple(_group((case,), ("N",), "right") for case in cases)
    if kind == "gemm" and constant_operand != "none":
        dynamic = {"right": "M", "left": "N"}[constant_operand]
        return tuple(_group((case,), (dynamic,), constant_operand) for case in cases)
    families: dict[int, list[Case]] = {}
    for case in cases:
        families.setdefault(case.sizes["trans_b"], []).append(case)
    axes = ("B", "M", "N", "K") if kind == "bmm" else ("M", "N", "K")
    return tuple(_group(own, axes, "none") for own in families.values())


def _group(cases: Sequence[Case], dynamic: Sequence[str], operand: str) -> Group:
    sizes = cases[0].sizes
    fixed = {name: size for name, size in sizes.items() if name not in dynamic}
    ranges = {name: (1, max(c.sizes[name] for c in cases) + 64) for name in dynamic}
    return Group(cases[0].kind, operand, fixed, ranges, tuple(cases))


# ---------------------------------------------------------------- variants


def variants_of(program: Program) -> tuple[str, ...]:
    """The names of the variants of the one kernel that has several; empty if none has."""
    if len(program.choices) > 1:
        raise InputError("Several kernels of this program have a choice.", where=program.name)
    return next((choice.names for choice in program.choices), ())


def restricted(contents: ArtifactContents, variant: int) -> ArtifactContents:
    """The same programs with a choice that always falls on one variant."""

    def fixed(program: Program) -> Program:
        chosen = {choice.symbol: variant for choice in program.choices}

        def buffer(given: Buffer) -> Buffer:
            return replace(given, shape=tuple(size.substitute(chosen) for size in given.shape))

        def step(given: Step) -> Step:
            if not isinstance(given, KernelStep):
                return given
            return replace(given, used=given.used.substitute(chosen))

        buffers, steps = tuple(map(buffer, program.buffers)), tuple(map(step, program.steps))
        return replace(program, choices=(), buffers=buffers, steps=steps)

    return replace(contents, programs={n: fixed(p) for n, p in contents.programs.items()})


def chosen_variant(program: Program, sizes: Mapping[str, int], threads: int) -> int:
    """The variant with the least cost, the first of equals."""
    if not program.choices:
        return 0
    environment = {**sizes, program.threads_symbol: threads}
    costs = [cost.evaluate(environment) for cost in program.choices[0].costs]
    return costs.index(min(costs))


# ---------------------------------------------------------------- timing


def time_variants(
    calls: Sequence[Callable[[], object]], clock: Clock, seconds: float
) -> tuple[float, ...]:
    """Seconds of one call of each; they take turns for about ``seconds``.

    A processor that others share is faster at times and slower at others. So each call is compared
    with the others of the same turn, and the median of that multiplied by the time of the fastest
    turn. What is hopeless after some turns is not called again.
    """
    started = time.perf_counter()
    counts: list[int] = []
    for call in calls:
        # First calls are slow, and a sample of too few is timed with its own beginning.
        call()
        once = max(min(_timed(call, 1, clock) for _ in range(3)), 1e-7)
        counts.append(max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / once))))

    def turn(variants: Sequence[int]) -> list[float]:
        return [_timed(calls[variant], counts[variant], clock) for variant in variants]

    everyone = range(len(calls))
    found = _typical([turn(everyone) for _ in range(_FAIR_TURNS)])
    left = [variant for variant in everyone if found[variant] <= _HOPELESS * min(found)]
    turns = [turn(left) for _ in range(_FAIR_TURNS)]
    while time.perf_counter() - started < seconds and len(turns) < _MOST_TURNS:
        turns.append(turn(left))
    for variant, took in zip(left, _typical(turns), strict=True):
        found[variant] = took
    return tuple(found)


def _typical(turns: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each call, were all of them made in the fastest turn."""
    usual = [statistics.fmean(turn) for turn in turns]
    fastest = min(usual)
    shares = zip(*([t / mean for t in turn] for turn, mean in zip(turns, usual, strict=True)),
                 strict=True)  # fmt: skip
    return [statistics.median(share) * fastest for share in shares]


def _timed(call: Callable[[], object], count: int, clock: Clock) -> float:
    started = clock.now()
    for _ in range(count):
        call()
    return max((clock.now() - started) / count, 1e-9)


# ---------------------------------------------------------------- the run

Progress = Callable[[int, Case], None]


@dataclass(frozen=True)
class _Compiled:
    """A group, compiled with all that is known of this machine, and without measurements."""

    group: Group
    weight: np.ndarray | None
    made: Compilation
    unmeasured: Compilation

    @staticmethod
    def of(group: Group) -> _Compiled:
        weight = make_weight(group)
        model = build_model(group, group.extents, weight)
        dims = {name: Dim(low, high) for name, (low, high) in group.ranges.items()}
        made = compile_stages(model, dims=dims, fallback="error")
        other = compile_stages(model, dims=dims, fallback="error", target=detect())
        return _Compiled(group, weight, made, other)

    @property
    def program(self) -> Program:
        (program,) = self.made.contents.programs.values()
        return program

    def models(self, threads: int) -> list[CompiledModel]:
        """One for each variant, which share code and constants."""
        contents, count = self.made.contents, max(1, len(variants_of(self.program)))
        return [
            CompiledModel.from_contents(restricted(contents, variant), num_threads=threads)
            for variant in range(count)
        ]

    def choices(self, sizes: Mapping[str, int], threads: int) -> tuple[int, int]:
        """The variant chosen with measurements, and without; by name, as lists may differ."""
        (other,) = self.unmeasured.contents.programs.values()
        own, names = chosen_variant(self.program, sizes, threads), variants_of(self.program)
        if not names or not variants_of(other):
            return own, own
        name = variants_of(other)[chosen_variant(other, sizes, threads)]
        return own, names.index(name) if name in names else own


def measure_regret(
    setting: Setting, progress: Progress, clock: Clock | None = None
) -> Iterator[Sample]:
    """One sample after the other; ``progress`` is called before each with the number done."""
    clock = clock or clock_for(setting.threads)
    cases = draw_cases(setting)
    each = setting.seconds / len(cases)
    done = 0
    for group in groups_of(cases, setting.constant):
        progress(done, group.cases[0])
        compiled = _Compiled.of(group)
        models = compiled.models(setting.threads)
        for case in group.cases:
            progress(done, case)
            yield _sample(compiled, models, case, setting, each, clock)
            done += 1


def clock_for(threads: int) -> Clock:
    """Processor time of one thread, which others hardly change, or the time on the wall."""
    return ProcessClock() if threads == 1 else SystemClock()


def _sample(
    compiled: _Compiled,
    models: Sequence[CompiledModel],
    case: Case,
    setting: Setting,
    seconds: float,
    clock: Clock,
) -> Sample:
    calls = _calls(compiled, models, case)
    times = list(time_variants(calls, clock, 0.6 * seconds))
    threads = setting.threads
    chosen, unmeasured = compiled.choices(case.sizes, threads)
    best = times.index(min(times))
    if best != chosen:  # the least of several noisy times flatters the best: these two once more
        least, again = time_variants([calls[best], calls[chosen]], clock, 0.2 * seconds)
        times[chosen] = times[best] * again / least
    padded, padded_times = None, ()
    if case.kind != "conv":
        padded, padded_times = _padded(compiled, models, case, setting, 0.2 * seconds, clock)
    names = variants_of(compiled.program) or ("only",)
    return Sample(case, names, tuple(times), chosen, unmeasured, padded, padded_times)


def _calls(
    compiled: _Compiled, models: Sequence[CompiledModel], case: Case
) -> list[Callable[[], object]]:
    """A call of each model with the same operands."""
    arrays = tuple(make_problem(compiled.group, case, compiled.weight).inputs.values())
    return [partial(model, *arrays) for model in models]


def _padded(
    compiled: _Compiled,
    models: Sequence[CompiledModel],
    case: Case,
    setting: Setting,
    seconds: float,
    clock: Clock,
) -> tuple[float, tuple[float, ...]]:
    """Times of the shape rounded up to whole register tiles: of the choice, of each variant."""
    rows, columns = _tile(compiled)
    sizes = dict(case.sizes)
    # Rows that are read in place would also become aligned, which is another matter.
    units = {"M": rows, "N": columns if case.sizes["trans_b"] else 1}
    for name, unit in units.items():
        if name in compiled.group.ranges:
            sizes[name] = -(-sizes[name] // unit) * unit
    padded = replace(case, sizes=sizes)
    times = time_variants(_calls(compiled, models, padded), clock, seconds)
    return times[compiled.choices(sizes, setting.threads)[0]], times


def _tile(compiled: _Compiled) -> tuple[int, int]:
    (level,) = compiled.made.levels.values()
    for kernel in level.lowered:
        nest = ProductNest.find(kernel.variants[0].steps[0].program)
        if nest is not None:
            return nest.registers.rows, nest.registers.columns
    return 1, 1


# ---------------------------------------------------------------- the report


@dataclass(frozen=True)
class Regret:
    """Mean, 95th percentile and worst of the regrets, and the sample of the worst."""

    mean: float
    p95: float
    worst: float
    at: Sample


def summarise(samples: Sequence[Sample]) -> Regret:
    """Of at least one sample."""
    regrets = [sample.regret for sample in samples]
    worst = max(samples, key=lambda sample: sample.regret)
    return Regret(statistics.fmean(regrets), float(np.percentile(regrets, 95)), worst.regret, worst)


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
    tiled = [s for s in samples if s.padded is not None]
    if tiled:
        # What is gained by alignment does not count: the shape itself has not got it.
        rows["static L0"] = [min(1.0, min(s.seconds) / s.padded) for s in tiled if s.padded]
        usual = most_often_best(tiled)
        rows["static L0+L1"] = [
            min(1.0, min(s.seconds) / s.padded_seconds[s.names.index(usual)])
            for s in tiled
            if usual in s.names
        ]
    return {name: statistics.fmean(values) for name, values in rows.items() if values}


def most_often_best(samples: Sequence[Sample]) -> str:
    """The name of the variant that wins most shapes, the first of equals."""
    wins: dict[str, int] = {}
    for sample in samples:
        name = sample.names[sample.best]
        wins[name] = wins.get(name, 0) + 1
    return max(wins, key=lambda name: wins[name])


def wins_of(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """How often each variant is best, and how often it is chosen."""
    names = dict.fromkeys(name for sample in samples for name in sample.names)
    return {
        name: (
            sum(s.names[s.best] == name for s in samples),
            sum(s.names[s.chosen] == name for s in samples),
        )
        for name in names
    }
