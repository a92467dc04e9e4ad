"""Which kernels of a program could run as one job, by the tensors that they touch.

The runtime decides for every shape which kernels really do, by addresses (``src/native/plan.cpp``).
That needs tensors which are read there to stay where they are until the last of these kernels ends.
Start with :func:`ends_of_jobs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tilewright.runtime import _native
from tilewright.runtime.program import KernelStep, Step

MOST_KERNELS = _native.most_parts  # of one job


@dataclass
class _Job:
    touched: set[int] = field(default_factory=set[int])
    written: set[int] = field(default_factory=set[int])
    kernels: int = 0

    def takes(self, touched: set[int], written: set[int]) -> bool:
        """Whether a kernel needs none of the others, nor they it."""
        apart = self.written.isdisjoint(touched) and self.touched.isdisjoint(written)
        return apart and self.kernels < MOST_KERNELS

    def add(self, touched: set[int], written: set[int]) -> None:
        self.touched |= touched
        self.written |= written
        self.kernels += 1


def ends_of_jobs(steps: Sequence[Step]) -> list[int]:
    """For each step the last one of the kernels that could run beside its own; itself if none."""
    ends = list(range(len(steps)))
    first, job = 0, _Job()
    for key, own in groupby(enumerate(steps), key=_kernel):
        numbers, kernel = zip(*own, strict=True)
        if key is None:
            first, job = numbers[-1] + 1, _Job()
            continue
        touched = {b for step in kernel for b in step.buffers if isinstance(step, KernelStep)}
        written = {b for step in kernel for b in step.outputs if isinstance(step, KernelStep)}
        if not job.takes(touched, written):
            first, job = numbers[0], _Job()
        job.add(touched, written)
        for number in range(first, numbers[-1] + 1):
            ends[number] = numbers[-1]
    return ends


def _kernel(numbered: tuple[int, Step]) -> int | None:
    step = numbered[1]
    return step.kernel if isinstance(step, KernelStep) else None


__all__ = ["MOST_KERNELS", "ends_of_jobs"]
