"""Figures as SVG text, without a library: bars of kernels, lines over sizes, strips of choices.

Each is drawn for a :class:`Paper`, as wide as a window or as a phone. Colours are CSS variables,
which a page sets for light and dark; a figure alone brings its own. Start with :func:`kernel_bars`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tilewright.bench.choices import Region, Regions
from tilewright.bench.explain import KernelReport, ModelReport, signed_seconds
from tilewright.support.text import format_seconds

_Format = Callable[[float], str]


@dataclass(frozen=True)
class Paper:
    """How many pixels a figure is wide, and what of it is for names, times and engines.

    Names stand above what they name where there is no room for them beside it.
    """

    width: int
    names: int
    times: int
    engines: int

    @property
    def above(self) -> int:
        """The height of a name that stands above."""
        return 0 if self.names else 16

    @property
    def left(self) -> int:
        """Where strips begin: so that the number below their end is whole."""
        return self.names or 6

    @property
    def name_characters(self) -> int:
        """How many characters of a name are shown."""
        return int((self.names or self.width) / _CHARACTER) - 4

    def name(self, text: str, y: float, title: str = "") -> str:
        """A name beside what has its base line at ``y``, or above it."""
        where = f"x='{self.names - 8}' y='{y:g}' text-anchor='end'"
        if not self.names:
            where = f"x='0' y='{y:g}'"
        tip = f"<title>{escape(title)}</title>" if title else ""
        return f"<text {where} fill='var(--ink)' {_TEXT}>{tip}{escape(text)}</text>"


WINDOW = Paper(720, 250, 170, 110)
PHONE = Paper(360, 0, 150, 94)
COLOURS = """
:root { --ink: #1c2330; --soft: #6b7484; --line: #d5dae3; --paper: #ffffff;
  --own: #2864c7; --deep: #163a75; --mark: #c2410c; --other1: #7a8899; --other2: #a16207;
  --other3: #6d28d9; --other4: #0f766e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b5; --line: #3a4354;
  --paper: #151a23; --own: #6ea2f2; --deep: #2f5fae; --mark: #fb923c; --other1: #94a3b8;
  --other2: #eab308; --other3: #a78bfa; --other4: #2dd4bf; } }
"""
_OTHERS = ("var(--other1)", "var(--other2)", "var(--other3)", "var(--other4)")
_TEXT = "font-family='system-ui, sans-serif' font-size='12'"
_ROW, _MOST_BARS = 20, 30
_SMALL = "font-family='system-ui, sans-serif' font-size='11'"
_STRIP, MOST_STRIPS, _CHARACTER, _FEWEST_SHOWN, _TICKS_APART = 24, 16, 6.2, 6, 30
_PIECES = ("var(--own)", "var(--other2)", "var(--other4)", "var(--other3)", "var(--mark)")
_LEFT, _TOP, _BOTTOM, _HEIGHT = 62, 12, 34, 260


def standalone(figure: str) -> str:
    """A figure as a file of its own."""
    return figure.replace("<title>", f"<style>{COLOURS}</style><title>", 1)


def kernel_bars(report: ModelReport, paper: Paper = WINDOW) -> str:
    """A bar for each of the slowest kernels: its time, the part that is the limit, the model's.

    Beside it stands what it saves, by the model, beside the best choice of kernels without it.
    """
    kernels = sorted(report.kernels, key=lambda k: -k.measured)[:_MOST_BARS]
    longest = max((max(k.measured, k.modelled) for k in kernels), default=1.0) or 1.0
    scale = (paper.width - paper.names - paper.times) / longest
    row = _ROW + paper.above
    rows = [_bar(paper, k, n * row + 4, scale) for n, k in enumerate(kernels)]
    title = f"Time of the {len(kernels)} slowest kernels"
    return _figure(paper, title, len(kernels) * row + 10, rows)


def _bar(paper: Paper, kernel: KernelReport, top: int, scale: float) -> str:
    left, y = paper.names, top + paper.above
    end = left + scale * kernel.measured
    limit = min(kernel.limit, kernel.measured)
    mark = left + scale * kernel.modelled
    tip = (
        f"{kernel.label}: {format_seconds(kernel.measured)}, modelled "
        f"{format_seconds(kernel.modelled)}, limit {format_seconds(kernel.limit)}"
    )
    saves = ""
    if kernel.rejected is not None:
        saved = signed_seconds(kernel.rejected.more)
        saves = f", saves {saved}"
        tip += f"; saves {saved} beside {kernel.rejected.described}"
    return (
        f"<g><title>{escape(tip)}</title>"
        f"{paper.name(_shortened(kernel.label, paper.name_characters), top + 12)}"
        f"<rect x='{left}' y='{y + 2}' height='13' width='{scale * kernel.measured:.1f}' "
        "fill='var(--own)'/>"
        f"<rect x='{left}' y='{y + 2}' height='13' width='{scale * limit:.1f}' "
        "fill='var(--deep)'/>"
        f"<line x1='{mark:.1f}' x2='{mark:.1f}' y1='{y}' y2='{y + 17}' stroke='var(--mark)' "
        "stroke-width='2'/>"
        f"<text x='{max(end, mark) + 6:.1f}' y='{y + 12}' fill='var(--soft)' {_TEXT}>"
        f"{format_seconds(kernel.measured)}{saves}</text></g>"
    )


def roofline(report: ModelReport, paper: Paper = WINDOW) -> str:
    """Multiply-adds in a second over multiply-adds for a byte, below what the machine allows."""
    kernels = [k for k in report.kernels if k.multiply_adds and k.bytes and k.measured]
    points = [(k.multiply_adds / k.bytes, k.multiply_adds / k.measured, k) for k in kernels]
    low = min([report.peak / report.bandwidth / 8, *(x for x, _, _ in points)])
    high = max([report.peak / report.bandwidth * 8, *(x for x, _, _ in points)])
    bottom = min([report.peak / 30, *(y for _, y, _ in points)])
    # Algorithms with fewer multiply-adds than the plain one, as Winograd's, may lie above the peak.
    top = max([report.peak, *(y for _, y, _ in points)]) * 1.5
    axes = _Axes(paper, low, high, bottom, top)
    roof = [(low, low * report.bandwidth), (report.peak / report.bandwidth, report.peak)]
    roof.append((high, report.peak))
    shown = axes.ticks("multiply-adds for a byte", _plain, lambda v: f"{v / 1e9:g} G/s")
    shown.append(axes.line([(x, max(y, bottom)) for x, y in roof], "var(--mark)"))
    total = sum(k.measured for k in kernels) or 1.0
    for x, y, kernel in points:
        radius = 3 + 12 * math.sqrt(kernel.measured / total)
        tip = f"{kernel.label}: {y / 1e9:.0f} billion in a second, {x:.1f} for a byte"
        shown.append(
            f"<circle cx='{axes.x(x):.1f}' cy='{axes.y(y):.1f}' r='{radius:.1f}' "
            f"fill='var(--own)' fill-opacity='0.5'><title>{escape(tip)}</title></circle>"
        )
    return _figure(paper, "Multiply-adds of kernels below the roofline", _HEIGHT, shown)


def latency_lines(
    name: str, lines: Mapping[str, Sequence[tuple[int, float]]], paper: Paper = WINDOW
) -> str:
    """Seconds over the sizes of one dimension, a line for each engine; the first is our own."""
    every = [point for points in lines.values() for point in points]
    sizes, times = [x for x, _ in every], [y for _, y in every]
    axes = _Axes(paper, min(sizes), max(sizes), min(times) / 1.3, max(times) * 1.3)
    shown = axes.ticks(name, _plain, format_seconds)
    last = [(points[-1][1], engine) for engine, points in lines.items()]
    places = _spread_out([axes.y(y) for y, _ in last])
    for number, (engine, points) in enumerate(lines.items()):
        colour = "var(--own)" if number == 0 else _OTHERS[(number - 1) % len(_OTHERS)]
        shown.append(axes.line(points, colour, 3 if number == 0 else 2))
        for size, seconds in points:
            tip = f"{engine}, {name}={size}: {format_seconds(seconds)}"
            shown.append(
                f"<circle cx='{axes.x(size):.1f}' cy='{axes.y(seconds):.1f}' r='3' "
                f"fill='{colour}'><title>{escape(tip)}</title></circle>"
            )
        shown.append(
            f"<text x='{axes.end + 8}' y='{places[number] + 4:.1f}' fill='{colour}' {_TEXT}>"
            f"{escape(engine)}</text>"
        )
    return _figure(paper, f"Time of a call over {name}", _HEIGHT, shown)


def region_strips(regions: Regions, paper: Paper = WINDOW) -> str:
    """What each choice that varies along a dimension takes at its sizes, a strip for each.

    The dashed line is the size at which the rest of a page is about.
    """
    shown = regions.varying[:MOST_STRIPS]
    low, last_size = min(regions.sizes), max(regions.sizes)
    before = max((size for size in regions.sizes if size < last_size), default=1)
    high = max(last_size**2 / before, last_size + 1)  # as wide a piece for the last as before it
    row = _STRIP + paper.above
    height = len(shown) * row + 40
    base = height - 34

    def place(size: float) -> float:
        share = math.log(min(max(size, low), high) / low) / math.log(high / low)
        return paper.left + share * (paper.width - paper.left - 12)

    parts: list[str] = []
    for number, region in enumerate(shown):
        parts += _strip(paper, regions, region, number * row + 4, place)
    for value in _apart(_round_numbers(low, last_size), place):
        parts.append(
            f"<text x='{place(value):.1f}' y='{base + 14}' text-anchor='middle' fill='var(--soft)' "
            f"{_TEXT}>{_plain(value)}</text>"
        )
    at = regions.base[regions.dimension]
    if at > 0:
        parts.append(
            f"<line x1='{place(at):.1f}' x2='{place(at):.1f}' y1='2' y2='{base}' "
            "stroke='var(--mark)' stroke-width='1.5' stroke-dasharray='4 3'/>"
        )
    parts.append(
        f"<text x='{(paper.left + paper.width) / 2:.0f}' y='{height - 4}' text-anchor='middle' "
        f"fill='var(--ink)' {_TEXT}>{escape(regions.dimension)}</text>"
    )
    return _figure(paper, f"Choices along {regions.dimension}", height, parts)


def _strip(
    paper: Paper, regions: Regions, region: Region, top: int, place: Callable[[float], float]
) -> Iterator[str]:
    """One choice: its name, and a piece for each stretch of sizes at which it falls on the same."""
    others = len(region.kernels) - 1
    more = f" and {others} more" if others else ""
    name = _shortened(region.kernels[0], paper.name_characters - len(more)) + more
    y = top + paper.above
    yield paper.name(name, top + 15 - paper.above / 4, "; ".join(region.kernels))
    colours = {n: _PIECES[k % len(_PIECES)] for k, n in enumerate(dict.fromkeys(region.taken))}
    following = {size: after for size, after in pairwise(regions.sizes)}
    for first, last, taken in region.stretches(regions.sizes):
        left, right = place(first), place(following.get(last, math.inf))
        text, width = region.name_of(taken), max(right - left, 1.0)
        tip = f"{regions.dimension} {first} to {last}: {text}"
        tip += f" ({region.names[taken]})" if region.is_way else ""
        yield (
            f"<g><title>{escape(tip)}</title><rect x='{left:.1f}' y='{y + 2}' height='18' "
            f"width='{width:.1f}' fill='{colours[taken]}' fill-opacity='0.35' "
            "stroke='var(--paper)'/>"
        )
        fitting = int((width - 8) / _CHARACTER)
        if fitting >= min(len(text), _FEWEST_SHOWN):
            yield (
                f"<text x='{left + 4:.1f}' y='{y + 15}' fill='var(--ink)' {_SMALL}>"
                f"{escape(_shortened(text, fitting))}</text>"
            )
        yield "</g>"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class _Axes:
    """Logarithmic axes, up to ``end`` from the left."""

    def __init__(self, paper: Paper, left: float, right: float, bottom: float, top: float) -> None:
        self.end = paper.width - paper.engines
        self.left, self.right = left, max(right, left * 1.01)
        self.bottom, self.top = bottom, max(top, bottom * 1.01)

    def x(self, value: float) -> float:
        share = math.log(value / self.left) / math.log(self.right / self.left)
        return _LEFT + share * (self.end - _LEFT)

    def y(self, value: float) -> float:
        share = math.log(value / self.bottom) / math.log(self.top / self.bottom)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: int = 2) -> str:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'/>"

    def ticks(self, label: str, of_x: _Format, of_y: _Format) -> list[str]:
        """Lines and numbers of both axes, and what the horizontal one is."""
        shown: list[str] = []
        base, end = _HEIGHT - _BOTTOM, self.end
        for value in _apart(_round_numbers(self.left, self.right), self.x):
            shown.append(
                f"<line x1='{self.x(value):.1f}' x2='{self.x(value):.1f}' y1='{_TOP}' y2='{base}' "
                "stroke='var(--line)' stroke-width='0.5'/>"
                f"<text x='{self.x(value):.1f}' y='{base + 14}' text-anchor='middle' "
                f"fill='var(--soft)' {_TEXT}>{escape(of_x(value))}</text>"
            )
        for value in _round_numbers(self.bottom, self.top):
            shown.append(
                f"<line x1='{_LEFT}' x2='{end}' y1='{self.y(value):.1f}' y2='{self.y(value):.1f}' "
                "stroke='var(--line)' stroke-width='0.5'/>"
                f"<text x='{_LEFT - 6}' y='{self.y(value) + 4:.1f}' text-anchor='end' "
                f"fill='var(--soft)' {_TEXT}>{escape(of_y(value))}</text>"
            )
        middle = (_LEFT + end) / 2
        shown.append(
            f"<text x='{middle:.0f}' y='{_HEIGHT - 4}' text-anchor='middle' fill='var(--ink)' "
            f"{_TEXT}>{escape(label)}</text>"
        )
        return shown


def _plain(value: float) -> str:
    return f"{value:g}"


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two numbers, or the powers alone if these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    every = [step * 10.0**power for power in powers for step in steps]
    return [value for value in every if low <= value <= high]


def _apart(values: Iterable[float], place: Callable[[float], float]) -> Iterator[float]:
    """Those of ascending numbers whose texts below an axis do not touch the one before."""
    last = -math.inf
    for value in values:
        if place(value) - last >= _TICKS_APART:
            last = place(value)
            yield value


def _spread_out(places: Sequence[float], apart: float = 14.0) -> list[float]:
    """The places moved down as far as needed for none to cover another."""
    moved = list(places)
    order = sorted(range(len(places)), key=places.__getitem__)
    for before, number in pairwise(order):
        moved[number] = max(moved[number], moved[before] + apart)
    return moved


def _figure(paper: Paper, title: str, height: int, parts: Sequence[str]) -> str:
    box = f"viewBox='0 0 {paper.width} {height}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {box} role='img'>"
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


__all__ = [
    "COLOURS",
    "MOST_STRIPS",
    "PHONE",
    "WINDOW",
    "Paper",
    "kernel_bars",
    "latency_lines",
    "region_strips",
    "roofline",
    "standalone",
]
