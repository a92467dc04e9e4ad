"""The machine that runs this: a preset of the same family, with its own cores and caches.

Nothing is measured: clocks and bandwidths are the preset's, unless the system states them; what is
unknown falls back to the generic machine of the instruction set. Imports ``support`` only. Start
with :func:`detect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.support.processors import ROOT, allowed_processors, cores, usable_units
from tilewright.target import host
from tilewright.target.description import InstructionTile, MemoryLevel, Target
from tilewright.target.preset_cpus import barrier_ns
from tilewright.target.presets import preset

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_AVX2 = frozenset({"avx2", "fma", "f16c"})
# Model numbers of Intel's family 6, by the preset that describes them best.
_INTEL = {
    "haswell": (60, 63, 69, 70, 61, 71, 79, 86),
    "skylake-x": (85,),
    "icelake-server": (106, 108),
    "sapphire-rapids": (143, 207, 173, 174),
}
_ARM_PARTS = {0xD0C: "neoverse-n1", 0xD40: "neoverse-v1"}
_TILE_FEATURES = {
    ("dot2", "bfloat16"): ("avx512_bf16",),
    ("dot4", "int8"): ("avx512_vnni", "asimddp"),
    ("amx", "bfloat16"): ("amx_bf16",),
    ("amx", "int8"): ("amx_int8",),
    ("bfmmla", "bfloat16"): ("bf16",),
    ("smmla", "int8"): ("i8mm",),
}


def detect(root: Path = ROOT, processors: Sequence[int] | None = None) -> Target:
    """The CPU under ``root``, restricted to ``processors`` (those this process may run on).

    Falls back to the generic x86-64 machine where the system says nothing; never raises.
    """
    allowed = allowed_processors() if processors is None else tuple(processors)
    found = host.processor(root)
    units = usable_units(allowed, root)
    if found is None:
        return _with_cores(preset("x86-64"), "unknown processor, as x86-64", units)
    base = _family(found)
    name = f"{found.name}, as {base.name}"
    target = _with_features(base, found)
    target = replace(
        _with_cores(target, name, units),
        levels=_levels(target, units, host.caches(root), allowed, root),
    )
    clock = host.highest_clock_ghz(root)
    return target if clock is None else with_clock(target, clock)


def _family(found: host.Processor) -> Target:
    """The preset for this processor, by its number, or else by its instruction set."""
    if found.architecture == "aarch64":
        return preset(_ARM_PARTS.get(found.model, "neoverse-n1"))
    if found.vendor == "AuthenticAMD":
        if found.family == 0x1A:
            return preset("zen5")
        if found.family == 0x19:
            is_zen4 = found.model >> 4 in (0x1, 0x6, 0x7, 0xA)
            return preset("zen4" if is_zen4 else "zen3")
    if found.vendor == "GenuineIntel" and found.family == 6:
        for name, models in _INTEL.items():
            if found.model in models:
                return preset(name)
    if found.features >= _AVX512:
        return preset("icelake-server")
    return preset("haswell" if found.features >= _AVX2 else "x86-64")


def _with_features(target: Target, found: host.Processor) -> Target:
    """The preset without what this processor (or the system above it) does not offer."""
    if target.isa == "avx512" and not found.features >= _AVX512:
        target = narrowed(target)
    if target.isa == "avx2" and not found.features >= _AVX2:
        target = replace(preset("x86-64"), levels=target.levels, clock_ghz=target.clock_ghz)
    tiles = tuple(t for t in target.instruction_tiles if _has_instruction(t, found))
    rates = tuple(
        (dtype, rate)
        for dtype, rate in target.multiply_adds
        if dtype != "float16" or found.features & {"avx512_fp16", "asimdhp"}
    )
    return replace(target, instruction_tiles=tiles, multiply_adds=rates)


def _has_instruction(tile: InstructionTile, found: host.Processor) -> bool:
    needed = _TILE_FEATURES.get((tile.name, tile.dtype), ())
    return not needed or any(feature in found.features for feature in needed)


def narrowed(target: Target) -> Target:
    """An AVX-512 processor as AVX2 sees it: two pipes of half the width, half of the registers.

    Clock, memory and the kind of core stay. Others are returned as they are.
    """
    if target.isa != "avx512":
        return target
    lanes = {"float32": 16.0, "float64": 8.0, "int8": 32.0}
    return replace(
        target,
        isa="avx2",
        vector_bytes=32,
        vector_registers=16,
        fma_pipes=2,
        loads_per_cycle=2,
        stores_per_cycle=1,
        multiply_adds=tuple(lanes.items()),
        instruction_tiles=(),
        levels=(replace(target.levels[0], capacity=512), *target.levels[1:]),
        core_bytes=target.vector_bytes,
        core_pipes=target.fma_pipes,
    )


def _with_cores(target: Target, name: str, units: int) -> Target:
    levels = tuple(_shared(level, units) for level in target.levels)
    return replace(target, name=name, units=units, levels=levels, sync_ns=barrier_ns(units))


def _shared(level: MemoryLevel, units: int) -> MemoryLevel:
    """The same level on a machine of which ``units`` may be used."""
    sharing = min(level.sharing, units)
    instances = -(-units // sharing) if level.instances > 1 else 1
    return replace(level, sharing=sharing, instances=instances)


def _levels(
    target: Target, units: int, caches: Sequence[host.HostCache], allowed: Sequence[int], root: Path
) -> tuple[MemoryLevel, ...]:
    """The preset's levels with the capacities and the sharing that the system states."""
    stated = {f"L{cache.level}": cache for cache in caches if cache.kind != "Instruction"}
    found: list[MemoryLevel] = []
    for level in target.levels:
        cache = stated.get(level.name)
        if cache is not None:
            sharers = [number for number in allowed if number in cache.processors]
            sharing = min(units, max(1, len(cores(tuple(sharers), root))))
            instances = -(-units // sharing)
            total = level.total_bandwidth
            level = MemoryLevel(
                level.name, cache.capacity, instances, sharing, level.bandwidth, total,
                level.latency, level.link,
            )  # fmt: skip
        elif stated and level.name.startswith("L"):
            continue  # a machine without this cache
        else:
            level = _shared(level, units)
        found.append(level)
    return _behind_links(found)


def _behind_links(levels: Sequence[MemoryLevel]) -> tuple[MemoryLevel, ...]:
    """The levels, of whose memory no more is read together than the links to it let through."""
    *caches, memory = levels
    if caches and caches[-1].link:
        most = caches[-1].instances * caches[-1].link
        memory = replace(memory, total_bandwidth=min(memory.total_bandwidth, most))
    return (*caches, memory)


def with_clock(target: Target, clock: float) -> Target:
    """The target at another clock: memory keeps its bytes and nanoseconds, not its cycles."""
    last, memory = target.levels[-2:]
    factor = target.clock_ghz / clock
    last = replace(last, link=last.link * factor)
    memory = replace(
        memory,
        bandwidth=memory.bandwidth * factor,
        total_bandwidth=memory.total_bandwidth * factor,
        latency=memory.latency / factor,
    )
    return replace(target, clock_ghz=clock, levels=(*target.levels[:-2], last, memory))
