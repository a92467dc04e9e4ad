"""Phases of a task: what each touches and computes, and what that takes together.

A core computes while lines arrive that hardware or its own loads have asked for, but looks no
farther ahead than a few hundred instructions: phases follow each other. So do, within one, its
loops and the blocks that it turns, each of which asks for many lines at once. Imports shape and
target. Start with :func:`phases_price`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.cost.accesses import TURNED, Access, gathered, most_pieces, regions, shared_lines
from tilewright.cost.lengths import short
from tilewright.cost.levels import line_rate, memory_time, moved_lines, pieces_time, unforeseen_time
from tilewright.cost.machine import SIXTEENTHS, Machine, workers_for
from tilewright.ir.tile import LINE_BYTES, TileBuffer
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less_equal,
    maximum,
    minimum,
    product,
    total,
)
from tilewright.target.core_model import FOLLOWED_BYTES, RUN_BYTES

ZERO, ONE = constant(0), constant(1)


@dataclass(frozen=True)
class LoopPrice:
    """Picoseconds on one thread, those of ``cycles`` alone, and of lines that memory moves.

    Of ``beside`` tasks in a row each stores lines that the next one has a part of: ``contested``.
    """

    alone: Expr
    computed: Expr
    shared: Expr
    tasks: Expr
    beside: Expr = ONE
    contested: Expr = ZERO

    def workers(self, threads: Expr | int) -> Expr:
        """How many of so many threads take part, as the runtime lets them."""
        return minimum(workers_for(self.alone, threads), maximum(self.tasks, 1))

    def time(self, machine: Machine, threads: Expr | int) -> Expr:
        """Picoseconds with so many threads, or with one if that is less."""
        several = self._shared_out(machine, threads)
        if self.contested is ZERO:
            return several
        return minimum(several, self._shared_out(machine, 1))

    def is_for_one(self, machine: Machine, threads: Expr | int) -> Expr:
        """1 where so many threads take longer than one, as they wait for each other's lines."""
        if self.contested is ZERO:
            return ZERO
        return less_equal(self._shared_out(machine, 1), self._shared_out(machine, threads))

    def _shared_out(self, machine: Machine, threads: Expr | int) -> Expr:
        """Picoseconds with as many of so many threads as the runtime lets take part."""
        workers = self.workers(threads)
        rounds = ceil_div(self.tasks, workers)
        share = self.alone // maximum(self.tasks, 1) * rounds
        share = share + self._contested_time(machine, workers, rounds)
        meeting = minimum(workers - 1, 1) * round(1000 * machine.target.sync_ns)
        return maximum(share, self.shared) + meeting + 1000 * machine.core.threads.call_ns

    def _contested_time(self, machine: Machine, workers: Expr, rounds: Expr) -> Expr:
        """Picoseconds of lines that two threads store to: the last task of one, another's first."""
        apart = minimum(workers - 1, 1) * minimum(rounds % maximum(self.beside, 1), 1)
        return self.contested * apart * (1000 * machine.core.threads.parted_ns)


@dataclass
class Touched:
    """What statements touch once, what they touch again, and their thousandths of cycles.

    Those of blocks that are turned are ``turning``, which is not part of ``cycles``.
    """

    accesses: list[Access] = field(default_factory=list[Access])
    again: list[tuple[Expr, Expr]] = field(default_factory=list[tuple[Expr, Expr]])
    cycles: Expr = ZERO
    turning: Expr = ZERO

    def then(self, part: Touched) -> Touched:
        """This and what follows it."""
        return Touched(
            self.accesses + part.accesses, self.again + part.again,
            self.cycles + part.cycles, self.turning + part.turning,
        )  # fmt: skip


