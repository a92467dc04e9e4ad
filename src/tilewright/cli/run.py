"""``tilewright run``: call a model once, on arrays from files or on random ones.

Start with :func:`run`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from tilewright.bench import ModelInputs, check_sizes, parse_sizes
from tilewright.cli.options import (
    CheckFlag,
    ConstantOptions,
    DimOptions,
    EitherPath,
    InputOptions,
    JsonFlag,
    QuietFlag,
    ThreadsOption,
    VerboseFlag,
    inputs_for,
    open_model,
    parse_constants,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.cli.usage import UsageError, as_usage
from tilewright.cli.writing import ARRAYS, replacing, writable
from tilewright.runtime.model import CompiledModel
from tilewright.support.files import ARTIFACT, MODEL, require
from tilewright.support.text import distinct, format_seconds

Array = np.ndarray[Any, Any]


def run(
    path: EitherPath,
    inputs: InputOptions = None,
    random: Annotated[
        str | None,
        typer.Option(metavar="batch=2,seq=17", help="Random values at these sizes for the others."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Write each output as NAME.npy."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the random inputs.")] = 0,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    threads: ThreadsOption = None,
    check: CheckFlag = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Call a model once and show its outputs.

    Random inputs lie in the ranges that the model can use: an index into ten rows is below ten.

    \b
    Example: tilewright run bert.tw --random batch=2,seq=17
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if not inputs and random is None:
        require(path, ARTIFACT, MODEL)  # a path that is wrong is the first thing to mend
        raise UsageError(
            "The inputs are missing",
            hint="Write --input x=x.npy for each input, or --random batch=2,seq=17",
        )
    with as_usage():
        sizes = parse_sizes(random) if random is not None and random.strip() else {}
    fixed = parse_constants(constants)
    opened = open_model(path, parse_dims(dim), threads, output, check=check, constants=fixed)
    model = opened.model
    feeds = _feeds(model, inputs_for(model, inputs, seed), sizes, random is not None)
    names = [spec.name for spec in model.outputs]
    if folder is not None:
        _files(folder, names, inputs or ())  # what is wrong with them is said before the call
    started = time.perf_counter()
    with as_usage(unsupported=False):
        made = model.run(feeds)
    seconds = time.perf_counter() - started
    results = _arrays(made)
    files = {} if folder is None else _files(folder, list(results), inputs or ())
    for name, file in files.items():
        with replacing(file) as beside:
            np.save(beside, _savable(results[name]), allow_pickle=False)
    rows = {name: _describe(value) for name, value in results.items()}
    written = {name: str(file) for name, file in files.items()}
    output.document({"seconds": seconds, "outputs": rows, "files": written})
    columns = ("output", "dtype", "shape", ">smallest", ">mean", ">largest")
    cells = [(name, *(_cell(value) for value in row.values())) for name, row in rows.items()]
    output.show(table(*columns, rows=cells), f"First call: {format_seconds(seconds)}.")
    for name, file in written.items():
        output.show(f"Wrote {name} to {file}.")


def _feeds(
    model: CompiledModel, source: ModelInputs, sizes: Mapping[str, int], is_random: bool
) -> dict[str, Array]:
    """The inputs of the call. Raises UsageError where some have no values."""
    missing = [one.name for one in source.specifications if one.name not in source.given]
    if missing and not is_random:
        raise UsageError(
            f"There are no values for {', '.join(missing)}",
            hint=f"Add --input {missing[0]}=FILE.npy, or --random batch=2,seq=17 for the rest",
        )
    with as_usage():
        given = source.given_sizes
        for name, size in sizes.items():
            if given.get(name, size) != size:
                raise UsageError(
                    f"The dimension {name} is {given[name]} in the files, but {size} in --random",
                    hint=f"Leave {name} out of --random",
                )
        known = {**given, **sizes}
        if missing:
            check_sizes(model, known)
        return source.at(known)


def _files(folder: Path, names: Sequence[str], inputs: Sequence[str]) -> dict[str, Path]:
    """The file of each output, none of which is an input."""
    if folder.exists() and not folder.is_dir():
        raise UsageError("This is not a folder", where=str(folder), hint="Name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    given = [Path(part) for text in inputs for part in (text, text.partition("=")[2]) if part]
    files = {name: folder / f"{stem}.npy" for name, stem in zip(names, _stems(names), strict=True)}
    return {name: writable(file, ARRAYS, given) for name, file in files.items()}


def _stems(names: Sequence[str]) -> list[str]:
    """A file name for each output, without folders: alike ones but the first get a number."""
    taken = {name for name in names if "/" not in name}
    return [name if name in taken else distinct(name.replace("/", "_"), taken) for name in names]


def _arrays(results: Mapping[str, Any]) -> dict[str, Array]:
    """The outputs as arrays; the elements of a sequence by their numbers."""
    found: dict[str, Array] = {}
    taken = set(results)
    for name, value in results.items():
        if isinstance(value, list):
            for number, element in enumerate(cast("list[Any]", value)):
                found[distinct(f"{name}[{number}]", taken)] = np.asarray(element)
        else:
            found[name] = np.asarray(value)
    return found


def _savable(array: Array) -> Array:
    """The array in a form that a file can hold: strings by their letters, and not as objects."""
    return array.astype(np.str_) if array.dtype == object else array


def _describe(value: Array) -> dict[str, object]:
    row: dict[str, object] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    row |= {"smallest": None, "mean": None, "largest": None}
    # Of numbers that numpy does not know, such as bfloat16, ml_dtypes makes a void type.
    if value.size and value.dtype.kind in "biufV":
        numbers = value.astype(np.float64)
        if np.isfinite(numbers).all():
            row["smallest"] = float(numbers.min())
            row["mean"] = float(numbers.mean())
            row["largest"] = float(numbers.max())
    return row


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
