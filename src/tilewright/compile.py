"""Package 8: the pipeline, from a model to something that runs.

import → simplify → prepare → plan → lower and generate, per instruction set level.
Start with :func:`compile_model`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tilewright.backend.cpu.machine import LEVELS, host_level, host_levels
from tilewright.backend.cpu.pack import ConstantStore
from tilewright.backend.cpu.program import CompiledProgram, build_program, usual_machine
from tilewright.cost import Machine, TileTime
from tilewright.frontend.onnx import Dim, ImportReport, import_model
from tilewright.frontend.onnx.source import Source
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Plan
from tilewright.ir.tile_verify import Findings
from tilewright.ir.value_ranges import range_texts
from tilewright.ops.reference import evaluate_payload
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.rewrite.precision import Precision, narrow_products
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.info import MachineInfo, Origin
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Dimension, OperatorCount
from tilewright.stages import Stages, is_checked
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target, detect, dump, load_target, preset, preset_names
from tilewright.tile.variants import Accuracy
from tilewright.tune import load_profile

PORTABLE = "portable"  # stands for every level that serves the precision
_Options = TypeVar("_Options", bound=Enum)


@dataclass(frozen=True)
class Compilation:
    """Every stage of one compilation, for inspection; ``contents`` is what runs.

    ``findings`` says what was proved of the tile programs, where the stages were verified.
    """

    report: ImportReport
    graph: Graph
    plan: Plan
    levels: Mapping[str, CompiledProgram]
    contents: ArtifactContents
    findings: Findings | None = None


def compile_stages(
    source: Source,
    *,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "reference",
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    levels: Sequence[str] | str | None = None,
    accuracy: str = "standard",
    precision: str = "float32",
    target: Target | str | None = None,
    check: bool | None = None,
    dump: str | os.PathLike[str] | None = None,
) -> Compilation:
    """Compile and keep every stage; see :func:`compile_model`."""
    held = _option(Precision, "precision", precision)
    error, described = _option(Accuracy, "accuracy", accuracy), _target(target)
    chosen = _levels(levels, held, described)
    stages = Stages(is_checked(check), dump)
    imported = import_model(source, dims=dims, fallback=fallback, constants=constants)
    graph = _rewritten(imported.graph, held, stages)
    plan = plan_greedily(graph)
    stages.plan(graph, plan)
    report = imported.report
    dimensions, operators = _dimensions(report), _operators(report)
    machines = {name: _machine(name, described) for name in chosen}
    compiled: dict[str, CompiledProgram] = {}
    store = ConstantStore()
    for name in chosen:
        machine, observe = machines[name], partial(stages.kernel, name)
        compiled[name] = build_program(
            graph, plan, LEVELS[name], dimensions, operators, error, machine, observe, store
        )
        stages.end_of_level(name)
    contents = ArtifactContents(
        programs={name: c.program for name, c in compiled.items()},
        images={name: c.image for name, c in compiled.items()},
        constants={name: c.constants for name, c in compiled.items()},
        origin=Origin(
            source=report.source,
            source_sha256=report.source_sha256,
            precision=held.value,
            accuracy=error.value,
            machines={name: _described(machine) for name, machine in machines.items()},
            ranges=range_texts(imported.graph),
        ),
    )
    findings = stages.findings if stages.check else None
    return Compilation(report, graph, plan, compiled, contents, findings)


def _rewritten(imported: Graph, precision: Precision, stages: Stages) -> Graph:
    """The graph that is planned, from the one that was imported."""
    stages.graph("import", imported)
    graph = simplify(imported, stages.rule, observe=stages.rewrite)
    graph = prepare(prefer_channels_last(graph, stages.rule, stages.rewrite))
    stages.graph("prepare", graph)
    if precision is not Precision.FLOAT32:
        graph = narrow_products(graph, precision)
        stages.graph("precision", graph)
    return graph


def compile_model(
    source: Source,
    *,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "reference",
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    levels: Sequence[str] | str | None = None,
    accuracy: str = "standard",
    precision: str = "float32",
    target: Target | str | None = None,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    check: bool | None = None,
    dump: str | os.PathLike[str] | None = None,
) -> CompiledModel:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    ``source`` is a path, serialised bytes, or an ONNX model in memory. ``dims`` gives the ranges of
    named dimensions; ``fallback="error"`` refuses operators that would run on the ONNX reference
    evaluator; ``constants`` fixes inputs; ``levels`` names the instruction sets to generate code
    for, or is "portable" for code that runs on every processor and uses what it has; unless given,
    it is the level of ``target`` or of this machine. ``accuracy="strict"`` refuses faster
    algorithms with larger errors, as Winograd's for convolutions. ``precision="bfloat16"`` or
    ``"int8"`` holds constant weights, and the data they are multiplied by, in fewer bits, see
    ``rewrite.precision``.
    ``target`` is the machine by whose costs the runtime chooses: a description, the name of a
    preset, or a TOML file, which gives the same artifact on any host; unless given, this machine as
    far as it is known (see ``tilewright tune``) for its own levels, and usual ones for others.
    ``num_threads`` and ``max_bytes`` are those of the model returned. ``check`` verifies what every
    stage has made and raises ``VerificationError`` where it is wrong; unless given, the environment
    variable ``TILEWRIGHT_CHECK`` decides. ``dump`` names a folder into which every stage is written
    as text.
    Raises only subclasses of ``TilewrightError``.
    """
    made = compile_stages(
        source,
        dims=dims,
        fallback=fallback,
        constants=constants,
        levels=levels,
        accuracy=accuracy,
        precision=precision,
        target=target,
        check=check,
        dump=dump,
    )
    return CompiledModel.from_contents(
        made.contents, evaluate=evaluate_payload, num_threads=num_threads, max_bytes=max_bytes
    )


