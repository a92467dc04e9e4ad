"""``tilewright simulate``: a model on more cores than are at hand, by the prices of its kernels.

Start with :func:`simulate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import typer
from rich.console import RenderableType

from tilewright.bench import parse_sizes
from tilewright.bench.many_cores import ManyCores
from tilewright.cli.options import (
    ConstantOptions,
    DimOptions,
    JsonFlag,
    ModelPath,
    PlanOption,
    QuietFlag,
    TargetOption,
    VerboseFlag,
    inputs_for,
    parse_constants,
    parse_dims,
)
from tilewright.cli.output import Output, table
from tilewright.cli.usage import UsageError, as_usage
from tilewright.cost import CallRun, Loss, StepRun
from tilewright.options import PlanName
from tilewright.runtime._native import most_threads
from tilewright.support.processors import default_threads
from tilewright.support.text import format_seconds

_PICO = 1e12  # picoseconds in a second


def simulate(
    path: ModelPath,
    shape: Annotated[
        str,
        typer.Option("--shape", metavar="batch=8,seq=128", help="A size for every dimension."),
    ] = "",
    threads: Annotated[
        str, typer.Option("--threads", metavar="COUNTS", help="Numbers of threads, with commas.")
    ] = "1,2,4,16,64",
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    plan: PlanOption = "greedy",
    target: TargetOption = None,
    most: Annotated[
        int, typer.Option(min=0, help="How many kernels that starve to show for each count.")
    ] = 5,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Also call the model with as many threads as there can be."),
    ] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Simulate a call on any number of threads, by the prices of its kernels.

    Of each number of threads: the time of a call, the share of the threads' time in
    which they compute, and what the rest is lost to; of kernels that starve, why they do. Threads
    beyond the cores of the machine are on cores like them, with the same memory.

    \b
    Example: tilewright simulate bert.onnx --shape batch=8,seq=128 --threads 1,16
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    counts = _counts(threads)
    with output.progress.activity(f"Lowering {path.name}"), as_usage(unsupported=False):
        model = ManyCores(
            path, dims=parse_dims(dim), constants=parse_constants(constants), target=target,
            plan=cast("PlanName", plan),
        )  # fmt: skip
    with as_usage():
        sizes = parse_sizes(shape) if shape.strip() else {}
        alone, *runs = model.at(sizes, [1, *counts])
    measured: dict[int, float] = {}
    if measure:
        with output.progress.activity("Calling the model"):
            timed = sorted({1, *(c for c in counts if c <= default_threads())})
            measured = model.measured(lambda made: inputs_for(made, None, 0).at(sizes), timed)
    output.document(_document(model, sizes, alone, runs, measured))
    output.show(*_shown(model, alone, runs, measured, most))


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if not 1 <= counts[0] <= counts[-1] <= most_threads:
        raise UsageError(
            f"{text!r} is no list of numbers of threads",
            hint=f"Give numbers from 1 to {most_threads}, such as 1,2,16",
        )
    return counts


def _shown(
    model: ManyCores, alone: CallRun, runs: Sequence[CallRun], measured: Mapping[int, float],
    most: int,
) -> list[RenderableType]:  # fmt: skip
    columns = (">threads", ">a call", ">speed-up", *([">measured"] if measured else []), ">used",
               *(f">{loss.value}" for loss in Loss))  # fmt: skip
    rows = [_cells(run, alone, measured) for run in runs]
    target = model.machine.target
    shown: list[RenderableType] = [f"{target.name}, {target.units} cores"]
    shown.append(table(*columns, rows=rows))
    if model.unpriced:
        shown.append(f"Kernels without a price, which are left out: {model.unpriced}")
    starving = [_step_cells(step, run) for run in runs for step in _starving(run)[:most]]
    if starving:
        columns = (">threads", "kernel", ">tasks", ">workers", ">takes", ">loses", "most of it to")
        shown += ["", table(*columns, rows=starving)]
    return shown


def _cells(run: CallRun, alone: CallRun, measured: Mapping[int, float]) -> tuple[str, ...]:
    timed: list[str] = []
    if measured:
        own = measured.get(run.threads)
        timed.append("" if own is None else f"{measured[1] / own:.2f}×")
    return (
        str(run.threads), format_seconds(run.time / _PICO), f"{run.speed_up(alone):.2f}×", *timed,
        _percent(run.utilisation), *map(_percent, run.lost.values()),
    )  # fmt: skip


def _step_cells(step: StepRun, run: CallRun) -> tuple[str, ...]:
    return (
        str(run.threads), step.step.label, str(step.step.tasks.count), str(step.workers),
        format_seconds(step.time / _PICO), _percent(_lost(step) / (run.threads * run.time)),
        max(step.lost, key=lambda loss: step.lost[loss]).value,
    )  # fmt: skip


def _starving(run: CallRun) -> list[StepRun]:
    """The steps that lose something, the most of it first."""
    return sorted((step for step in run.steps if _lost(step) > 0), key=lambda step: -_lost(step))


def _lost(step: StepRun) -> float:
    return sum(step.lost.values())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _document(
    model: ManyCores, sizes: Mapping[str, int], alone: CallRun, runs: Sequence[CallRun],
    measured: Mapping[int, float],
) -> dict[str, object]:  # fmt: skip
    return {
        "target": model.machine.target.name,
        "cores": model.machine.target.units,
        "shape": dict(sizes),
        "unpriced": model.unpriced,
        "calls": [
            {
                "threads": run.threads,
                "seconds": run.time / _PICO,
                "speed_up": run.speed_up(alone),
                "measured_seconds": measured.get(run.threads),
                "utilisation": run.utilisation,
                "lost": {loss.value: share for loss, share in run.lost.items()},
                "kernels": [_kernel(step) for step in run.steps],
            }
            for run in runs
        ],
    }


def _kernel(step: StepRun) -> dict[str, object]:
    return {
        "kernel": step.step.label,
        "tasks": step.step.tasks.count,
        "workers": step.workers,
        "seconds": step.time / _PICO,
        "alone_seconds": step.step.alone / _PICO,
        "lost_worker_seconds": {loss.value: lost / _PICO for loss, lost in step.lost.items()},
    }
