"""Workers that share the tasks of a kernel, as the runtime's team shares them: a simulation.

Each worker has an equal share of the tasks, cut into pieces, and takes over pieces of the next
workers when its own are done. What a call takes, and what of its workers' time is lost to what,
follows from the grids of tasks and their prices; nothing is random. Imports target. Start with
:func:`simulated`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from tilewright.target import barrier_ns
from tilewright.target.core_model import MOST_PIECES, PIECE_NS, THREAD_NS


class Loss(Enum):
    """Why workers do not compute."""

    LITTLE_WORK = "too little work"  # for one more thread to pay
    FEW_TASKS = "too few tasks"  # for every thread to have one
    UNEVEN = "uneven ends"  # some are done before others
    MEMORY = "memory shared"  # all wait for bytes that one alone would have sooner
    MEETING = "the meeting"  # of all before and after


@dataclass(frozen=True)
class Tasks:
    """A grid of tasks, the outermost axis first.

    ``ends`` has for each axis the work of its last task as a share of that of the others.
    """

    sizes: tuple[int, ...]
    ends: tuple[float, ...]

    @cached_property
    def count(self) -> int:
        """How many tasks there are."""
        return prod(self.sizes)

    def before(self, task: int) -> float:
        """The work of the first ``task`` tasks as a share of that of all."""
        if task >= self.count:
            return 1.0
        work, outer, inside = 0.0, 1.0, self.count
        whole = prod(size - 1 + end for size, end in zip(self.sizes, self.ends, strict=True))
        left = whole
        for size, end in zip(self.sizes, self.ends, strict=True):
            inside //= size
            left /= size - 1 + end
            place, task = divmod(task, inside)
            work += outer * place * left
            outer *= end if place == size - 1 else 1.0
        return work / whole


@dataclass(frozen=True)
class SharedStep:
    """A step of a call: its tasks and picoseconds.

    ``alone`` is what one thread takes for all tasks, ``memory`` the least that any number of them
    takes for the bytes that come from memory. ``work`` is what the runtime holds its work for, in
    nanoseconds.
    """

    label: str
    tasks: Tasks
    alone: float
    memory: float
    work: int


@dataclass(frozen=True)
class StepRun:
    """What a step takes with some threads: picoseconds, and those of workers that are lost."""

    step: SharedStep
    workers: int
    time: float
    lost: Mapping[Loss, float]


@dataclass(frozen=True)
class CallRun:
    """All steps of a call with so many threads, one after the other."""

    threads: int
    steps: tuple[StepRun, ...]

    @property
    def time(self) -> float:
        """Picoseconds of the call."""
        return sum(run.time for run in self.steps)

    @property
    def utilisation(self) -> float:
        """The share of the time of all threads in which they compute as one alone would."""
        busy = sum(run.step.alone for run in self.steps)
        return busy / (self.threads * self.time) if self.time else 1.0

    def speed_up(self, alone: CallRun) -> float:
        """How many times as long the call takes ``alone``; 1 where there is nothing to do."""
        return alone.time / self.time if self.time else 1.0

    @property
    def lost(self) -> dict[Loss, float]:
        """The shares of the time of all threads that are lost, by what they are lost to."""
        whole = self.threads * self.time or 1.0
        return {loss: sum(run.lost[loss] for run in self.steps) / whole for loss in Loss}


def simulated(steps: Sequence[SharedStep], threads: int) -> CallRun:
    """A call with so many threads."""
    return CallRun(threads, tuple(_run(step, threads) for step in steps))


def _run(step: SharedStep, threads: int) -> StepRun:
    worthy = min(threads, max(1, step.work // THREAD_NS))
    workers = max(1, min(worthy, step.tasks.count))
    slower = max(1.0, workers * step.memory / step.alone) if step.alone else 1.0
    if workers == 1:
        meeting, ends = 0.0, [step.alone]
    else:
        meeting = 1000.0 * barrier_ns(workers)
        ends = _ends(step, workers, slower)
    last = max(ends)
    time = last + meeting
    lost = {
        Loss.LITTLE_WORK: (threads - worthy) * time,
        Loss.FEW_TASKS: (worthy - workers) * time,
        Loss.UNEVEN: max(0.0, workers * last - sum(ends)),
        Loss.MEMORY: max(0.0, sum(ends) - step.alone),
        Loss.MEETING: workers * meeting,
    }
    return StepRun(step, workers, time, lost)


def _ends(step: SharedStep, workers: int, slower: float) -> list[float]:
    """When each worker has nothing left to do."""
    worth_while = step.work // (PIECE_NS * workers)
    each = max(1, min(worth_while, MOST_PIECES, step.tasks.count // workers))
    pieces = workers * each
    share, extra = divmod(step.tasks.count, pieces)
    starts = [n * share + n * extra // pieces for n in range(pieces + 1)]
    before = [step.tasks.before(start) * step.alone * slower for start in starts]
    left = [deque(range(rank * each, (rank + 1) * each)) for rank in range(workers)]
    ends = [0.0] * workers
    waiting = [(0.0, rank) for rank in range(workers)]
    open_ranks = workers
    while waiting:
        now, rank = heapq.heappop(waiting)
        ends[rank] = now
        if not open_ranks:
            continue
        victim = next(v % workers for v in range(rank, rank + workers) if left[v % workers])
        piece = left[victim].popleft()
        open_ranks -= not left[victim]
        heapq.heappush(waiting, (now + before[piece + 1] - before[piece], rank))
    return ends


__all__ = ["CallRun", "Loss", "SharedStep", "StepRun", "Tasks", "simulated"]
