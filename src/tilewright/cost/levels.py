"""What a line costs to read, by how much is touched until it is read again.

Imports shape and target. Start with :func:`line_rate`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.cost.machine import SIXTEENTHS, Machine, beyond
from tilewright.ir.tile import LINE_BYTES
from tilewright.shape import Expr, ceil_div, constant, maximum, total

PRIVATE = 0.5  # of a cache that nobody else uses: what is read again in turns is there still


def line_rate(machine: Machine, distance: Expr) -> Expr:
    """Picoseconds of a line from the level that holds so many bytes, beyond the first."""
    known = machine.known_rates
    if distance not in known:
        known[distance] = _line_rate(machine, distance)
    return known[distance]


def _line_rate(machine: Machine, distance: Expr) -> Expr:
    costs, levels = machine.core.loops, machine.target.levels[1:]
    rate, before = constant(0), 0
    for level, following, share in zip(levels, levels[1:], costs.reached, strict=False):
        own = machine.picoseconds(LINE_BYTES / (following.bandwidth * share))
        kept = costs.kept if level is levels[-2] else PRIVATE
        rate = rate + beyond(distance, level, kept) * (own - before)
        before = own
    return rate // SIXTEENTHS


def memory_time(lines: Expr, whole: Expr, machine: Machine) -> Expr:
    """Picoseconds in which all cores together move ``lines`` of ``whole`` bytes from memory."""
    own = machine.picoseconds(LINE_BYTES / machine.target.levels[-1].total_bandwidth)
    return of_memory(lines * own, whole, machine)


def written_time(lines: Expr, whole: Expr, machine: Machine, threads: int = 0) -> Expr:
    """Picoseconds in which so many threads, or all cores, write ``lines`` of ``whole`` bytes."""
    rate = machine.target.written_bandwidth(threads or machine.target.units)
    return of_memory(lines * machine.picoseconds(LINE_BYTES / rate), whole, machine)


def moved_lines(regions: Iterable[tuple[Expr, bool]], machine: Machine) -> Expr:
    """Lines that memory moves the first time, of bytes and whether they are written.

    What is written is read before.
    """
    again = round(4 * machine.core.loops.again)
    moved = total(size * (again if written else 4) for size, written in regions)
    return moved // (4 * LINE_BYTES)


def pieces_time(pieces: Expr, whole: Expr, machine: Machine, far: Expr | None = None) -> Expr:
    """What so many runs of neighbouring lines take more than one, of ``whole`` bytes in all.

    Those of what is nearer than the last cache take no more, those of memory are ``far`` instead,
    if that is given.
    """
    costs, nearer = machine.core.loops, machine.target.levels[-3]
    near, most = machine.picoseconds(costs.near_piece), machine.picoseconds(costs.piece)
    far = pieces if far is None else far
    more = maximum(far * most - pieces * near, 0)
    missed = beyond(whole, nearer, PRIVATE)
    return of_memory(more, whole, machine) + pieces * near * missed // SIXTEENTHS


def pieces_read_time(pieces: Expr, size: Expr, whole: Expr, machine: Machine) -> Expr:
    """Picoseconds to read so many pieces of ``size`` bytes, which lie apart in ``whole`` bytes."""
    lines = pieces * ceil_div(size, LINE_BYTES)
    return lines * line_rate(machine, whole) + pieces_time(pieces, whole, machine)


def unforeseen_time(lines: Expr, whole: Expr, machine: Machine) -> Expr:
    """What so many lines take more that hardware does not ask for ahead, of ``whole`` bytes.

    As many are under way as a core has misses.
    """
    memory, core = machine.target.levels[-1], machine.core.streams
    each = max(0.0, memory.latency / core.misses - LINE_BYTES / memory.bandwidth)
    return of_memory(lines * machine.picoseconds(each), whole, machine)


def lone_lines_time(lines: Expr, whole: Expr, machine: Machine) -> Expr:
    """Picoseconds for which tiles wait for so many lines, each of another page.

    ``whole`` are the bytes that are touched until these are read again. A core sees few steps
    ahead, which read a line each: enough to hide the caches, but not memory, where translations of
    addresses are waited for as well: a line took 7 to 97 ns on Zen 4, with a latency of 105 to 150.
    """
    (last, memory), streams = machine.target.levels[-2:], machine.core.streams
    each = machine.picoseconds(memory.latency / streams.lone_lines)
    return lines * each * beyond(whole, last, 1 / streams.last_share) // SIXTEENTHS


def pushed_out_time(moved: Expr, whole: Expr, machine: Machine) -> Expr:
    """Picoseconds to write so many bytes to memory and read them again, for one thread.

    It is of those alone that the last cache would hold if they were not among ``whole`` bytes.
    """
    last, memory = machine.target.levels[-2:]
    alone, among = (beyond(size, last, machine.core.loops.kept) for size in (moved, whole))
    each = 2 * machine.picoseconds(LINE_BYTES / memory.bandwidth)
    return moved // LINE_BYTES * each * maximum(among - alone, 0) // SIXTEENTHS


def of_memory(time: Expr, whole: Expr, machine: Machine) -> Expr:
    """The part of a time that falls to what the last cache does not hold."""
    missed = beyond(whole, machine.target.levels[-2], machine.core.loops.kept)
    return time * missed // SIXTEENTHS


__all__ = [
    "line_rate",
    "lone_lines_time",
    "memory_time",
    "moved_lines",
    "of_memory",
    "pieces_read_time",
    "pieces_time",
    "pushed_out_time",
    "unforeseen_time",
]
