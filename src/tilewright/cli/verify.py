"""``tilewright verify``: the model against a reference, at the edges of its ranges and at random.

Start with :func:`verify`.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright.bench.shapes import Budget, choose_shapes
from tilewright.bench.tolerance import FORMULA
from tilewright.bench.verify import AGREES, Check, References, Verification
from tilewright.bench.verify import verify as verify_model
from tilewright.cli.options import (
    DimOptions,
    EitherPath,
    JsonFlag,
    OpenedModel,
    ThreadsOption,
    input_specifications,
    is_artifact,
    open_model,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.frontend.onnx import Dim, import_model
from tilewright.ir.graph import Graph
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import InputError
from tilewright.support.text import format_count, format_sizes

_STYLES = {"agrees": "green", "differs": "bold red", "refused": "yellow", "no reference": "yellow"}


def verify(
    path: EitherPath,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The ONNX file that an artifact was compiled from."),
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="onnxruntime|onnx", help="What to compare with first.")
    ] = "onnxruntime",
    shapes: Annotated[
        str,
        typer.Option(metavar="SHAPES", help="edge, random:N, or batch=1,seq=5;batch=2,seq=7."),
    ] = "edge,random:20",
    dim: DimOptions = None,
    seed: Annotated[int, typer.Option(min=0, help="For the shapes and the inputs.")] = 0,
    most_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Most memory of one call.")
    ] = Budget.bytes,
    most_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Longest estimated call.")
    ] = Budget.seconds,
    threads: ThreadsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare a model with a reference at many shapes; exit code 1 if it differs anywhere.

    \b
    Example: tilewright verify model.onnx --shapes edge,random:20
    """
    output = Output(as_json=as_json)
    source = model or path
    if is_artifact(source):
        raise InputError(
            "The reference needs the ONNX file that the artifact was compiled from.",
            where=str(source),
            hint="add --model model.onnx",
        )
    opened = open_model(path, parse_dims(dim), threads, output)
    compiled = opened.model
    graph = _graph(opened, source)
    cases = choose_shapes(compiled, shapes, seed=seed, budget=Budget(most_bytes, most_seconds))
    with output.progress.steps("Verifying", len(cases)) as steps:
        found = verify_model(
            compiled,
            graph,
            References(source, reference, compiled.num_threads),
            input_specifications(compiled),
            cases,
            seed=seed,
            progress=steps.at,
        )
    output.document(_document(source, found))
    output.show(table(*_COLUMNS, rows=[_row(check) for check in found.checks]), "", _verdict(found))
    if not found.is_right:
        raise typer.Exit(1)


def _graph(opened: OpenedModel, source: Path) -> Graph:
    """The graph as imported, with the ranges that the model was compiled for."""
    if opened.compilation is not None:
        return opened.compilation.graph
    return import_model(source, dims=_ranges(opened.model)).graph


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


def _verdict(found: Verification) -> Text:
    agreed, total = found.count(AGREES), len(found.checks)
    others = ", ".join(
        f"{found.count(verdict)} {verdict}"
        for verdict in _STYLES
        if verdict != AGREES and found.count(verdict)
    )
    text = f"{agreed} of {format_count(total, 'shape')} agree{': ' + others if others else ''}. "
    return Text(text, style="green" if found.is_right else "bold red") + Text(
        f"Tolerance: {FORMULA}. Seed {found.seed}.", style="dim"
    )


def _document(source: Path, found: Verification) -> dict[str, object]:
    checks = [dataclasses.asdict(check) for check in found.checks]
    for check in checks:
        # JSON has no infinity.
        if check["difference"] is not None and math.isinf(check["difference"]):
            check["difference"] = "disagrees"
    return {
        "model": str(source),
        "is_right": found.is_right,
        "seed": found.seed,
        "tolerance": FORMULA,
        "counts": {verdict: found.count(verdict) for verdict in _STYLES},
        "checks": checks,
    }
