"""Times of kernels as the planner asks for them, each measured once on a machine and kept.

A kernel is compiled as a program of its own and called with operands of the sizes asked for. Calls
of all kernels take turns in blocks; a block's time is the median of its calls, a kernel's that of
its fastest block: what else runs on the machine only ever makes one slower. Only the steps count,
not what surrounds a call. Times are kept under a digest of the tile programs that ran, which say
all that the compiler decided: the kernel's outline, the accuracy, the precision, the blocks that
the policy chose. Start with :class:`KernelTimes`.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.backend.cpu.machine import Level, host_levels
from tilewright.backend.cpu.program import build_program
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.primitives import Input
from tilewright.ir.tile_print import print_tile
from tilewright.ir.value_ranges import ValueRange, value_ranges
from tilewright.plan.alone import alone
from tilewright.policy.prices import evaluated_at
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Expr
from tilewright.support.errors import InputError, ResourceError, TilewrightError
from tilewright.support.text import format_count, format_seconds
from tilewright.target import Target
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.prices import with_costs
from tilewright.tile.variants import (
    THREADS,
    PackedCodes,
    PackedConstant,
    Source,
    Variant,
    Workspace,
)
from tilewright.tune.blocks import BLOCKS
from tilewright.tune.store import load_kernel_times, save_kernel_times

Array = np.ndarray[Any, Any]
Point = Mapping[str, int]
Call = Callable[[], float]  # which runs a kernel once and gives its nanoseconds
Clock = Callable[[], float]

SECONDS = 60.0  # of one compilation, for all its levels
_BLOCK_SECONDS = 0.01  # of one variant in one turn
_FEWEST_CALLS, _MOST_CALLS = 3, 200  # in a block, of which the median counts
_LOG = logging.getLogger(__name__)


@dataclass
class Budget:
    """The seconds that measuring may take, and what it came to: times of kernels at points."""

    seconds: float = SECONDS
    clock: Clock = time.perf_counter
    spent: float = 0.0
    timed: int = 0
    kept: int = 0
    missing: int = 0

    @staticmethod
    def wanted(is_wanted: bool, planner: str, target: Target | None) -> Budget | None:
        """That of a compilation; None if it is not to measure. Raises InputError if it cannot."""
        if not is_wanted:
            return None
        if planner != "optimal":
            raise InputError(
                f"'measure' times the best of several plans, but plan={planner!r} makes one only",
                hint='Use plan="optimal" (--plan optimal), which chooses among plans',
            )
        if target is not None:
            raise InputError(
                f"'measure' runs kernels on this machine, but 'target' describes {target.name}",
                hint="Leave one of the two out",
            )
        return Budget()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be timed."""
        return self.spent >= self.seconds

    def tell(self) -> None:
        """Log what it came to, as a warning if some kernels have no time."""
        if not self.missing:
            _LOG.info("%s", self)
            return
        way = "compile again to measure more" if self.is_over else "they cannot be run alone"
        _LOG.warning("%s; their parts of the model are planned by modelled times (%s)", self, way)

    def to_json(self) -> dict[str, float]:
        """How many times of kernels are new, were known and are missing, and the seconds taken."""
        counts = {"timed": self.timed, "kept": self.kept, "missing": self.missing}
        return {**counts, "seconds": self.spent}

    def __str__(self) -> str:
        text = f"{format_count(self.timed, 'time')} of kernels measured"
        text += f" in {format_seconds(self.spent)}" if self.timed else ""
        text += f", {self.kept} known from before"
        return text + (f", {self.missing} not measured" if self.missing else "")


@dataclass
class KernelTimes:
    """Measures kernels of one graph for one level of this machine; the planner calls it."""

    level: Level
    lowering: LoweringOnce
    budget: Budget
    _known: dict[str, int] = field(init=False)

    @staticmethod
    def of(level: Level, lowering: LoweringOnce, budget: Budget | None) -> KernelTimes | None:
        """None without a budget, and for a level that this machine cannot run."""
        if budget is None:
            return None
        if level not in host_levels():
            _LOG.warning("%s does not run here: it is planned by modelled times", level.name)
            return None
        return KernelTimes(level, lowering, budget)

    def __post_init__(self) -> None:
        self._known = load_kernel_times(self.level.name)

    def __call__(
        self, graph: Graph, kernels: Sequence[Kernel], points: Sequence[Point]
    ) -> list[tuple[float, ...] | None]:
        """Picoseconds of each kernel at each point; None of one of which not all are known."""
        ready = [_Timed.of(graph, kernel, self.lowering, points) for kernel in kernels]
        before = self.budget.clock()
        spent, had = self.budget.spent, dict(self._known)
        for number, point in enumerate(points):
            wanted = [timed for timed in ready if timed.keys[number] not in self._known]
            self.budget.kept += len(ready) - len(wanted)
            if wanted and not self.budget.is_over:
                self._measure(wanted, number, point)
                self.budget.spent = spent + self.budget.clock() - before
            missing = sum(timed.keys[number] not in self._known for timed in wanted)
            self.budget.missing += missing
            self.budget.timed += len(wanted) - missing
        self._keep({key: own for key, own in self._known.items() if key not in had})
        return [timed.times(self._known) for timed in ready]

    def _measure(self, wanted: Sequence[_Timed], number: int, point: Point) -> None:
        """Time kernels at one point in turns; those that cannot run there get no time."""
        _LOG.info("timing %s at %s", format_count(len(wanted), "kernel"), _described(point))
        calls: dict[str, Call] = {}
        for timed in wanted:
            try:
                calls[timed.keys[number]] = timed.call(self.level, self.lowering, point)
            except TilewrightError as error:
                _LOG.warning("%s cannot be timed: %s", timed.kernel.label, error)
        for key, nanoseconds in least_medians(calls, self.budget.clock).items():
            self._known[key] = max(1, round(1000 * nanoseconds))

    def _keep(self, times: Mapping[str, int]) -> None:
        if not times:
            return
        try:
            save_kernel_times(self.level.name, times)
        except ResourceError as error:
            _LOG.warning("%s", error)


