"""``tilewright compile``: one artifact for every shape in the ranges.

Start with :func:`compile_command`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilewright.cli.inspect import dimension_section, operator_section
from tilewright.cli.options import (
    AccuracyOption,
    DimOptions,
    JsonFlag,
    ModelPath,
    PrecisionOption,
    TargetOption,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.cli.writing import ARTIFACTS, writable
from tilewright.compile import Compilation, compile_stages
from tilewright.runtime.artifact import save_artifact
from tilewright.runtime.program import KernelStep, OpaqueStep
from tilewright.support.text import format_bytes, format_seconds


@dataclass(frozen=True)
class _Level:
    """One instruction set in the artifact; kernels call functions, which equal ones share."""

    level: str
    kernels: int
    functions: int
    opaque_steps: int
    code_bytes: int
    constant_bytes: int


def compile_command(
    model: ModelPath,
    artifact: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.tw", help="The artifact to write.")
    ],
    dim: DimOptions = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="x86-64|avx2|avx512|avx512-vnni|avx512-bf16",
            help="An instruction set to generate code for; repeat for more.",
            show_default="this machine's",
        ),
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            metavar="reference|error",
            help="Operators without a rule: run them on the ONNX reference evaluator, or fail.",
        ),
    ] = "reference",
    accuracy: AccuracyOption = "standard",
    precision: PrecisionOption = "float32",
    target: TargetOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    \b
    Example: tilewright compile bert.onnx -o bert.tw --dim batch=1..64
    """
    output = Output(as_json=as_json)
    writable(artifact, ARTIFACTS, [model])
    started = time.perf_counter()
    with output.progress.activity(f"Compiling {model.name}"):
        made = compile_stages(
            model, dims=parse_dims(dim), fallback=fallback, levels=level, accuracy=accuracy,
            precision=precision, target=target,
        )  # fmt: skip
        save_artifact(artifact, made.contents)
    seconds = time.perf_counter() - started
    size = artifact.stat().st_size
    levels = [_summary(name, made) for name in made.contents.programs]
    output.document(
        {
            "model": str(model),
            "artifact": str(artifact),
            "bytes": size,
            "seconds": seconds,
            "levels": [dataclasses.asdict(level) for level in levels],
            "report": dataclasses.asdict(made.report),
        }
    )
    output.show(
        *dimension_section(made.report.dimensions),
        *operator_section(made.report),
        _table(levels),
        "",
        f"Wrote {artifact}: {format_bytes(size)} in {format_seconds(seconds)}.",
    )


def _table(levels: Sequence[_Level]) -> Table:
    rows = [
        (
            row.level,
            str(row.kernels),
            str(row.functions),
            str(row.opaque_steps),
            format_bytes(row.code_bytes),
            format_bytes(row.constant_bytes),
        )
        for row in levels
    ]
    columns = ("level", ">kernels", ">functions", ">opaque steps", ">code", ">constants")
    return table(*columns, rows=rows)


def _summary(name: str, made: Compilation) -> _Level:
    program, image = made.contents.programs[name], made.contents.images[name]
    return _Level(
        level=name,
        kernels=sum(isinstance(step, KernelStep) for step in program.steps),
        functions=len(image.functions),
        opaque_steps=sum(isinstance(step, OpaqueStep) for step in program.steps),
        code_bytes=len(image.data),
        constant_bytes=sum(
            len(data) if isinstance(data, bytes) else data.nbytes
            for data in made.contents.constants[name]
        ),
    )
