from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.fake_system import AVX2, AVX512, caches, siblings, write, x86
from tilewright.support.processors import (
    allowed_processors,
    processor_list,
    quota,
    usable_processors,
    usable_units,
)
from tilewright.target import detect, narrowed, preset
from tilewright.target.core_model import usual_core
from tilewright.target.description import check


def test_this_machine() -> None:
    target = check(detect(), "here")
    assert target == detect()
    assert target.kind == "cpu" and target.units >= 1


def test_nothing_is_known(tmp_path: Path) -> None:
    target = check(detect(tmp_path, (0, 1)), "nothing")
    assert target.isa == "x86-64"
    assert target.units == 2


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "base"),
    [
        ("AuthenticAMD", 0x19, 0x01, AVX2, "zen3"),
        ("AuthenticAMD", 0x19, 0x11, AVX512, "zen4"),
        ("AuthenticAMD", 0x19, 0x61, AVX512, "zen4"),
        ("AuthenticAMD", 0x1A, 0x02, AVX512, "zen5"),
        ("AuthenticAMD", 0x17, 0x31, AVX2, "haswell"),
        ("GenuineIntel", 6, 85, AVX512, "skylake-x"),
        ("GenuineIntel", 6, 106, AVX512, "icelake-server"),
        ("GenuineIntel", 6, 143, AVX512, "sapphire-rapids"),
        ("GenuineIntel", 6, 63, AVX2, "haswell"),
        ("GenuineIntel", 6, 999, AVX512, "icelake-server"),
        ("GenuineIntel", 6, 999, AVX2, "haswell"),
        ("Unheard", 1, 1, "fpu sse2", "x86-64"),
    ],
)
def test_families(
    tmp_path: Path, vendor: str, family: int, model: int, flags: str, base: str
) -> None:
    x86(tmp_path, vendor, family, model, flags, "Some CPU")
    target = check(detect(tmp_path, (0,)), "fake")
    assert target.name == f"Some CPU, as {base}"
    assert target.isa == preset(base).isa
    assert target.vector_bytes == preset(base).vector_bytes


def test_hidden_features_narrow_the_vectors(tmp_path: Path) -> None:
    x86(tmp_path, "AuthenticAMD", 0x1A, 2, AVX2)
    target = check(detect(tmp_path, (0,)), "fake")
    assert (target.isa, target.vector_bytes, target.vector_registers) == ("avx2", 32, 16)
    assert target.multiply_adds_per_cycle("float32") == 16.0
    assert target.instruction_tiles == ()
    x86(tmp_path, "GenuineIntel", 6, 143, "fpu sse2")
    target = check(detect(tmp_path, (0,)), "fake")
    assert (target.isa, target.vector_bytes) == ("x86-64", 16)


def test_matrix_instructions_need_their_features(tmp_path: Path) -> None:
    x86(tmp_path, "GenuineIntel", 6, 143, f"{AVX512} avx512_vnni amx_bf16")
    tiles = [(tile.name, tile.dtype) for tile in detect(tmp_path, (0,)).instruction_tiles]
    assert tiles == [("dot4", "int8"), ("amx", "bfloat16")]
    assert detect(tmp_path, (0,)).multiply_adds_per_cycle("float16") == 0.0


def test_caches_and_sharing(tmp_path: Path) -> None:
    x86(tmp_path, "AuthenticAMD", 0x19, 1, AVX2)
    rows = [
        (1, "Data", "48K", "0,4"),
        (1, "Instruction", "32K", "0,4"),
        (2, "Unified", "1M", "0,4"),
        (3, "Unified", "16384K", "0-1,4-5"),
    ]
    caches(tmp_path, rows)
    siblings(tmp_path, [(number, number + 4) for number in range(4)])
    target = check(detect(tmp_path, range(8)), "fake")
    assert target.units == 4
    first, second, third = (target.level(name) for name in ("L1", "L2", "L3"))
    assert (first.capacity, first.sharing, first.instances) == (48 << 10, 1, 4)
    assert second.capacity == 1 << 20
    assert (third.capacity, third.sharing, third.instances) == (16 << 20, 2, 2)


def test_a_machine_without_a_third_level(tmp_path: Path) -> None:
    x86(tmp_path, "AuthenticAMD", 0x19, 1, AVX2)
    caches(tmp_path, [(1, "Data", "32K", "0"), (2, "Unified", "512K", "0")])
    names = [level.name for level in check(detect(tmp_path, (0,)), "fake").levels]
    assert names == ["registers", "L1", "L2", "memory"]


def test_arm(tmp_path: Path) -> None:
    lines = "processor: 0\nFeatures: fp asimd asimdhp asimddp\nCPU implementer: 0x41\n"
    write(tmp_path / "proc/cpuinfo", f"{lines}CPU part: 0xd40\n")
    target = check(detect(tmp_path, (0, 1)), "fake")
    assert target.isa == "neon"
    assert target.name.endswith("neoverse-v1")
    assert target.instruction_tiles == ()


def test_the_quota_bounds_the_units(tmp_path: Path) -> None:
    x86(tmp_path, "AuthenticAMD", 0x19, 1, AVX2)
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    assert quota(tmp_path) == 2.5
    assert usable_units(range(8), tmp_path) == 3
    assert usable_processors(tmp_path) == min(3, len(allowed_processors()))
    assert detect(tmp_path, range(8)).units == 3


def test_the_older_control_groups(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert quota(tmp_path) == 1.5
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert quota(tmp_path) is None


def test_the_stated_clock(tmp_path: Path) -> None:
    x86(tmp_path, "AuthenticAMD", 0x19, 1, AVX2)
    before = detect(tmp_path, (0,))
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4000000\n")
    after = detect(tmp_path, (0,))
    assert after.clock_ghz == 4.0
    assert after.level("L2") == before.level("L2")
    assert after.bytes_per_second("memory") == pytest.approx(before.bytes_per_second("memory"))


def test_lists_of_processors() -> None:
    assert processor_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert processor_list("") == () and processor_list("x") == ()


def test_a_processor_with_wide_vectors_is_seen_as_one_without() -> None:
    wide = preset("zen4")
    seen = narrowed(wide)
    assert (seen.isa, seen.vector_bytes) == ("avx2", 32)
    assert (seen.clock_ghz, seen.levels[1:]) == (wide.clock_ghz, wide.levels[1:])
    assert seen.peak_flops("float32") == wide.peak_flops("float32")
    assert narrowed(preset("zen3")) == preset("zen3")
    costs = usual_core(seen)
    own = usual_core(wide).streams
    # Caches are the same; only what tiles wait for long rows is that of the narrower vectors.
    assert replace(costs.streams, streamed=own.streamed) == own
    assert own != usual_core(preset("zen3")).streams
    assert costs.loops == usual_core(preset("zen3")).loops
