"""What a model takes on many cores, by the prices of its kernels: no core has to be there.

A model is planned and lowered for a machine, without code. At a shape each kernel has the variant
that the runtime would take, whose steps have grids of tasks and prices; a simulation of the
runtime's threads tells the time of a call, how well they are used, and where they starve. May
import compile and the rest of the package. Start with :class:`ManyCores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.bench.clock import SystemClock
from tilewright.bench.contender import Inputs
from tilewright.bench.measure import Settings, measure
from tilewright.compile import compile_stages
from tilewright.compile_graphs import narrowed_graph
from tilewright.compile_machines import machine_for
from tilewright.cost import (
    CallRun,
    Machine,
    SharedStep,
    Tasks,
    contraction_time,
    memory_time,
    simulated,
)
from tilewright.frontend.onnx import as_constants, as_dims, import_model
from tilewright.frontend.onnx.source import Source
from tilewright.ir.graph import Node
from tilewright.ir.kernel import KernelKind
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import Role
from tilewright.ir.tile import LINE_BYTES, Stage
from tilewright.ops.reference import evaluate_payload
from tilewright.options import CompileOptions, complete
from tilewright.plan.known import with_known_kernels
from tilewright.plan.planners import PLANNERS
from tilewright.policy import POLICIES
from tilewright.policy.prices import evaluated_at
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Expr, constant, product, total
from tilewright.support.errors import InputError
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.prices import step_price, with_costs
from tilewright.tile.variants import THREADS, Accuracy, LoweredStep, PackedConstant, Workspace

_ROUNDS = 5  # of timing, for what this machine takes


@dataclass(frozen=True)
class _Step:
    """What is evaluated of a step: ``axes`` are tasks, and the extent and block of an axis.

    ``weight`` is its part of the price of its variant.
    """

    label: str
    axes: tuple[tuple[Expr, Expr, Expr], ...]
    weight: Expr
    memory: Expr
    work: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        axes = (part for axis in self.axes for part in axis)
        return (*axes, self.weight, self.memory, self.work)


@dataclass(frozen=True)
class _Variant:
    cost: Expr
    steps: tuple[_Step, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.cost, *(part for step in self.steps for part in step.expressions))


class ManyCores:
    """A model for one machine, whose calls can be simulated with any number of threads.

    ``unpriced`` counts the kernels without a price at any shape: operators on the reference
    evaluator, and what has sizes that a call computes. ``options`` are those of
    ``tilewright.compile``.
    """

    def __init__(self, source: Source, **options: Unpack[CompileOptions]) -> None:
        given = complete(options)
        dims = as_dims(given["dims"])
        if any(dim.ragged is not None for dim in dims.values()):
            raise InputError(
                "A model of ragged batches cannot be simulated as a whole",
                hint="Leave @ and what follows it out of --dim",
            )
        imported = import_model(source, dims=dims, constants=as_constants(given["constants"]))
        self.dimensions = imported.report.dimensions
        graph = with_known_kernels(narrowed_graph(imported.graph, given["precision"]))
        level, self.machine = machine_for(graph, given["target"])
        policy = POLICIES[given["policy"]]
        accuracy = Accuracy(given["accuracy"])
        lowering = lowering_of(graph, LEVELS[level], accuracy, self.machine, policy)
        plan = PLANNERS[given["plan"]](graph, lowering)
        self._source, self._options = source, options
        names = {dimension.name for dimension in self.dimensions} | {THREADS}
        found: dict[int, tuple[_Variant, ...]] = {}
        for number, kernel in enumerate(plan.kernels):
            if kernel.kind is not KernelKind.OPAQUE:
                variants = _variants(lowering.lowered(kernel), self.machine)
                if names.issuperset(_symbols(variants)):
                    found[number] = variants
        self.unpriced = len(plan.kernels) - len(found)
        self._kernels = found
        self._optional = plan.memberships()
        self._alternatives = [alternatives.ways for alternatives in plan.alternatives]

    def at(self, shape: Mapping[str, int], threads: Sequence[int]) -> list[CallRun]:
        """A call at a shape, with each of these numbers of threads.

        Raises InputError where ``shape`` does not name the dimensions of the model.
        """
        self._check(shape)
        points = [{**shape, THREADS: count} for count in (1, *threads)]
        every = [variant for own in self._kernels.values() for variant in own]
        wanted = list(dict.fromkeys(part for variant in every for part in variant.expressions))
        rows = evaluated_at(wanted, points)
        columns = [dict(zip(wanted, column, strict=True)) for column in zip(*rows, strict=True)]
        return [
            simulated(self._steps(columns[0], column), count)
            for count, column in zip(threads, columns[1:], strict=True)
        ]

    def measured(
        self, feeds: Callable[[CompiledModel], Inputs], threads: Sequence[int]
    ) -> dict[int, float]:
        """Seconds of a call of the compiled model with each of these numbers of threads.

        ``feeds`` gives the inputs of a model that is compiled.
        """
        contents = compile_stages(self._source, **self._options).contents
        models = {
            str(count): CompiledModel.from_contents(
                contents, evaluate=evaluate_payload, num_threads=count
            )
            for count in threads
        }
        inputs = feeds(next(iter(models.values())))
        calls = {name: partial(model.run, inputs) for name, model in models.items()}
        settings = Settings(rounds=_ROUNDS, most_rounds=_ROUNDS)
        found = measure(calls, None, settings, SystemClock(max(threads)))
        return {int(name): found.seconds(name).median for name in models}

    def _check(self, shape: Mapping[str, int]) -> None:
        names = [dimension.name for dimension in self.dimensions]
        if set(names) != set(shape):
            raise InputError(
                "The shape does not name the dimensions of the model",
                hint=f"Give values for {', '.join(names) or 'none'}",
            )

    def _steps(self, alone: Mapping[Expr, float], now: Mapping[Expr, float]) -> list[SharedStep]:
        """The steps of a call, of the variants that cost the least with the threads of ``now``."""
        chosen = {
            number: min(variants, key=lambda variant: now[variant.cost])
            for number, variants in self._kernels.items()
        }
        launched = {number for number in chosen if number not in self._optional}
        for ways in self._alternatives:
            costs = [sum(now[chosen[n].cost] for n in way if n in chosen) for way in ways]
            launched |= set(ways[costs.index(min(costs))])
        return [
            step
            for number, variant in chosen.items()
            if number in launched
            for step in _shared_steps(variant, alone, now)
        ]


def _variants(lowered: LoweredKernel, machine: Machine) -> tuple[_Variant, ...]:
    """With a price where one alone has none; the runtime's idea of its work stays as it is."""
    label = lowered.kernel.label
    return tuple(
        _Variant(priced.cost, tuple(_step(label, step, machine) for step in own.steps))
        for own, priced in zip(lowered.variants, with_costs(lowered.variants, machine), strict=True)
    )


