"""``tilewright inspect``: what a model needs before it is compiled, and what an artifact is.

Of a model: dimensions with their ranges, operators, what runs on the ONNX reference evaluator and
why, sizes that its export baked in. Of an artifact: levels, precision, machines, source, sizes.
Start with :func:`inspect`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import RenderableType

from tilewright.cli.options import (
    ConstantOptions,
    DimOptions,
    EitherPath,
    JsonFlag,
    QuietFlag,
    VerboseFlag,
    parse_constants,
    parse_dims,
    refuse_for_artifact,
)
from tilewright.cli.output import Output, table
from tilewright.cli.sections import (
    artifact_sections,
    dimension_section,
    level_table,
    measured_lines,
    memory_lines,
    operator_section,
    origin_lines,
)
from tilewright.cli.usage import as_usage
from tilewright.frontend.onnx import ImportReport, StructuralInputs, import_model
from tilewright.frontend.onnx.source import read_model
from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Input
from tilewright.runtime.artifact import read_info
from tilewright.runtime.info import ArtifactInfo
from tilewright.support.errors import InvalidModelError
from tilewright.support.files import ARTIFACT, MODEL, require
from tilewright.support.text import format_bytes


def inspect(
    path: EitherPath,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Show what a model needs, or what an artifact is.

    Of a model: its dimensions, its operators, what falls back to the ONNX reference evaluator, and
    sizes that were baked in. Of an artifact: levels, precision, target, source and sizes.

    \b
    Example: tilewright inspect model.onnx --dim batch=1..64
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if require(path, MODEL, ARTIFACT, error=InvalidModelError) is ARTIFACT:
        refuse_for_artifact(path, dims=dim, constants=constants)
        info, size = read_info(path), path.stat().st_size
        output.document({"artifact": str(path), "bytes": size, **info.to_json()})
        output.show(*_artifact(path, size, info))
        return
    dims, fixed = parse_dims(dim), parse_constants(constants)
    try:
        with output.progress.activity(f"Reading {path.name}"), as_usage(unsupported=False):
            graph, report = import_model(path, dims=dims, constants=fixed)
    except StructuralInputs as error:
        _needs_constants(path, error, output)
        return
    primitives = [node.primitive for node in graph.inputs]
    inputs = {p.name: str(p.result()) for p in primitives if isinstance(p, Input)}
    outputs = {name: str(root.type) for name, root in graph.outputs}
    output.document(
        {
            "model": str(path),
            "inputs": inputs,
            "outputs": outputs,
            "primitives": len(graph.nodes()),
            **dataclasses.asdict(report),
        }
    )
    output.show(*_sections(graph, report, inputs, outputs))


def _needs_constants(path: Path, error: StructuralInputs, output: Output) -> None:
    """Show the inputs of a model that cannot be imported before it is known what some hold."""
    model = read_model(path).model
    inputs = {str(v.name): f"{v.type}{v.shape or ''}" for v in model.graph.inputs}
    problem = f"{error.where}: {error.message}" if error.where else error.message
    structural = list(error.inputs)
    output.document(
        {"model": str(path), "inputs": inputs, "structural_inputs": structural, "problem": problem}
    )
    way = " ".join(f"--constants {name}=FILE.npy" for name in structural)
    output.show(
        table("", "name", "type", rows=[("input", name, type_) for name, type_ in inputs.items()]),
        "",
        *_sentences("Inputs that have to be constants for the model to compile:", structural),
        f"{problem}. Add {way}",
    )


def _artifact(path: Path, size: int, info: ArtifactInfo) -> list[RenderableType]:
    source = info.source or "a model in memory"
    return [
        f"{path.name}: {info.name}, made by tilewright {info.version}, format {info.format}, "
        f"{format_bytes(size)}",
        f"Compiled from {source}, SHA-256 {info.source_sha256 or 'unknown'}",
        f"Precision {info.precision}, accuracy {info.accuracy}, policy {info.policy}, "
        f"plan {info.plan}",
        "",
        *artifact_sections(info),
        level_table(info),
        f"{format_bytes(info.code_bytes)} of code, {format_bytes(info.weight_bytes)} of weights, "
        "which levels share where they can",
        *memory_lines(info),
        *measured_lines(info),
        "",
        *origin_lines(info),
    ]


def _sections(
    graph: Graph, report: ImportReport, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> list[RenderableType]:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in report.opsets.items())
    rows = [("input", name, type_) for name, type_ in inputs.items()]
    rows += [("output", name, type_) for name, type_ in outputs.items()]
    parts: list[RenderableType] = [
        f"{graph.name}: opset {opsets}",
        "",
        table("", "name", "type", rows=rows),
        "",
        *dimension_section(report.dimensions),
        *operator_section(report),
    ]
    baked = [f"{size.where}: {size.message}" for size in report.baked]
    wanted = "Inputs that would have to be constants (--constants) for more operators to compile:"
    parts += _sentences("Sizes that look baked in by the export:", baked)
    parts += _sentences(wanted, report.structural_inputs)
    return parts + _sentences("Notes:", report.notes)


def _sentences(title: str, lines: Sequence[str]) -> list[RenderableType]:
    return [title, *(f"  {line}" for line in lines), ""] if lines else []
