"""Runs a compiled program's kernels with every buffer between unreadable pages.

The machine code is mapped by itself and called through ctypes, one range of tasks after another,
so that a test decides where buffers lie and what is in them: each ends (or begins) right at a page
that may not be touched, starts out poisoned, is only as aligned as its elements, and cannot be
written once it is an input or a constant. An access outside ends the process. Start with
:func:`execute`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.runtime.program import Buffer, CodeImage, KernelStep, Program
from tilewright.shape import evaluate_all
from tilewright.support.errors import ExecutionError

Array = np.ndarray[Any, Any]
PAGE = mmap.PAGESIZE
NOTHING, READ, WRITE, EXECUTE = 0, 1, 2, 4  # PROT_…

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ctypes.c_void_p,
)  # fmt: skip


class Pages:
    """Mapped pages with an unreadable page at each end."""

    def __init__(self, size: int, protection: int) -> None:
        self.inner = max(PAGE, -(-size // PAGE) * PAGE)
        self.total = self.inner + 2 * PAGE
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.base = _LIBC.mmap(None, self.total, NOTHING, anonymous, -1, 0)
        assert self.base not in (None, ctypes.c_void_p(-1).value)
        self.first = self.base + PAGE
        self.protect(protection)

    def protect(self, protection: int) -> None:
        assert _LIBC.mprotect(self.first, self.inner, protection) == 0

    def close(self) -> None:
        _LIBC.munmap(self.base, self.total)


class Guarded:
    """``size`` poisoned bytes right before (``at_end``) or right after an unreadable page."""

    def __init__(self, size: int, at_end: bool, poison: int, alignment: int = 1) -> None:
        self.pages = Pages(size, READ | WRITE)
        ctypes.memset(self.pages.first, poison, self.pages.inner)
        rounded = -(-size // alignment) * alignment
        self.address = self.pages.first + (self.pages.inner - rounded if at_end else 0)
        self.size = size

    def fill(self, data: Array) -> None:
        """Copy the contents in and forbid writing."""
        raw = np.ascontiguousarray(data)
        assert raw.nbytes == self.size, (raw.nbytes, self.size)
        ctypes.memmove(self.address, raw.ctypes.data, raw.nbytes)
        self.pages.protect(READ)

    def read(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """A copy of the contents."""
        return np.frombuffer(ctypes.string_at(self.address, self.size), dtype).reshape(shape).copy()


@contextmanager
def _mapped(image: CodeImage) -> Iterator[int]:
    """The image, fixed up and executable."""
    pages = Pages(len(image.data), READ | WRITE)
    ctypes.memmove(pages.first, image.data, len(image.data))
    for offset, symbol, addend in image.fixups:
        target = pages.first
        if symbol:
            library = _LIBM if hasattr(_LIBM, symbol) else _LIBC
            target = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        ctypes.c_uint64.from_address(pages.first + offset).value = target + addend
    pages.protect(READ | EXECUTE)
    try:
        yield pages.first
    finally:
        pages.close()


def execute(
    program: Program,
    image: CodeImage,
    constants: Sequence[Array],
    inputs: Mapping[str, Array],
    symbols: Mapping[str, int],
    *,
    at_end: bool = True,
    poison: int = 0xFF,
    pieces: int = 1,
    chosen: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """The outputs of a program of kernels alone, each run in ``pieces`` ranges of its tasks.

    Of several variants the cheapest is taken, unless the symbol of the choice is in ``chosen``.
    Raises ExecutionError with the message of a check that a kernel reports.
    """
    symbols = _with_choices(program, symbols, chosen or {})
    memory: list[Guarded] = []
    shapes: list[tuple[int, ...]] = []
    try:
        for buffer in program.buffers:
            shapes.append(tuple(evaluate_all(buffer.shape, symbols)))
            memory.append(_memory(buffer, shapes[-1], symbols, constants, inputs, at_end, poison))
        with _mapped(image) as base:
            for step in program.steps:
                assert isinstance(step, KernelStep), "only kernels run here"
                _run(step, base + image.functions[step.function], memory, symbols, at_end, poison,
                     pieces)  # fmt: skip
        return {
            b.name: memory[n].read(DType(b.dtype).numpy, shapes[n])
            for n, b in enumerate(program.buffers)
            if b.kind == "output"
        }
    finally:
        for block in memory:
            block.pages.close()


def _with_choices(
    program: Program, symbols: Mapping[str, int], chosen: Mapping[str, int]
) -> Mapping[str, int]:
    """The symbols, the number of threads among them, and which variants are chosen or cheapest."""
    known = {**symbols, program.threads_symbol: 2, **chosen}
    for choice in program.choices:
        if choice.symbol not in chosen:
            costs = evaluate_all(choice.costs, known)
            known[choice.symbol] = costs.index(min(costs))
    return known


def _memory(
    buffer: Buffer,
    shape: tuple[int, ...],
    symbols: Mapping[str, int],
    constants: Sequence[Array],
    inputs: Mapping[str, Array],
    at_end: bool,
    poison: int,
) -> Guarded:
    size = int(np.prod(shape)) * DType(buffer.dtype).bytes
    if buffer.packed_bytes is not None:
        size = buffer.packed_bytes.evaluate(symbols)
    made = Guarded(size, at_end, poison)
    if buffer.kind == "constant":
        made.fill(constants[buffer.index])
    elif buffer.kind == "input":
        assert inputs[buffer.name].shape == shape, (buffer.name, inputs[buffer.name].shape, shape)
        made.fill(inputs[buffer.name])
    return made


def _run(
    step: KernelStep,
    address: int,
    memory: Sequence[Guarded],
    symbols: Mapping[str, int],
    at_end: bool,
    poison: int,
    pieces: int,
) -> None:
    grid = step.grid.evaluate(symbols)
    if grid == 0 or step.used.evaluate(symbols) == 0:
        return
    values = evaluate_all(step.parameters, symbols)
    parameters = (ctypes.c_int64 * max(1, len(values)))(*values)
    pointers = [memory[n].address for n in step.buffers]
    buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
    status = (ctypes.c_int64 * 4)()
    function = _KERNEL(address)
    scratch_bytes = step.scratch.evaluate(symbols)
    rounds = step.rounds.evaluate(symbols)
    each = grid // rounds
    bounds = [each * piece // pieces for piece in range(pieces + 1)]
    ranges = [
        (number * each + begin, number * each + end)
        for number in range(rounds)
        for begin, end in reversed(list(pairwise(bounds)))
    ]
    for begin, end in ranges:
        scratch = Guarded(scratch_bytes, at_end, poison, 64)
        function(parameters, buffers, begin, end, scratch.address, status)
        scratch.pages.close()
        if status[0]:
            message = step.checks[status[0] - 1]
            raise ExecutionError(
                message.replace("{0}", str(status[2])).replace("{1}", str(status[3])),
                where=step.label,
            )
