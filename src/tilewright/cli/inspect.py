"""``tilewright inspect``: what a model needs, before it is compiled.

Dimensions with their ranges, operators, what runs on the ONNX reference evaluator and why, sizes
that its export baked in. Start with :func:`inspect`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from tilewright.cli.options import DimOptions, JsonFlag, ModelPath, parse_dims
from tilewright.cli.output import Output, table
from tilewright.frontend.onnx import DimensionReport, Fallback, ImportReport, import_model
from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Input
from tilewright.support.text import format_count

_ORIGINS = {"given": "given", "model": "implied by the model", "default": "default"}


def inspect(model: ModelPath, dim: DimOptions = None, as_json: JsonFlag = False) -> None:
    """Show dimensions, operators, what falls back to the reference, and baked-in sizes.

    \b
    Example: tilewright inspect model.onnx --dim batch=1..64
    """
    output = Output(as_json=as_json)
    with output.progress.activity(f"Reading {model.name}"):
        graph, report = import_model(model, dims=parse_dims(dim))
    primitives = [node.primitive for node in graph.inputs]
    inputs = {p.name: str(p.result()) for p in primitives if isinstance(p, Input)}
    outputs = {name: str(root.type) for name, root in graph.outputs}
    output.document(
        {
            "model": str(model),
            "inputs": inputs,
            "outputs": outputs,
            "primitives": len(graph.nodes()),
            **dataclasses.asdict(report),
        }
    )
    output.show(*_sections(graph, report, inputs, outputs))


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
    wanted = "Inputs that would have to be constants for more operators to compile:"
    parts += _sentences("Sizes that look baked in by the export:", baked)
    parts += _sentences(wanted, report.structural_inputs)
    return parts + _sentences("Notes:", report.notes)


def dimension_section(dimensions: Sequence[DimensionReport]) -> list[RenderableType]:
    """Every dimension with its range, where the range is from, and where it stands."""
    if not dimensions:
        return ["No dimension varies: every size of the inputs is a constant.", ""]
    rows = [
        (
            row.name,
            f"{row.low}..{row.high}" + (f" % {row.multiple_of}" if row.multiple_of > 1 else ""),
            _ORIGINS.get(row.origin, row.origin),
            ", ".join(f"{name}[{axis}]" for name, axis in row.places),
        )
        for row in dimensions
    ]
    return [table("dimension", "range", "range is", "stands at", rows=rows), ""]


def operator_section(report: ImportReport) -> list[RenderableType]:
    """What compiles, with numbers, and what runs on the ONNX reference evaluator and why."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(report.compiled.items()))
    number = format_count(sum(report.compiled.values()), "operator")
    parts: list[RenderableType] = [f"{number} compiled: {counts or 'none'}"]
    if not report.fallbacks:
        return [*parts, "No operator runs on the ONNX reference evaluator.", ""]
    parts.append("")
    rows = [(f.operator, f.where, f.reason) for f in _distinct(report.fallbacks)]
    title = (
        f"{format_count(len(report.fallbacks), 'operator')} on the ONNX reference evaluator (slow)"
    )
    return [*parts, table("operator", "where", "reason", rows=rows, title=title), ""]


def _distinct(fallbacks: Sequence[Fallback]) -> list[Fallback]:
    """One row for each operator and reason; the others are counted in it."""
    groups: dict[tuple[str, str], list[Fallback]] = {}
    for fallback in fallbacks:
        groups.setdefault((fallback.operator, fallback.reason), []).append(fallback)
    return [
        rows[0]
        if len(rows) == 1
        else dataclasses.replace(rows[0], where=f"{rows[0].where} and {len(rows) - 1} more")
        for rows in groups.values()
    ]


def _sentences(title: str, lines: Sequence[str]) -> list[RenderableType]:
    return [title, *(f"  {line}" for line in lines), ""] if lines else []