def _levels(
    levels: Sequence[str] | str | None, precision: Precision, target: Target | None
) -> list[str]:
    narrow = precision.data.value
    if levels is None:
        return [host_level(narrow).name if target is None else _own_level(target, narrow)]
    given = [levels] if isinstance(levels, str) else list(levels)
    wanted = {name for name in given if name != PORTABLE}
    if PORTABLE in given:
        wanted |= {level.name for level in LEVELS.values() if level.serves(narrow)}
    for name in given:
        if name not in (PORTABLE, *LEVELS):
            raise UnsupportedError(
                f"There is no level {name!r}", hint=f"Choose from {PORTABLE}, {', '.join(LEVELS)}"
            )
    return [name for name in LEVELS if name in wanted]


def _own_level(target: Target, narrow: str) -> str:
    """The highest level of a machine that is described."""
    products = {tile.dtype.removeprefix("u") for tile in target.instruction_tiles}
    return [
        level.name
        for level in LEVELS.values()
        if level.isa == target.isa
        and level.serves(narrow)
        and products.issuperset(dtype.removeprefix("u") for dtype in level.dots)
    ][-1]


def _target(given: Target | str | None) -> Target | None:
    """The machine described: by itself, as a preset, or in a file."""
    if given is None:
        return None
    if isinstance(given, str):
        given = load_target(given) if given.endswith(".toml") else preset(given)
    known = {level.isa for level in LEVELS.values()}
    if given.isa not in known:
        fitting = [name for name in preset_names() if preset(name).isa in known]
        raise UnsupportedError(
            f"Code cannot be generated for {given.name}, whose instruction set is {given.isa}",
            where=f"target {given.name}",
            hint=f"Choose one of {', '.join(fitting)}",
        )
    return given


def _machine(level: str, target: Target | None) -> Machine:
    """Whose costs count for one level: of what is described, or this machine for its levels."""
    if target is not None:
        return Machine(target)
    own, wanted = host_level(), LEVELS[level]
    if wanted in host_levels() and wanted.isa == own.isa:
        return host_machine()
    return usual_machine(wanted)


def _described(machine: Machine) -> MachineInfo:
    """What an artifact records of the machine by whose costs it chooses."""
    profile = _digest(repr(machine.tiles)) if machine.tiles else ""
    return MachineInfo(machine.target.name, _digest(dump(machine.target)), profile)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def host_machine() -> Machine:
    """This machine, with its register tiles as measured if a measurement is kept."""
    profile = load_profile(host_level().name)
    tiles = () if profile is None else profile.tiles
    plain = (tile for tile in tiles if not tile.masked and not tile.gathered)
    times = tuple(TileTime(tile.height, tile.columns, tile.step_ns) for tile in plain)
    return Machine(detect(), times)


def _option(options: type[_Options], what: str, name: str) -> _Options:
    """The member of an enumeration that an argument names."""
    for option in options:
        if option.value == name:
            return option
    known = ", ".join(str(option.value) for option in options)
    raise UnsupportedError(f"there is no {what} {name!r}", hint=f"choose from {known}")


def _dimensions(report: ImportReport) -> list[Dimension]:
    return [Dimension(d.name, d.low, d.high, d.multiple_of) for d in report.dimensions]


def _operators(report: ImportReport) -> list[OperatorCount]:
    names = sorted({*report.compiled, *report.opaque})
    opaque, compiled = report.opaque, report.compiled
    return [
        OperatorCount(n, compiled.get(n, 0) + opaque.get(n, 0), opaque.get(n, 0)) for n in names
    ]
