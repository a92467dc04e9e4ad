"""What memory gives to rows that are read side by side, and what all cores together write to it.

Two small loops in LLVM's language, as those of ``peak``. Imports backend, runtime and target. Start
with :func:`measure_streams`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.backend.cpu.machine import Level, host_level
from tilewright.ir.tile import LINE_BYTES
from tilewright.target import Target
from tilewright.target.core_model import PAGE_BYTES
from tilewright.tune.blocks import BLOCKS, spread, typical
from tilewright.tune.peak import mapped

_BYTES = 1 << 28  # far beyond the last cache
_ROUNDS = 8  # samples in a block of time, of which the fastest counts
_SIDE_BY_SIDE = (1, 2, 4, 8, 16, 32, 64, 128)  # rows at a time
# A row is as long as it takes for its beginning not to be felt, and begins in another set of the
# caches than the one before.
_ROW_BYTES = 16 * PAGE_BYTES + 21 * LINE_BYTES
# Times that of a line at best: a threshold, as it is 1 of rows that hardware follows, and 2 of more
# (``StreamCosts.followed``).
_WAITING = 1.25


@dataclass(frozen=True)
class MeasuredStreams:
    """How hardware follows rows, and what the cores write.

    ``followed`` rows at a time are read as fast as fewer; ``written`` bytes a second go past the
    caches from all cores together. The spreads are those over the blocks of time, as parts of what
    is measured.
    """

    followed: int
    written: float
    followed_spread: float = 0.0
    written_spread: float = 0.0

    def spreads(self) -> tuple[tuple[str, float], ...]:
        """How sure each entry is: its name and its spread."""
        return (
            ("streams: followed", self.followed_spread),
            ("streams: written", self.written_spread),
        )


def measure_streams(target: Target) -> MeasuredStreams:
    """Measure both for about a second, in several blocks of time (``blocks``).

    Rows are read by one thread, a line of each in turn; every core of ``target`` writes a part of
    memory of its own.
    """
    loops = _Loops.build(host_level())
    memory = _Memory(loops)
    followed: list[int] = []
    written: list[float] = []
    for _ in range(BLOCKS):
        times = [memory.line_seconds(rows) for rows in _SIDE_BY_SIDE]
        followed.append(followed_rows(_SIDE_BY_SIDE, times))
        written.append(max(memory.written(target.units) for _ in range(_ROUNDS)))
    # The median of an odd number of counts is one of them.
    return MeasuredStreams(
        round(typical(followed)), typical(written), spread(followed), spread(written)
    )


def followed_rows(counts: Sequence[int], seconds: Sequence[float]) -> int:
    """The most rows at a time of which a line takes hardly longer than at best."""
    most = _WAITING * min(seconds)
    return max(rows for rows, each in zip(counts, seconds, strict=True) if each <= most)


@dataclass(frozen=True)
class _Loops:
    """The two loops, mapped; ``code`` keeps them so."""

    level: Level
    follow: Callable[[int, int, int, int], object]
    write: Callable[[int, int], object]
    code: object

    @staticmethod
    def build(level: Level) -> _Loops:
        text = f"{_follow(level)}\n{_write(level)}\n!0 = !{{i32 1}}\n"
        code = mapped(text, level)
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        follow = ctypes.CFUNCTYPE(None, number, pointer, number, number)(code.address("follow"))
        write = ctypes.CFUNCTYPE(None, number, pointer)(code.address("write"))
        return _Loops(level, follow, write, code)


class _Memory:
    """A buffer that no cache holds, of which every sample takes the next part."""

    def __init__(self, loops: _Loops) -> None:
        self.loops = loops
        self.buffer = np.ones(_BYTES // 4, np.float32)
        self.first = int(self.buffer.ctypes.data)
        self.first += -self.first % PAGE_BYTES
        self.bytes = _BYTES - PAGE_BYTES
        self.part = max(_SIDE_BY_SIDE) * _ROW_BYTES
        self.turn = 0

    def line_seconds(self, rows: int) -> float:
        """Of a line where so many rows are read side by side, by the fastest of some samples.

        A sample has as many groups of rows, one after the other, as hold the most rows.
        """
        lines = _ROW_BYTES // LINE_BYTES
        found: list[float] = []
        for _ in range(_ROUNDS):
            self.turn = (self.turn + 1) % (self.bytes // self.part)
            place = self.first + self.turn * self.part
            started = time.perf_counter()
            for first in range(0, max(_SIDE_BY_SIDE), rows):
                self.loops.follow(lines, place + first * _ROW_BYTES, rows, _ROW_BYTES)
            found.append(time.perf_counter() - started)
        return min(found) / (lines * max(_SIDE_BY_SIDE))

    def written(self, threads: int) -> float:
        """Bytes a second of so many threads, each with a part of the buffer."""
        vector = self.loops.level.vector_bytes
        part = self.bytes // threads // PAGE_BYTES * PAGE_BYTES
        barrier = threading.Barrier(threads)
        seconds = [0.0] * threads

        def write(number: int) -> None:
            barrier.wait()
            started = time.perf_counter()
            self.loops.write(part // vector, self.first + number * part)
            seconds[number] = time.perf_counter() - started

        team = [threading.Thread(target=write, args=(k,)) for k in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        return threads * part / max(seconds)


def _follow(level: Level) -> str:
    """A function of (lines, p, rows, row): a line of each row in turn, then the next of each."""
    vector = f"<{level.lanes(4)} x float>"
    return f"""
define void @follow(i64 %lines, ptr %p, i64 %rows, i64 %row) {{
entry:
  br label %line
line:
  %l = phi i64 [0, %entry], [%m, %after]
  %s = phi {vector} [zeroinitializer, %entry], [%u, %after]
  %o = mul i64 %l, {LINE_BYTES}
  br label %each
each:
  %r = phi i64 [0, %line], [%n, %each]
  %t = phi {vector} [%s, %line], [%u, %each]
  %b = mul i64 %r, %row
  %c = add i64 %b, %o
  %q = getelementptr i8, ptr %p, i64 %c
  %v = load {vector}, ptr %q, align 4
  %u = fadd {vector} %t, %v
  %n = add i64 %r, 1
  %x = icmp slt i64 %n, %rows
  br i1 %x, label %each, label %after
after:
  %m = add i64 %l, 1
  %y = icmp slt i64 %m, %lines
  br i1 %y, label %line, label %done
done:
  store {vector} %u, ptr %p, align 4
  ret void
}}"""


def _write(level: Level) -> str:
    """A function of (vectors, p) that stores so many vectors past the caches."""
    vector = f"<{level.lanes(4)} x float>"
    return f"""
define void @write(i64 %count, ptr %p) {{
entry:
  %v = load {vector}, ptr %p, align {level.vector_bytes}
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%n, %loop]
  %q = getelementptr {vector}, ptr %p, i64 %i
  store {vector} %v, ptr %q, align {level.vector_bytes}, !nontemporal !0
  %n = add i64 %i, 1
  %x = icmp slt i64 %n, %count
  br i1 %x, label %loop, label %done
done:
  ret void
}}"""


__all__ = ["MeasuredStreams", "followed_rows", "measure_streams"]
