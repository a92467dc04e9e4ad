"""``tilewright model-error``: modelled times of kernels beside measured ones.

Start with :func:`model_error`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilewright.bench.model_error import Priced, measure_errors
from tilewright.bench.model_error_report import (
    Errors,
    errors_by_family,
    farthest,
    summarise_errors,
)
from tilewright.bench.regret_cases import Setting
from tilewright.cli import sampling
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, load_plots, table
from tilewright.cli.usage import as_usage
from tilewright.cli.writing import plot_file, replacing

_SHOWN = 3  # resources of a shape


def model_error(
    kind: sampling.KindOption = "gemm",
    samples: sampling.SamplesOption = 100,
    sizes: sampling.RangeOption = "",
    constant: sampling.ConstantOption = "none",
    threads: sampling.CallThreadsOption = 1,
    seed: sampling.ShapeSeedOption = 0,
    level: sampling.LevelOption = "",
    budget: sampling.BudgetOption = 30.0,
    family: sampling.FamilyOption = None,
    worst: sampling.WorstOption = 5,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw all shapes there.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Compare what the cost model says of a kernel with what it takes, at random shapes.

    \b
    Example: tilewright model-error --kind gemm --samples 300 --save gemm.png
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    plots = None if plot_file(save, "--save") is None else load_plots()
    setting = Setting(
        kind=kind, constant=sampling.checked_constant(constant), samples=samples,
        sizes=sampling.axis_range(sizes), threads=threads, seed=seed, seconds=budget,
        families=tuple(family or ()), level=level,
    )  # fmt: skip
    with output.progress.steps("Timing", samples) as steps, as_usage():
        found = list(measure_errors(setting, steps.at))
    priced = [sample for sample in found if isinstance(sample, Priced)]
    without = len(found) - len(priced)
    if not priced:
        output.document({"kind": kind, "without_a_price": without})
        output.show(f"None of {without} shapes has a price: each of their kernels has one variant.")
        return
    if save is not None and plots is not None:
        with replacing(save) as file:
            plots.draw_errors(priced, file)
    output.document(_document(setting, priced, without, worst))
    output.show(*_report(setting, priced, without, worst))


def _report(
    setting: Setting, priced: Sequence[Priced], without: int, worst: int
) -> list[str | Table]:
    shown: list[str | Table] = [
        f"{setting.kind}, {len(priced)} shapes, {sampling.conditions(setting)}"
    ]
    if without:
        shown.append(f"{without} shapes more have kernels of one variant, which have no price.")
    rows = [(name, *_figures(errors)) for name, errors in errors_by_family(priced).items()]
    rows.append(("all", *_figures(summarise_errors(priced))))
    columns = ("family", ">shapes", ">bias", ">median error", ">90th percentile", ">spread",
               ">rank correlation")  # fmt: skip
    shown.append(table(*columns, rows=rows))
    if worst:
        shown.append(_worst(farthest(priced, worst)))
    return shown


def _figures(errors: Errors) -> tuple[str, ...]:
    rank = "" if math.isnan(errors.rank) else f"{errors.rank:.3f}"
    shares = (errors.median, errors.p90, errors.spread)
    percents = (f"{100 * share:.1f} %" for share in shares)
    return (str(errors.count), f"{errors.bias:.2f}", *percents, rank)


def _worst(samples: Sequence[Priced]) -> Table:
    rows = [
        (
            f"{sample.ratio:.2f}",
            sampling.described(sample.case),
            sample.variants,
            f"{1e6 * sample.measured:.1f} µs",
            _resources(sample),
        )
        for sample in samples
    ]
    return table(">ratio", "shape", "variant", ">takes", "what decides the price", rows=rows)


def _resources(sample: Priced) -> str:
    shares = list(sample.shares().items())[:_SHOWN]
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share > 0)


def _document(
    setting: Setting, priced: Sequence[Priced], without: int, worst: int
) -> dict[str, object]:
    return {
        **sampling.setting_document(setting),
        "without_a_price": without,
        **_numbers(summarise_errors(priced)),
        "families": {name: _numbers(own) for name, own in errors_by_family(priced).items()},
        "worst": [{**_sample(s), "shares": dict(s.shares())} for s in farthest(priced, worst)],
        "samples": [_sample(sample) for sample in priced],
    }


def _numbers(errors: Errors) -> dict[str, object]:
    return {
        "shapes": errors.count,
        "bias": errors.bias,
        "median": errors.median,
        "p90": errors.p90,
        "spread": errors.spread,
        "rank_correlation": None if math.isnan(errors.rank) else errors.rank,
    }


def _sample(sample: Priced) -> dict[str, object]:
    return {
        **sampling.case_document(sample.case),
        "variants": sample.variants,
        "predicted": sample.predicted,
        "measured": sample.measured,
    }
