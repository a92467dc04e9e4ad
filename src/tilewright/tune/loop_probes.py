"""What loops cost on this machine, measured: every field of ``LoopCosts``.

Each field is the time of a small tile program, or the difference between two that differ in what
the field describes. No model's kernel is timed. Imports backend and target. Start with
:func:`measure_loop_costs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter

from tilewright.backend.cpu.machine import Level
from tilewright.cost.handed import LOADED
from tilewright.target import Target
from tilewright.target.core_model import PAGE_BYTES
from tilewright.target.loop_costs import WIDE, LoopCosts
from tilewright.tune.blocks import BLOCKS, spread, typical
from tilewright.tune.probes import Probe, time_probes

ROWS = 64  # tasks of a probe in the first-level cache: calling it is a small part of its time
LONG, SHORT = 1024, (15, 33, 100)  # elements of a row; short ones end in part of a vector
MIXED = 8, 16  # instructions of a value: the difference is what they alone take
TURNS = ((64, 64, 16), (14, 14, 8), (7, 64, 4), (3, 64, 1))  # rows, columns, the squares that fit
FAR_ROW = 1024  # elements of a row of what lies in memory
CROSSED_ROW = 1008  # elements of rows that begin anywhere in a page
SWEEP = 2  # instructions of a vector in the sweep that waits: a difference, its sum
LEAST_WINDOW, MOST_WINDOW = 16.0, 512.0  # of processors there are, with room for noise
ASKING_GAINS = 0.95  # times the time without asking ahead: half of it may be noise

UNARY = (
    "square_root", "exponential", "decay", "logarithm", "error_function", "hyperbolic_tangent",
    "sine", "cosine", "tangent", "arc_tangent", "arc_sine", "arc_cosine", "hyperbolic_sine",
    "hyperbolic_cosine", "area_hyperbolic_sine", "area_hyperbolic_cosine",
    "area_hyperbolic_tangent",
)  # fmt: skip
BINARY = ("divide", "power")
FIRST, SECOND = "b0[_i2]", "b1[_i2]"


@dataclass(frozen=True)
class MeasuredLoops:
    """What loops cost, and how far blocks of time are apart: an entry, a part of its value."""

    costs: LoopCosts
    spreads: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class _Measured:
    """Cycles of every probe by its name."""

    cycles: dict[str, float]
    lanes: int

    def row(self, name: str) -> float:
        """Of one task."""
        return self.cycles[name] / ROWS

    def vector(self, name: str) -> float:
        """Of one vector of a long row of float32."""
        return self.row(name) / (LONG / self.lanes)

    def element(self, name: str) -> float:
        """Of one element of a long row."""
        return self.row(name) / LONG

    def line(self, name: str, elements: int) -> float:
        """Of one cache line of float32, of so many elements."""
        return self.cycles[name] / (elements / 16)


def measure_loop_costs(
    level: Level, target: Target, clock_ghz: float, seconds: float = 5.0
) -> MeasuredLoops:
    """All costs, after measuring for about ``seconds`` beside compiling.

    ``clock_ghz`` is the clock under load, of which times are told in cycles.
    """
    probes = _probes(target)
    times = time_probes(level, list(probes.values()), seconds)

    def costs(of: Callable[[Sequence[float]], float]) -> LoopCosts:
        cycles = {name: of(ns) * clock_ghz for name, ns in zip(probes, times, strict=True)}
        return _costs(_Measured(cycles, level.lanes(4)), target)

    blocks = [_entries(costs(itemgetter(number))) for number in range(BLOCKS)]
    spreads = tuple((name, spread([block[name] for block in blocks])) for name in blocks[0])
    return MeasuredLoops(costs(typical), spreads)


def _entries(costs: LoopCosts) -> dict[str, float]:
    """What is a number in a price list, by its name."""
    found = {name: value for name, value in asdict(costs).items() if isinstance(value, float)}
    return {**found, **dict(costs.functions)}


# ---------------------------------------------------------------- programs


def _probes(target: Target) -> dict[str, Probe]:
    made: dict[str, Probe] = {}
    for name in UNARY:
        made[name] = _along(f"{name}({FIRST})")
    for name in BINARY:
        made[name] = _along(f"{name}({FIRST}, {SECOND})")
    made["exponential of float64"] = _along(f"exponential({FIRST})", "float64")
    made["whole"] = _along(f"divide({FIRST}, {SECOND})", "int32", kind="")
    made["narrow"] = _along(f"int8({FIRST})", result="int8", kind="")
    made["convert"] = _along(f"float32({FIRST})", "int8", result="float32", kind="")
    for count in MIXED:
        made[f"mixed {count}"] = _along(_mixed(count))
    made["added"] = _along(_added(MIXED[0]))
    made["maxima"] = _along("maximum(maximum(b0[_i2], b0[_i2 + 16]), b0[_i1*16 + _i2])")
    for name, shift in (("", 0), (" across", 1)):
        made[f"store{name}"] = _along("1.0", shift=shift)
        made[f"sum{name}"] = _reduced("sum", LONG, shift)
    for n in SHORT:
        made[f"copy {n}"] = _rows(_COPIED, n)
    made["known row"] = _rows(_SUMMED.format("sum").replace(".. n", f".. {SHORT[0]}"), SHORT[0])
    made["known extreme"] = _rows(
        _SUMMED.format("maximum").replace(".. n", f".. {SHORT[0]}"), SHORT[0]
    )
    made["scalar 1"], made["scalar 7"] = (_rows(_PLAIN, n) for n in (1, 7))
    for n in SHORT:
        made[f"sum {n}"] = _rows(_SUMMED.format("sum"), n)
    for n in (SHORT[-1], LONG):
        for name, total in _NEEDED.items():
            made[f"{name} {n}"] = _rows(_TWICE.format(total), n, LONG * 4 // n)
    for name, scratch in _HANDED.items():
        made[name] = _handed(scratch)
    made["gather"] = _along("b0[5*_i2 + 0*m]", sizes={"m": 5}, kind="").spread(5)
    made["index"] = _picked("")
    made["checked"] = _picked(" else check 0")
    made["quotient"] = _along("b0[_i2//m]", sizes={"m": 5}, kind="")
    made["running"] = _along("add(o0[_i2 - 1], b0[_i2])", kind="", begin=1)
    for rows, columns, size in TURNS:
        made[f"turn {size}"] = _turned(rows, columns)
    made["turn call"] = _turned(16, 16)
    made["task"] = _tasks()
    for number, level in enumerate(target.levels[1:]):
        made |= _far(number, _elements(target, number, level.capacity))
    memory = len(target.levels) - 2
    rows = _rows_of(target, memory)
    asking = _SUMMED.replace("n\n", f"n asking {PAGE_BYTES} bytes ahead\n", 1)
    places = (f"b0[_i1*n + {k * FAR_ROW // 8} + _i2]" for k in range(8))
    in_pieces = _PIECES.format(*places)
    for number in (memory - 1, memory):
        made[f"pieces {number}"] = _rows(in_pieces, FAR_ROW, _rows_of(target, number))
    number = memory - 1
    made["crossing"] = _crossed("_i3*n + ", _rows_of(target, number))
    made["crossing near"] = _crossed("", ROWS)
    made["half"] = _rows(_SUMMED.format("sum"), FAR_ROW, _half_of_last(target))
    made["asked"] = _rows(asking.format("sum"), FAR_ROW, rows)
    return made


def _mixed(count: int) -> str:
    value = FIRST
    for number in range(count):
        value = f"{'add' if number % 2 else 'multiply'}({value}, {1 + number / 8})"
    return value


def _added(count: int) -> str:
    value = FIRST
    for number in range(count):
        value = f"add({value}, {1 + number / 8})"
    return value


def _along(
    value: str, dtype: str = "float32", result: str = "", kind: str = "masked ", shift: int = 0,
    begin: int = 0, sizes: dict[str, int] | None = None,
) -> _Text:  # fmt: skip
    """A value for each element of a long row, the same row for every task."""
    second = f"buffer b1: {dtype}\n" if "b1" in value else ""
    text = (
        f"buffer b0: {dtype}\n{second}result o0: {result or dtype}\nwork 1\ngrid _i1 < rows\n"
        f"  for {kind}_i2 in {begin} .. n\n    o0[_i2] = {value}\n"
    )
    room = {"b0": LONG + 64, "b1": LONG + 64, "o0": LONG + 64}
    return _Text(text, {"rows": ROWS, "n": LONG, **(sizes or {})}, room, shift)


def _reduced(kind: str, n: int, shift: int) -> Probe:
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < rows\n"
        f"  for masked _i2 in 0 .. n\n    _r3 = {kind} of {FIRST}\n  o0[_i1] = _r3\n"
    )
    return Probe(text, {"rows": ROWS, "n": n}, {"b0": n + 64, "o0": ROWS}, shift)


_COPIED = "  for masked _i2 in 0 .. n\n    o0[_i1*n + _i2] = add(b0[_i1*n + _i2], 1.0)\n"
# Sums of rows side by side, whose vectors begin beside lines.
_CROSSING = (
    "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of n\nwork 1\ngrid _i1 < 1\n"
    "  for masked _i2 in 0 .. n\n    s0[_i2] = 0.0\n"
    "  for _i3 in 0 .. rows\n    for masked _i4 in 0 .. n\n"
    "      s0[_i4] = add(b0[{}_i4 + 3], s0[_i4])\n"
    "  o0[0] = s0[0]\n"
)
_PLAIN = "  for _i2 in 0 .. n\n    o0[_i1*n + _i2] = add(b0[_i1*n + _i2], 1.0)\n"
_SUMMED = "  for masked _i2 in 0 .. n\n    _r3 = {} of b0[_i1*n + _i2]\n  o0[_i1] = _r3\n"
# Eight runs at a time that lie beside each other: each ends where the next one began.
_PIECES = (
    "  for masked _i2 in 0 .. n//8\n    _r3 = sum of "
    + 7 * "add("
    + "{}, {}), {}), {}), {}), {}), {}), {})\n  o0[_i1] = _r3\n"
)
# As in a normalisation: the second sweep needs the sum of the first, or what is made of it.
_TWICE = (
    "  for masked _i2 in 0 .. n\n    _r3 = sum of b0[_i1*n + _i2]\n"
    "  for masked _i4 in 0 .. n\n    _r5 = sum of subtract(b0[_i1*n + _i4], {})\n"
    "  o0[_i1] = add(_r3, _r5)\n"
)
_NEEDED = {
    "apart": "0.5", "waiting": "_r3", "chained": "divide(1.0, square_root(_r3))",
}  # fmt: skip
_CHAINED = 2  # functions of the last one


def _rows(body: str, n: int, rows: int = ROWS) -> Probe:
    text = f"buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < rows\n{body}"
    room = rows * n + 64
    return Probe(text, {"rows": rows, "n": n}, {"b0": room, "o0": room})


def _crossed(row: str, rows: int) -> Probe:
    sizes = {"rows": rows, "n": CROSSED_ROW}
    return Probe(_CROSSING.format(row), sizes, {"b0": rows * CROSSED_ROW + 64, "o0": 1})


# What is loaded where a vector was stored across two lines, or where nothing was.
_HANDED = {"handed": "s0", "not handed": "s1"}


def _handed(scratch: str) -> Probe:
    text = (
        "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of 64\n"
        "scratch s1: float32 of 64\nwork 1\ngrid _i1 < rows\n"
        "  for independent _i2 in 0 .. 16\n    s0[_i2 + m] = b0[_i1*16 + _i2]\n"
        "  for independent _i3 in 0 .. 16\n"
        f"    o0[_i1*16 + _i3] = add({scratch}[_i3 + m + 1], 1.0)\n"
    )
    room = ROWS * 16
    return Probe(text, {"rows": ROWS, "m": 3}, {"b0": room, "o0": room})


def _picked(check: str) -> Probe:
    message = 'check 0: "outside"\n' if check else ""
    text = (
        f"buffer b0: float32\nbuffer t0: int64\nresult o0: float32\n{message}work 1\n"
        f"grid _i1 < rows\n  for _i2 in 0 .. n\n    index _g3 = t0[_i2] below n{check}\n"
        "    o0[_i2] = b0[_g3]\n"
    )
    room = {"b0": LONG, "t0": LONG, "o0": LONG}
    return Probe(text, {"rows": ROWS, "n": LONG}, room, bound=LONG)


def _turned(rows: int, columns: int) -> Probe:
    text = (
        "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of r*c\nwork 1\n"
        "grid _i1 < rows\n  s0[0], row r = transposed b0[0], row c: r x c\n  o0[_i1] = s0[0]\n"
    )
    sizes = {"rows": ROWS, "r": rows, "c": columns}
    return Probe(text, sizes, {"b0": rows * columns + 64, "o0": ROWS})


def _tasks() -> Probe:
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < rows, _i2 < n\n"
        "  for independent _i3 in 0 .. 16\n    o0[_i1*m*n + _i2*m + _i3] = b0[_i2*m + _i3]\n"
    )
    return Probe(text, {"rows": ROWS, "n": 8, "m": 16}, {"b0": 256, "o0": ROWS * 128})


def _elements(target: Target, number: int, capacity: int) -> int:
    """Half of what a level holds; of the last cache, which others use, a part, of memory more."""
    last = len(target.levels) - 2
    if number == last:
        return target.levels[-2].capacity
    return capacity // (16 if number == last - 1 else 4) // 4 * 2


def _far(number: int, elements: int) -> dict[str, Probe]:
    """What is read, read and written, and computed of what a level holds."""
    rows = max(1, elements // FAR_ROW)
    exponentials = "  for masked _i2 in 0 .. n\n    _r3 = sum of exponential(b0[_i1*n + _i2])\n"
    bodies = {
        "read": _SUMMED.format("sum"), "written": _COPIED,
        "computed": exponentials + "  o0[_i1] = _r3\n",
    }  # fmt: skip
    return {
        f"{what} {number}": _rows(body, FAR_ROW, max(1, rows // 2) if what == "written" else rows)
        for what, body in bodies.items()
    }


# ---------------------------------------------------------------- costs


def _costs(m: _Measured, target: Target) -> LoopCosts:
    instruction = (m.vector(f"mixed {MIXED[1]}") - m.vector(f"mixed {MIXED[0]}")) / (
        MIXED[1] - MIXED[0]
    )
    load, store = m.vector("sum across"), m.vector("store across")
    copy = max(load, store)
    enter = _mean(lambda n: (m.row(f"copy {n}") - _whole(m, n) * copy) / _stretches(m, n))
    turns = tuple((size, _turn(m, rows, columns, size)) for rows, columns, size in TURNS)
    largest = min(16, m.lanes)
    call = max(0.0, m.row("turn call") - 256 / m.lanes * dict(turns)[largest])
    compare = m.vector("maxima") / 2 / instruction
    exponential = m.vector("exponential")

    wait = _waited(m, "waiting", LONG)
    task = max(0.0, m.row("task") / 8 - max(m.vector("sum"), m.vector("store")))

    def ending(name: str) -> float:
        return max(0.0, m.row(name) - load - task)

    return LoopCosts(
        instruction=instruction,
        addition=max(m.vector("added") / MIXED[0], instruction),
        load=load,
        store=store,
        aligned_load=m.vector("sum"),
        aligned_store=m.vector("store"),
        latency=4 * m.vector("sum"),
        scalar=max(0.05, (m.row("scalar 7") - m.row("scalar 1")) / 6 / 3),
        enter=max(0.2, enter),
        combine=ending("known row"),
        extreme=ending("known extreme"),
        wait=wait,
        chained=max(0.0, _waited(m, "chained", LONG) - wait) / _CHAINED,
        window=_window(m, wait),
        handed=_not_handed(m),
        gather=m.element("gather"),
        index=m.element("index"),
        checked=m.element("checked"),
        divide=m.element("quotient"),
        running=m.vector("running"),
        turns=turns,
        turn_call=call,
        task=task,
        shown=_shown(m, target),
        crossing=_crossing(m, target),
        again=_again(m, target),
        reached=tuple(_reached(m, target, number) for number in range(1, len(target.levels) - 1)),
        kept=_kept(m, target),
        convert=m.vector("convert") / instruction,
        narrow=m.vector("narrow") / instruction,
        compare=max(1.0, compare),
        double=m.row("exponential of float64") / (LONG / m.lanes * 2) / exponential,
        whole=m.row("whole") / (LONG / 16),
        ahead=_ahead(m, target),
        piece=_piece(m, target, len(target.levels) - 2),
        near_piece=_piece(m, target, len(target.levels) - 3),
        guard=WIDE.guard,
        functions=tuple((name, m.vector(name)) for name in (*BINARY, *UNARY)),
    )


def _mean(of: Callable[[int], float]) -> float:
    return sum(of(n) for n in SHORT) / len(SHORT)


def _waited(m: _Measured, name: str, n: int) -> float:
    """What two sweeps along a row take longer where the second one needs what the first found."""
    rows = LONG * 4 // n
    return max(0.0, m.cycles[f"{name} {n}"] - m.cycles[f"apart {n}"]) / rows


def _window(m: _Measured, wait: float) -> float:
    """How many instructions may wait: a short sweep has so many, and shows a part of its wait."""
    n = SHORT[-1]
    count = SWEEP * _whole(m, n) + 2 * (m.lanes.bit_length() - 1)
    return min(max(count * wait / max(_waited(m, "waiting", n), 0.1), LEAST_WINDOW), MOST_WINDOW)


def _not_handed(m: _Measured) -> float:
    """What a load waits beside the latency of what needs it, or all else if that is more."""
    chain = (LOADED + 1) * 4 * m.vector("sum")
    return max(0.0, m.row("handed") - max(chain, m.row("not handed")))


def _whole(m: _Measured, n: int) -> int:
    """Vectors of a row, the last one included."""
    return -(-n // m.lanes)


def _stretches(m: _Measured, n: int) -> int:
    """Loops of a row: vectors in groups of four, single ones, and the last one."""
    group = 4 * m.lanes
    return sum((n >= group, n % group >= m.lanes, n % m.lanes > 0))


def _turn(m: _Measured, rows: int, columns: int, size: int) -> float:
    """Cycles of ``size`` elements of a square."""
    size = min(size, m.lanes)
    squares = -(-rows // size) * -(-columns // size)
    return m.row(f"turn {size}") / (squares * size)


def _reached(m: _Measured, target: Target, number: int) -> float:
    """The share of a level's bandwidth."""
    elements = _rows_of(target, number) * FAR_ROW
    return 64 / target.levels[number + 1].bandwidth / m.line(f"read {number}", elements)


