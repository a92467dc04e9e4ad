"""What verbs have in common: options, ranges of dimensions, and a model from either kind of file.

Start with :func:`open_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import numpy as np
import typer

from tilewright.bench import (
    InputSpecification,
    ModelInputs,
    check_sizes,
    read_arrays,
    read_constants,
)
from tilewright.cli.output import Output
from tilewright.cli.usage import UsageError, as_usage, listed
from tilewright.compile import Compilation, compile_stages
from tilewright.compile_machines import described_target
from tilewright.frontend.onnx import Dim
from tilewright.ir.dtype import DType
from tilewright.ops.reference import evaluate_payload
from tilewright.options import (
    AccuracyName,
    CompileOptions,
    PlanName,
    PolicyName,
    PrecisionName,
)
from tilewright.runtime.model import CompiledModel
from tilewright.support.arguments import MOST_THREADS, byte_limit
from tilewright.support.errors import DimensionError
from tilewright.support.files import is_artifact

Array = np.ndarray[Any, Any]


def words(name: object) -> str:
    """What an option with one of these names takes, as help shows it."""
    return "|".join(get_args(name))


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors only; the exit code says the rest.")
]
VerboseFlag = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        metavar="",
        show_default=False,
        help="Show on stderr what the compiler does; twice for details.",
    ),
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
        metavar="NAME=LOW..HIGH[%N][@BATCH]",
        help="The range of a dimension, both ends included, and what divides it: "
        "batch=1..64, seq=0..512%8, channels=3. With seq=0..512@batch each sequence of a batch has "
        "its own length. Repeat for more.",
    ),
]
ConstantOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--constants",
        metavar="[NAME=]FILE",
        help="Values of inputs that are fixed, such as axes, from a .npy, .npz or .pb file. The "
        "compiled model has no such inputs. Repeat for more.",
    ),
]
AccuracyOption = Annotated[
    str,
    typer.Option(
        metavar=words(AccuracyName),
        callback=listed,
        help="Whether faster algorithms with larger rounding errors may be used.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        metavar=words(PolicyName),
        callback=listed,
        help="How block sizes of matrix products are chosen; all but auto are for comparison.",
    ),
]
PlanOption = Annotated[
    str,
    typer.Option(
        metavar=words(PlanName),
        callback=listed,
        help="How operators are joined to kernels; optimal takes longer to compile.",
    ),
]


def _bytes(option: typer.CallbackParam, value: str | None) -> str | None:
    """The value of an option that is a number of bytes. Raises UsageError."""
    with as_usage():
        byte_limit(option.opts[0], value)
    return value


def _machine(value: str | None) -> str | None:
    """The value of an option that describes a machine. Raises UsageError."""
    with as_usage():
        described_target(value)
    return value


MaxArenaOption = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        callback=_bytes,
        help="The most that tensors between kernels may need, such as 64M; with --plan optimal.",
    ),
]
RewritingFlag = Annotated[
    bool | None,
    typer.Option(
        "--rewriting/--no-rewriting",
        help="Look for forms of parts of the model that are cheaper by the model of the machine.",
        show_default="with --plan optimal",
    ),
]
MeasureFlag = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="With --plan optimal: run kernels of the best plans for up to a minute; times are "
        "kept for the next compilation.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar=words(PrecisionName),
        callback=listed,
        help="In what constant weights, and the data they are multiplied by, are held.",
    ),
]
OwnPrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar=words(PrecisionName),
        callback=listed,
        help="In what constant weights, and the data they are multiplied by, are held.",
        show_default="float32; an artifact has its own",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.toml",
        callback=_machine,
        help="The machine by whose costs kernels are chosen at run time.",
        show_default="this machine",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MOST_THREADS,
        help="Threads of a call.",
        show_default="what the process may use",
    ),
]

CheckFlag = Annotated[
    bool,
    typer.Option(
        "--check", help="Verify what every stage of the compiler makes; an error is a defect of it."
    ),
]
DumpOption = Annotated[
    Path | None,
    typer.Option(
        "--dump", metavar="DIR", help="Write every stage of the compiler as text into a folder."
    ),
]


def parse_dims(texts: Sequence[str] | None) -> dict[str, Dim]:
    """Ranges from ``batch=1..64``, ``seq=0..512%8``, ``channels=3`` or ``seq=0..512@batch``.

    Raises UsageError.
    """
    dims: dict[str, Dim] = {}
    for text in texts or ():
        name, _, extent = (part.strip() for part in text.partition("="))
        extent, _, ragged = extent.partition("@")
        extent, percent, multiple = extent.partition("%")
        low, dots, high = extent.partition("..")
        numbers = [low, high if dots else low, multiple if percent else "1"]
        where = f"--dim {text}"
        if not name or not all(number.strip().isdecimal() for number in numbers):
            hint = "Write --dim batch=1..64, --dim seq=0..512%8 or --dim channels=3"
            raise UsageError("This is not the range of a dimension", where=where, hint=hint)
        if name in dims:
            raise UsageError(
                f"The dimension {name} is given twice", where=where, hint="Give one range for it"
            )
        try:
            lowest, highest, factor = map(int, numbers)
            dims[name] = Dim(lowest, highest, factor, ragged.strip() or None)
        except DimensionError as error:
            raise UsageError(error.message, where=where, hint=error.hint) from error
    return dims


def peer_names(text: str) -> list[str]:
    """Engines that are named with commas between them; "none" stands for none."""
    names = (name.strip() for name in text.split(","))
    return [name for name in names if name not in ("", "none")]


def parse_constants(texts: Sequence[str] | None) -> dict[str, Array]:
    """Inputs with fixed values from ``NAME=FILE``. Raises UsageError."""
    with as_usage():
        return read_constants(texts or ())


@dataclass(frozen=True)
class OpenedModel:
    """A model that can be called, and its compilation where it was compiled just now."""

    model: CompiledModel
    compilation: Compilation | None


def open_model(
    path: Path,
    dims: Mapping[str, Dim],
    threads: int | None,
    output: Output,
    precision: str | None = None,
    check: bool = False,
    constants: Mapping[str, Array] | None = None,
) -> OpenedModel:
    """Load an artifact, or compile an ONNX file for this machine.

    With ``check`` every stage of the compiler is verified; ``constants`` are inputs with fixed
    values. Raises UsageError where ranges, a precision or constants are given for an artifact,
    which has its own.
    """
    if not is_artifact(path):
        with output.progress.activity(f"Compiling {path.name}"), as_usage(unsupported=False):
            named = {"precision": precision or "float32", "dims": dims, "check": check or None}
            named |= {"constants": constants}
            # The precision is a text here; compiling checks it.
            made = compile_stages(path, **cast("CompileOptions", named))
        return OpenedModel(_instance(made, threads), made)
    refuse_for_artifact(path, dims=dims, precision=precision, constants=constants)
    model = CompiledModel.load(path, evaluate=evaluate_payload, num_threads=threads)
    return OpenedModel(model, None)


def open_beside(
    path: Path,
    dims: Mapping[str, Dim],
    threads: int | None,
    output: Output,
    precision: str | None,
    check: bool,
    constants: Mapping[str, Array],
) -> OpenedModel:
    """A model that is compared with others on its ONNX file, which get the constants, too.

    An artifact has to have been compiled with them. Raises UsageError as :func:`open_model`.
    """
    own = {} if is_artifact(path) else constants
    opened = open_model(path, dims, threads, output, precision, check, own)
    for spec in opened.model.inputs:
        if spec.name in constants:
            raise UsageError(
                f"The artifact has {spec.name} as an input, not as a constant",
                where=str(path),
                hint=f"Write --input {spec.name}=FILE, or compile the model again",
            )
    return opened


def refuse_for_artifact(
    path: Path, *, dims: object, precision: str | None = None, constants: object = None
) -> None:
    """Raise UsageError where something is given that an artifact was compiled with."""
    given = {
        "ranges": ("--dim", dims),
        "precision": ("--precision", precision),
        "constants": ("--constants", constants),
    }
    for what, (option, value) in given.items():
        if value:
            raise UsageError(
                f"An artifact has the {what} that it was compiled for",
                where=str(path),
                hint=f"Leave {option} out, or give the ONNX file",
            )


def inputs_for(model: CompiledModel, files: Sequence[str] | None, seed: int) -> ModelInputs:
    """The inputs of a model: those in files, and random ones in the ranges it can use.

    Raises UsageError for files that hold no inputs of the model.
    """
    ranges = model.info.ranges
    specifications = tuple(
        InputSpecification(
            spec.name,
            DType(spec.dtype).numpy,
            tuple(int(extent) if extent.isdecimal() else extent for extent in spec.shape),
            *ranges.get(spec.name, ("", "")),
        )
        for spec in model.inputs
    )
    with as_usage():
        return ModelInputs(specifications, read_arrays(files or (), specifications), seed)


def only_case(model: CompiledModel, inputs: ModelInputs) -> dict[str, int]:
    """The one shape that the arrays in files have. Raises DimensionError if they leave any open."""
    sizes = inputs.given_sizes
    check_sizes(model, sizes)
    return sizes


def another(opened: OpenedModel, path: Path) -> CompiledModel:
    """A second instance of an opened model, with its own memory and threads."""
    threads = opened.model.num_threads
    if opened.compilation is not None:
        return _instance(opened.compilation, threads)
    return CompiledModel.load(path, evaluate=evaluate_payload, num_threads=threads)


def _instance(made: Compilation, threads: int | None) -> CompiledModel:
    contents = made.contents
    return CompiledModel.from_contents(contents, evaluate=evaluate_payload, num_threads=threads)
