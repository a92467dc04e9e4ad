"""Small tile programs are compiled and timed."""

from __future__ import annotations

import pytest

from tilewright.backend.cpu.machine import host_level
from tilewright.target import detect
from tilewright.tune.blocks import BLOCKS, typical
from tilewright.tune.loop_probes import measure_loop_costs
from tilewright.tune.probes import Probe, time_probes

COPY = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. n
    o0[_i1*n + _i2] = exponential(b0[_i1*n + _i2])
"""


def test_more_elements_take_longer() -> None:
    """Sixteen times as many take several times as long."""
    few, many = (
        Probe(COPY, {"rows": rows, "n": 256}, {"b0": rows * 256, "o0": rows * 256})
        for rows in (16, 256)
    )
    first, second = time_probes(host_level(), (few, many), 0.05)
    assert len(first) == len(second) == BLOCKS
    assert 0 < 4 * typical(first) < typical(second)


@pytest.mark.slow
def test_every_cost_is_measured() -> None:
    """Functions are dearer than an instruction, and no cost is negative."""
    found = measure_loop_costs(host_level(), detect(), detect().clock_ghz, 0.2)
    costs = found.costs
    assert {"enter", "load", "exponential"} <= set(dict(found.spreads))
    assert all(apart >= 0 for _, apart in found.spreads)
    assert min(cycles for _, cycles in costs.functions) > costs.instruction > 0
    assert min(costs.load, costs.store, costs.scalar, costs.gather, *costs.reached) > 0
