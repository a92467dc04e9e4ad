"""``tilewright regret``: how often the choice between variants is wrong, and by how much.

Start with :func:`regret`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilewright.bench.regret import Sample, draw, measure_regret
from tilewright.bench.regret_cases import LARGEST_FLOPS, Drawn, Setting
from tilewright.bench.regret_report import (
    Regret,
    ablations,
    by_family,
    summarise,
    wins_of,
    worst_of,
)
from tilewright.bench.sweep import Sweep, measure_sweep
from tilewright.cli import sampling
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, load_plots, table
from tilewright.cli.usage import as_usage
from tilewright.cli.writing import plot_file, replacing


def regret(
    kind: sampling.KindOption = "gemm",
    samples: sampling.SamplesOption = 100,
    sizes: sampling.RangeOption = "",
    constant: sampling.ConstantOption = "none",
    threads: sampling.CallThreadsOption = 1,
    seed: sampling.ShapeSeedOption = 0,
    level: sampling.LevelOption = "",
    budget: sampling.BudgetOption = 120.0,
    flops: Annotated[
        float, typer.Option(min=1.0, help="Operations of one product at most.")
    ] = LARGEST_FLOPS,
    most_bytes: Annotated[
        int, typer.Option("--bytes", help="Of operands and results at most; 0 for the kind's own.")
    ] = 0,
    family: sampling.FamilyOption = None,
    worst: sampling.WorstOption = 5,
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
    setting = Setting(
        kind=kind, constant=sampling.checked_constant(constant), samples=samples,
        sizes=sampling.axis_range(sizes), threads=threads, seed=seed, seconds=budget,
        largest_flops=flops, most_bytes=most_bytes or None, families=tuple(family or ()),
        level=level,
    )  # fmt: skip
    _regret(setting, worst, output)


def _regret(setting: Setting, worst: int, output: Output) -> None:
    with output.progress.steps("Timing", setting.samples) as steps:
        with as_usage():
            drawn = draw(setting, steps.at)
        found = list(measure_regret(drawn.groups, setting, steps.at))
    if not found:
        alone = f"All {len(drawn.alone)} programs have one variant"
        output.document({"kind": setting.kind, "programs_with_one_variant": len(drawn.alone)})
        output.show(f"{alone}: nothing is chosen.")
        return
    output.document(_document(setting, drawn, found))
    output.show(*_report(setting, drawn, found, worst))


def _report(
    setting: Setting, drawn: Drawn, samples: Sequence[Sample], worst: int
) -> list[str | Table]:
    low, high = setting.range
    shown: list[str | Table] = [
        f"{setting.kind}, {len(samples)} shapes of {low}..{high} (at most "
        f"{setting.largest_flops:.2g} operations, {setting.budget:.2g} bytes), "
        f"{sampling.conditions(setting)}"
    ]
    if drawn.alone:
        shown.append(
            f"{len(drawn.groups)} programs have a kernel with several variants, "
            f"{len(drawn.alone)} have none and are not timed."
        )
    shown.append(_families(samples))
    if worst_of(samples, worst):
        shown.append(_worst(samples, worst))
    return [*shown, _variants(samples), _shares(ablations(samples))]


def _families(samples: Sequence[Sample]) -> Table:
    """The summary of each family, and of all of them."""
    rows = [(name, *_figures(regret)) for name, regret in by_family(samples).items()]
    rows.append(("all", *_figures(summarise(samples))))
    columns = ("family", ">shapes", ">mean", ">median", ">95th percentile", ">worst")
    return table(*columns, rows=rows)


def _figures(regret: Regret) -> tuple[str, ...]:
    shares = (regret.mean, regret.median, regret.p95, regret.worst)
    return (str(regret.count), *map(_percent, shares))


def _worst(samples: Sequence[Sample], count: int) -> Table:
    rows = [
        (
            _percent(sample.regret),
            sampling.described(sample.case),
            sample.names_of(sample.chosen),
            sample.names_of(sample.best),
            f"{1e6 * sample.best_seconds:.1f} µs",
        )
        for sample in worst_of(samples, count)
    ]
    return table(">regret", "shape", "chosen", "best", ">takes", rows=rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _variants(samples: Sequence[Sample]) -> Table:
    rows = [(name, str(best), str(chosen)) for name, (best, chosen) in wins_of(samples).items()]
    return table("variant", ">best", ">chosen", rows=rows)


def _shares(shares: dict[str, float]) -> Table:
    rows = [(name, _percent(share)) for name, share in shares.items()]
    return table("choice", ">speed of the oracle's", rows=rows)


def _document(setting: Setting, drawn: Drawn, samples: Sequence[Sample]) -> dict[str, object]:
    return {
        **sampling.setting_document(setting),
        "programs_with_one_variant": len(drawn.alone),
        **_numbers(summarise(samples)),
        "families": {name: _numbers(regret) for name, regret in by_family(samples).items()},
        "ablations": ablations(samples),
        "samples": [_sample(sample) for sample in samples],
    }


def _numbers(regret: Regret) -> dict[str, object]:
    return {
        "shapes": regret.count,
        "mean": regret.mean,
        "median": regret.median,
        "p95": regret.p95,
        "worst": regret.worst,
        "worst_shape": sampling.described(regret.at.case),
    }


def _sample(sample: Sample) -> dict[str, object]:
    return {
        **sampling.case_document(sample.case),
        "kernels": [
            {
                "variants": dict(zip(kernel.names, kernel.seconds, strict=True)),
                "chosen": kernel.names[kernel.chosen],
                "best": kernel.names[kernel.best],
            }
            for kernel in sample.kernels
        ],
        "regret": sample.regret,
    }


def _sweep(text: str, threads: int, seconds: float, save: Path | None, output: Output) -> None:
    plots = None if plot_file(save, "--save") is None else load_plots()
    with output.progress.steps("Timing", 1) as steps:

        def at(done: int) -> None:
            steps.at(0, f"size {done + 1}")

        with as_usage():
            found = measure_sweep(text, threads, seconds, at)
    if save is not None and plots is not None:
        with replacing(save) as file:
            plots.draw_sweep(found, file)
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
