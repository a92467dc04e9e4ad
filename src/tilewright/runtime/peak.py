"""How much memory a call needs between kernels, as a formula in the dimensions.

From the program alone: at each step the tensors that a later one still needs are in memory, with
what the step writes. What variants keep between their own steps counts as if all of the largest
were needed. The arena of a call is at least that large at its fullest step, and seldom larger
(``Model.memory`` tells exactly). Start with :func:`peak_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.runtime.program import NATIVE_ITEM_SIZES, BindStep, KernelStep, Program
from tilewright.shape import Expr, constant, maximum, product


def peak_bytes(program: Program) -> Expr:
    """Bytes of the intermediate tensors of the fullest step, each step's in sum."""
    lives = _lives(program)
    sizes = {number: _size(program, number) for number in lives}
    starts = sorted({first for first, _ in lives.values()})
    sums: list[Expr] = []
    for step in starts:
        held = [n for n, (first, last) in lives.items() if first <= step <= last]
        sums.append(sum((sizes[n] for n in held), constant(0)))
    return largest(sums)


def largest(sums: Iterable[Expr]) -> Expr:
    """The maximum of sums of sizes, without those that others never fall below."""
    kept: list[Expr] = []
    for candidate in dict.fromkeys(sums):
        if not any(_covers(other, candidate) for other in kept):
            kept = [other for other in kept if not _covers(candidate, other)]
            kept.append(candidate)
    return maximum(*kept) if kept else constant(0)


def _covers(large: Expr, small: Expr) -> bool:
    """Whether one is never below the other, as sizes are never below 0."""
    return all(coefficient >= 0 for _, coefficient in (large - small).terms)


def _lives(program: Program) -> dict[int, tuple[int, int]]:
    """The first and the last step of each tensor in the arena."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        match step:
            case KernelStep(buffers=buffers, outputs=outputs):
                for buffer in outputs:
                    made.setdefault(buffer, number)
            case BindStep(buffer=buffer):
                buffers = (buffer,)
            case _:
                buffers = step.inputs
        last |= dict.fromkeys(buffers, number)
    return {
        number: (first, last[number])
        for number, first in made.items()
        if program.buffers[number].kind == "intermediate"
    }


def _size(program: Program, number: int) -> Expr:
    """Bytes of a tensor, the largest that any choice between variants makes them."""
    buffer = program.buffers[number]
    if buffer.packed_bytes is not None:
        sizes: Sequence[Expr] = [buffer.packed_bytes]
    else:
        sizes = [product(buffer.shape) * NATIVE_ITEM_SIZES.get(buffer.dtype, 0)]
    for choice in program.choices:
        if any(choice.symbol in size.free_symbols for size in sizes):
            sizes = [
                size.substitute({choice.symbol: variant})
                for size in sizes
                for variant in range(len(choice.costs))
            ]
    return largest(sizes)


__all__ = ["peak_bytes"]
