"""``tilewright run``: call a model once, on arrays from files or on random ones.

Start with :func:`run`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.bench import parse_sizes, random_inputs
from tilewright.cli.options import (
    DimOptions,
    EitherPath,
    JsonFlag,
    ThreadsOption,
    input_specifications,
    open_model,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.support.errors import InputError
from tilewright.support.text import format_seconds

Array = np.ndarray[Any, Any]


def run(
    path: EitherPath,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=FILE.npy", help="An input from a file; repeat for more."
        ),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(metavar="batch=2,seq=17", help="Random inputs at these sizes instead."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Write each output as NAME.npy."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the random inputs.")] = 0,
    dim: DimOptions = None,
    threads: ThreadsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Call a model once and show its outputs.

    \b
    Example: tilewright run bert.tw --random batch=2,seq=17
    """
    output = Output(as_json=as_json)
    if bool(inputs) == (random is not None):
        raise InputError(
            "Inputs come either from files or from a random generator.",
            hint="write --input x=x.npy for each input, or --random batch=2,seq=17",
        )
    model = open_model(path, parse_dims(dim), threads, output).model
    if random is not None:
        sizes = parse_sizes(random) if random.strip() else {}
        feeds = random_inputs(input_specifications(model), sizes, seed)
    else:
        feeds = read_inputs(inputs or ())
    started = time.perf_counter()
    results = {name: np.asarray(value) for name, value in model.run(feeds).items()}
    seconds = time.perf_counter() - started
    written = _write(folder, results) if folder is not None else {}
    rows = {name: _describe(value) for name, value in results.items()}
    output.document({"seconds": seconds, "outputs": rows, "files": written})
    columns = ("output", "dtype", "shape", ">smallest", ">mean", ">largest")
    cells = [(name, *(_cell(value) for value in row.values())) for name, row in rows.items()]
    output.show(table(*columns, rows=cells), f"First call: {format_seconds(seconds)}.")
    for name, file in written.items():
        output.show(f"Wrote {name} to {file}.")


def read_inputs(texts: Sequence[str]) -> dict[str, Array]:
    """Arrays from ``NAME=FILE.npy``. Raises InputError for what cannot be read."""
    arrays: dict[str, Array] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        where = f"--input {text}"
        if not (name and separator and file):
            raise InputError("This names no file.", where=where, hint="write --input x=x.npy")
        try:
            arrays[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"The array cannot be read: {error}", where=where) from error
    return arrays


def _write(folder: Path, results: Mapping[str, Array]) -> dict[str, str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: folder / f"{name.replace('/', '_')}.npy" for name in results}
        for name, file in files.items():
            np.save(file, results[name], allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"The outputs cannot be written: {error}", where=str(folder)) from error
    return {name: str(file) for name, file in files.items()}


def _describe(value: Array) -> dict[str, object]:
    row: dict[str, object] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    row |= {"smallest": None, "mean": None, "largest": None}
    if value.size and value.dtype.kind in "biuf":
        numbers = value.astype(np.float64)
        if np.isfinite(numbers).all():
            row["smallest"] = float(numbers.min())
            row["mean"] = float(numbers.mean())
            row["largest"] = float(numbers.max())
    return row


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
