"""This machine as it was measured: its clock, register tiles, loops, and what memory moves.

What was not measured is as in the description of the machine and in the price list of cores like
its own. Imports target. Start with :func:`measured_machine`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.target import CoreModel, MemoryLevel, Target, TileTime, with_clock
from tilewright.target.core_model import usual_core
from tilewright.tune.profile import Profile


def measured_machine(profile: Profile, target: Target) -> tuple[Target, CoreModel]:
    """``target`` and its cores as ``profile`` found them."""
    core = usual_core(target)
    tiles = _tiles(profile)
    measured = ("clock_ghz", *(f"levels.{reads.name}" for reads in profile.reads))
    measured += ("tiles",) if tiles else ()
    if profile.loops is not None:
        core, measured = replace(core, loops=profile.loops), (*measured, "loops")
    if profile.streams is not None:
        streams = replace(core.streams, followed=profile.streams.followed)
        core = replace(core, streams=streams)
        measured = (*measured, "streams.followed", f"levels.{target.levels[-2].name}.link")
    return _target(profile, target), replace(core, tiles=tiles, measured=measured)


def _target(profile: Profile, target: Target) -> Target:
    clocked = with_clock(target, profile.clock_ghz)
    reads = {reads.name: reads for reads in profile.reads}

    def level(given: MemoryLevel) -> MemoryLevel:
        found = reads.get(given.name)
        if found is None:
            return given
        cycles = 1e9 * profile.clock_ghz
        together = found.together / given.instances
        return replace(given, bandwidth=found.alone / cycles, total_bandwidth=together / cycles)

    levels = list(map(level, clocked.levels))
    if profile.streams is not None:  # a link writes half of what it reads
        each = 2 * profile.streams.written / levels[-2].instances
        levels[-2] = replace(levels[-2], link=each / (1e9 * profile.clock_ghz))
    return replace(clocked, levels=tuple(levels))


def _tiles(profile: Profile) -> tuple[TileTime, ...]:
    """The shortest step of each size: a masked tile does all that the plain one does."""
    steps: dict[tuple[int, int], float] = {}
    for tile in profile.tiles:
        if not tile.gathered:
            size = tile.height, tile.columns
            steps[size] = min(tile.step_ns, steps.get(size, tile.step_ns))
    return tuple(TileTime(*size, step) for size, step in steps.items())
