"""The pipeline, from a model to something that runs.

import → simplify → prepare → plan → lower and generate, per instruction set level.
Start with :func:`compile_model`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, TypeVar, Unpack, cast, get_args

from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.pack import ConstantStore
from tilewright.backend.cpu.program import Bodies, CompiledProgram, build_program, lowering_of
from tilewright.compile_bodies import compiled_bodies, ragged_bodies
from tilewright.compile_graphs import (
    graph_by_rule,
    graph_with_known,
    simplified_graph,
    weight_bytes,
)
from tilewright.compile_machines import (
    chosen_levels,
    described_target,
    level_machine,
    machine_info,
    narrowest,
)
from tilewright.cost import Machine
from tilewright.frontend.onnx import Dim, ImportReport, as_constants, as_dims, import_model
from tilewright.frontend.onnx.bodies import Body
from tilewright.frontend.onnx.built_in import built_in_payloads
from tilewright.frontend.onnx.source import Source
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Plan
from tilewright.ir.tile_verify import Findings
from tilewright.ir.value_ranges import range_texts
from tilewright.ops.reference import evaluate_payload
from tilewright.options import CompileOptions, FallbackName, PlanName, PolicyName, complete
from tilewright.plan.layouts import Layouts, laid_out_by_price
from tilewright.plan.planners import BY_PRICE, Planner, planner_within
from tilewright.plan.prepare import prepare
from tilewright.plan.rewriting import Applied, rewritten_by_price
from tilewright.policy import POLICIES
from tilewright.rewrite import simplify
from tilewright.rewrite.precision import (
    Narrowing,
    Precision,
    narrowing_of,
)
from tilewright.rewrite.ragged import Share, split_ragged
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.artifact_writer import ArtifactDraft
from tilewright.runtime.info import Origin
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Dimension, OperatorCount
from tilewright.runtime.ragged_batch import RaggedBatch, RaggedTensor
from tilewright.stages import Stages, is_checked
from tilewright.support.arguments import byte_limit, choice, file_path, show, switch
from tilewright.support.collector import paused_collector
from tilewright.support.depth import told_of_depth
from tilewright.support.errors import DimensionError
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.variants import Accuracy
from tilewright.tune import Budget, KernelTimes

_Options = TypeVar("_Options", bound=Enum)
_LOG = logging.getLogger(__name__)


def _no_bodies(_: Graph) -> Bodies:
    return {}


@dataclass(frozen=True)
class Compilation:
    """Every stage of one compilation, for inspection; ``contents`` is what runs.

    ``findings`` says what was proved of the tile programs, where the stages were verified.
    ``narrowing`` counts the products of a precision other than float32, and ``applied`` lists the
    alternatives to parts of the graph that were taken by their price. ``layouts`` says where
    tensors are stored in other orders than by the rule that counts conversions. ``measured`` says
    what measuring kernels took, where plans were made by it, and ``seconds`` what each stage took.
    """

    report: ImportReport
    graph: Graph
    plans: Mapping[str, Plan]
    levels: Mapping[str, CompiledProgram]
    contents: ArtifactContents
    layouts: Layouts
    findings: Findings | None = None
    narrowing: Narrowing | None = None
    applied: tuple[Applied, ...] = ()
    measured: Budget | None = None
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def planning(self) -> float:
        """The seconds that deciding on layouts, on forms of the graph and on kernels took."""
        plans = [f"plan for {level}" for level in self.plans]
        return sum(self.seconds.get(stage, 0.0) for stage in ("layouts", "rewriting", *plans))


@paused_collector()
@told_of_depth()
def compile_stages(
    source: Source, draft: ArtifactDraft | None = None, **options: Unpack[CompileOptions]
) -> Compilation:
    """Compile and keep every stage; ``tilewright.compile`` says what the options mean.

    Large constants are written to ``draft`` meanwhile, where one is given.
    """
    given = complete(options)
    held = _option(Precision, "precision", given["precision"])
    error = _option(Accuracy, "accuracy", given["accuracy"])
    described = described_target(given["target"])
    policy = choice("policy", given["policy"], get_args(PolicyName))
    planner = choice("plan", given["plan"], get_args(PlanName))
    planner_within(planner, byte_limit("max_arena", given["max_arena"]))
    measured = Budget.wanted(switch("measure", given["measure"]), planner, described)
    stages = _stages(given["check"], given["dump"])
    imported = import_model(
        source,
        dims=as_dims(given["dims"]),
        fallback=choice("fallback", given["fallback"], get_args(FallbackName)),
        constants=as_constants(given["constants"]),
    )
    stages.graph("import", imported.graph)
    simplified = simplified_graph(imported.graph, stages.rule, stages.graph)
    graph = graph_by_rule(simplified, stages.rule, stages.graph)
    narrowing = narrowing_of(graph, held)
    wanted = chosen_levels(given["levels"], narrowest(graph, held), described)
    report = imported.report
    if report.opaque:
        _LOG.warning("Runs on the ONNX reference evaluator: %s", ", ".join(sorted(report.opaque)))
    machines = {name: level_machine(name, described) for name in wanted}
    origin = Origin(
        source=report.source,
        source_sha256=report.source_sha256,
        precision=held.value,
        accuracy=error.value,
        policy=policy,
        plan=planner,
        machines={name: machine_info(machine) for name, machine in machines.items()},
        ranges=range_texts(imported.graph),
    )
    pipeline = _Pipeline(given, error, held, machines, origin, report, measured)
    ragged = _ragged_dimension(pipeline.dims)
    if ragged is None:
        made = pipeline.compiled(graph, stages, draft, simplified=simplified)
    else:
        made = pipeline.compiled_ragged(graph, ragged, stages, draft)
    if measured is not None:
        measured.tell()
    findings = stages.findings if stages.check else None
    return replace(
        made, findings=findings, narrowing=narrowing, measured=measured, seconds=stages.seconds
    )


@dataclass(frozen=True)
class _Pipeline:
    """What follows the rewriting of a graph: plans, kernels, code and the record of them."""

    options: Mapping[str, Any]
    accuracy: Accuracy
    precision: Precision
    machines: Mapping[str, Machine]
    origin: Origin
    report: ImportReport
    measured: Budget | None

    def planner(self, level: str, lowering: LoweringOnce) -> Planner:
        """What divides graphs into kernels, within the memory that is allowed."""
        limit = byte_limit("max_arena", self.options["max_arena"])
        measure = KernelTimes.of(LEVELS[level], lowering, self.measured)
        return planner_within(self.origin.plan, limit, measure)

    @property
    def dims(self) -> Mapping[str, Dim]:
        """The ranges that were given."""
        return as_dims(self.options["dims"])

    def compiled(
        self,
        graph: Graph,
        stages: Stages,
        draft: ArtifactDraft | None = None,
        dimensions: Sequence[Dimension] | None = None,
        ragged: RaggedBatch | None = None,
        sequences: Callable[[Graph], Bodies] = _no_bodies,
        simplified: Graph | None = None,
    ) -> Compilation:
        """Compile a graph that is rewritten, for every level.

        ``dimensions`` are those of the model unless given. ``sequences`` gives the bodies of a
        ragged batch. Of a ``simplified`` graph that is given, other layouts than those of ``graph``
        may be cheaper.
        """
        policy = POLICIES[self.origin.policy]
        weights = weight_bytes(graph)
        machines = {n: replace(m, constants=weights) for n, m in self.machines.items()}
        lowerings = {
            name: lowering_of(graph, LEVELS[name], self.accuracy, machine, policy, self.precision)
            for name, machine in machines.items()
        }
        layouts = self._laid_out(simplified, graph, list(lowerings.values()), stages)
        graph = graph_with_known(layouts.graph, stages.graph)
        graph, applied = self._by_price(graph, list(lowerings.values()), stages)
        bodies = {
            **built_in_payloads(graph),
            **compiled_bodies(graph, partial(_compiled_body, self.options, list(self.machines))),
            **sequences(graph),
        }
        dimensions = _dimensions(self.report) if dimensions is None else dimensions
        operators = _operators(self.report)
        plans: dict[str, Plan] = {}
        compiled: dict[str, CompiledProgram] = {}
        with ConstantStore(draft) as store:
            for name, lowering in lowerings.items():
                stages.candidates(name, self.machines[name].target)
                plans[name] = self.planner(name, lowering)(graph, lowering)
                stages.plan(graph, plans[name], name)
                made = build_program(
                    graph, plans[name], LEVELS[name], dimensions, operators, lowering,
                    partial(stages.kernel, name), store, bodies,
                )  # fmt: skip
                program = replace(made.program, fixed=self.report.fixed)
                if ragged is not None:
                    every = tuple(_dimensions(self.report))
                    program = replace(program, ragged=ragged, dimensions=every)
                compiled[name] = replace(made, program=program)
                stages.end_of_level(name)
                _LOG.info("Generated %d bytes of code for %s", len(made.image.data), name)
        contents = ArtifactContents(
            programs={name: c.program for name, c in compiled.items()},
            images={name: c.image for name, c in compiled.items()},
            constants={name: c.constants for name, c in compiled.items()},
            origin=replace(self.origin, measured={n: p.measured for n, p in plans.items()}),
        )
        return Compilation(self.report, graph, plans, compiled, contents, layouts, applied=applied)

    def _laid_out(
        self, simplified: Graph | None, by_rule: Graph, lowerings: Sequence[LoweringOnce],
        stages: Stages,
    ) -> Layouts:  # fmt: skip
        """The graph with its tensors in the orders that are cheapest, or by the rule.

        Prices decide for plans made by them alone, which take their time to lower kernels. A narrow
        precision keeps to the rule, by which its products are found, and so does a plan that is
        held to a limit, since tensors that are converted need memory twice.
        """
        is_priced = self.origin.plan in BY_PRICE and self.precision is Precision.FLOAT32
        if simplified is None or not is_priced or self.options["max_arena"] is not None:
            return Layouts(by_rule)
        made = laid_out_by_price(simplified, by_rule, lowerings)
        stages.layouts(made)
        return made

    def _by_price(
        self, graph: Graph, lowerings: Sequence[LoweringOnce], stages: Stages
    ) -> tuple[Graph, tuple[Applied, ...]]:
        """The form of the graph that is cheapest on all machines, if one is to be looked for."""
        given = self.options["rewriting"]
        wanted = self.origin.plan in BY_PRICE if given is None else switch("rewriting", given)
        if not wanted:
            return graph, ()
        made = rewritten_by_price(graph, lowerings)
        stages.rewriting(made)
        return made.graph, made.applied

    def compiled_ragged(
        self, graph: Graph, length: str, stages: Stages, draft: ArtifactDraft | None
    ) -> Compilation:
        """Compile a graph for batches of sequences of their own lengths, called ``length``."""
        batch = self.dims[length].ragged
        dimensions = {d.name: d for d in _dimensions(self.report)}
        if batch is None or batch == length or batch not in dimensions:
            raise DimensionError(
                f"The sequences of {length} are ragged in {show(batch)}, which is no other "
                "dimension of the model",
                where=f'dimension "{length}"',
                hint=f"Choose from {', '.join(name for name in dimensions if name != length)}",
            )
        split = split_ragged(graph, batch, length)
        stages.graph("ragged", split.graph)
        own = dimensions.pop(length)
        ragged = RaggedBatch(
            own.name, own.low, own.high, own.multiple_of, batch, split.positions,
            tuple(map(_ragged_tensor, split.inputs)), tuple(map(_ragged_tensor, split.outputs)),
        )  # fmt: skip
        of_one = [own, *(d for d in dimensions.values() if d.name != batch)]

        def body(found: Graph) -> ArtifactContents:
            return self.compiled(
                prepare(simplify(found, stages.rule)), Stages(stages.check), None, of_one
            ).contents

        return self.compiled(
            prepare(simplify(split.graph, stages.rule)), stages, draft,
            list(dimensions.values()), ragged,
            lambda packed: ragged_bodies(packed, split.bodies, body),
        )  # fmt: skip


def _ragged_dimension(dims: Mapping[str, Dim]) -> str | None:
    """The dimension that every sequence of a batch has for itself."""
    found = [name for name, dim in dims.items() if dim.ragged is not None]
    if len(found) > 1:
        raise DimensionError(
            f"The dimensions {found[0]} and {found[1]} are both ragged, but one at most can be",
            hint="Leave ragged= (@ on the command line) out of one of them",
        )
    return found[0] if found else None


def _ragged_tensor(share: Share) -> RaggedTensor:
    return RaggedTensor(share.part, share.axis, -1 if share.unit_axis is None else share.unit_axis)


def _compiled_body(
    options: Mapping[str, Any], levels: Sequence[str], body: Body
) -> ArtifactContents:
    """A body for these levels, with the options of the model that it is a part of."""
    own = {**options, "levels": list(levels), "dims": body.dims, "constants": body.constants}
    own |= {"fallback": "reference", "dump": None, "max_arena": None, "measure": False}
    return compile_stages(body.model, **cast("CompileOptions", own)).contents


@paused_collector()
def compile_to_file(
    source: Source, path: str | os.PathLike[str], **options: Unpack[CompileOptions]
) -> Compilation:
    """Compile to an artifact, which replaces what is at ``path`` as a whole or not at all.

    Large constants are written while code is generated and are never all in memory. Raises
    ArtifactError where the file cannot be written, and what :func:`compile_stages` raises.
    """
    with ArtifactDraft(path) as draft:
        made = compile_stages(source, draft, **options)
        draft.finish(made.contents)
    return made


@told_of_depth()
def compile_model(
    source: Source,
    *,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
    **options: Unpack[CompileOptions],
) -> CompiledModel:
    """A model that can be called, from all stages; see ``tilewright.compile``."""
    return CompiledModel.from_contents(
        compile_stages(source, **options).contents,
        evaluate=evaluate_payload,
        num_threads=num_threads,
        max_bytes=max_bytes,
        flush_denormals=flush_denormals,
    )


def _stages(check: object, dump: object) -> Stages:
    """What looks at every stage: verifies it, writes it down, or neither."""
    return Stages(
        is_checked(None if check is None else switch("check", check)),
        None if dump is None else file_path(dump),
    )


def _option(options: type[_Options], what: str, name: object) -> _Options:
    """The member of an enumeration that an argument names."""
    return options(choice(what, name, [str(option.value) for option in options]))


def _dimensions(report: ImportReport) -> list[Dimension]:
    return [
        Dimension(d.name, d.low, d.high, d.multiple_of, d.origin, d.reason)
        for d in report.dimensions
    ]


def _operators(report: ImportReport) -> list[OperatorCount]:
    names = sorted({*report.compiled, *report.opaque})
    opaque, compiled = report.opaque, report.compiled
    return [
        OperatorCount(n, compiled.get(n, 0) + opaque.get(n, 0), opaque.get(n, 0)) for n in names
    ]
