"""One page of HTML about a model: its time along every dimension, its kernels, its memory.

The page needs nothing else: styles and figures are in it, and nothing is loaded. Start with
:func:`page`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

from tilewright.bench.choices import Regions, Regrets, named_alike
from tilewright.bench.explain import KernelReport, ModelReport, signed_seconds
from tilewright.bench.figures import (
    COLOURS,
    MOST_STRIPS,
    PHONE,
    WINDOW,
    Paper,
    kernel_bars,
    latency_lines,
    region_strips,
    roofline,
)
from tilewright.bench.report import Report
from tilewright.runtime.results import Memory
from tilewright.support.text import format_bytes, format_count, format_seconds

Sweep = Mapping[str, Sequence[Mapping[str, int]]]  # the shapes along each dimension

_MOST_STEPS = 12  # of a table that are shown before it is opened
_STYLE = (
    COLOURS
    + """
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0 .8rem; } .soft { color: var(--soft); }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; } .phone { display: none; max-width: 30rem; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; }
td, th { padding: .2rem .6rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
td.name, th.name { text-align: left; white-space: normal; min-width: 11rem; }
summary { cursor: pointer; } details { margin: .2rem 0 1.2rem; }
@media (max-width: 44rem) { .window { display: none; } .phone { display: block; }
  td.name, th.name { min-width: 6rem; } }
"""
)


@dataclass(frozen=True)
class PageContents:
    """What a page is about: a model at a shape, its calls and its memory at others.

    ``compile_seconds`` is the time of the compilation, ``code_bytes`` the size of the machine code.
    ``latencies`` are the times of calls at the shapes of ``sweep``, ``regions`` what is chosen
    along each dimension, and ``regrets`` what choices lose at the shape.
    """

    report: ModelReport
    compile_seconds: float
    code_bytes: int
    sweep: Sweep
    latencies: Report
    memory: Sequence[tuple[Mapping[str, int], Memory]]
    regions: Sequence[Regions]
    regrets: Regrets


def page(contents: PageContents) -> str:
    """The text of the page."""
    report = contents.report
    parts = [
        f"<h1>{escape(report.name)}</h1>", _summary(contents), *_latencies(contents),
        *(_steps(report) if report.steps else _kernels(report)), *_roofline(report),
        *_regrets(contents), *_regions(contents), *_memory(contents),
    ]  # fmt: skip
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(report.name)}, tilewright</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _drawn(figure: Callable[[Paper], str]) -> str:
    """A figure twice, of which a window or a phone shows the one that is drawn for it."""
    return f"<div class='window'>{figure(WINDOW)}</div><div class='phone'>{figure(PHONE)}</div>"


def _shape(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "its only shape"


def _summary(contents: PageContents) -> str:
    report = contents.report
    mean = contents.latencies.geometric_mean()
    beside = ""
    if mean is not None:
        count = format_count(len(contents.latencies.rows), "shape")
        beside = f" The best of the other engines takes {mean:.2f} times its time over {count}."
    compiled = format_seconds(contents.compile_seconds)
    what, limit = format_count(len(report.kernels), "kernel"), ""
    if report.kernels:
        limit = "; the least that the machine allows these kernels is "
        limit += format_seconds(report.limit)
        measured = sum(kernel.is_measured for kernel in report.kernels)
        if measured:
            limit += f". The planner priced {format_count(measured, 'kernel')} by running "
            limit += "it" if measured == 1 else "them"
    else:
        what = format_count(len(report.steps), "step")
    return (
        f"<p>Compiled once in {compiled} for {escape(report.level)} by the costs of "
        f"{escape(report.machine)}, with the {escape(report.plan)} plan: "
        f"{what}, {format_bytes(contents.code_bytes)} of "
        f"code. At {escape(_shape(report.shape))} a call takes {format_seconds(report.call)} on "
        f"{format_count(report.threads, 'thread')}{limit}.{beside}</p>"
    )


def _latencies(contents: PageContents) -> list[str]:
    rows = {tuple(row.case.items()): row for row in contents.latencies.rows}
    shown: list[str] = []
    for name, shapes in contents.sweep.items():
        lines: dict[str, list[tuple[int, float]]] = {}
        for shape in shapes:
            row = rows.get(tuple(shape.items()))
            for timing in () if row is None else row.timings:
                lines.setdefault(timing.contender, []).append((shape[name], timing.seconds.median))
        if not lines:
            continue
        others = {key: size for key, size in shapes[0].items() if key != name}
        beside = f" at {_shape(others)}" if others else ""
        figure = partial(latency_lines, name, lines)
        shown.append(f"<p>Along {escape(name)}{escape(beside)}</p>{_drawn(figure)}")
    shown += [f"<p class='soft'>{escape(text)}</p>" for text in _failures(contents.latencies)]
    return ["<h2>Time of a call</h2>", *shown] if shown else []


def _failures(latencies: Report) -> list[str]:
    """Which engines are missing, and why."""
    failed = [failure for row in latencies.rows for failure in row.failures]
    every = dict.fromkeys((*latencies.skipped, *failed))
    return [f"{failure.contender} is missing: {failure.reason}" for failure in every]


def _kernels(report: ModelReport) -> list[str]:
    legend = (
        "<p class='soft'>Bars are measured times, their dark part is the least that the machine "
        "allows, and the mark is the modelled time.</p>"
    )
    slowest = sorted(report.kernels, key=lambda kernel: -kernel.measured)
    rows = "".join(map(_row, slowest))
    heads = (
        "takes", "modelled", "of the limit", "instead", "saves", "one by one", "variant",
        "runner-up", "bytes",
        "multiply-adds", "padded",
    )  # fmt: skip
    head = "<th class='name'>kernel</th>" + "".join(f"<th>{name}</th>" for name in heads)
    other = ""
    if report.other > 0:
        other = f"<p>Operators without a kernel take {format_seconds(report.other)}.</p>"
    return [
        f"<h2>Time of each kernel at {escape(_shape(report.shape))}</h2>", legend,
        _drawn(partial(kernel_bars, report)), other,
        f"<details><summary>All {format_count(len(slowest), 'kernel')}</summary>"
        "<p class='soft'>Instead: the best "
        "choice of kernels without this one; saves: what that would take more, by the model. One "
        "by one: what the operators of the kernel would take more as kernels of their own. "
        "Runner-up: the variant that the model puts second, and how much longer it would take.</p>"
        f"<div class='wide'><table><tr>{head}</tr>{rows}</table></div></details>",
    ]  # fmt: skip


def _steps(report: ModelReport) -> list[str]:
    """The steps of a model of ragged batches, and what is not said of them."""
    total = sum(seconds for _, seconds in report.steps) or 1.0
    slowest = sorted(report.steps, key=lambda step: -step[1])
    rows = [
        f"<tr><td class='name'>{escape(label)}</td><td>{format_seconds(seconds)}</td>"
        f"<td>{100 * seconds / total:.1f} %</td></tr>"
        for label, seconds in slowest
    ]
    table = "<table><tr><th class='name'>step</th><th>takes</th><th>of the call</th></tr>"
    return [
        f"<h2>Time of each step at {escape(_shape(report.shape))}</h2>",
        "<p class='soft'>The model is for ragged batches: a step computes the positions of all "
        "sequences at once, or a part of the model for one sequence after the other. All figures "
        "of this page are of sequences that are equally long. Modelled times, limits of the "
        "machine, other kernels, the roofline, and choices within parts that run for each "
        "sequence are left out: they depend on more than one length. Compile the model without "
        "ragged batches to see them.</p>",
        f"<div class='wide'>{table}{''.join(rows[:_MOST_STEPS])}</table></div>",
        f"<details><summary>All {len(rows)} steps</summary><div class='wide'>{table}"
        f"{''.join(rows)}</table></div></details>" if len(rows) > _MOST_STEPS else "",
    ]  # fmt: skip


def _row(kernel: KernelReport) -> str:
    runner_up, other = "", kernel.rejected
    if kernel.runner_up and kernel.modelled:
        runner_up = f"{kernel.runner_up}, {kernel.runner_up_time / kernel.modelled:.2f}×"
    cells = (
        format_seconds(kernel.measured), format_seconds(kernel.modelled),
        f"{100 * min(kernel.share_of_limit, 1.0):.0f} %",
        "no other" if other is None else other.described,
        "" if other is None else signed_seconds(other.more),
        format_seconds(max(kernel.saving, 0.0)), kernel.variant, runner_up,
        format_bytes(kernel.bytes), f"{kernel.multiply_adds / 1e6:.1f} M",
        f"{100 * kernel.padded:.0f} %" if kernel.multiply_adds else "",
    )  # fmt: skip
    inside = f"<span class='soft'>{escape(', '.join(kernel.operators))}</span>"
    name = f"<td class='name'>{escape(kernel.label)}<br>{inside}</td>"
    return f"<tr>{name}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _roofline(report: ModelReport) -> list[str]:
    if not any(kernel.multiply_adds for kernel in report.kernels):
        return []
    return [
        "<h2>Roofline</h2><p class='soft'>A circle is a kernel with a product, as large as its "
        "share of the time. The line is the bandwidth of memory and the peak of the processor; "
        "what stays in a cache may lie above the bandwidth.</p>",
        _drawn(partial(roofline, report)),
    ]


def _regrets(contents: PageContents) -> list[str]:
    """What is lost at the shape by what calls choose."""
    regrets = contents.regrets
    head = f"<h2>Regret at {escape(_shape(contents.report.shape))}</h2>"
    if not regrets.found:
        return [head, "<p>No kernel has another variant.</p>"]
    heads = "<th class='name'>kernel</th><th>takes</th><th>lost</th><th class='name'>variant taken"
    heads += "</th><th class='name'>fastest</th><th>timed</th>"
    rows = "".join(
        f"<tr><td class='name'>{escape(named_alike(regret.kernels))}</td>"
        f"<td>{format_seconds(regret.seconds)}</td>"
        f"<td>{100 * regret.lost / regret.seconds:.0f} %</td>"
        f"<td class='name'>{escape(regret.taken)}</td>"
        f"<td class='name'>{escape(regret.fastest if regret.lost else 'the same')}</td>"
        f"<td>{regret.timed}</td></tr>"
        for regret in regrets.found
    )
    others = f" {format_count(regrets.others, 'other')} that take less were not timed."
    return [
        head,
        f"<p>The choices between variants that take the longest, {100 * regrets.share:.0f} % of "
        f"the time of kernels, lose {100 * regrets.lost:.1f} % of theirs beside the fastest "
        f"variant of each.{others if regrets.others else ''}</p>"
        "<p class='soft'>Each was timed in turns with up to five others, the cheapest by the "
        "model, all else as usual, and kernels that are alike together. Less than 2 % is noise, "
        "and counts as nothing.</p>"
        f"<details><summary>All {format_count(len(regrets.found), 'choice')}</summary>"
        f"<div class='wide'><table><tr>{heads}</tr>{rows}</table></div></details>",
    ]


def _regions(contents: PageContents) -> list[str]:
    """What is chosen over the declared ranges."""
    if not contents.regions:
        return []
    parts = [
        "<h2>What is chosen over the declared ranges</h2><p class='soft'>A strip is a choice: "
        "between ways to compute a part of the model, or between the variants of a kernel. A new "
        "colour is another one; the dashed line is the size that the rest of this page is about. "
        "Kernels that choose alike are one strip.</p>"
    ]
    for regions in contents.regions:
        name = escape(regions.dimension)
        others = {key: size for key, size in regions.base.items() if key != regions.dimension}
        beside = f" at {escape(_shape(others))}" if others else ""
        steady = format_count(regions.steady, "choice")
        if not regions.varying:
            parts.append(f"<p>Along {name}{beside}: all of {steady} fall on the same.</p>")
            continue
        more = f"; {steady} more fall on the same everywhere" if regions.steady else ""
        hidden = len(regions.varying) - MOST_STRIPS
        more += f"; {hidden} more strips are not shown" if hidden > 0 else ""
        parts.append(
            f"<p>Along {name}{beside}{more}.</p>"
            f"{_drawn(partial(region_strips, regions))}{_stretches(regions)}"
        )
    return parts


def _stretches(regions: Regions) -> str:
    """The strips in words, for who cannot point at them."""
    rows: list[str] = []
    for region in regions.varying[:MOST_STRIPS]:
        pieces = [
            f"{first if first == last else f'{first} to {last}'}: {region.name_of(taken)}"
            for first, last, taken in region.stretches(regions.sizes)
        ]
        rows.append(
            f"<tr><td class='name'>{escape(named_alike(region.kernels))}</td>"
            f"<td class='name'>{escape('; '.join(pieces))}</td></tr>"
        )
    return (
        "<details><summary>The strips in words</summary><div class='wide'><table>"
        f"<tr><th class='name'>kernel</th><th class='name'>{escape(regions.dimension)}</th></tr>"
        f"{''.join(rows)}</table></div></details>"
    )


def _memory(contents: PageContents) -> list[str]:
    rows = "".join(
        f"<tr><td class='name'>{escape(_shape(shape))}</td><td>{format_bytes(memory.arena)}</td>"
        f"<td>{format_bytes(memory.scratch)}</td><td>{format_bytes(memory.outputs)}</td></tr>"
        for shape, memory in contents.memory
    )
    weights = format_bytes(contents.report.memory.constants)
    heads = "<th>between kernels</th><th>scratch of a thread</th><th>outputs</th>"
    return [
        f"<h2>Memory</h2><p>Weights take {weights}, which all calls share.</p>",
        f"<div class='wide'><table><tr><th class='name'>shape</th>{heads}</tr>{rows}</table></div>",
    ]


__all__ = ["PageContents", "page"]
