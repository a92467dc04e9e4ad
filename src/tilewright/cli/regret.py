"""``tilewright regret``: how often the choice between variants is wrong, and by how much.

Start with :func:`regret`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilewright.bench.machine import describe_machine
from tilewright.bench.operators import CONSTANTS
from tilewright.bench.regret import (
    LARGEST_FLOPS,
    Regret,
    Sample,
    Setting,
    ablations,
    measure_regret,
    summarise,
    wins_of,
)
from tilewright.bench.suites import Case
from tilewright.bench.sweep import Sweep, measure_sweep
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, load_plots, table
from tilewright.support.errors import InputError


def regret(
    kind: Annotated[str, typer.Option(metavar="gemm|bmm|conv", help="What to multiply.")] = "gemm",
    samples: Annotated[int, typer.Option(min=1, help="Shapes to draw.")] = 100,
    sizes: Annotated[
        str, typer.Option("--range", metavar="LOW..HIGH", help="The range of every axis.")
    ] = "1..4096",
    constant: Annotated[
        str, typer.Option(help="The operand of a gemm known when compiling: right, left or none.")
    ] = "none",
    threads: Annotated[int, typer.Option(min=1, help="Threads of a call.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 0,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds for all shapes, about.")] = 120.0,
    flops: Annotated[
        float, typer.Option(min=1.0, help="Operations of one product at most.")
    ] = LARGEST_FLOPS,
    sweep: Annotated[
        str,
        typer.Option(metavar="SHAPES", help="Speed along an axis instead: M=1..600,N=2304,K=768."),
    ] = "",
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="With --sweep: draw it there.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Time all variants of a kernel at random shapes beside the one that is chosen.

    \b
    Example: tilewright regret --kind gemm --samples 300 --range 1..4096
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if sweep:
        _sweep(sweep, threads, budget, save, output)
        return
    if constant not in CONSTANTS:
        raise InputError(f"{constant!r} is no operand.", hint=f"use {', '.join(CONSTANTS)}")
    setting = Setting(kind, constant, samples, _range(sizes), threads, seed, budget, flops)
    found: list[Sample] = []
    with output.progress.steps("Timing", samples) as steps:

        def at(done: int, case: Case) -> None:
            steps.at(done, case.describe())

        found.extend(measure_regret(setting, at))
    summary, shares = summarise(found), ablations(found)
    output.document(_document(setting, found, summary, shares))
    output.show(
        f"{kind}, {samples} shapes of {sizes} (at most {flops:.2g} operations), seed {seed}, "
        f"threads: {threads}, {describe_machine().processor}",
        f"Regret: mean {_percent(summary.mean)}, 95th percentile {_percent(summary.p95)}, "
        f"worst {_percent(summary.worst)} at {summary.at.case.describe()}",
        _variants(found),
        _shares(shares),
    )


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    try:
        return int(low), int(high)
    except ValueError:
        raise InputError(f"{text!r} is no range.", hint="write 1..4096, for example") from None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _variants(samples: Sequence[Sample]) -> Table:
    rows = [(name, str(best), str(chosen)) for name, (best, chosen) in wins_of(samples).items()]
    return table("variant", ">best", ">chosen", rows=rows)


def _shares(shares: dict[str, float]) -> Table:
    rows = [(name, _percent(share)) for name, share in shares.items()]
    return table("choice", ">speed of the oracle's", rows=rows)


def _document(
    setting: Setting, samples: Sequence[Sample], summary: Regret, shares: dict[str, float]
) -> dict[str, object]:
    return {
        "kind": setting.kind,
        "constant": setting.constant,
        "threads": setting.threads,
        "seed": setting.seed,
        "mean": summary.mean,
        "p95": summary.p95,
        "worst": summary.worst,
        "worst_shape": dict(summary.at.case.sizes),
        "ablations": shares,
        "samples": [
            {
                "sizes": dict(sample.case.sizes),
                "variants": dict(zip(sample.names, sample.seconds, strict=True)),
                "chosen": sample.names[sample.chosen],
                "regret": sample.regret,
            }
            for sample in samples
        ],
    }


def _sweep(text: str, threads: int, seconds: float, save: Path | None, output: Output) -> None:
    plots = None if save is None else load_plots()
    with output.progress.steps("Timing", 1) as steps:

        def at(done: int) -> None:
            steps.at(0, f"size {done + 1}")

        found = measure_sweep(text, threads, seconds, at)
    if save is not None and plots is not None:
        plots.draw_sweep(found, save)
    dips = found.dips
    deepest = max(range(len(dips)), key=dips.__getitem__)
    output.document(
        {
            "axis": found.axis,
            "fixed": found.fixed,
            "deepest_dip": dips[deepest],
            "deepest_at": found.points[deepest].size,
            "points": [[p.size, p.gflops, p.variant] for p in found.points],
        }
    )
    output.show(
        f"{found.fixed}: {_speeds(found)}",
        f"Deepest dip below the neighbours' line: {_percent(dips[deepest])} at "
        f"{found.axis}={found.points[deepest].size}; {sum(dip > 0.06 for dip in dips)} above 6 %",
    )


def _speeds(found: Sweep) -> str:
    speeds = [point.gflops for point in found.points]
    return f"{min(speeds):.1f} to {max(speeds):.1f} GFLOP/s over {len(speeds)} sizes"