def _step(label: str, step: LoweredStep, machine: Machine) -> _Step:
    program = step.program
    nest = ProductNest.find(program)
    if nest is not None:
        weight = contraction_time(nest, machine, 1)
        whole = total(map(_bytes, dict.fromkeys((*step.reads, *step.writes))))
        memory = memory_time(whole // LINE_BYTES, whole, machine)
    else:
        price = step_price(step, machine)
        weight, memory = price.alone, price.shared
    blocks = {
        axis.number: (axis.extent, axis.block)
        for part in program.body
        if isinstance(part, Stage)
        for axis in part.axes
        if axis.role is Role.PARALLEL
    }
    one = constant(1)
    # A thread has the same tasks in all rounds.
    grid = program.grid[1:] if program.in_rounds else program.grid
    axes = tuple((size, *blocks.get(name, (size, one))) for name, size in grid)
    return _Step(label, axes, weight, memory, program.work)


def _bytes(operand: object) -> Expr:
    """What a step reads or writes of an operand at most."""
    match operand:
        case Node() | PackedConstant():
            return product(operand.type.shape) * operand.type.dtype.bytes
        case Workspace():
            return operand.elements * operand.dtype.bytes
        case _:
            return constant(0)  # codes, a few bits for each element


def _shared_steps(
    variant: _Variant, alone: Mapping[Expr, float], now: Mapping[Expr, float]
) -> list[SharedStep]:
    """The price of a variant on one thread is divided among its steps as theirs alone are."""
    weights = [now[step.weight] for step in variant.steps]
    scale = alone[variant.cost] / (sum(weights) or 1.0)
    found: list[SharedStep] = []
    for step, weight in zip(variant.steps, weights, strict=True):
        sizes = tuple(int(now[size]) for size, _, _ in step.axes)
        if 0 in sizes:
            continue
        ends = tuple(
            _end(size, now[extent], now[block])
            for size, (_, extent, block) in zip(sizes, step.axes, strict=True)
        )
        found.append(
            SharedStep(
                step.label, Tasks(sizes, ends), weight * scale, now[step.memory],
                int(now[step.work]),
            )
        )  # fmt: skip
    return found


def _end(tasks: int, extent: float, block: float) -> float:
    """The work of the last block of an axis as a share of that of another."""
    return (extent - (tasks - 1) * block) / block if tasks > 1 else 1.0


def _symbols(variants: Sequence[_Variant]) -> set[str]:
    parts = (part for variant in variants for part in variant.expressions)
    return {name for part in parts for name in part.free_symbols}


__all__ = ["ManyCores"]
