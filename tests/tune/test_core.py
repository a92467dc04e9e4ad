"""A machine as it was measured: rates a cycle from rates a second, the shortest step of a size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.target import TileTime, preset
from tilewright.target.core_model import usual_core
from tilewright.target.loop_costs import WIDE
from tilewright.tune import LevelReads, MeasuredStreams, Profile, TileTiming, measured_machine


def timing(height: int, masked: bool, step: float, gathered: bool = False) -> TileTiming:
    return TileTiming(f"{height}{masked}{gathered}", height, 32, masked, gathered, step, 1.0, step)


def test_levels_are_read_as_measured_at_the_measured_clock() -> None:
    given = preset("zen4")
    reads = (LevelReads("L1", 500e9, given.units * 500e9), LevelReads("memory", 40e9, 100e9))
    target, core = measured_machine(Profile("avx512", 5.0, (), reads), given)
    assert target.clock_ghz == 5.0
    assert target.bytes_per_second("L1") == pytest.approx(500e9)
    instances = given.level("L1").instances
    assert target.level("L1").total_bandwidth * instances * 5e9 == pytest.approx(
        given.units * 500e9
    )
    assert target.bytes_per_second("memory", given.units) == pytest.approx(100e9)
    # What was not measured keeps its bytes a cycle, as caches go with the clock.
    assert target.level("L2").bandwidth == given.level("L2").bandwidth
    assert core.measured == ("clock_ghz", "levels.L1", "levels.memory")
    assert core.panels == usual_core(preset("zen4")).panels


def test_the_shortest_step_of_a_size_counts() -> None:
    tiles = (timing(6, False, 3.0), timing(6, True, 2.0), timing(5, False, 1.5))
    gathered = timing(5, False, 0.5, gathered=True)
    _, core = measured_machine(Profile("avx512", 4.0, (*tiles, gathered)), preset("zen4"))
    assert core.tiles == (TileTime(6, 32, 2.0), TileTime(5, 32, 1.5))
    assert "tiles" in core.measured and "loops" not in core.measured


def test_loops_cost_what_was_measured() -> None:
    loops = replace(WIDE, enter=9.0)
    _, core = measured_machine(Profile("avx512", 4.0, (), (), loops), preset("zen4"))
    assert core.loops.enter == 9.0 and "loops" in core.measured


def test_streams_are_what_was_measured() -> None:
    given = preset("zen4")
    profile = Profile("avx512", 4.0, (), streams=MeasuredStreams(32, 240e9))
    target, core = measured_machine(profile, given)
    assert core.streams.followed == 32 and "streams.followed" in core.measured
    assert "levels.L3.link" in core.measured
    # All links together write what was measured, and read twice as much.
    assert target.written_bandwidth(given.units) * 4e9 == pytest.approx(240e9)
    assert target.level("L3").link * given.level("L3").instances * 4e9 == pytest.approx(480e9)
