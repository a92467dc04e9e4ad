"""``tilewright bench``: a model beside its peers, timed fairly in one run.

Start with :func:`bench`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.bench import (
    PEERS,
    ModelContender,
    PeerOptions,
    Settings,
    compare,
    create_peers,
    parse_suite,
    random_inputs,
    render_table,
)
from tilewright.cli.options import (
    DimOptions,
    JsonFlag,
    ModelPath,
    QuietFlag,
    ThreadsOption,
    VerboseFlag,
    input_specifications,
    instantiate,
    is_artifact,
    parse_dims,
)
from tilewright.cli.output import Output
from tilewright.compile import compile_stages
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import InputError


def bench(
    model: ModelPath,
    shapes: Annotated[
        str, typer.Option(metavar="SHAPES", help="The cases: batch=1,seq=5;batch=4,seq=128.")
    ],
    against: Annotated[
        str, typer.Option(metavar="PEERS", help=f"Any of {', '.join(PEERS)}, with commas.")
    ] = "onnxruntime",
    dim: DimOptions = None,
    threads: ThreadsOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of timing for each.")] = (
        Settings.rounds
    ),
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all figures as JSON.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the inputs.")] = 0,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Time a model beside other engines at several shapes, as ratios with their spread.

    \b
    Example: tilewright bench bert.onnx --shapes "batch=1,seq=5;batch=4,seq=128"
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if is_artifact(model):
        raise InputError("The peers need the ONNX file.", where=str(model))
    cases = parse_suite(shapes)
    names = [name for name in (part.strip() for part in against.split(",")) if name]
    with output.progress.activity(f"Compiling {model.name}"):
        made = compile_stages(model, dims=parse_dims(dim))
    subject = instantiate(made, threads)
    with output.progress.activity("Setting up the peers"):
        peers, skipped = create_peers(names, model, PeerOptions(subject.num_threads))
    specifications = input_specifications(subject)

    def second() -> CompiledModel:
        return instantiate(made, threads)

    def inputs_of(case: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
        return random_inputs(specifications, case, seed)

    with output.progress.steps("Timing", len(cases)) as steps:
        report = compare(
            ModelContender(subject, second),
            peers,
            cases,
            inputs_of,
            threads=subject.num_threads,
            skipped=skipped,
            settings=Settings(rounds=rounds, most_rounds=4 * rounds),
            progress=lambda done, _, case: steps.at(done, case),
        )
    if save is not None:
        report.save(save)
    if as_json:
        print(report.to_json())
    output.show(render_table(report, title=model.name))
