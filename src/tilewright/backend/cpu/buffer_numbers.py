"""Other numbers for the buffers of a program, once some of them lie in the memory of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.runtime.program import BindStep, Buffer, KernelStep, OpaqueStep, Step


def renumbered(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Buffers with their positions within their kinds."""
    counts: Counter[str] = Counter()
    made: list[Buffer] = []
    for buffer in buffers:
        made.append(replace(buffer, index=counts[buffer.kind]))
        counts[buffer.kind] += 1
    return made


def moved(step: Step, numbers: Mapping[int, int]) -> Step:
    """A step whose buffers have other numbers."""

    def those(buffers: Iterable[int]) -> tuple[int, ...]:
        return tuple(numbers[buffer] for buffer in buffers)

    match step:
        case KernelStep():
            return replace(step, buffers=those(step.buffers), outputs=those(step.outputs))
        case OpaqueStep():
            return replace(step, inputs=those(step.inputs), outputs=those(step.outputs))
        case BindStep():
            return replace(step, buffer=numbers[step.buffer])


__all__ = ["moved", "renumbered"]
