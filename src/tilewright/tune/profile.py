"""The innermost level, measured: what one step along k of every register tile costs.

Each tile runs with its operands in the first-level cache, at two lengths, and once more with the
right operand streamed from the second level. A sample is some tens of microseconds; samples of all
tiles take turns in several blocks of time (``blocks``). Imports backend and target. Start with
:func:`measure_profile`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import TileShape, most_rows
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.target import Target
from tilewright.target.core_model import PAGE_BYTES, ends_in_half
from tilewright.target.loop_costs import LoopCosts
from tilewright.tune.blocks import BLOCKS, spread, typical
from tilewright.tune.peak import LevelReads
from tilewright.tune.streams import MeasuredStreams
from tilewright.tune.wrappers import CHAIN, CYCLES_OF_PAIR, Words, Wrapper, build

_SAMPLE_NS = 40_000  # of the rounds that are timed as one
_PASSES = (3, 80)  # at least and at most so many samples of each in a block
_FEWEST_PASSES = 3  # for times that are worth keeping after an interrupt
_MOST_STEPS, _STEP_UNIT = 512, 32  # along k: at most, and what their numbers are multiples of
_RESIDENT = 0.25  # of the first level for a panel of both operands: of half, some is lost again
_STREAMED = 0.5  # of the second level for all panels


@dataclass(frozen=True)
class TileTiming:
    """One register tile: nanoseconds of a step along k, and of a call without its steps.

    ``step_ns`` with both operands in the first-level cache, ``streamed_step_ns`` with the right
    operand from the second level. ``name`` is that of the shape; ``columns`` are elements.
    ``spread`` is that of the steps over the blocks of time, as a part of ``step_ns``.
    """

    name: str
    height: int
    columns: int
    masked: bool
    gathered: bool
    step_ns: float
    call_ns: float
    streamed_step_ns: float
    spread: float = 0.0

    @property
    def flops(self) -> float:
        """Operations per second in the first-level cache, a multiply-add is two."""
        return 2e9 * self.height * self.columns / self.step_ns


@dataclass(frozen=True)
class Profile:
    """All tiles of one instruction set level, and the clock they ran at.

    ``reads`` are what the cores read from each level of memory, ``loops`` what loops without
    products cost, ``streams`` what memory gives to rows side by side and takes from all cores; none
    where that was not measured. ``clock_spread`` and ``loop_spreads`` (name of
    an entry, its spread) say how far blocks of time are apart, as parts of what is measured.
    """

    level: str
    clock_ghz: float
    tiles: tuple[TileTiming, ...]
    reads: tuple[LevelReads, ...] = ()
    loops: LoopCosts | None = None
    clock_spread: float = 0.0
    loop_spreads: tuple[tuple[str, float], ...] = ()
    streams: MeasuredStreams | None = None

    def spreads(self) -> tuple[tuple[str, float], ...]:
        """How sure each entry is: its name and its spread."""
        return (
            ("clock", self.clock_spread),
            *((f"tile {tile.name}", tile.spread) for tile in self.tiles),
            *((f"reads of {reads.name}", reads.spread) for reads in self.reads),
            *((f"loops: {name}", apart) for name, apart in self.loop_spreads),
            *(() if self.streams is None else self.streams.spreads()),
        )

    def timing(self, name: str) -> TileTiming | None:
        """The tile with this shape's name, None where it was not measured."""
        return next((tile for tile in self.tiles if tile.name == name), None)


def standard_shapes(
    level: Level, target: Target | None = None, dtype: DType = DType.FLOAT32
) -> tuple[TileShape, ...]:
    """Every height with a packed right operand of all widths in use: whole, masked and halved.

    They go up to the widest of the register tiles that code for ``level`` may have on ``target``, a
    usual machine of the level unless it is given: those whose loads hide by analysis may still be
    slow, and only a measurement tells.
    """
    lanes = level.lanes(dtype.bytes)
    tiles = register_tile(level, None if target is None else Machine(target)).sizes()
    widest = max(tile.columns for tile in tiles) // level.lanes(DType.FLOAT32.bytes)
    kinds = [{"masked": False}, {"masked": True}]
    kinds += [{"halved": True}] if ends_in_half(1, lanes, level.vector_bytes) else []
    return tuple(
        replace(TileShape(dtype, height, vectors, 1, vectors * lanes), **kind)
        for vectors in range(1, widest + 1)
        for height in range(1, most_rows(level, vectors) + 1)
        for kind in kinds
    )


