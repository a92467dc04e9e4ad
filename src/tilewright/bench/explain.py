"""What each kernel of a model does at one shape: why it is one, what it takes and what it could.

A model is compiled, called and profiled; each kernel's measured time stands beside the modelled
one, the modelled time of its runner-up, that of its primitives one by one, and the least that the
machine allows. May import compile and the rest of the package. Start with :class:`Explained`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Unpack, cast

from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.bench.contender import Inputs
from tilewright.compile import Compilation, compile_stages
from tilewright.compile_machines import host_machine
from tilewright.cost import Machine
from tilewright.frontend.onnx.source import Source
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ops.reference import evaluate_payload
from tilewright.options import CompileOptions
from tilewright.plan.layouts import LaidOut
from tilewright.plan.planners import PLANNERS
from tilewright.plan.prices import KernelPrices
from tilewright.plan.quick import QuickPrices, is_product, multiply_adds
from tilewright.plan.rejected import Instead, Rejected
from tilewright.policy.prices import evaluated_at, range_of
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import KernelStep
from tilewright.runtime.results import KernelUse, Memory
from tilewright.shape import Expr, Scope, product, symbol
from tilewright.support.errors import InputError
from tilewright.support.text import format_seconds
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.prices import with_costs
from tilewright.tile.variants import THREADS

_PICO = 1e12  # picoseconds in a second
_FEWEST_CALLS = 5  # that are timed, however long they take


@dataclass(frozen=True)
class OtherChoice:
    """Kernels that a plan might have in the place of others, by their kinds and labels.

    ``more`` is how many seconds they take longer, by the model; below 0 where they are faster.
    """

    kernels: tuple[tuple[str, str], ...]
    replaced: tuple[tuple[str, str], ...]
    more: float

    @property
    def described(self) -> str:
        """The kinds of the kernels, and how many others go for them if it is not one."""
        kinds = " + ".join(kind for kind, _ in self.kernels)
        return kinds if len(self.replaced) == 1 else f"{kinds} for {len(self.replaced)} kernels"


@dataclass(frozen=True)
class KernelReport:
    """One kernel at one shape; times in seconds.

    ``operators`` are those of the model that it has a part of. ``runner_up`` is the variant that
    the price puts second, ``runner_up_time`` its modelled time; both are empty where there is one
    variant. ``apart`` is the modelled time of its primitives as kernels of their own: what it saves
    is the difference to ``modelled``. ``rejected`` is the cheapest choice of kernels without this
    one, if there is any. ``limit`` is what no kernel falls below: every multiply-add
    at its peak, or all bytes once at the bandwidth of the level that holds them. ``padded`` is the
    share of multiply-adds on padding beyond those that are needed. ``is_measured`` tells whether
    the planner priced it by running it.
    """

    number: int
    label: str
    kind: str
    operators: tuple[str, ...]
    variant: str
    measured: float
    modelled: float
    runner_up: str
    runner_up_time: float
    apart: float
    rejected: OtherChoice | None
    limit: float
    bytes: int
    multiply_adds: int
    padded: float
    threads: int
    is_measured: bool = False

    @property
    def share_of_limit(self) -> float:
        """How near to the limit it is: 1 where it cannot be faster."""
        return self.limit / self.measured if self.measured else 1.0

    @property
    def saving(self) -> float:
        """Seconds that the kernel saves, by the model, beside its primitives one by one."""
        return self.apart - self.modelled


@dataclass(frozen=True)
class ModelReport:
    """A model at one shape; times in seconds.

    ``call`` is the median of whole calls, ``other`` what steps without a kernel take, such as those
    on the ONNX reference evaluator. ``peak`` is the number of multiply-adds in a second that the
    machine can do, ``bandwidth`` its bytes from memory, both with the threads of the call. ``lost``
    is the part of its modelled time that the planner may have lost by dividing the graph.
    ``layouts`` says which parts have their tensors in other orders than by the rule that counts
    conversions. ``steps`` are names and times where kernels are not told apart: in models of ragged
    batches. ``assumed`` are sizes that depend on values, as those of NonZero do, for which prices
    take the middle of their range.
    """

    name: str
    shape: Mapping[str, int]
    level: str
    machine: str
    plan: str
    threads: int
    call: float
    kernels: tuple[KernelReport, ...]
    other: float
    memory: Memory
    peak: float
    bandwidth: float
    lost: float = 0.0
    layouts: tuple[LaidOut, ...] = ()
    steps: tuple[tuple[str, float], ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def limit(self) -> float:
        """The least time of all kernels in sum."""
        return sum(kernel.limit for kernel in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        document = asdict(self)
        for kernel, written in zip(self.kernels, document["kernels"], strict=True):
            written |= {"share_of_limit": kernel.share_of_limit, "saving": kernel.saving}
        return {**document, "limit": self.limit}


@dataclass(frozen=True)
class Called:
    """Median seconds of whole calls, and of every step that ran, by its number, with its label."""

    call: float
    times: Mapping[int, float]
    labels: Mapping[int, str]


class Explained:
    """A model, compiled for this machine, that can be explained at any shape."""

    def __init__(
        self,
        source: Source,
        threads: int | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        started = time.perf_counter()
        self.made: Compilation = compile_stages(source, **options)
        self.seconds = time.perf_counter() - started
        self.model = CompiledModel.from_contents(
            self.made.contents, evaluate=evaluate_payload, num_threads=threads
        )
        self.name = Path(source).stem if isinstance(source, str | os.PathLike) else self.model.name
        self.is_ragged = self.model.program.ragged is not None
        self.machine: Machine = host_machine()
        self.plan = self.made.plans[self.model.level]
        lowered = iter(self.made.levels[self.model.level].lowered)
        self._kernels = [
            (number, kernel, next(lowered))
            for number, kernel in enumerate(self.plan.kernels)
            if kernel.kind is not KernelKind.OPAQUE
        ]
        self._lowering = lowering_of(
            self.made.graph, LEVELS[self.model.level], machine=self.machine
        )
        apart = PLANNERS["none"](self.made.graph, self._lowering)
        self._optional = self.plan.memberships()
        self._apart = {kernel.outputs[0]: kernel for kernel in apart.kernels}

    def called(self, inputs: Inputs, seconds: float = 1.0) -> Called:
        """The times of calls with ``inputs``, for about so many seconds."""
        call = _median(lambda: self.model.run(inputs), seconds / 2)
        found: dict[int, list[float]] = {}
        labels: dict[int, str] = {}
        started = time.perf_counter()
        calls = 0
        while calls < _FEWEST_CALLS or time.perf_counter() - started < seconds / 2:
            for step in self.model.profile(**inputs):
                found.setdefault(step.step, []).append(step.nanoseconds / 1e9)
                labels[step.step] = step.label
            calls += 1
        medians = {step: statistics.median(times) for step, times in found.items()}
        return Called(call, medians, labels)

    def at(self, shape: Mapping[str, int], called: Called) -> ModelReport:
        """The report of calls at a shape, beside the prices of all that could be there instead.

        Raises InputError for a model of ragged batches: see :meth:`steps_at`.
        """
        if self.is_ragged:
            raise InputError(
                "A model of ragged batches cannot be explained as a whole",
                hint="Leave @ and what follows it out of --dim",
            )
        model, target = self.model, self.machine.target
        threads = min(model.num_threads, target.units)
        times = dict(called.times)
        assumed = _middles(self.made.graph.scope, shape)
        point = {**self.made.graph.scope.completed({**assumed, **shape}), THREADS: threads}
        prices = _PointPrices(self.machine, self._lowering, point)
        uses: dict[int, list[KernelUse]] = {}
        for use in model.explain(**shape):
            step = cast("KernelStep", model.program.steps[use.step])
            uses.setdefault(step.kernel, []).append(use)
        launched = [k for k in self._kernels if k[0] in uses or k[0] not in self._optional]
        rejected = Rejected(
            self.made.graph, self._lowering, point, [kernel for _, kernel, _ in launched]
        )
        kernels: list[KernelReport] = []
        for number, kernel, lowered in launched:
            own = [use for use in uses.get(number, []) if use.step in times]
            measured = sum(times.pop(use.step) for use in own)
            other = _other_choice(rejected.beside(kernel))
            kernels.append(self._report(number, kernel, lowered, own, measured, prices, other))
        return ModelReport(
            self.name, dict(shape), model.level, target.name, self.plan_name, threads, called.call,
            tuple(kernels), sum(times.values()), model.memory(**shape),
            target.peak_flops("float32", threads) / 2,
            target.bytes_per_second(target.levels[-1].name, threads), self.plan.lost,
            self.made.layouts.parts, assumed=assumed,
        )  # fmt: skip

    def steps_at(self, shape: Mapping[str, int], called: Called) -> ModelReport:
        """The same without anything of kernels, whatever the model: each step with its time alone.

        A step of a ragged batch computes all positions at once, or its kernels once for each
        sequence, so that no shape of the graph has its price.
        """
        model, target = self.model, self.machine.target
        threads = min(model.num_threads, target.units)
        steps = tuple((called.labels[number], time) for number, time in called.times.items())
        return ModelReport(
            self.name, dict(shape), model.level, target.name, self.plan_name, threads, called.call,
            (), 0.0, model.memory(**shape), target.peak_flops("float32", threads) / 2,
            target.bytes_per_second(target.levels[-1].name, threads), self.plan.lost,
            steps=steps,
        )  # fmt: skip

    @property
    def plan_name(self) -> str:
        """The planner."""
        return self.made.contents.origin.plan

    def second(self) -> CompiledModel:
        """Another instance of the model, with its own memory."""
        return CompiledModel.from_contents(
            self.made.contents, evaluate=evaluate_payload, num_threads=self.model.num_threads
        )

    def _report(
        self, number: int, kernel: Kernel, lowered: LoweredKernel, uses: Sequence[KernelUse],
        measured: float, prices: _PointPrices, other: OtherChoice | None,
    ) -> KernelReport:  # fmt: skip
        ranked = prices.ranked(lowered)
        products = [multiply_adds(node) for node in kernel.body if is_product(node)]
        apart = [self._apart[node] for node in kernel.body if node in self._apart]
        labels = dict.fromkeys(
            self.made.graph.labels[node] for node in kernel.body if node in self.made.graph.labels
        )
        return KernelReport(
            number=number,
            label=kernel.label,
            kind=kernel.kind.value,
            operators=tuple(labels),
            variant=ranked[0][1],
            measured=measured,
            modelled=ranked[0][0],
            runner_up=ranked[1][1] if len(ranked) > 1 else "",
            runner_up_time=ranked[1][0] if len(ranked) > 1 else 0.0,
            apart=sum(map(prices.of, apart)) if len(apart) > 1 else ranked[0][0],
            rejected=other,
            limit=prices.limit(kernel),
            bytes=sum(map(prices.size, (*kernel.reads, *kernel.outputs))),
            multiply_adds=sum(map(prices.count, products)),
            padded=max((use.padded or 0.0 for use in uses), default=0.0),
            threads=max((use.threads for use in uses), default=1),
            is_measured=number in dict(self.plan.corrections),
        )


def _middles(scope: Scope, known: Mapping[str, int]) -> dict[str, int]:
    """The middle, by ratio, of the range of every size that is not known."""
    unknown = [name for name in scope.independent if name not in known]
    sizes = [scope.resolve(symbol(name)) for name in unknown]
    free = [name for name, size in zip(unknown, sizes, strict=True) if size is symbol(name)]
    return {name: math.isqrt(math.prod(range_of(scope, name))) for name in free}


def _other_choice(instead: Instead | None) -> OtherChoice | None:
    if instead is None:
        return None
    added, removed = (
        tuple((kernel.kind.value, kernel.label) for kernel in kernels)
        for kernels in (instead.added, instead.removed)
    )
    return OtherChoice(added, removed, instead.more / _PICO)


class _PointPrices:
    """Modelled times at one shape with one number of threads, in seconds."""

    def __init__(self, machine: Machine, lowering: LoweringOnce, point: Mapping[str, int]) -> None:
        self._machine = machine
        self._point = point
        self._exact = KernelPrices(lowering, [point])
        self._quick = QuickPrices(machine, [point])

    def of(self, kernel: Kernel) -> float:
        """Of the cheapest variant of a kernel."""
        return self._exact.of(kernel)[0] / _PICO

    def limit(self, kernel: Kernel) -> float:
        """What no kernel falls below."""
        return self._quick.of(kernel)[0] / _PICO

    def ranked(self, lowered: LoweredKernel) -> list[tuple[float, str]]:
        """The variants of a kernel, the cheapest first."""
        variants = with_costs(lowered.variants, self._machine)
        costs = evaluated_at([variant.cost for variant in variants], [self._point])
        times = [cost / _PICO for (cost,) in costs]
        order = sorted(range(len(variants)), key=times.__getitem__)
        return [(times[n], variants[n].name) for n in order]

    def size(self, node: Node) -> int:
        """Bytes of a tensor."""
        return self.count(product(node.shape) * node.dtype.bytes)

    def count(self, expression: Expr) -> int:
        """The value of an expression; 0 where it depends on values that a call computes."""
        known = self._point.keys() >= set(expression.free_symbols)
        return expression.evaluate(self._point) if known else 0


def signed_seconds(seconds: float) -> str:
    """A time for people that may be below 0."""
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _median(call: Callable[[], object], seconds: float) -> float:
    """The median time of calls for so many seconds, after one that is not counted."""
    call()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < _FEWEST_CALLS or time.perf_counter() - started < seconds:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


__all__ = ["Called", "Explained", "KernelReport", "ModelReport", "OtherChoice", "signed_seconds"]
