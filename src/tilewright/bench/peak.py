"""What one core can do at best: fused multiply-adds and bytes read per second, measured.

Two small loops in LLVM's language, compiled and linked like any kernel. Figures for people who want
to know how far a time is from the limit; nothing depends on them. May import backend and runtime.
Start with :func:`measure_peak`.
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

_READ_BYTES = 1 << 28  # far beyond the last cache
_REPEATS = 5
_SECONDS = 0.02


@dataclass(frozen=True)
class Peak:
    """One thread's limits: f32 operations per second (an FMA is two), and bytes read per second."""

    level: str
    flops: float
    bytes_per_second: float


def measure_peak() -> Peak:
    """Measure for about half a second; the best of a few tries, since others may use the core."""
    level = host_level()
    sums = min(24, level.registers - 4)
    text = f"{_declarations(level)}\n{_multiply_add(level, sums)}\n{_read(level)}"
    image = link(compile_object(text, level), level.name, level.features)
    code = _native.Image(image.data, dict(image.functions), list(image.fixups))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
    multiply_add = signature(code.address("multiply_add"))
    read = signature(code.address("read"))
    buffer = np.full(_READ_BYTES // 4, 1e-3, np.float32)
    address = int(buffer.ctypes.data)
    steps = 1 << 12
    while _seconds(multiply_add, steps, address) < _SECONDS:
        steps *= 2
    best = min(_seconds(multiply_add, steps, address) for _ in range(_REPEATS))
    lanes = level.lanes(4)
    reads = _READ_BYTES // (4 * level.vector_bytes)
    fastest = min(_seconds(read, reads, address) for _ in range(_REPEATS))
    return Peak(level.name, 2.0 * sums * lanes * steps / best, _READ_BYTES / fastest)


def _seconds(function: Callable[[int, int], object], count: int, address: int) -> float:
    started = time.perf_counter()
    function(count, address)
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
    """``count`` rounds that read and add four vectors."""
    vector = _vector(level)
    phis = [f"  %c{k} = phi {vector} [zeroinitializer, %entry], [%d{k}, %loop]" for k in range(4)]
    body = ["  %base = shl i64 %i, 2"]
    for k in range(4):
        body += [
            f"  %o{k} = add i64 %base, {k}",
            f"  %q{k} = getelementptr {vector}, ptr %p, i64 %o{k}",
            f"  %v{k} = load {vector}, ptr %q{k}, align 4",
            f"  %d{k} = fadd {vector} %c{k}, %v{k}",
        ]
    return _loop("read", "", phis, body, vector, 4)


def _loop(name: str, before: str, phis: list[str], body: list[str], vector: str, sums: int) -> str:
    """A function of (count, pointer) around a loop; stores the sums, so that they are needed."""
    total, adding = "%d0", list[str]()
    for k in range(1, sums):
        adding.append(f"  %t{k} = fadd {vector} {total}, %d{k}")
        total = f"%t{k}"
    lines = [
        f"define void @{name}(i64 %count, ptr %p) {{",
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
