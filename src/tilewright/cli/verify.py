"""``tilewright verify``: the model against a reference, at the edges of its ranges and at random.

Start with :func:`verify`.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright.bench.shapes import Budget, choose_shapes
from tilewright.bench.tolerance import FORMULA, NARROW_FORMULA
from tilewright.bench.verify import AGREES, Check, References, Verification
from tilewright.bench.verify import verify as verify_model
from tilewright.cli.options import (
    Array,
    CheckFlag,
    ConstantOptions,
    DimOptions,
    EitherPath,
    InputOptions,
    JsonFlag,
    OpenedModel,
    OwnPrecisionOption,
    QuietFlag,
    ThreadsOption,
    VerboseFlag,
    inputs_for,
    only_case,
    open_beside,
    parse_constants,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.cli.usage import UsageError, as_usage, listed
from tilewright.compile_graphs import narrowed_graph
from tilewright.frontend.onnx import Dim, import_model
from tilewright.ir.graph import Graph
from tilewright.rewrite.precision import Precision, narrow_products
from tilewright.runtime.model import CompiledModel
from tilewright.support.files import is_artifact
from tilewright.support.text import format_count, format_sizes

_STYLES = {"agrees": "green", "differs": "bold red", "refused": "yellow", "no reference": "yellow"}

_Source = Annotated[
    Path | None,
    typer.Option(metavar="MODEL", help="The ONNX file that an artifact was compiled from."),
]
_Reference = Annotated[
    str,
    typer.Option(metavar="onnxruntime|onnx", callback=listed, help="What to compare with first."),
]
_Shapes = Annotated[
    str,
    typer.Option(metavar="SHAPES", help="edge, random:N, or batch=1,seq=5;batch=2,seq=7."),
]
_Bytes = Annotated[int, typer.Option(min=1, metavar="BYTES", help="Most memory of one call.")]
_Seconds = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Longest estimated call.")]


def verify(
    path: EitherPath,
    model: _Source = None,
    reference: _Reference = "onnxruntime",
    shapes: _Shapes = "edge,random:20",
    inputs: InputOptions = None,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    precision: OwnPrecisionOption = None,
    seed: Annotated[int, typer.Option(min=0, help="For the shapes and the inputs.")] = 0,
    most_bytes: _Bytes = Budget.bytes,
    most_seconds: _Seconds = Budget.seconds,
    threads: ThreadsOption = None,
    check: CheckFlag = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Compare a model with a reference at many shapes; exit code 1 if it differs anywhere.

    What may differ follows from the model's depth and the precision it was compiled with. Inputs
    from files are one shape; else they are random, in the ranges that the model can use.

    \b
    Example: tilewright verify model.onnx --shapes edge,random:20
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    source = model or path
    if is_artifact(source):
        raise UsageError(
            "The reference needs the ONNX file that the artifact was compiled from",
            where=str(source),
            hint="Add --model model.onnx",
        )
    fixed = parse_constants(constants)
    opened = open_beside(path, parse_dims(dim), threads, output, precision, check, fixed)
    compiled = opened.model
    feeds = inputs_for(compiled, inputs, seed)
    with as_usage():
        references = References(source, reference, compiled.num_threads, fixed)
        cases = [only_case(compiled, feeds)] if inputs else None
        if cases is None:
            budget = Budget(most_bytes, most_seconds)
            cases = choose_shapes(compiled, shapes, seed=seed, budget=budget)
    subject = _subject(opened, source, fixed)
    with output.progress.steps("Verifying", len(cases)) as steps:
        found = verify_model(compiled, subject.graph, references, feeds, cases, progress=steps.at)
    output.document(_document(source, found, compiled.info.precision))
    output.show(
        table(*_COLUMNS, rows=[_row(check) for check in found.checks]),
        "",
        _verdict(found, compiled.info.precision),
        *subject.notes,
    )
    if not found.is_right:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Subject:
    """The graph that says what is tolerated, and sentences about the model."""

    graph: Graph
    notes: tuple[str, ...]


def _subject(opened: OpenedModel, source: Path, constants: Mapping[str, Array]) -> _Subject:
    """The graph with the ranges and the narrow products that the model was compiled with."""
    if opened.compilation is not None:
        held = Precision(opened.model.info.precision)
        return _Subject(narrow_products(opened.compilation.graph, held), ())
    info = opened.model.info
    imported = import_model(source, dims=_ranges(opened.model), constants=constants)
    graph = imported.graph
    if info.precision != "float32":
        graph = narrowed_graph(graph, info.precision)
    if info.source_sha256 in ("", imported.report.source_sha256):
        return _Subject(graph, ())
    name = info.source or "a model in memory"
    note = f"The artifact was compiled from {name} with other contents than {source} has"
    return _Subject(graph, (note,))


def _ranges(model: CompiledModel) -> dict[str, Dim]:
    return {
        d.name: Dim(d.low, d.high, d.multiple_of) for d in model.dimensions if d.high is not None
    }


_REMARK = 120
_COLUMNS = ("shape", "verdict", "reference", ">difference", ">tolerance", "remark")


def _row(check: Check) -> tuple[str | Text, ...]:
    return (
        format_sizes(list(check.sizes.items())),
        Text(check.verdict, style=_STYLES[check.verdict]),
        check.reference or "",
        _number(check.difference),
        _number(check.tolerance),
        textwrap.shorten(check.note or "", _REMARK, placeholder=" …"),
    )


def _number(value: float | None) -> str:
    return "" if value is None else "disagrees" if math.isinf(value) else f"{value:.1e}"


def _formula(precision: str) -> str:
    return FORMULA if precision == "float32" else NARROW_FORMULA


def _verdict(found: Verification, precision: str) -> Text:
    agreed, total = found.count(AGREES), len(found.checks)
    others = ", ".join(
        f"{found.count(verdict)} {verdict}"
        for verdict in _STYLES
        if verdict != AGREES and found.count(verdict)
    )
    text = f"{agreed} of {format_count(total, 'shape')} agree{': ' + others if others else ''}. "
    return Text(text, style="green" if found.is_right else "bold red") + Text(
        f"Tolerance of {precision}: {_formula(precision)}. Seed {found.seed}.", style="dim"
    )


def _document(source: Path, found: Verification, precision: str) -> dict[str, object]:
    checks = [dataclasses.asdict(check) for check in found.checks]
    for check in checks:
        # JSON has no infinity.
        if check["difference"] is not None and math.isinf(check["difference"]):
            check["difference"] = "disagrees"
    return {
        "model": str(source),
        "is_right": found.is_right,
        "seed": found.seed,
        "precision": precision,
        "tolerance": _formula(precision),
        "counts": {verdict: found.count(verdict) for verdict in _STYLES},
        "checks": checks,
    }
