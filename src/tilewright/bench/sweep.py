# pyright: basic
"""Speed along one axis: whether neighbouring sizes run at neighbouring speeds.

A dip is how far a size is below the line through its neighbours. Where there seems to be one, the
three sizes take turns, as a processor that others share is faster at times and slower at others.
May import compile and the rest of the package. Start with `measure_sweep`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.bench.clock import Clock, clock_for
from tilewright.bench.operators import Group, build_model, make_problem, make_weight
from tilewright.bench.suites import Case
from tilewright.bench.turns import time_variants
from tilewright.bench.variants import chosen_variants, described
from tilewright.compile import compile_stages
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import InputError

_SUSPICIOUS = 0.02  # a dip from which on a size is timed in turns with its neighbours
_PASSES = 3  # times, of which the median counts


@dataclass(frozen=True)
class Point:
    """One size, its speed, and the variant chosen there."""

    size: int
    gflops: float
    variant: str


@dataclass(frozen=True)
class Sweep:
    """Points in the order of the sizes of ``axis``.

    ``dips`` are what each inner point is below the line through its two neighbours, 0.1 for a
    tenth.
    """

    axis: str
    fixed: str
    points: tuple[Point, ...]
    dips: tuple[float, ...]


def dips_of(speeds: Sequence[float]) -> tuple[float, ...]:
    """How far each speed is below the mean of the two beside it; 0 at the ends and above."""
    inner = [
        max(0.0, 1.0 - 2.0 * here / (before + after))
        for before, here, after in zip(speeds, speeds[1:], speeds[2:], strict=False)
    ]
    return (0.0, *inner, 0.0) if len(speeds) > 1 else tuple(0.0 for _ in speeds)


def parse_sweep(text: str) -> tuple[str, range, dict[str, int]]:
    """The axis, its sizes, and the other sizes of "M=1..600,N=2304,K=768" (a step as ..600:8)."""
    axis, sizes, fixed = "", range(0), dict[str, int]()
    for piece in text.split(","):
        name, _, value = (part.strip() for part in piece.partition("="))
        low, dots, rest = value.partition("..")
        high, _, step = rest.partition(":")
        try:
            if dots:
                axis, sizes = name, range(int(low), int(high) + 1, int(step or 1))
            else:
                fixed[name] = int(value)
        except ValueError:
            raise InputError(f"{piece!r} is no size.", hint="Write M=1..600,N=2304,K=768") from None
    if axis not in ("M", "N", "K") or set(fixed) | {axis} != {"M", "N", "K"} or not len(sizes):
        hint = "Give one of M, N and K as a range, the others as numbers: M=1..600,N=2304,K=768"
        raise InputError(f"{text!r} is no sweep.", hint=hint)
    if min(sizes[0], *fixed.values()) < 1:
        raise InputError("A size is below 1.", where=text, hint="Start ranges at 1")
    return axis, sizes, fixed


def measure_sweep(
    text: str,
    threads: int,
    seconds: float,
    progress: Callable[[int], None],
    clock: Clock | None = None,
) -> Sweep:
    """Time every size; weights are constant where only M varies. Raises InputError."""
    axis, sizes, fixed = parse_sweep(text)
    clock = clock or clock_for(threads)
    ranges = {axis: (sizes[0], sizes[-1])}
    shared = {**fixed, "trans_a": 0, "trans_b": 0}
    group = Group("gemm", "right" if axis == "M" else "none", shared, ranges, ())
    weight = make_weight(group)
    made = compile_stages(build_model(group, group.extents, weight), dims=ranges, fallback="error")
    model = CompiledModel.from_contents(made.contents, num_threads=threads)
    each = seconds / (2 * len(sizes))

    def speeds(*chosen: int) -> list[float]:
        cases = [Case("sweep", str(size), "gemm", {**shared, axis: size}) for size in chosen]
        arrays = [make_problem(group, case, weight).inputs.values() for case in cases]
        took = time_variants([partial(model, *x) for x in arrays], clock, each * len(cases))
        return [case.flops / t / 1e9 for case, t in zip(cases, took, strict=True)]

    found: list[float] = []
    for done, size in enumerate(sizes):
        progress(done)
        found += speeds(size)
    dips = list(dips_of(found))
    for place, dip in enumerate(dips):
        if dip > _SUSPICIOUS:
            near = sizes[place - 1 : place + 2]
            dips[place] = statistics.median(dips_of(speeds(*near))[1] for _ in range(_PASSES))
    program = model.program
    points = tuple(
        Point(size, speed, described(program, chosen_variants(program, {axis: size}, threads)))
        for size, speed in zip(sizes, found, strict=True)
    )
    rest = ", ".join(f"{name}={size}" for name, size in fixed.items())
    return Sweep(axis, rest, points, tuple(dips))
