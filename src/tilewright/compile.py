"""Package 8: the pipeline, from a model to something that runs.

import → simplify → prepare → plan → lower and generate, per instruction set level.
Start with :func:`compile_model`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar, Unpack, get_args

from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.backend.cpu.program import CompiledProgram, build_program
from tilewright.cost import Machine, TileTime
from tilewright.frontend.onnx import ImportReport, as_dims, import_model
from tilewright.frontend.onnx.source import Source
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Plan
from tilewright.ops.reference import evaluate_payload
from tilewright.options import CompileOptions, FallbackName, complete
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.rewrite.precision import Precision, narrow_products
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Dimension, OperatorCount
from tilewright.support.arguments import choice, choices, show
from tilewright.support.errors import InputError
from tilewright.target import Target, detect, load_target, preset
from tilewright.tile.variants import Accuracy
from tilewright.tune import load_profile

_Options = TypeVar("_Options", bound=Enum)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compilation:
    """Every stage of one compilation, for inspection; ``contents`` is what runs."""

    report: ImportReport
    graph: Graph
    plan: Plan
    levels: Mapping[str, CompiledProgram]
    contents: ArtifactContents


def compile_stages(source: Source, **options: Unpack[CompileOptions]) -> Compilation:
    """Compile and keep every stage; ``tilewright.compile`` says what the options mean."""
    given = complete(options)
    held = _option(Precision, "precision", given["precision"])
    error = _option(Accuracy, "accuracy", given["accuracy"])
    described = _target(given["target"])
    chosen = _levels(given["levels"], held)
    imported = import_model(
        source,
        dims=as_dims(given["dims"]),
        fallback=choice("fallback", given["fallback"], get_args(FallbackName)),
        constants=given["constants"],
    )
    graph = prepare(prefer_channels_last(simplify(imported.graph)))
    graph = narrow_products(graph, held)
    plan = plan_greedily(graph)
    report = imported.report
    if report.opaque:
        _LOG.warning("Runs on the ONNX reference evaluator: %s", ", ".join(sorted(report.opaque)))
    _LOG.info("Planned %d kernels for %s", len(plan.kernels), graph.name)
    dimensions, operators = _dimensions(report), _operators(report)
    compiled = {
        name: build_program(
            graph, plan, LEVELS[name], dimensions, operators, error, _machine(name, described)
        )
        for name in chosen
    }
    contents = ArtifactContents(
        programs={name: c.program for name, c in compiled.items()},
        images={name: c.image for name, c in compiled.items()},
        constants={name: c.constants for name, c in compiled.items()},
    )
    return Compilation(report, graph, plan, compiled, contents)


def compile_model(
    source: Source,
    *,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    **options: Unpack[CompileOptions],
) -> CompiledModel:
    """A model that can be called, from all stages; see ``tilewright.compile``."""
    return CompiledModel.from_contents(
        compile_stages(source, **options).contents,
        evaluate=evaluate_payload,
        num_threads=num_threads,
        max_bytes=max_bytes,
    )


def _levels(levels: object, precision: Precision) -> Sequence[str]:
    if levels is None:
        return [host_level(precision.data.value).name]
    return choices("level", levels, LEVELS)


def _target(given: object) -> Target | None:
    """The machine described: by itself, as a preset, or in a file."""
    if given is None or isinstance(given, Target):
        return given
    if isinstance(given, str | Path):
        return load_target(given) if str(given).endswith(".toml") else preset(str(given))
    raise InputError(
        f"target is {show(given)}, which describes no machine",
        hint="Give the name of a preset, the path of a TOML file, or a tilewright.target.Target",
    )


def _machine(level: str, target: Target | None) -> Machine | None:
    """Whose costs count for one level; None: those of a usual machine with that level."""
    if target is not None:
        return Machine(target)
    return host_machine() if level == host_level().name else None


def host_machine() -> Machine:
    """This machine, with its register tiles as measured if a measurement is kept."""
    profile = load_profile(host_level().name)
    tiles = () if profile is None else profile.tiles
    plain = (tile for tile in tiles if not tile.masked and not tile.gathered)
    times = tuple(TileTime(tile.height, tile.columns, tile.step_ns) for tile in plain)
    return Machine(detect(), times)


def _option(options: type[_Options], what: str, name: object) -> _Options:
    """The member of an enumeration that an argument names."""
    return options(choice(what, name, [str(option.value) for option in options]))


def _dimensions(report: ImportReport) -> list[Dimension]:
    return [Dimension(d.name, d.low, d.high, d.multiple_of) for d in report.dimensions]


def _operators(report: ImportReport) -> list[OperatorCount]:
    names = sorted({*report.compiled, *report.opaque})
    opaque, compiled = report.opaque, report.compiled
    return [
        OperatorCount(n, compiled.get(n, 0) + opaque.get(n, 0), opaque.get(n, 0)) for n in names
    ]
