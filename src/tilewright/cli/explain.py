"""``tilewright explain`` and ``tilewright report``: what each kernel of a model does, and why.

Start with :func:`explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import onnx
import typer
from rich.console import RenderableType

from tilewright.bench import ModelContender, Settings, check_sizes, compare, parse_sizes
from tilewright.bench.choices import regions_along, regrets_at
from tilewright.bench.contender import Inputs
from tilewright.bench.explain import Explained, KernelReport, ModelReport, signed_seconds
from tilewright.bench.figures import kernel_bars, standalone
from tilewright.bench.page import PageContents, Sweep, page
from tilewright.bench.peers import PeerOptions, create_peers
from tilewright.bench.plan_model import plan_model
from tilewright.bench.report import Report
from tilewright.bench.shapes import Budget, plain_sizes, shapes_along
from tilewright.cli.options import (
    ConstantOptions,
    DimOptions,
    InputOptions,
    JsonFlag,
    MeasureFlag,
    ModelPath,
    PlanOption,
    QuietFlag,
    ThreadsOption,
    VerboseFlag,
    inputs_for,
    only_case,
    parse_constants,
    parse_dims,
    peer_names,
)
from tilewright.cli.output import Output, table
from tilewright.cli.sections import named
from tilewright.cli.usage import UsageError, as_usage
from tilewright.cli.writing import TEXTS, replacing, writable
from tilewright.options import PlanName
from tilewright.runtime.model import CompiledModel
from tilewright.support.text import format_bytes, format_count, format_seconds

_ShapeOption = Annotated[
    str | None,
    typer.Option("--shape", metavar="batch=1,seq=128", help="Ordinary sizes unless given."),
]
_Seconds = Annotated[float, typer.Option(min=0.1, help="How long to call the model, about.")]
_ORDINARY = (224, 128, 64, 33, 16, 7, 2)
_REGRET_SECONDS = 12.0
_LONGEST = 1.0  # seconds of a call along a dimension, by the model


def explain(
    path: ModelPath,
    shape: _ShapeOption = None,
    inputs: InputOptions = None,
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    plan: PlanOption = "greedy",
    measure: MeasureFlag = False,
    threads: ThreadsOption = None,
    seconds: _Seconds = 2.0,
    most: Annotated[int, typer.Option(min=1, help="How many kernels to show.")] = 20,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the kernels there.")
    ] = None,
    to_onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE.onnx", help="Write the plan there, for Netron."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Show what each kernel takes at a shape, beside the model of the machine and its limit.

    Of each kernel: the operators in it, its time as measured and as modelled, the share of what the
    machine can do, the best choice of kernels without it and what it saves beside that, its variant
    and the runner-up.

    \b
    Example: tilewright explain bert.onnx --shape batch=1,seq=128
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if svg is not None:
        writable(svg, TEXTS, [path])
    if to_onnx is not None:
        writable(to_onnx, [], [path])
    explained = _explained(path, dim, constants, plan, measure, threads, output)
    sizes = _sizes(explained.model, shape, inputs)
    with output.progress.activity("Calling the model"):
        feeds = inputs_for(explained.model, inputs, 0).at(sizes)
        called = explained.called(feeds, seconds)
    with output.progress.activity("Pricing other choices of kernels"):
        report = explained.at(sizes, called)
    if svg is not None:
        with replacing(svg) as file:
            file.write_text(standalone(kernel_bars(report)) + "\n", encoding="utf-8")
    if to_onnx is not None:
        with replacing(to_onnx) as file:
            onnx.save(plan_model(explained.made.graph, explained.plan, report.kernels), file)
    output.document(report.to_json())
    output.show(*_shown(report, most))
    for written in filter(None, (svg, to_onnx)):
        output.show(f"Wrote {written}")


def report(
    path: ModelPath,
    to: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write.")
    ],
    shape: _ShapeOption = None,
    against: Annotated[
        str, typer.Option(metavar="PEERS", help="Engines to time beside it, with commas.")
    ] = "none",
    dim: DimOptions = None,
    constants: ConstantOptions = None,
    plan: PlanOption = "greedy",
    measure: MeasureFlag = False,
    threads: ThreadsOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of timing for each shape.")] = 3,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Write a page about a model: its time along each dimension, its kernels, its memory.

    The page is one file that loads nothing else. Other engines appear in it where they are named.

    \b
    Example: tilewright report bert.onnx -o bert.html --against onnxruntime
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    writable(to, (*TEXTS, "html"), [path])
    fixed = parse_constants(constants)
    explained = _explained(path, dim, constants, plan, measure, threads, output)
    model = explained.model
    base = _sizes(model, shape, None)
    feeds = inputs_for(model, None, 0)
    budget = Budget(seconds=_LONGEST)
    sweep = {d.name: shapes_along(model, base, d, budget) for d in model.dimensions}
    cases = [dict(c) for c in {tuple(s.items()): s for along in sweep.values() for s in along}]
    with output.progress.activity("Setting up the peers"), as_usage():
        peers, skipped = create_peers(
            peer_names(against), path, PeerOptions(model.num_threads, fixed)
        )

    with output.progress.steps("Timing", len(cases)) as steps:
        latencies = compare(
            ModelContender(model, explained.second), peers, cases, feeds.at,
            threads=model.num_threads, skipped=skipped,
            settings=Settings(rounds=rounds, most_rounds=rounds),
            progress=lambda done, _, case: steps.at(done, case),
        )  # fmt: skip
    contents = _contents(explained, base, feeds.at(base), sweep, latencies, output)
    found, told = contents.report, {"file": str(to), "shapes": len(cases)}
    with replacing(to) as file:
        file.write_text(page(contents), encoding="utf-8")
    output.document({**told, **found.to_json(), "regret": asdict(contents.regrets)})
    what = format_count(len(found.steps), "step")
    if not explained.is_ragged:
        what = format_count(len(found.kernels), "kernel")
    output.show(f"Wrote {to}: {format_count(len(cases), 'shape')}, {what}")


def _contents(
    explained: Explained, base: Mapping[str, int], feeds: Inputs, sweep: Sweep, latencies: Report,
    output: Output,
) -> PageContents:  # fmt: skip
    """What a page shows, the times of calls included."""
    model = explained.model
    with output.progress.activity("Profiling"):
        called = explained.called(feeds, 2.0)
    with output.progress.activity("Pricing other choices of kernels"):
        look = explained.steps_at if explained.is_ragged else explained.at
        found = look(base, called)
    regions = [regions_along(model.program, base, d, found.threads) for d in model.dimensions]
    with output.progress.activity("Timing variants"):
        lost = regrets_at(explained.made.contents, model, base, feeds, _REGRET_SECONDS)
    code = sum(len(image.data) for image in explained.made.contents.images.values())
    memory = [(row.case, model.memory(**row.case)) for row in latencies.rows]
    return PageContents(found, explained.seconds, code, sweep, latencies, memory, regions, lost)


def _explained(
    path: Path, dim: Sequence[str] | None, constants: Sequence[str] | None, plan: str,
    measure: bool, threads: int | None, output: Output,
) -> Explained:  # fmt: skip
    with output.progress.activity(f"Compiling {path.name}"), as_usage(unsupported=False):
        return Explained(
            path, threads, dims=parse_dims(dim), constants=parse_constants(constants),
            plan=cast("PlanName", plan), measure=measure,
        )  # fmt: skip


def _sizes(
    model: CompiledModel, shape: str | None, files: Sequence[str] | None
) -> Mapping[str, int]:
    """The shape to look at."""
    with as_usage():
        if files:
            if shape:
                raise UsageError("The files of the inputs say the shape", hint="Leave --shape out")
            return only_case(model, inputs_for(model, files, 0))
        if shape is None:
            return plain_sizes(model, Budget(seconds=_LONGEST), 1, _ORDINARY)
        sizes = parse_sizes(shape) if shape.strip() else {}
        check_sizes(model, sizes)
        return sizes


def _shown(found: ModelReport, most: int) -> list[RenderableType]:
    slowest = sorted(found.kernels, key=lambda kernel: -kernel.measured)[:most]
    columns = ("kernel", "kind", ">takes", ">modelled", ">of limit", "instead", ">saves", "variant",
               "runner-up", ">bytes", ">padded")  # fmt: skip
    shape = ", ".join(f"{name}={size}" for name, size in found.shape.items())
    assumed = ", ".join(f"{name}={size}" for name, size in found.assumed.items())
    total = sum(kernel.measured for kernel in found.kernels)
    where = f" at {shape}" if shape else ""
    measured = [kernel.label for kernel in found.kernels if kernel.is_measured]
    return [
        table(*columns, rows=[_cells(kernel) for kernel in slowest]),
        "",
        f"{found.name}{where}: {format_seconds(found.call)} for a call on "
        f"{found.threads} threads, {len(found.kernels)} kernels of the {found.plan} plan at "
        f"{found.level}, {format_seconds(total)} in sum, of which the machine allows no less than "
        f"{format_seconds(found.limit)}",
        *([f"Planned in parts, which lose at most {100 * found.lost:.2f} %"] if found.lost else []),
        *(f"Layout by price: {part}" for part in found.layouts),
        *([f"Modelled for sizes that depend on values: {assumed}"] if assumed else []),
        *([f"Priced by measurement: {named(measured)}"] if measured else []),
        *([f"Without a kernel: {format_seconds(found.other)}"] if found.other else []),
        f"Memory: {format_bytes(found.memory.constants)} of weights, "
        f"{format_bytes(found.memory.arena)} between kernels",
    ]


def _cells(kernel: KernelReport) -> tuple[str, ...]:
    runner_up = ""
    if kernel.runner_up and kernel.modelled:
        runner_up = f"{kernel.runner_up} ({kernel.runner_up_time / kernel.modelled:.2f}×)"
    return (
        kernel.label,
        f"{kernel.kind}, {len(kernel.operators)} operators",
        format_seconds(kernel.measured),
        format_seconds(kernel.modelled),
        f"{100 * min(kernel.share_of_limit, 1.0):.0f} %",
        "no other" if kernel.rejected is None else kernel.rejected.described,
        "" if kernel.rejected is None else signed_seconds(kernel.rejected.more),
        kernel.variant,
        runner_up,
        format_bytes(kernel.bytes),
        f"{100 * kernel.padded:.0f} %" if kernel.multiply_adds else "",
    )
