"""Reads of this machine: every level that can be told from memory, all cores not below one."""

from __future__ import annotations

from tilewright.target import detect
from tilewright.tune import measure_reads


def test_every_level_has_a_rate() -> None:
    target = detect()
    found = measure_reads(target)
    names = [level.name for level in target.levels]
    assert [reads.name for reads in found] == [n for n in names if n in {r.name for r in found}]
    assert {"L1", "memory"} <= {reads.name for reads in found}
    assert all(0 < reads.alone <= reads.together for reads in found)
