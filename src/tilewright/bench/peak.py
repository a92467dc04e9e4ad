"""What one core can do at best: fused multiply-adds and bytes read per second, measured.

Two small loops in LLVM's language, compiled and linked like any kernel. Figures for people who want
to know how far a time is from the limit; nothing depends on them. May import backend, runtime and
target. Start with :func:`measure_peak`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, compile_object, host_level
from tilewright.runtime import _native
from tilewright.target import MemoryLevel, detect

_READ_BYTES = 1 << 28  # far beyond the last cache
_PIECES = 16  # of it, timed one by one
_REPEATS = 40
_SECONDS = 0.002  # short, so that some samples fall between what else runs on the core
_VECTORS = 8  # read in one round: enough sums that none waits for its last addition


@dataclass(frozen=True)
class Peak:
    """One thread's limits: f32 operations per second (an FMA is two), and bytes read per second.

    ``bytes_per_second`` from memory; ``reads`` the same from each cache, by the cache's name.
    """

    level: str
    flops: float
    bytes_per_second: float
    reads: tuple[tuple[str, float], ...] = ()


def measure_peak() -> Peak:
    """Measure for about a second; the best of a few tries, since others may use the core."""
    level = host_level()
    sums = min(24, level.registers - 4)
    text = f"{_declarations(level)}\n{_multiply_add(level, sums)}\n{_read(level)}"
    image = link([compile_object(text, level)], level.name, level.features)
    code = _native.Image(image.data, dict(image.functions), list(image.fixups))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    multiply_add = signature(code.address("multiply_add"))
    read = signature(code.address("read"))
    buffer = np.full(_READ_BYTES // 4, 1e-3, np.float32)
    address = int(buffer.ctypes.data)
    address += -address % level.vector_bytes
    steps, best = _fastest(multiply_add, 1 << 12, address, 0)
    flops = 2.0 * sums * level.lanes(4) * steps / best
    round_bytes = _VECTORS * level.vector_bytes
    rounds = _READ_BYTES // _PIECES // round_bytes - 1
    pieces = [address + k * (_READ_BYTES // _PIECES) for k in range(_PIECES)]
    fastest = min(_seconds(read, rounds, piece, -1) for piece in 2 * pieces)
    reads: list[tuple[str, float]] = []
    for cache in _caches():
        # Half of the cache, rounded down to a power of two of rounds, again and again.
        mask = (1 << (cache.capacity // 2 // round_bytes).bit_length() - 1) - 1
        count, seconds = _fastest(read, mask + 1, address, mask)
        reads.append((cache.name, count * round_bytes / seconds))
    return Peak(level.name, flops, rounds * round_bytes / fastest, tuple(reads))


def _caches() -> list[MemoryLevel]:
    """The caches of this machine that are so much smaller than what is read from memory."""
    return [cache for cache in detect().levels[1:-1] if cache.capacity <= _READ_BYTES]


_Loop = Callable[[int, int, int], object]


def _fastest(function: _Loop, count: int, address: int, mask: int) -> tuple[int, float]:
    """A count that takes long enough to be timed, and the seconds of its fastest run."""
    while _seconds(function, count, address, mask) < _SECONDS:
        count *= 2
    return count, min(_seconds(function, count, address, mask) for _ in range(_REPEATS))


def _seconds(function: _Loop, count: int, address: int, mask: int) -> float:
    started = time.perf_counter()
    function(count, address, mask)
    return time.perf_counter() - started


def _vector(level: Level) -> str:
    return f"<{level.lanes(4)} x float>"


def _declarations(level: Level) -> str:
    suffix = f"v{level.lanes(4)}f32"
    vector = _vector(level)
    return f"declare {vector} @llvm.fmuladd.{suffix}({vector}, {vector}, {vector})"


def _multiply_add(level: Level, sums: int) -> str:
    """``count`` rounds of ``sums`` independent multiply-adds."""
    vector, suffix = _vector(level), f"v{level.lanes(4)}f32"
    phis = [f"  %c{k} = phi {vector} [%a, %entry], [%d{k}, %loop]" for k in range(sums)]
    adds = [
        f"  %d{k} = call contract {vector} @llvm.fmuladd.{suffix}"
        f"({vector} %a, {vector} %a, {vector} %c{k})"
        for k in range(sums)
    ]
    return _loop("multiply_add", f"  %a = load {vector}, ptr %p, align 4", phis, adds, vector, sums)


def _read(level: Level) -> str:
    """``count`` rounds that read and add vectors; the round's number wraps by ``mask``."""
    vector, several = _vector(level), range(_VECTORS)
    phis = [f"  %c{k} = phi {vector} [zeroinitializer, %entry], [%d{k}, %loop]" for k in several]
    body = ["  %wrapped = and i64 %i, %mask", f"  %base = mul i64 %wrapped, {_VECTORS}"]
    for k in several:
        body += [
            f"  %o{k} = add i64 %base, {k}",
            f"  %q{k} = getelementptr {vector}, ptr %p, i64 %o{k}",
            f"  %v{k} = load {vector}, ptr %q{k}, align 4",
            f"  %d{k} = fadd {vector} %c{k}, %v{k}",
        ]
    return _loop("read", "", phis, body, vector, _VECTORS)


def _loop(name: str, before: str, phis: list[str], body: list[str], vector: str, sums: int) -> str:
    """A function of (count, p, mask) around a loop; stores the sums, so that they are needed."""
    total, adding = "%d0", list[str]()
    for k in range(1, sums):
        adding.append(f"  %t{k} = fadd {vector} {total}, %d{k}")
        total = f"%t{k}"
    lines = [
        f"define void @{name}(i64 %count, ptr %p, i64 %mask) {{",
        "entry:",
        before,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *phis,
        *body,
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %count",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *adding,
        f"  store {vector} {total}, ptr %p, align 4",
        "  ret void",
        "}",
    ]
    return "\n".join(filter(None, lines))
