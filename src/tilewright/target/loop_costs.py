"""What loops cost on a core beside what a :class:`~tilewright.target.Target` says of it.

No data sheet states these, so they are measured by small tile programs that the backend compiles
(``tilewright.tune.loop_probes``); none is fitted to kernels of models. Start with
:class:`LoopCosts`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopCosts:
    """Cycles of one core, unless a field says otherwise.

    ``instruction``: a simple vector instruction (an addition, a multiplication) among independent
    ones; ``addition``: one of additions alone, which only some of the pipes take. ``load``,
    ``store``: a whole vector that begins anywhere, so that wide ones cross two lines;
    ``aligned_load``, ``aligned_store``: one that begins on a line. ``latency``: from a simple
    instruction to one that needs its result. ``scalar``: an instruction of a loop whose elements
    are computed one by one. ``enter``: to enter and leave a loop whose length is known when running
    only. ``combine``: more for a loop that ends in sums of lanes, ``extreme``: in their greatest or
    least. ``wait``: from the end of a long sweep along a row until a value that needs its sum is
    there, ``chained``: more for each function between them, as a quotient or a root. ``window``:
    how many vector instructions may wait for their operands while later ones start, which hides
    waits of short sweeps. ``handed``: more for a load of what was stored just before it where the
    store cannot hand it on, as it crosses two lines or is under a mask. ``gather``: an element that
    is loaded on its own into a vector. ``index``: an element at a position that is read;
    ``checked``: if that position is checked, too. ``divide``: a division of a position.
    ``running``: a vector of running sums, each of which needs the one before. ``turns``: (rows, a
    vector of so many elements in a square of so many rows that is turned in registers).
    ``turn_call``: a call of the function that turns blocks. ``task``: the place of a task in the
    grid and its first addresses.

    ``shown``: the share of computing that does not hide behind reading memory, or the other way
    round, ``crossing``: the same where vectors that are read begin beside a line. ``again``: the
    bytes that move for each that is stored where its line is in no near cache, as it is read first.
    ``reached``: the share of a level's bandwidth that a loop gets, from the second-level cache to
    memory. ``kept``: the share of the last cache, which others may use as well, up to which all
    that is read again is still there. ``convert``: instructions of a conversion to elements of
    another width, ``narrow`` to one that is narrower and whole. ``compare``: instructions of a
    maximum or a minimum that keep what is no number. ``double``: times the cycles of a function in
    float32 that a vector of float64 takes. ``whole``: a vector of 16 divisions of whole numbers of
    32 bits. ``ahead``: how many bytes ahead a loop along rows in memory asks for lines, 0 where the
    hardware follows rows across the ends of pages. ``piece``: to begin another run of neighbouring
    lines of memory, as the hardware asks ahead for what follows, ``near_piece``: the same for lines
    that lie in the last cache. ``guard``: a branch that is mostly foreseen. ``functions``: a vector
    of float32 for each function that is not one instruction.
    """

    instruction: float
    addition: float
    load: float
    store: float
    aligned_load: float
    aligned_store: float
    latency: float
    scalar: float
    enter: float
    combine: float
    extreme: float
    wait: float
    chained: float
    window: float
    handed: float
    gather: float
    index: float
    checked: float
    divide: float
    running: float
    turns: tuple[tuple[int, float], ...]
    turn_call: float
    task: float
    shown: float
    crossing: float
    again: float
    reached: tuple[float, ...]
    kept: float
    convert: float
    narrow: float
    compare: float
    double: float
    whole: float
    ahead: int
    piece: float
    near_piece: float
    guard: float
    functions: tuple[tuple[str, float], ...]

    def function(self, name: str) -> float | None:
        """Cycles of a vector of float32, None where nobody measured the function."""
        return dict(self.functions).get(name)


# Measured on a Zen 5 core at 3.5 GHz by ``tune.loop_probes`` and rounded; runs on a machine that
# others use differ by up to a third, and by more where a field is the difference of two times.
# Loads and stores follow from a copy (1.3 cycles) and a sum of two rows (1.8), aligned ones from
# the core's data sheet; what the last cache keeps was not measured, and ``piece`` follows from rows
# in pieces, which took 1.2 times as long as whole ones. ``wait`` and ``chained`` are those of the
# Zen 4 core below, less what additions are faster by, ``handed``, ``crossing`` and ``near_piece``
# are that core's; ``window`` are the places of the schedulers for vectors, and ``addition`` the
# pipes that add, by AMD's guide for the family.
_WIDE_FUNCTIONS = (
    ("divide", 2.0), ("square_root", 3.6), ("exponential", 4.0), ("decay", 4.0), ("logarithm", 4.8),
    ("error_function", 6.4), ("hyperbolic_tangent", 6.9), ("sine", 7.5), ("cosine", 7.5),
    ("tangent", 50.0), ("arc_tangent", 21.6), ("arc_sine", 19.6), ("arc_cosine", 24.9),
    ("hyperbolic_sine", 26.0), ("hyperbolic_cosine", 22.0), ("area_hyperbolic_sine", 60.6),
    ("area_hyperbolic_cosine", 44.1), ("area_hyperbolic_tangent", 43.5), ("power", 68.0),
)  # fmt: skip

WIDE = LoopCosts(
    instruction=0.39, addition=0.5, load=0.9, store=1.3, aligned_load=0.5, aligned_store=1.0,
    latency=2.0, scalar=0.25, enter=1.25, combine=0.5, extreme=2.0, wait=20.0, chained=11.0,
    window=114.0, handed=16.0, gather=0.7, index=0.81, checked=1.65, divide=5.2, running=21.0,
    turns=((16, 2.1), (8, 1.8), (4, 1.5), (1, 1.8)),
    turn_call=12.0, task=1.7, shown=0.1, crossing=0.24, again=1.0,
    reached=(1.1, 1.05, 1.1), kept=0.5, convert=2.1, narrow=4.2, compare=4.3, double=2.6, whole=6.3,
    ahead=4096, piece=18.0, near_piece=7.0, guard=2.0, functions=_WIDE_FUNCTIONS,
)  # fmt: skip

# Measured on a Zen 4 core at 3.7 GHz in the same way. Instructions on vectors of 64 bytes take both
# halves of its pipes in turn, and its hardware follows rows beyond the end of a page. Two
# entries are from no probe: ``piece`` is what runs took more that lie apart (27 ns; the probe's
# said 119 to 350 cycles), ``kept`` where reads slow down on a virtual machine that shares its
# last cache: 8 of 32 MiB are read again at full speed, 12 MiB at 0.6 of it.
_HALVED_FUNCTIONS = (
    ("divide", 6.0), ("square_root", 10.8), ("exponential", 8.5), ("decay", 8.5),
    ("logarithm", 9.9), ("error_function", 14.3), ("hyperbolic_tangent", 14.6), ("sine", 16.4),
    ("cosine", 16.6),
    ("tangent", 113.0), ("arc_tangent", 42.7), ("arc_sine", 40.5), ("arc_cosine", 50.6),
    ("hyperbolic_sine", 51.3), ("hyperbolic_cosine", 41.7), ("area_hyperbolic_sine", 120.0),
    ("area_hyperbolic_cosine", 102.0), ("area_hyperbolic_tangent", 88.5), ("power", 124.0),
)  # fmt: skip

HALVED = LoopCosts(
    instruction=0.78, addition=1.0, load=1.65, store=2.53, aligned_load=1.08, aligned_store=2.0,
    latency=4.4, scalar=0.31, enter=2.6, combine=0.0, extreme=2.2, wait=26.0, chained=13.0,
    window=56.0, handed=16.0, gather=1.4, index=1.04, checked=1.2, divide=6.4, running=9.5,
    turns=((16, 4.8), (8, 3.6), (4, 3.6), (1, 2.4)),
    turn_call=47.0, task=3.7, shown=0.03, crossing=0.24, again=1.0,
    reached=(0.94, 1.0, 0.97), kept=0.25, convert=2.6, narrow=4.4, compare=2.1, double=2.3,
    whole=10.5, ahead=0, piece=100.0, near_piece=7.0, guard=2.0, functions=_HALVED_FUNCTIONS,
)  # fmt: skip

# Measured on the same Zen 4 core with vectors of 32 bytes, as its pipes and those of Zen 3 have
# them. Squares of more rows than lanes do not occur, those of one row and ``turn_call`` are
# differences of two times that came out as nothing and stay those of the wide core, what memory
# costs is that of the core above.
_NARROW_FUNCTIONS = (
    ("divide", 3.0), ("square_root", 5.4), ("exponential", 9.6), ("decay", 5.5),
    ("logarithm", 22.7), ("error_function", 14.0), ("hyperbolic_tangent", 13.0), ("sine", 12.2),
    ("cosine", 12.4),
    ("tangent", 78.3), ("arc_tangent", 29.0), ("arc_sine", 28.1), ("arc_cosine", 37.8),
    ("hyperbolic_sine", 42.3), ("hyperbolic_cosine", 25.2), ("area_hyperbolic_sine", 93.3),
    ("area_hyperbolic_cosine", 81.0), ("area_hyperbolic_tangent", 69.4), ("power", 105.0),
)  # fmt: skip

NARROW = LoopCosts(
    instruction=0.64, addition=0.64, load=0.85, store=1.27, aligned_load=0.62, aligned_store=1.0,
    latency=2.5, scalar=0.17, enter=2.6, combine=0.0, extreme=0.0, wait=36.7, chained=17.0,
    window=97.0, handed=19.7, gather=0.51, index=1.05, checked=1.4, divide=6.5, running=6.9,
    turns=((8, 3.6), (4, 2.9), (1, 1.8)),
    turn_call=12.0, task=4.3, shown=0.09, crossing=0.24, again=1.0,
    reached=(0.94, 1.0, 0.97), kept=0.25, convert=1.55, narrow=6.0, compare=1.6, double=1.6,
    whole=12.0, ahead=0, piece=100.0, near_piece=12.0, guard=2.0, functions=_NARROW_FUNCTIONS,
)  # fmt: skip


__all__ = ["HALVED", "NARROW", "WIDE", "LoopCosts"]