@dataclass
class _Sampled:
    """Something to time: a function, its arguments, and the nanoseconds of one round.

    ``best`` are the fastest of this block of time, ``blocks`` those of the blocks before.
    """

    function: Wrapper
    words: np.ndarray[tuple[int], np.dtype[np.int64]]
    warm_rounds: int
    rounds: int = 1
    best: float = float("inf")
    blocks: list[float] = field(default_factory=list[float])

    def sample(self, overhead: float) -> float:
        """One timed sample after an untimed one that fills the caches; nanoseconds in all."""
        address = int(self.words.ctypes.data)
        self.function(self.warm_rounds, address)
        started = time.perf_counter_ns()
        self.function(self.rounds, address)
        elapsed = max(1.0, time.perf_counter_ns() - started - overhead)
        self.best = min(self.best, elapsed / self.rounds)
        return elapsed

    def calibrate(self, overhead: float) -> None:
        """Choose rounds for a sample of about ``_SAMPLE_NS``."""
        fastest = min(self.sample(overhead) for _ in range(3)) / self.rounds
        self.rounds = max(1, round(_SAMPLE_NS / fastest))
        # A single round may be shorter than the overhead that was taken off it.
        self.best = float("inf")

    def end_block(self) -> None:
        """Keep the fastest of the block, if there was a sample in it."""
        if self.best < float("inf"):
            self.blocks.append(self.best)
        self.best = float("inf")


class _Memory:
    """Operands for every tile, in one aligned buffer that stays where it is."""

    def __init__(self, target: Target, shapes: Sequence[TileShape]) -> None:
        self.first = target.level("L1").capacity
        self.second = target.level("L2").capacity
        tallest = max(shape.height for shape in shapes)
        self.left_elements = tallest * (_MOST_STEPS + 16) * 2
        self.panel_bytes = int(self.second * _STREAMED) + self.first
        sizes = (self.left_elements * 8, self.panel_bytes, 1 << 16, 1 << 14)
        offsets = np.cumsum([0, *(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)])
        self.buffer = np.zeros(int(offsets[-1]) + PAGE_BYTES, np.uint8)
        start = -int(self.buffer.ctypes.data) % PAGE_BYTES + int(self.buffer.ctypes.data)
        places = [start + int(offset) for offset in offsets[:-1]]
        self.left, self.right, self.tile, self.table = places
        # The table of a gathering tile: row i of its one run begins i rows after the first.
        self.table_view = self.buffer[self.table - int(self.buffer.ctypes.data) :][: 1 << 14]

    def words(self, shape: TileShape, steps: int, lanes: int, streamed: bool) -> Words:
        """Arguments for ``steps``; streamed ones fill half of the second level with panels."""
        columns = shape.vectors * lanes
        depth = shape.right_depth or columns
        panel = steps * depth
        room = int(self.second * _STREAMED) // (panel * shape.dtype.bytes)
        left_depth = shape.left_depth or 1
        return Words(
            steps=steps,
            left=self.left,
            left_row=(steps + 16) * left_depth,
            left_depth=left_depth,
            right=self.right,
            right_depth=depth,
            columns=columns - 1 if shape.masked else columns,
            runs=1,
            table=self.table,
            following=shape.height,
            tile=self.tile,
            tile_row=columns,
            panels=max(1, room) if streamed else 1,
            panel=panel,
        )

    def longest(self, shape: TileShape, lanes: int) -> int:
        """The steps whose operands fill the first level as far as is wanted."""
        depth = shape.right_depth or shape.vectors * lanes
        bytes_of_step = (depth + shape.height * (shape.left_depth or 1)) * shape.dtype.bytes
        steps = int(self.first * _RESIDENT) // bytes_of_step // _STEP_UNIT * _STEP_UNIT
        return max(2 * _STEP_UNIT, min(_MOST_STEPS, steps))


@dataclass(frozen=True)
class _Tile:
    """The three samples of one shape."""

    shape: TileShape
    steps: tuple[int, int]
    short: _Sampled
    long: _Sampled
    streamed: _Sampled

    def timing(self, lanes: int) -> TileTiming:
        samples = (self.short.blocks, self.long.blocks, self.streamed.blocks)
        # An interrupt ends the last block of some of them only.
        blocks = [self._block(*times) for times in zip(*samples, strict=False)]
        steps, calls, streamed = zip(*blocks, strict=True)
        step, shape = typical(steps), self.shape
        return TileTiming(
            shape.name, shape.height, shape.width(lanes), shape.masked, shape.gathered,
            step, typical(calls), max(step, typical(streamed)), spread(steps),
        )  # fmt: skip

    def _block(self, short: float, long: float, streamed: float) -> tuple[float, float, float]:
        """A step, a call and a streamed step as a block of time found them."""
        few, many = self.steps
        step = (long - short) / (many - few)
        # Noise may have hit the one and not the other; a call is never cheaper than its steps.
        step = min(max(step, 0.8 * long / many), long / many)
        call = max(0.0, long - many * step)
        return step, call, (streamed - call) / many


