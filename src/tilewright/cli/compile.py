"""``tilewright compile``: one artifact for every shape in the ranges.

Start with :func:`compile_command`.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, cast

import typer

from tilewright.cli.options import (
    AccuracyOption,
    CheckFlag,
    ConstantOptions,
    DimOptions,
    DumpOption,
    JsonFlag,
    MaxArenaOption,
    MeasureFlag,
    ModelPath,
    PlanOption,
    PolicyOption,
    PrecisionOption,
    QuietFlag,
    RewritingFlag,
    TargetOption,
    VerboseFlag,
    parse_constants,
    parse_dims,
    words,
)
from tilewright.cli.output import Output
from tilewright.cli.sections import (
    dimension_section,
    level_table,
    narrowing_section,
    operator_section,
    origin_lines,
)
from tilewright.cli.usage import as_usage, listed
from tilewright.cli.writing import ARTIFACTS, writable
from tilewright.compile import Compilation, compile_to_file
from tilewright.options import CompileOptions, FallbackName, LevelName
from tilewright.runtime.artifact import read_info
from tilewright.runtime.info import ArtifactInfo
from tilewright.support.text import format_bytes, format_seconds

_Artifact = Annotated[
    Path, typer.Option("-o", "--output", metavar="OUT.tw", help="The artifact to write.")
]
_Levels = Annotated[
    list[str] | None,
    typer.Option(
        metavar=words(LevelName),
        callback=listed,
        help="An instruction set to generate code for, or portable for all; repeat for more.",
        show_default="the target's",
    ),
]
_Fallback = Annotated[
    str,
    typer.Option(
        metavar=words(FallbackName),
        callback=listed,
        help="Operators without a rule: run them on the ONNX reference evaluator, or fail.",
    ),
]


def compile_command(
    model: ModelPath,
    artifact: _Artifact,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    level: _Levels = None,
    fallback: _Fallback = "reference",
    accuracy: AccuracyOption = "standard",
    precision: PrecisionOption = "float32",
    policy: PolicyOption = "auto",
    plan: PlanOption = "greedy",
    max_arena: MaxArenaOption = None,
    rewriting: RewritingFlag = None,
    measure: MeasureFlag = False,
    target: TargetOption = None,
    check: CheckFlag = False,
    dump: DumpOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    \b
    Example: tilewright compile bert.onnx -o bert.tw --dim batch=1..64
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    writable(artifact, ARTIFACTS, [model])
    named = {"fallback": fallback, "levels": level, "accuracy": accuracy, "precision": precision}
    named |= {"policy": policy, "plan": plan, "rewriting": rewriting, "max_arena": max_arena}
    options = cast("CompileOptions", {**named, "dims": parse_dims(dim), "target": target})
    options |= {
        "measure": measure,
        "check": check or None,
        "dump": dump,
        "constants": parse_constants(constants),
    }
    started = time.perf_counter()
    with output.progress.activity(f"Compiling {model.name}"), as_usage(unsupported=False):
        made = compile_to_file(model, artifact, **options)
    seconds = time.perf_counter() - started
    size, info = artifact.stat().st_size, read_info(artifact)
    files = {"model": str(model), "artifact": str(artifact), "bytes": size, "seconds": seconds}
    output.document({**files, **_document(made, info)})
    output.show(
        *dimension_section(made.report.dimensions),
        *operator_section(made.report),
        *narrowing_section(made.narrowing, info.precision),
        level_table(info),
        "",
        f"Wrote {artifact}: {format_bytes(size)} in {format_seconds(seconds)}",
        *origin_lines(info),
        *(f"Layout by price: {part}" for part in made.layouts.parts),
        *([] if made.measured is None else [f"Planned by measurement: {made.measured}"]),
        *([] if made.findings is None else [f"Verified every stage: {made.findings}"]),
    )


def _document(made: Compilation, info: ArtifactInfo) -> dict[str, object]:
    """What programs are told of a compilation."""
    return {
        "levels": info.to_json()["levels"],
        "precision": info.precision,
        "narrowing": None if made.narrowing is None else dataclasses.asdict(made.narrowing),
        "layouts": [dataclasses.asdict(part) for part in made.layouts.parts],
        "measured": None if made.measured is None else made.measured.to_json(),
        "verified": None if made.findings is None else made.findings.counts,
        "runs_on": info.runs_on,
        "report": dataclasses.asdict(made.report),
    }