def phases_price(
    phases: Sequence[Touched],
    grid: Sequence[Expr],
    contested: Expr,
    sizes: Mapping[str, Expr],
    machine: Machine,
) -> LoopPrice:
    """Picoseconds of everything; ``sizes`` are the elements of tensors where they are known.

    ``contested`` are lines that a task stores and the next one along the last axis of the grid too.

    The first phase that touches a tensor brings its lines from where all of them are.
    """
    far = [a for phase in phases for a in phase.accesses if not a.buffer.scratch]
    first = regions(far, sizes)
    near, memory = (most_pieces(far, sizes, most) for most in (RUN_BYTES, FOLLOWED_BYTES))
    whole = short(total(moved for moved, _ in first.values()))
    moving = _Moving(machine, whole, near, memory, shared_lines(far, sizes))
    alone, computed, lines = ZERO, ZERO, ZERO
    for phase in phases:
        touched = dict.fromkeys(a.buffer for a in phase.accesses if a.buffer in first)
        own = {buffer: first.pop(buffer) for buffer in touched}
        turned = {a.buffer for a in phase.accesses if TURNED[0] in a.extents}
        apart = {b: region for b, region in own.items() if b in turned}
        own = {b: region for b, region in own.items() if b not in turned}
        read = moving.time(own) + _again(phase, machine)
        waiting = moving.time(apart) + moving.late(apart)
        crosses = any(access.crosses for access in phase.accesses)
        for cycles, moved in ((phase.cycles, read), (phase.turning, waiting)):
            time = short(cycles * machine.picoseconds(1) // 1000)
            taken = _overlapping(short(moved), time, crosses, machine)
            computed, alone = computed + time, alone + taken
        lines = lines + moving.lines(own) + moving.lines(apart)
    shared = memory_time(short(lines), moving.whole, machine)
    beside = grid[-1] if grid else ONE
    return LoopPrice(short(alone), short(computed), shared, product(grid), beside, contested)


@dataclass(frozen=True)
class _Moving:
    """Tensors of ``whole`` bytes in all that are touched for the first time, and their runs.

    ``near`` are those of lines in the last cache, ``memory`` those of lines beyond it; ``beside``
    are lines that two runs have a part of.
    """

    machine: Machine
    whole: Expr
    near: Mapping[TileBuffer, Expr]
    memory: Mapping[TileBuffer, Expr]
    beside: Mapping[TileBuffer, Expr]

    def lines(self, regions: Mapping[TileBuffer, tuple[Expr, bool]]) -> Expr:
        """How many lines memory moves."""
        return short(moved_lines(regions.values(), self.machine))

    def time(self, regions: Mapping[TileBuffer, tuple[Expr, bool]]) -> Expr:
        """Picoseconds of lines that hardware asks for ahead once a run has begun."""
        near, memory = (
            short(total(runs[buffer] for buffer in regions)) for runs in (self.near, self.memory)
        )
        begun = pieces_time(near, self.whole, self.machine, memory)
        beside = short(total(self.beside[buffer] for buffer in regions))
        return (self.lines(regions) + beside) * line_rate(self.machine, self.whole) + begun

    def late(self, regions: Mapping[TileBuffer, tuple[Expr, bool]]) -> Expr:
        """Picoseconds more of lines that are written and not asked for ahead."""
        written = total(size for size, is_written in regions.values() if is_written)
        return unforeseen_time(written // LINE_BYTES, self.whole, self.machine)


def _overlapping(read: Expr, computed: Expr, crosses: bool, machine: Machine) -> Expr:
    """Picoseconds of reading and computing at the same time, but for the share that shows."""
    costs = machine.core.loops
    shown = round(SIXTEENTHS * (costs.crossing if crosses else costs.shown))
    return short(maximum(read, computed) + minimum(read, computed) * shown // SIXTEENTHS)


def _again(phase: Touched, machine: Machine) -> Expr:
    """Picoseconds of what comes from nearer, as it was touched before."""
    rates = [(moved, line_rate(machine, d)) for moved, d in gathered(phase.again)]
    return total(short(moved // LINE_BYTES) * rate for moved, rate in rates if rate is not ZERO)


__all__ = ["LoopPrice", "Touched", "phases_price"]
