"""``tilewright bench``: a model beside its peers, timed fairly in one run.

Start with :func:`bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench import (
    PEERS,
    Failure,
    ModelContender,
    ModelInputs,
    PeerOptions,
    Report,
    Settings,
    check_sizes,
    compare,
    create_peers,
    parse_suite,
    render_table,
)
from tilewright.bench.contender import Contender
from tilewright.bench.roofline import ModelWork, measure_limits
from tilewright.cli.options import (
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
    another,
    inputs_for,
    only_case,
    open_beside,
    parse_constants,
    parse_dims,
    peer_names,
)
from tilewright.cli.output import Output, load_plots
from tilewright.cli.usage import UsageError, as_usage
from tilewright.cli.writing import TEXTS, plot_file, replacing, writable
from tilewright.runtime.model import CompiledModel
from tilewright.support.files import is_artifact

_Shapes = Annotated[
    str, typer.Option(metavar="SHAPES", help="The cases: batch=1,seq=5;batch=4,seq=128.")
]
_Source = Annotated[
    Path | None, typer.Option(metavar="MODEL", help="The ONNX file of an artifact, for peers.")
]
_Peers = Annotated[
    str | None,
    typer.Option(
        metavar="PEERS",
        help=f"Any of {', '.join(PEERS)}, with commas, or none.",
        show_default="onnxruntime where there is an ONNX file",
    ),
]
_Json = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write all figures as JSON.")]
_Csv = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Write a line for each case and engine.")
]
_Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw times against the sizes.")
]


def bench(
    path: EitherPath,
    shapes: _Shapes = "",
    model: _Source = None,
    against: _Peers = None,
    inputs: InputOptions = None,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    precision: OwnPrecisionOption = None,
    threads: ThreadsOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of timing for each.")] = (
        Settings.rounds
    ),
    save: _Json = None,
    csv: _Csv = None,
    plot: _Plot = None,
    seed: Annotated[int, typer.Option(min=0, help="For the inputs.")] = 0,
    check: CheckFlag = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Time a model beside other engines: first call, median, p90, p99, and ratios.

    Takes a model or an artifact. All engines get the same inputs and the same number of threads,
    take turns, and are compared round by round.

    \b
    Example: tilewright bench bert.onnx --shapes "batch=1,seq=5;batch=4,seq=128"
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    for file in filter(None, (save, csv)):
        writable(file, TEXTS, [path, model])
    plot_file(plot, "--plot", [path, model])
    plots = None if plot is None else load_plots()
    source = model if model is not None else None if is_artifact(path) else path
    names = _peers(against, source)
    fixed = parse_constants(constants)
    opened = open_beside(path, parse_dims(dim), threads, output, precision, check, fixed)
    subject = opened.model
    feeds = inputs_for(subject, inputs, seed)
    cases = _cases(subject, shapes, feeds)
    peers, skipped = _set_up(names, source, PeerOptions(subject.num_threads, fixed), output)
    settings = Settings(rounds=rounds, most_rounds=4 * rounds)
    report = _timed(opened, peers, skipped, cases, feeds, settings, output, path)
    if save is not None:
        with replacing(save) as file:
            report.save(file)
    if csv is not None:
        with replacing(csv) as file:
            report.save_csv(file)
    if plot is not None and plots is not None:
        with replacing(plot) as file:
            plots.draw_comparison(report, file)
    if as_json:
        print(report.to_json())
    output.show(render_table(report, title=path.name))
    if source is None and against is None:
        output.show("No peers: they need the ONNX file, add --model model.onnx")


def _peers(against: str | None, source: Path | None) -> list[str]:
    """The names of the peers; they run the ONNX file ``source``."""
    default = "none" if source is None else "onnxruntime"
    names = peer_names(default if against is None else against)
    if names and source is None:
        raise UsageError(
            "The peers need the ONNX file that the artifact was compiled from",
            hint="Add --model model.onnx, or --against none",
        )
    return names


def _cases(model: CompiledModel, shapes: str, feeds: ModelInputs) -> Sequence[dict[str, int]]:
    """The shapes to time; arrays from files are the only one, as is that of fixed sizes."""
    with as_usage():
        if feeds.given:
            if shapes:
                raise UsageError("The files of the inputs say the shape", hint="Leave --shapes out")
            return [only_case(model, feeds)]
        if not model.dimensions and not shapes:
            return [{}]
        cases = parse_suite(shapes)
        for case in cases:
            check_sizes(model, case)
        return cases


def _set_up(
    names: Sequence[str], source: Path | None, options: PeerOptions, output: Output
) -> tuple[Sequence[Contender], Sequence[Failure]]:
    if source is None or not names:
        return (), ()
    with output.progress.activity("Setting up the peers"), as_usage():
        return create_peers(names, source, options)


def _timed(
    opened: OpenedModel,
    peers: Sequence[Contender],
    skipped: Sequence[Failure],
    cases: Sequence[dict[str, int]],
    feeds: ModelInputs,
    settings: Settings,
    output: Output,
    path: Path,
) -> Report:
    subject = opened.model
    work = None
    if opened.compilation is not None and subject.info.precision == "float32":
        work = ModelWork.of(opened.compilation.graph)
    limits = None if work is None else measure_limits(subject.num_threads)

    def second() -> CompiledModel:
        return another(opened, path)

    with output.progress.steps("Timing", len(cases)) as steps:
        report = compare(
            ModelContender(subject, second),
            peers,
            cases,
            feeds.at,
            threads=subject.num_threads,
            skipped=skipped,
            settings=settings,
            progress=lambda done, _, case: steps.at(done, case),
            precision=subject.info.precision,
        )
    if work is None or limits is None:
        return report
    # Somebody else may have had the cores the first time.
    limits = limits.larger(measure_limits(subject.num_threads))
    return report.beside([work.seconds(case, limits) for case in cases])
