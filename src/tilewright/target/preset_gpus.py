"""The GPUs among the presets.

Units, clocks, rates, capacities and bandwidths of memory are those of NVIDIA's architecture white
papers and of the CUDA programming guide's table of compute capabilities; latencies are those of the
published dissections by micro-benchmarks (Jia et al. for Volta and Turing, Abdelkhalik et al. for
Ampere, Luo et al. for Hopper), rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.target.description import InstructionTile, MemoryLevel, Target

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_WARP_REGISTER = 128  # one 4-byte register of each of the 32 threads


@dataclass(frozen=True)
class _Chip:
    """Capacities in bytes, bandwidths in bytes per cycle of a multiprocessor or of the chip."""

    units: int
    clock: float
    registers: int
    shared: int
    block_shared: int
    l2: int
    l2_bandwidth: float
    memory: int
    memory_gb: float
    latencies: tuple[float, float, float]  # shared memory, L2, memory
    fma_latency: float = 4.0


def _gpu(
    name: str, isa: str, chip: _Chip, rates: dict[str, float], tiles: tuple[InstructionTile, ...]
) -> Target:
    pipes = rates["float32"] / 32
    shared, l2, memory = chip.latencies
    bandwidth = chip.memory_gb / chip.clock
    each_l2, each_memory = (
        64.0,
        min(64.0, bandwidth),
    )  # one multiprocessor takes two sectors a cycle
    return Target(
        name=name,
        kind="gpu",
        isa=isa,
        units=chip.units,
        clock_ghz=chip.clock,
        vector_bytes=_WARP_REGISTER,
        vector_registers=255,
        fma_pipes=pipes,
        fma_latency=chip.fma_latency,
        loads_per_cycle=1,
        stores_per_cycle=1,
        multiply_adds=tuple(rates.items()),
        instruction_tiles=tiles,
        levels=(
            MemoryLevel(
                "registers", chip.registers, chip.units, 1,
                3 * pipes * _WARP_REGISTER, 3 * pipes * _WARP_REGISTER, 0.0,
            ),
            MemoryLevel("shared", chip.shared, chip.units, 1, 128.0, 128.0, shared),
            MemoryLevel("L2", chip.l2, 1, chip.units, each_l2, chip.l2_bandwidth, l2),
            MemoryLevel("memory", chip.memory, 1, chip.units, each_memory, bandwidth, memory),
        ),
        sync_ns=1000.0,
        launch_ns=4000.0,
        block_threads=1024,
        block_shared_bytes=chip.block_shared,
    )  # fmt: skip


def _mma(
    dtype: str, m: int, n: int, k: int, rate: float, accumulator: str = "float32"
) -> InstructionTile:
    return InstructionTile("mma", dtype, accumulator, m, n, k, rate)


def k80() -> Target:
    """One of the two GK210 of a Tesla K80: 13 multiprocessors at 0.875 GHz, no matrix instructions.

    192 single and 64 double lanes each, 512 KiB of registers, 112 KiB of shared memory (48 a
    block), 1.5 MiB of L2, 240 GB/s. One warp cannot use more than 255 registers a thread.
    """
    chip = _Chip(13, 0.875, 512 * KIB, 112 * KIB, 48 * KIB, 1536 * KIB, 512.0,
                 12 * GIB, 240.0, (26, 200, 300), 9.0)  # fmt: skip
    return _gpu("k80", "sm_37", chip, {"float32": 192.0, "float64": 64.0}, ())


def v100() -> Target:
    """Tesla V100 SXM2: 80 multiprocessors at 1.53 GHz, 900 GB/s, 125 TFLOP/s in tensor cores."""
    chip = _Chip(80, 1.53, 256 * KIB, 96 * KIB, 96 * KIB, 6 * MIB, 2048.0,
                 16 * GIB, 900.0, (19, 193, 400))  # fmt: skip
    rates = {"float32": 64.0, "float64": 32.0, "float16": 128.0, "int8": 256.0}
    return _gpu("v100", "sm_70", chip, rates, (_mma("float16", 16, 16, 16, 512.0),))


def t4() -> Target:
    """Tesla T4: 40 multiprocessors at 1.59 GHz, 320 GB/s, 65 TFLOP/s in tensor cores."""
    chip = _Chip(40, 1.59, 256 * KIB, 64 * KIB, 64 * KIB, 4 * MIB, 1280.0,
                 16 * GIB, 320.0, (19, 188, 434))  # fmt: skip
    rates = {"float32": 64.0, "float64": 2.0, "float16": 128.0, "int8": 256.0}
    tiles = (_mma("float16", 16, 8, 8, 512.0), _mma("int8", 8, 8, 16, 1024.0, "int32"))
    return _gpu("t4", "sm_75", chip, rates, tiles)


def a100() -> Target:
    """A100 SXM4, 40 GB: 108 multiprocessors at 1.41 GHz, 1555 GB/s, 312 TFLOP/s in tensor cores.

    The white paper gives 5120 bytes a cycle for the L2 of 40 MiB.
    """
    chip = _Chip(108, 1.41, 256 * KIB, 164 * KIB, 163 * KIB, 40 * MIB, 5120.0,
                 40 * GIB, 1555.0, (23, 200, 466))  # fmt: skip
    rates = {"float32": 64.0, "float64": 32.0, "float16": 256.0, "bfloat16": 128.0, "int8": 256.0}
    tiles = (
        _mma("float16", 16, 8, 16, 1024.0),
        _mma("bfloat16", 16, 8, 16, 1024.0),
        _mma("tfloat32", 16, 8, 8, 512.0),
        _mma("int8", 16, 8, 32, 2048.0, "int32"),
        _mma("float64", 8, 8, 4, 64.0, "float64"),
    )
    return _gpu("a100", "sm_80", chip, rates, tiles)


def rtx3090() -> Target:
    """GeForce RTX 3090: 82 multiprocessors at 1.695 GHz, 936 GB/s.

    The tensor cores add float16 products in float32 at half of the rate, 71 TFLOP/s.
    """
    chip = _Chip(82, 1.695, 256 * KIB, 100 * KIB, 99 * KIB, 6 * MIB, 2048.0,
                 24 * GIB, 936.0, (23, 220, 500))  # fmt: skip
    rates = {"float32": 128.0, "float64": 2.0, "float16": 128.0, "bfloat16": 128.0, "int8": 256.0}
    tiles = (
        _mma("float16", 16, 8, 16, 256.0),
        _mma("bfloat16", 16, 8, 16, 256.0),
        _mma("tfloat32", 16, 8, 8, 128.0),
        _mma("int8", 16, 8, 32, 1024.0, "int32"),
    )
    return _gpu("rtx3090", "sm_86", chip, rates, tiles)


def h100() -> Target:
    """H100 SXM5: 132 multiprocessors at 1.83 GHz, 3352 GB/s, 989 TFLOP/s in tensor cores.

    The clock is that of matrix instructions (others may run at 1.98). The bandwidth of the L2 is
    taken to be that of the A100, since none is published. WGMMA needs the four warps of a group.
    """
    chip = _Chip(132, 1.83, 256 * KIB, 228 * KIB, 227 * KIB, 50 * MIB, 5120.0,
                 80 * GIB, 3352.0, (29, 263, 479))  # fmt: skip
    rates = {"float32": 128.0, "float64": 64.0, "float16": 256.0, "bfloat16": 256.0, "int8": 256.0}
    tiles = (
        InstructionTile("wgmma", "float16", "float32", 64, 8, 16, 2048.0, 4),
        InstructionTile("wgmma", "bfloat16", "float32", 64, 8, 16, 2048.0, 4),
        InstructionTile("wgmma", "tfloat32", "float32", 64, 8, 8, 1024.0, 4),
        InstructionTile("wgmma", "int8", "int32", 64, 8, 32, 4096.0, 4),
        _mma("float64", 16, 8, 4, 128.0, "float64"),
    )
    return _gpu("h100", "sm_90", chip, rates, tiles)