class InterruptedTuning(KeyboardInterrupt):
    """Measuring was interrupted; ``profile`` is what was measured until then."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile = profile


def measure_profile(
    level: Level, shapes: Sequence[TileShape], target: Target, seconds: float = 5.0
) -> Profile:
    """Time every shape on this machine, for about ``seconds`` after compiling.

    ``level`` must be one that this processor has; ``target`` says how large its caches are. All
    shapes have the same element type width of 4 or 8 bytes; gathered ones take their rows from a
    table once a call. An interrupt raises InterruptedTuning with what was measured, if that is
    enough to be kept.
    """
    wanted = tuple(dict.fromkeys(shapes))
    wrappers = build(level, wanted)
    if not wanted:
        clock = _clock(wrappers.clock)
        return Profile(level.name, clock.rate, (), clock_spread=clock.spread)
    memory = _Memory(target, wanted)
    tiles = [_tile(shape, wrappers.tiles[shape.name], memory, level) for shape in wanted]
    samples = [sample for tile in tiles for sample in (tile.short, tile.long, tile.streamed)]
    clock = _Sampled(wrappers.clock, np.array([3], np.int64), 1)
    samples.append(clock)
    overhead = _overhead(tiles[0].short)
    for sample in samples:
        sample.calibrate(overhead)

    def measured() -> Profile:
        lanes = [level.lanes(tile.shape.dtype.bytes) for tile in tiles]
        timings = tuple(tile.timing(count) for tile, count in zip(tiles, lanes, strict=True))
        found = _Clock.of(clock)
        return Profile(level.name, found.rate, timings, clock_spread=found.spread)

    passes = _take_turns(samples, overhead, seconds)
    if passes is None:
        return measured()
    if passes >= _FEWEST_PASSES:
        raise InterruptedTuning(measured())
    raise KeyboardInterrupt


def _take_turns(samples: Sequence[_Sampled], overhead: float, seconds: float) -> int | None:
    """Blocks of samples of each in turn; the passes until an interrupt, if there is one."""
    least, most = _PASSES
    number = 0
    try:
        for _ in range(BLOCKS):
            until, passes = time.perf_counter() + seconds / BLOCKS, 0
            while passes < least or (passes < most and time.perf_counter() < until):
                for sample in samples:
                    sample.sample(overhead)
                passes += 1
                number += 1
            _end_block(samples)
    except KeyboardInterrupt:
        _end_block(samples)
        return number
    return None


def _end_block(samples: Sequence[_Sampled]) -> None:
    for sample in samples:
        sample.end_block()


def _tile(shape: TileShape, function: Wrapper, memory: _Memory, level: Level) -> _Tile:
    lanes = level.lanes(shape.dtype.bytes)
    many = memory.longest(shape, lanes)
    few = max(_STEP_UNIT, many // 4 // _STEP_UNIT * _STEP_UNIT)
    resident = memory.words(shape, many, lanes, False)
    streamed = memory.words(shape, many, lanes, True)
    if shape.gathered:
        entries = np.arange(shape.height, dtype=np.int64) * resident.left_row * shape.dtype.bytes
        memory.table_view[: entries.nbytes] = entries.view(np.uint8)
    return _Tile(
        shape,
        (few, many),
        _Sampled(function, replace(resident, steps=few).array(), 1),
        _Sampled(function, resident.array(), 1),
        _Sampled(function, streamed.array(), 1),
    )


def _overhead(sample: _Sampled) -> float:
    """Nanoseconds of reading the clock and calling a function that returns at once."""
    address = int(sample.words.ctypes.data)
    found: list[int] = []
    for _ in range(200):
        started = time.perf_counter_ns()
        sample.function(0, address)
        found.append(time.perf_counter_ns() - started)
    return float(min(found))


@dataclass(frozen=True)
class _Clock:
    """Cycles per nanosecond, and their spread."""

    rate: float
    spread: float

    @staticmethod
    def of(sampled: _Sampled) -> _Clock:
        """As a chain of instructions shows it."""
        rates = [CHAIN * CYCLES_OF_PAIR / best for best in sampled.blocks]
        return _Clock(typical(rates), spread(rates))


def _clock(function: Wrapper) -> _Clock:
    """The clock without any tile."""
    clock = _Sampled(function, np.array([3], np.int64), 1)
    clock.calibrate(0.0)
    _take_turns([clock], 0.0, 0.05)
    return _Clock.of(clock)
