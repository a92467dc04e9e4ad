"""Small tile programs, compiled by the backend and timed in turns.

A probe is the text of a program with its sizes; its time is that of all its tasks on one thread.
Imports backend. Start with :func:`time_probes`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.backend.cpu.generate import CodeGenerator, KernelCode
from tilewright.backend.cpu.machine import Level
from tilewright.ir.tile import TileProgram
from tilewright.ir.tile_parse import parse_program
from tilewright.runtime import _native
from tilewright.target.core_model import PAGE_BYTES
from tilewright.tune.blocks import BLOCKS

_SAMPLE_NS = 30_000  # of the calls that are timed as one
_MOST_CALLS = 4096  # in a sample
_LEAST_PASSES = 2  # of each block
_STATUS_WORDS = 8  # of 64 bits, in which a kernel reports a check that fails


@dataclass(frozen=True)
class Probe:
    """A program as text, and its sizes.

    ``elements`` are those of every buffer, from the first multiple of a page on; ``shift`` is how
    many elements later a buffer begins. Whole numbers below ``bound`` fill buffers of integers.
    """

    text: str
    sizes: Mapping[str, int]
    elements: Mapping[str, int]
    shift: int = 0
    bound: int = 1

    @property
    def program(self) -> TileProgram:
        """What the text says."""
        return parse_program(self.text)


@dataclass
class _Ready:
    """A probe that can be called, with all that its call reads kept alive."""

    function: Callable[..., object]
    arguments: tuple[object, ...]
    kept: list[object]
    calls: int = 1
    best: float = float("inf")
    blocks: list[float] = field(default_factory=list[float])

    def sample(self) -> float:
        """Nanoseconds of some calls, after one that brings what they read back from far away."""
        function, arguments = self.function, self.arguments
        function(*arguments)
        started = time.perf_counter_ns()
        for _ in range(self.calls):
            function(*arguments)
        elapsed = max(1, time.perf_counter_ns() - started)
        self.best = min(self.best, elapsed / self.calls)
        return float(elapsed)


def time_probes(
    level: Level, probes: Sequence[Probe], seconds: float
) -> tuple[tuple[float, ...], ...]:
    """Nanoseconds of each probe, as each of ``BLOCKS`` blocks of time found them.

    Samples take turns for about ``seconds``; the fastest of a block counts.
    """
    generator = CodeGenerator(level)
    programs = [probe.program for probe in probes]
    codes = [generator.add(program) for program in programs]
    image = generator.image()
    native = _native.Image(image.data, dict(image.functions), list(image.fixups))
    ready = [
        _prepare(probe, program, code, native)
        for probe, program, code in zip(probes, programs, codes, strict=True)
    ]
    for probe in ready:
        fastest = min(probe.sample() for _ in range(3))
        probe.calls = max(1, min(_MOST_CALLS, round(_SAMPLE_NS / fastest)))
    for _ in range(BLOCKS):
        _take_turns(ready, seconds / BLOCKS)
    empty = _overhead(ready[0])
    return tuple(tuple(max(0.0, best - empty) for best in probe.blocks) for probe in ready)


def _take_turns(ready: Sequence[_Ready], seconds: float) -> None:
    """One block of time."""
    for probe in ready:
        probe.best = float("inf")
    until, passes = time.perf_counter() + seconds, 0
    while passes < _LEAST_PASSES or time.perf_counter() < until:
        for probe in ready:
            probe.sample()
        passes += 1
    for probe in ready:
        probe.blocks.append(probe.best)


def _overhead(probe: _Ready) -> float:
    """Nanoseconds of a call without tasks."""
    parameters, buffers, _, _, scratch, status = probe.arguments
    zero = ctypes.c_int64(0)
    empty = _Ready(probe.function, (parameters, buffers, zero, zero, scratch, status), probe.kept)
    empty.calls = 1000
    for _ in range(20):
        empty.sample()
    return empty.best


def _prepare(probe: Probe, program: TileProgram, code: KernelCode, native: _native.Image) -> _Ready:
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
        ctypes.c_void_p,
    )  # fmt: skip
    function = signature(native.address(code.function))
    words = [expression.evaluate(probe.sizes) for expression in code.parameters]
    parameters = np.array([*words, 0], np.int64)
    arrays = [
        _memory(probe.elements[b.name], np.dtype(b.dtype.numpy), probe) for b in program.buffers
    ]
    buffers = np.array([address for _, address in arrays] + [0], np.uint64)
    scratch, scratch_address = _memory(
        max(1, code.scratch.evaluate(probe.sizes)), np.dtype(np.uint8), Probe("", {}, {})
    )
    status = np.zeros(_STATUS_WORDS, np.int64)
    tasks = code.grid.evaluate(probe.sizes)
    arguments = (
        ctypes.c_void_p(int(parameters.ctypes.data)), ctypes.c_void_p(int(buffers.ctypes.data)),
        ctypes.c_int64(0), ctypes.c_int64(tasks), ctypes.c_void_p(scratch_address),
        ctypes.c_void_p(int(status.ctypes.data)),
    )  # fmt: skip
    kept: list[object] = [native, parameters, buffers, scratch, status, *(a for a, _ in arrays)]
    return _Ready(function, arguments, kept)


def _memory(elements: int, dtype: np.dtype, probe: Probe) -> tuple[object, int]:
    """An array of numbers near 1, and where it begins."""
    size = dtype.itemsize
    array = np.zeros((elements + probe.shift) * size + 2 * PAGE_BYTES, np.uint8)
    first = -int(array.ctypes.data) % PAGE_BYTES + probe.shift * size
    view = array[first : first + elements * size].view(dtype)
    if dtype.kind in "iu" and probe.bound > 1:
        view[:] = np.random.default_rng(0).integers(0, probe.bound, elements)
    else:
        view[:] = 1
    return array, int(array.ctypes.data) + first


__all__ = ["Probe", "time_probes"]