def least_medians(calls: Mapping[str, Call], clock: Clock) -> dict[str, float]:
    """The median time of each call in the fastest of its blocks, which take turns."""
    blocks: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(BLOCKS):
        for key, call in calls.items():
            call()  # another kernel has used the caches
            times: list[float] = []
            until = clock() + _BLOCK_SECONDS
            while len(times) < _FEWEST_CALLS or (clock() < until and len(times) < _MOST_CALLS):
                times.append(call())
            blocks[key].append(statistics.median(times))
    return {key: min(times) for key, times in blocks.items()}


@dataclass
class _Timed:
    """A kernel of a graph, and what identifies its time at each point."""

    graph: Graph
    kernel: Kernel
    keys: tuple[str, ...]
    _contents: ArtifactContents | None = None
    _models: dict[int, CompiledModel] = field(default_factory=dict[int, CompiledModel])

    @staticmethod
    def of(graph: Graph, kernel: Kernel, lowering: LoweringOnce, points: Sequence[Point]) -> _Timed:
        variants = with_costs(lowering.lowered(kernel).variants, lowering.machine)
        costs = evaluated_at([variant.cost for variant in variants], points)
        texts = [_text(variant) for variant in variants]
        keys: list[str] = []
        for number, point in enumerate(points):
            prices = [own_costs[number] for own_costs in costs]
            text = texts[prices.index(min(prices))]
            sizes = ", ".join(f"{name}={size}" for name, size in sorted(point.items()))
            keys.append(hashlib.sha256(f"{text}\n{sizes}".encode()).hexdigest()[:32])
        return _Timed(graph, kernel, tuple(keys))

    def times(self, known: Mapping[str, int]) -> tuple[float, ...] | None:
        """The time at every point; None if any is not known."""
        if not all(key in known for key in self.keys):
            return None
        return tuple(float(known[key]) for key in self.keys)

    def call(self, level: Level, lowering: LoweringOnce, point: Point) -> Call:
        """What runs the kernel at a point. Raises what running a model raises."""
        own, moved = alone(self.graph, self.kernel)
        if self._contents is None:
            made = build_program(own, Plan((moved,)), level, lowering=lowering)
            self._contents = ArtifactContents(
                programs={level.name: made.program},
                images={level.name: made.image},
                constants={level.name: made.constants},
            )
        threads = point[THREADS]
        if threads not in self._models:
            self._models[threads] = CompiledModel.from_contents(
                self._contents, level=level.name, num_threads=threads
            )
        model, inputs = self._models[threads], _inputs(own, point)
        model.profile(**inputs)
        return lambda: float(sum(step.nanoseconds for step in model.profile(**inputs)))


def _text(variant: Variant) -> str:
    """All that decides what a variant runs."""
    lines: list[str] = []
    for step in variant.steps:
        lines.append(print_tile(step.program))
        lines += [_tensor(source) for source in (*step.reads, *step.writes)]
        if step.external is not None:
            numbers = ", ".join(map(str, step.external.parameters))
            lines.append(f"calls {step.external.name}({numbers})")
    return "\n".join(lines)


def _tensor(source: Source) -> str:
    match source:
        case Workspace():
            return f"workspace {source.dtype.value} {source.elements}"
        case PackedConstant() | PackedCodes():
            return f"packed {source.type}"
        case _:
            return str(source.type)


def _inputs(graph: Graph, point: Point) -> dict[str, Array]:
    """Values that the kernel can use: numbers near 1, and whole ones in the range it reads."""
    ranges = value_ranges(graph)
    chance = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for given in graph.inputs:
        primitive = given.primitive
        assert isinstance(primitive, Input)
        shape = tuple(size.evaluate(point) for size in given.shape)
        dtype = given.dtype.numpy
        if dtype.kind in "iu":
            low, high = _ends(ranges.get(primitive.name), dtype, point)
            found[primitive.name] = chance.integers(low, high, shape, dtype, endpoint=True)
        elif dtype.kind == "b":
            found[primitive.name] = chance.random(shape) < 0.5
        else:
            values = chance.random(shape, np.float32) + np.float32(0.5)
            found[primitive.name] = values.astype(dtype)
    return found


def _ends(found: ValueRange | None, dtype: np.dtype[Any], point: Point) -> tuple[int, int]:
    """The least and the greatest whole number that an input is given."""
    limits = np.iinfo(dtype)
    if found is None:
        return (int(limits.min), int(limits.max)) if dtype.itemsize == 1 else (0, 100)

    def value(end: Expr | None, other: int) -> int:
        return other if end is None else end.evaluate(point)

    low = max(value(found.low, 0), int(limits.min))
    return low, max(low, min(value(found.high, low + 100), int(limits.max)))


def _described(point: Point) -> str:
    sizes = [f"{name}={size}" for name, size in sorted(point.items()) if name != THREADS]
    return f"{', '.join(sizes) or 'its only shape'} on {format_count(point[THREADS], 'thread')}"


__all__ = ["SECONDS", "Budget", "KernelTimes"]
