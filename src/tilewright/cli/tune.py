"""``tilewright tune``: measure the cores of this machine once, and keep the result.

Start with :func:`tune`.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from tilewright.backend.cpu.machine import host_level
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, table
from tilewright.support.text import format_count
from tilewright.target import detect
from tilewright.tune import (
    SURE,
    InterruptedTuning,
    Profile,
    load_profile,
    measure_loop_costs,
    measure_profile,
    measure_reads,
    measure_streams,
    save_profile,
    standard_shapes,
)
from tilewright.tune.store import profile_path


def tune(
    again: Annotated[bool, typer.Option(help="Measure even if a result is kept.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600.0, help="How long to measure, after compiling.")
    ] = 4.0,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Measure tiles, loops, the clock and reads from memory; keep them in the cache directory.

    What was measured before is not measured again. Ctrl-C keeps what there is. Beside each entry
    stands how far five blocks of time are apart.

    \b
    Example: tilewright tune
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    level = host_level()
    profile = None if again else load_profile(level.name)
    known = () if profile is None else profile.tiles
    names = {tile.name for tile in known}
    missing = [shape for shape in standard_shapes(level, detect()) if shape.name not in names]
    if profile is None or missing:
        try:
            with output.progress.activity("Measuring register tiles"):
                measured = measure_profile(level, missing, detect(), seconds)
        except InterruptedTuning as stop:
            save_profile(replace(stop.profile, tiles=(*known, *stop.profile.tiles)))
            output.note("Interrupted: what was measured is kept, less exact than it might be")
            raise
        profile = replace(measured, tiles=(*known, *measured.tiles))
        save_profile(profile)
    if not profile.reads:
        with output.progress.activity("Measuring reads from memory"):
            profile = replace(profile, reads=measure_reads(detect()))
        save_profile(profile)
    if profile.loops is None:
        with output.progress.activity("Measuring loops"):
            found = measure_loop_costs(level, detect(), profile.clock_ghz, seconds)
        profile = replace(profile, loops=found.costs, loop_spreads=found.spreads)
        save_profile(profile)
    if profile.streams is None:
        with output.progress.activity("Measuring streams"):
            profile = replace(profile, streams=measure_streams(detect()))
        save_profile(profile)
    path = profile_path(level.name)
    output.document({"path": str(path), **asdict(profile)})
    output.show(
        _times(profile),
        _reads(profile),
        _loops(profile),
        _streams(profile),
        f"{profile.clock_ghz:.2f} GHz ± {profile.clock_spread:.1%}. Kept in {path}",
        *how_sure(profile),
    )


def _streams(profile: Profile) -> str:
    found = profile.streams
    if found is None:
        return ""
    return (
        f"Hardware follows {format_count(found.followed, 'row', 'rows')} at a time; all cores "
        f"together write {found.written / 1e9:.0f} GB/s past the caches."
    )


def how_sure(profile: Profile) -> tuple[RenderableType, ...]:
    """How far blocks of time are apart for each kind of entry, and which entries are unsure."""
    kinds: dict[str, list[tuple[str, float]]] = {}
    for name, apart in profile.spreads():
        kinds.setdefault(name.split(" ", 1)[0].rstrip(":"), []).append((name, apart))
    rows: list[tuple[str, ...]] = []
    for kind, entries in kinds.items():
        middle = statistics.median(apart for _, apart in entries)
        name, worst = max(entries, key=lambda entry: entry[1])
        rows.append((kind, str(len(entries)), f"{middle:.1%}", f"{worst:.1%}", name))
    columns = ("measured", ">entries", ">± in the median", ">at most", "of")
    shown = table(*columns, rows=rows, title="How far five blocks of time are apart")
    unsure = sum(apart > SURE for _, apart in profile.spreads())
    if not unsure:
        return (shown,)
    text = f"{format_count(unsure, 'entry', 'entries')} by more than {SURE:.0%}"
    return shown, f"{text}: `tilewright tune --again` when the machine is quiet may do better."


def _times(profile: Profile) -> Table:
    rows = [
        (
            f"{tile.height} x {tile.columns}",
            ", ".join(("masked",) * tile.masked + ("gathered",) * tile.gathered),
            f"{tile.step_ns * profile.clock_ghz:.2f}",
            f"{tile.spread:.1%}",
            f"{tile.streamed_step_ns * profile.clock_ghz:.2f}",
            f"{tile.call_ns:.0f}",
            f"{tile.flops / 1e9:.0f}",
        )
        for tile in profile.tiles
    ]
    columns = (">tile", "", ">cycles a step", ">±", ">right from L2", ">ns a call", ">GFLOP/s")
    return table(*columns, rows=rows)


def _reads(profile: Profile) -> Table:
    rows = [
        (
            reads.name,
            f"{reads.alone / 1e9:.0f}",
            f"{reads.together / 1e9:.0f}",
            f"{reads.spread:.1%}",
        )
        for reads in profile.reads
    ]
    return table("level", ">GB/s of one core", ">of all", ">±", rows=rows)


def _loops(profile: Profile) -> Table:
    found = {} if profile.loops is None else asdict(profile.loops)
    costs = {name: value for name, value in found.items() if isinstance(value, float)}
    costs |= dict(profile.loops.functions if profile.loops else ())
    spreads = dict(profile.loop_spreads)
    rows = [
        (name, f"{cycles:.2f}", f"{spreads[name]:.1%}" if name in spreads else "")
        for name, cycles in costs.items()
    ]
    return table("loops", ">cycles", ">±", rows=rows)