def _piece(m: _Measured, target: Target, number: int) -> float:
    """What it takes to begin another run of lines of a level."""
    longer = m.cycles[f"pieces {number}"] - m.cycles[f"read {number}"]
    return max(0.0, longer / (8 * _rows_of(target, number)))


def _half_of_last(target: Target) -> int:
    """Rows that are half as much as the last cache holds."""
    return max(1, target.levels[-2].capacity // 8 // FAR_ROW)


def _kept(m: _Measured, target: Target) -> float:
    """From which share of the last cache on lines are lost, so many that all are of a full one."""
    memory = len(target.levels) - 2
    near, far = (m.line(f"read {n}", _rows_of(target, n) * FAR_ROW) for n in (memory - 1, memory))
    half = m.line("half", _half_of_last(target) * FAR_ROW)
    lost = min(max((half - near) / max(far - near, 0.01), 0.0), 0.5)
    return (0.5 - lost) / (1 - lost)


def _rows_of(target: Target, number: int) -> int:
    return max(1, _elements(target, number, target.levels[number + 1].capacity) // FAR_ROW)


def _again(m: _Measured, target: Target) -> float:
    """What writing a line adds, in lines that are read."""
    number = len(target.levels) - 2
    rows = _rows_of(target, number)
    read = m.line(f"read {number}", rows * FAR_ROW)
    return m.line(f"written {number}", max(1, rows // 2) * FAR_ROW) / read - 1


def _ahead(m: _Measured, target: Target) -> int:
    """How far ahead rows in memory are asked for: a page, where that is faster beyond doubt."""
    number = len(target.levels) - 2
    elements = _rows_of(target, number) * FAR_ROW
    asked, read = (m.line(name, elements) for name in ("asked", f"read {number}"))
    return PAGE_BYTES if asked < ASKING_GAINS * read else 0


def _shown(m: _Measured, target: Target) -> float:
    """What does not overlap where computing takes about as long as reading from memory."""
    number = len(target.levels) - 2
    elements = _rows_of(target, number) * FAR_ROW
    read, both = (m.line(f"{what} {number}", elements) for what in ("read", "computed"))
    near = _rows_of(target, 0) * FAR_ROW
    computed = m.line("computed 0", near)
    return min(1.0, max(0.0, (both - max(read, computed)) / min(read, computed)))


def _crossing(m: _Measured, target: Target) -> float:
    """The same for vectors that cross lines, which take about as long as the last cache does."""
    number = len(target.levels) - 3
    rows = _rows_of(target, number)
    both, read = m.line("crossing", rows * CROSSED_ROW), m.line(f"read {number}", rows * FAR_ROW)
    computed = m.line("crossing near", ROWS * CROSSED_ROW)
    return min(1.0, max(0.0, (both - max(read, computed)) / min(read, computed)))


class _Text(Probe):
    """A probe whose operand may have to be longer."""

    def spread(self, times: int) -> Probe:
        """With so many times the elements of the first operand."""
        room = {**self.elements, "b0": self.elements["b0"] * times}
        return Probe(self.text, self.sizes, room, self.shift, self.bound)


__all__ = ["MeasuredLoops", "measure_loop_costs"]
