"""What cores can do at best: fused multiply-adds and bytes read per second, measured.

Two small loops in LLVM's language, compiled and linked like any kernel. :func:`measure_peak` is for
people who want to know how far a time is from the limit, :func:`measure_reads` for the price list
of a machine. Imports backend, runtime and target.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, compile_object, host_level
from tilewright.runtime import _native
from tilewright.target import MemoryLevel, Target, detect
from tilewright.tune.blocks import BLOCKS, spread, typical

_READ_BYTES = 1 << 28  # far beyond the last cache
_PIECES = 16  # of it, timed one by one
_REPEATS = 20  # of a loop, of which the fastest counts
_ROUNDS_TOGETHER = 4  # of all threads at once
_TOGETHER_BYTES = 1 << 28  # read by each of several threads from a cache: some milliseconds
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


@dataclass(frozen=True)
class LevelReads:
    """Bytes a second from one level of memory: one core alone, and all of them together.

    ``spread`` is the larger one of both over the blocks of time, as a part of the rate.
    """

    name: str
    alone: float
    together: float
    spread: float = 0.0


def measure_peak() -> Peak:
    """Measure for about a second; the best of a few tries, since others may use the core."""
    loops = _Loops.build(host_level())
    memory = _Region.allocate(_READ_BYTES, loops)
    steps, best = _fastest(loops.multiply_add, 1 << 12, memory.address, 0)
    flops = 2.0 * loops.sums * loops.level.lanes(4) * steps / best
    caches = [level for level in detect().levels[1:-1] if level.capacity <= _READ_BYTES]
    reads = [(cache.name, memory.within(cache.capacity // 2)) for cache in caches]
    return Peak(loops.level.name, flops, memory.once(), tuple(reads))


def measure_reads(target: Target) -> tuple[LevelReads, ...]:
    """What the cores of ``target`` read from each level of memory, in a second or two.

    Every core reads from a part of its own, half of what each may have of the level. The levels
    take turns in several blocks of time (``blocks``).
    """
    loops = _Loops.build(host_level())
    regions = [_Region.allocate(_READ_BYTES // target.units, loops) for _ in range(target.units)]
    sizes = {level.name: _own_part(level, target) for level in target.levels[1:]}
    # What is as large as all that is read is not told from memory.
    sizes = {name: s for name, s in sizes.items() if s is None or s <= regions[0].bytes}
    alone: dict[str, list[float]] = {name: [] for name in sizes}
    together: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(BLOCKS):
        for name, size in sizes.items():
            one = regions[0].once() if size is None else regions[0].within(size)
            alone[name].append(one)
            together[name].append(max(one, _together(regions, size)))
    return tuple(
        LevelReads(
            name,
            typical(alone[name]),
            max(typical(alone[name]), typical(together[name])),
            max(spread(alone[name]), spread(together[name])),
        )
        for name in sizes
    )


def _own_part(level: MemoryLevel, target: Target) -> int | None:
    """Bytes that every core reads again and again from a cache; None: memory, read once."""
    return None if level is target.levels[-1] else level.capacity // (2 * level.sharing)


def _together(regions: list[_Region], size: int | None) -> float:
    """Bytes a second of all regions read at a time, each by a thread; the best of some tries."""
    if len(regions) == 1:
        return 0.0
    rates: list[float] = []
    for _ in range(_ROUNDS_TOGETHER):
        barrier = threading.Barrier(len(regions))
        took = [(0, 1.0)] * len(regions)

        def read(number: int, barrier: threading.Barrier, took: list[tuple[int, float]]) -> None:
            barrier.wait()
            took[number] = regions[number].timed(size)

        threads = [
            threading.Thread(target=read, args=(k, barrier, took)) for k in range(len(regions))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(sum(count for count, _ in took) / max(seconds for _, seconds in took))
    return max(rates)


def mapped(text: str, level: Level) -> _native.Image:
    """The functions of a text in LLVM's language, compiled and mapped."""
    image = link([compile_object(text, level)], level.name, level.features)
    return _native.Image(image.data, dict(image.functions), list(image.fixups))


@dataclass(frozen=True)
class _Loops:
    """The two loops, mapped; ``code`` keeps them so."""

    level: Level
    sums: int
    multiply_add: _Loop
    read: _Loop
    code: object

    @staticmethod
    def build(level: Level) -> _Loops:
        sums = min(24, level.registers - 4)
        text = f"{_declarations(level)}\n{_multiply_add(level, sums)}\n{_read(level)}"
        code = mapped(text, level)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
        add, read = (signature(code.address(name)) for name in ("multiply_add", "read"))
        return _Loops(level, sums, add, read, code)

    @property
    def round_bytes(self) -> int:
        """Read in one round."""
        return _VECTORS * self.level.vector_bytes


@dataclass(frozen=True)
class _Region:
    """Memory that one thread reads; ``buffer`` keeps it."""

    address: int
    bytes: int
    loops: _Loops
    buffer: object

    @staticmethod
    def allocate(size: int, loops: _Loops) -> _Region:
        buffer = np.full(size // 4, 1e-3, np.float32)
        address = int(buffer.ctypes.data)
        return _Region(address + -address % loops.level.vector_bytes, size, loops, buffer)

    def within(self, size: int) -> float:
        """Bytes a second where so many are read again and again."""
        count, seconds = _fastest(self.loops.read, self._rounds(size), self.address,
                                  self._rounds(size) - 1)  # fmt: skip
        return count * self.loops.round_bytes / seconds

    def once(self) -> float:
        """Bytes a second of the fastest piece where each is read once."""
        rounds = self.bytes // _PIECES // self.loops.round_bytes - 1
        pieces = [self.address + k * (self.bytes // _PIECES) for k in range(_PIECES)]
        # The last cache may still hold the first piece.
        each = [_seconds(self.loops.read, rounds, p, -1) for p in (*pieces[1:], *pieces)]
        fastest = min(each)
        return rounds * self.loops.round_bytes / fastest

    def timed(self, size: int | None) -> tuple[int, float]:
        """Bytes and seconds of one run over a part of it, or over all of it."""
        if size is None:
            rounds, mask = self.bytes // self.loops.round_bytes - 1, -1
        else:
            mask = self._rounds(size) - 1
            rounds = max(_TOGETHER_BYTES // self.loops.round_bytes, mask + 1)
        seconds = _seconds(self.loops.read, rounds, self.address, mask)
        return rounds * self.loops.round_bytes, seconds

    def _rounds(self, size: int) -> int:
        """Rounded down to a power of two, by which positions wrap."""
        return 1 << max(size // self.loops.round_bytes, 1).bit_length() - 1


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
