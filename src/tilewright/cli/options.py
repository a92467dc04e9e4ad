"""What verbs have in common: options, ranges of dimensions, and a model from either kind of file.

Start with :func:`open_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench import InputSpecification, ModelInputs, read_arrays
from tilewright.cli.output import Output
from tilewright.compile import Compilation, compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.ir.dtype import DType
from tilewright.ops.reference import evaluate_payload
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import DimensionError, InputError
from tilewright.support.files import is_artifact

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors only; the exit code says the rest.")
]
VerboseFlag = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show on stderr what the compiler does, and how long.")
]
InputOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]FILE",
        help="Inputs from a .npy or .npz file, or from an ONNX tensor in a .pb file. Repeat for "
        "more.",
    ),
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
EitherPath = Annotated[
    Path, typer.Argument(metavar="ARTIFACT|MODEL", help="A compiled model (.tw) or an ONNX file.")
]
DimOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=LOW..HIGH[%N]",
        help="The range of a dimension, both ends included, and what divides it: "
        "batch=1..64, seq=0..512%8, channels=3. Repeat for more.",
    ),
]
AccuracyOption = Annotated[
    str,
    typer.Option(
        metavar="standard|strict",
        help="Whether faster algorithms with larger rounding errors may be used.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="float32|bfloat16|int8",
        help="In what constant weights, and the data they are multiplied by, are held.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.toml",
        help="The machine by whose costs kernels are chosen at run time.",
        show_default="this machine",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Threads of a call.", show_default="what the process may use"
    ),
]


def parse_dims(texts: Sequence[str] | None) -> dict[str, Dim]:
    """Ranges from ``batch=1..64``, ``seq=0..512%8`` or ``channels=3``. Raises InputError."""
    dims: dict[str, Dim] = {}
    for text in texts or ():
        name, _, extent = (part.strip() for part in text.partition("="))
        extent, percent, multiple = extent.partition("%")
        low, dots, high = extent.partition("..")
        numbers = [low, high if dots else low, multiple if percent else "1"]
        where = f"--dim {text}"
        if not name or not all(number.strip().isdecimal() for number in numbers):
            hint = "write --dim batch=1..64, --dim seq=0..512%8 or --dim channels=3"
            raise InputError("This is not the range of a dimension.", where=where, hint=hint)
        if name in dims:
            raise InputError(f"The dimension {name} is given twice.", where=where)
        try:
            dims[name] = Dim(*map(int, numbers))
        except DimensionError as error:
            raise DimensionError(error.message, where=where, hint=error.hint) from error
    return dims


@dataclass(frozen=True)
class OpenedModel:
    """A model that can be called, and its compilation where it was compiled just now."""

    model: CompiledModel
    compilation: Compilation | None


def open_model(
    path: Path, dims: Mapping[str, Dim], threads: int | None, output: Output
) -> OpenedModel:
    """Load an artifact, or compile an ONNX file for this machine.

    Raises InputError where ranges are given for an artifact, which has its own.
    """
    if not is_artifact(path):
        with output.progress.activity(f"Compiling {path.name}"):
            made = compile_stages(path, dims=dims)
        return OpenedModel(instantiate(made, threads), made)
    if dims:
        raise InputError(
            "An artifact has the ranges that it was compiled for.",
            where=str(path),
            hint="leave --dim out, or give the ONNX file",
        )
    model = CompiledModel.load(path, evaluate=evaluate_payload, num_threads=threads)
    return OpenedModel(model, None)


def input_specifications(model: CompiledModel) -> tuple[InputSpecification, ...]:
    """What the model takes, for random inputs."""
    return tuple(
        InputSpecification(
            spec.name,
            DType(spec.dtype).numpy,
            tuple(int(extent) if extent.isdecimal() else extent for extent in spec.shape),
        )
        for spec in model.inputs
    )


def instantiate(made: Compilation, threads: int | None) -> CompiledModel:
    """A model with its own memory and threads from a compilation."""
    return CompiledModel.from_contents(
        made.contents, evaluate=evaluate_payload, num_threads=threads
    )
