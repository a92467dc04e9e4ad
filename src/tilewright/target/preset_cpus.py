"""The CPUs among the presets.

Rates and latencies of instructions are those that uops.info and Agner Fog's instruction tables
list; capacities, associated bandwidths and latencies of caches those of the makers' optimisation
manuals; bandwidths of memory the channels' peak, and for one core what its misses in flight allow.
Where a shared cache's bandwidth is not published, a round figure of public measurements stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.target.description import InstructionTile, MemoryLevel, Target

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class _Cache:
    """A cache: bytes, cores that share it, bytes per cycle for one core, and latency.

    ``link`` is in GB/s, see :class:`MemoryLevel`.
    """

    capacity: int
    sharing: int
    bandwidth: float
    latency: float
    link: float = 0.0


@dataclass(frozen=True)
class _Core:
    """Vector width in bytes, registers, pipes, their latency, vector loads and stores a cycle."""

    isa: str
    vector_bytes: int
    registers: int
    pipes: float
    latency: float
    loads: float
    stores: float


def _cpu(
    name: str, cores: int, clock: float, core: _Core, caches: tuple[_Cache, ...],
    memory: tuple[float, float, float], rates: dict[str, float],
    tiles: tuple[InstructionTile, ...] = (),
) -> Target:  # fmt: skip
    """A CPU; ``memory`` is GB/s of one core, GB/s of all, and nanoseconds to the first byte."""
    width = core.pipes * core.vector_bytes
    file = core.registers * core.vector_bytes
    levels = [MemoryLevel("registers", file, cores, 1, 3 * width, 3 * width, 0.0)]
    for number, cache in enumerate(caches, start=1):
        together = cache.bandwidth * cache.sharing
        levels.append(
            MemoryLevel(
                f"L{number}", cache.capacity, max(1, cores // cache.sharing), cache.sharing,
                cache.bandwidth, together, cache.latency, cache.link / clock,
            )
        )  # fmt: skip
    alone, together, nanoseconds = memory
    levels.append(
        MemoryLevel("memory", 0, 1, cores, alone / clock, together / clock, nanoseconds * clock)
    )
    return Target(
        name=name,
        kind="cpu",
        isa=core.isa,
        units=cores,
        clock_ghz=clock,
        vector_bytes=core.vector_bytes,
        vector_registers=core.registers,
        fma_pipes=core.pipes,
        fma_latency=core.latency,
        loads_per_cycle=core.loads,
        stores_per_cycle=core.stores,
        multiply_adds=tuple(rates.items()),
        instruction_tiles=tiles,
        levels=tuple(levels),
        sync_ns=barrier_ns(cores),
        launch_ns=5000.0,  # the system wakes a sleeping thread
    )


def barrier_ns(units: int) -> float:
    """A barrier of spinning threads: cache lines sent between cores, about 100 ns a round."""
    return 100.0 * math.ceil(math.log2(units)) * 2 if units > 1 else 0.0


def _dot(dtype: str, lanes: int, k: int, rate: float) -> InstructionTile:
    """A vector instruction that adds ``k`` products in each lane (VNNI, BF16, SDOT)."""
    accumulator = "int32" if dtype == "int8" else "float32"
    return InstructionTile(f"dot{k}", dtype, accumulator, 1, lanes, k, rate)


def x86_64() -> Target:
    """Any 64-bit x86: SSE2, one multiplication and one addition a cycle, small caches.

    The two-load, two-pipe cores of the last fifteen years all do at least this (Agner Fog's tables,
    Sandy Bridge and Bulldozer). 8-bit integers are widened for PMADDWD.
    """
    core = _Core("x86-64", 16, 16, 1, 4, 2, 1)
    caches = (
        _Cache(32 * KIB, 1, 32, 4),
        _Cache(256 * KIB, 1, 16, 12),
        _Cache(8 * MIB, 4, 8, 40),
    )
    rates = {"float32": 4.0, "float64": 2.0, "int8": 8.0}
    return _cpu("x86-64", 4, 2.5, core, caches, (8, 20, 90), rates)


def haswell() -> Target:
    """Intel Haswell-EP, Xeon E5-2680 v3 (12 cores): AVX2, two FMA pipes of 5 cycles.

    Intel's optimisation manual: L1 2 × 32 bytes, L2 64 bytes a cycle at best (32 kept up), 12
    cycles; L3 2.5 MiB a core; four channels of DDR4-2133, 68 GB/s.
    """
    core = _Core("avx2", 32, 16, 2, 5, 2, 1)
    caches = (
        _Cache(32 * KIB, 1, 64, 4),
        _Cache(256 * KIB, 1, 32, 12),
        _Cache(30 * MIB, 12, 10, 50),
    )
    rates = {"float32": 16.0, "float64": 8.0, "int8": 16.0}
    return _cpu("haswell", 12, 2.5, core, caches, (11, 68, 90), rates)


def skylake_x() -> Target:
    """Intel Skylake-SP, Xeon Platinum 8180 (28 cores), two AVX-512 pipes of 4 cycles.

    Intel's optimisation manual: L1 2 × 64 bytes a cycle, L2 1 MiB, 64 bytes (48 kept up), 14
    cycles; L3 1.375 MiB a core, not inclusive; six channels of DDR4-2666, 128 GB/s. The clock is
    that of all cores in AVX-512 code.
    """
    core = _Core("avx512", 64, 32, 2, 4, 2, 1)
    caches = (
        _Cache(32 * KIB, 1, 128, 5),
        _Cache(1 * MIB, 1, 48, 14),
        _Cache(38 * MIB + 512 * KIB, 28, 10, 68),
    )
    rates = {"float32": 32.0, "float64": 16.0, "int8": 64.0}
    return _cpu("skylake-x", 28, 2.3, core, caches, (12, 128, 90), rates)


def icelake_server() -> Target:
    """Intel Ice Lake-SP, Xeon Platinum 8380 (40 cores): as Skylake-X, with VNNI.

    Intel's optimisation manual: L1 48 KiB, L2 1.25 MiB, 64 bytes (48 kept up), 14 cycles; L3
    1.5 MiB a core; eight channels of DDR4-3200, 205 GB/s. VPDPBUSD starts twice a cycle.
    """
    core = _Core("avx512", 64, 32, 2, 4, 2, 1)
    caches = (
        _Cache(48 * KIB, 1, 128, 5),
        _Cache(1280 * KIB, 1, 48, 14),
        _Cache(60 * MIB, 40, 10, 70),
    )
    rates = {"float32": 32.0, "float64": 16.0}
    tiles = (_dot("int8", 16, 4, 128.0),)
    return _cpu("icelake-server", 40, 2.6, core, caches, (13, 205, 95), rates, tiles)


def sapphire_rapids() -> Target:
    """Intel Sapphire Rapids, Xeon Platinum 8480+ (56 cores): AVX-512 with FP16, BF16, VNNI, AMX.

    Intel's optimisation manual: L1 48 KiB, L2 2 MiB, 64 bytes (48 kept up), 14-16 cycles; L3
    1.875 MiB a core; eight channels of DDR5-4800, 307 GB/s. An AMX tile product of 16 × 16 × 64
    bytes starts every 16 cycles and takes 52; VDPBF16PS starts once a cycle, VPDPBUSD twice.
    """
    core = _Core("avx512", 64, 32, 2, 4, 2, 1)
    caches = (
        _Cache(48 * KIB, 1, 128, 5),
        _Cache(2 * MIB, 1, 48, 16),
        _Cache(105 * MIB, 56, 10, 75),
    )
    rates = {"float32": 32.0, "float64": 16.0, "float16": 64.0}
    tiles = (
        _dot("bfloat16", 16, 2, 32.0),
        _dot("int8", 16, 4, 128.0),
        InstructionTile("amx", "bfloat16", "float32", 16, 16, 32, 512.0, 1, 52.0, 8),
        InstructionTile("amx", "int8", "int32", 16, 16, 64, 1024.0, 1, 52.0, 8),
    )
    return _cpu("sapphire-rapids", 56, 2.6, core, caches, (14, 307, 110), rates, tiles)


def zen3() -> Target:
    """AMD Zen 3, EPYC 7763 (64 cores): AVX2, two FMA pipes of 4 cycles, two 32-byte loads.

    AMD's optimisation guide for family 19h: L2 512 KiB, 32 bytes a cycle, 12 cycles; L3 32 MiB for
    eight cores, 46 cycles; eight channels of DDR4-3200, 205 GB/s. The link of eight cores moves 32
    bytes in and 16 out in a cycle of a fabric of 1.6 GHz.
    """
    core = _Core("avx2", 32, 16, 2, 4, 2, 1)
    caches = (
        _Cache(32 * KIB, 1, 64, 4),
        _Cache(512 * KIB, 1, 32, 12),
        _Cache(32 * MIB, 8, 24, 46, link=51),
    )
    rates = {"float32": 16.0, "float64": 8.0, "int8": 32.0}
    return _cpu("zen3", 64, 3.2, core, caches, (22, 205, 100), rates)


def zen4() -> Target:
    """AMD Zen 4, EPYC 9654 (96 cores): AVX-512 on 256-bit pipes, so one 64-byte FMA a cycle.

    The clock is the highest, which cores keep under vector code while not all of them are busy.
    AMD's optimisation guide for family 19h, models 10h and up: L2 1 MiB, 32 bytes a cycle, 14
    cycles; L3 32 MiB for eight cores, 50 cycles; twelve channels of DDR5-4800, 461 GB/s. The link
    of eight cores moves 32 bytes in and 16 out in a cycle of a fabric of 1.8 GHz. One 64-byte load,
    VDPBF16PS and VPDPBUSD a cycle.
    """
    core = _Core("avx512", 64, 32, 1, 4, 1, 0.5)
    caches = (
        _Cache(32 * KIB, 1, 64, 4),
        _Cache(1 * MIB, 1, 32, 14),
        _Cache(32 * MIB, 8, 24, 50, link=57.6),
    )
    rates = {"float32": 16.0, "float64": 8.0}
    tiles = (_dot("bfloat16", 16, 2, 32.0), _dot("int8", 16, 4, 64.0))
    return _cpu("zen4", 96, 3.7, core, caches, (32, 461, 105), rates, tiles)


def zen5() -> Target:
    """AMD Zen 5, EPYC 9755 (128 cores): full AVX-512, two FMA pipes of 4 cycles, two loads.

    AMD's optimisation guide for family 1Ah: L1 48 KiB, L2 1 MiB, 64 bytes a cycle, 14 cycles; L3
    32 MiB for eight cores, about 50 cycles; twelve channels of DDR5-6000, 576 GB/s. The link of
    eight cores moves 32 bytes in and 16 out in a cycle of a fabric of 2 GHz.
    """
    core = _Core("avx512", 64, 32, 2, 4, 2, 1)
    caches = (
        _Cache(48 * KIB, 1, 128, 4),
        _Cache(1 * MIB, 1, 64, 14),
        _Cache(32 * MIB, 8, 28, 50, link=64),
    )
    rates = {"float32": 32.0, "float64": 16.0}
    tiles = (_dot("bfloat16", 16, 2, 64.0), _dot("int8", 16, 4, 128.0))
    return _cpu("zen5", 128, 3.6, core, caches, (37, 576, 110), rates, tiles)


def neoverse_n1() -> Target:
    """Arm Neoverse N1, Graviton 2 (64 cores): two 16-byte FMA pipes of 4 cycles, SDOT.

    Arm's Neoverse N1 optimisation guide and technical reference: L1 64 KiB, L2 1 MiB, 11 cycles;
    32 MiB of system cache; eight channels of DDR4-3200, 205 GB/s.
    """
    core = _Core("neon", 16, 32, 2, 4, 2, 1)
    caches = (
        _Cache(64 * KIB, 1, 32, 4),
        _Cache(1 * MIB, 1, 32, 11),
        _Cache(32 * MIB, 64, 12, 90),
    )
    rates = {"float32": 8.0, "float64": 4.0, "float16": 16.0}
    tiles = (_dot("int8", 4, 4, 32.0),)
    return _cpu("neoverse-n1", 64, 2.5, core, caches, (20, 205, 95), rates, tiles)


def neoverse_v1() -> Target:
    """Arm Neoverse V1, Graviton 3 (64 cores), as NEON: four 16-byte FMA pipes of 4 cycles.

    Arm's Neoverse V1 optimisation guide: three 16-byte loads a cycle, L1 64 KiB, L2 1 MiB, 10
    cycles, BFMMLA and SMMLA; eight channels of DDR5-4800, 307 GB/s.
    """
    core = _Core("neon", 16, 32, 4, 4, 3, 2)
    caches = (
        _Cache(64 * KIB, 1, 48, 4),
        _Cache(1 * MIB, 1, 32, 10),
        _Cache(32 * MIB, 64, 14, 90),
    )
    rates = {"float32": 16.0, "float64": 8.0, "float16": 32.0}
    tiles = (
        InstructionTile("bfmmla", "bfloat16", "float32", 2, 2, 4, 64.0),
        InstructionTile("smmla", "int8", "int32", 2, 2, 8, 128.0),
    )
    return _cpu("neoverse-v1", 64, 2.6, core, caches, (30, 307, 115), rates, tiles)
