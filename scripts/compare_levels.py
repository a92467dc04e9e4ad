"""Which levels of a product are worth measuring, and which choosing at run time?

    python scripts/compare_levels.py --shapes 24
    python scripts/compare_levels.py --suite gemm.csv

This is Table 7 and Fig. 15 of the Vortex paper (arXiv 2409.01075, section 7.4) for this machine.
The candidates are register tiles (level 0) with blocks (level 1) for products of which no size is
known; every configuration chooses one of them for each shape, by figures that it measured or
analysed, and all of them are timed at all shapes. The oracle takes the fastest at each shape.

    nothing       steps of tiles as the pipes would run them, blocks by the price of a product
    level 0       steps of tiles measured, blocks by the price of a product: what `tune` is for
    levels 0, 1   every block measured on one thread, above it the paper's analysis (section 5.2)
    as compiled   what the usual tile and the blocks that `policy="auto"` keeps reach by level 0
    static ...    one tile, or one tile and one block, for all shapes: those that are within 3 % of
                  the best most often, which the oracle's times tell

Of the blocks that the machine allows those are candidates that are among the twelve cheapest at
one of many shapes spread over the ranges, by the prices with or without measured tiles. The oracle
times those of them whose price at the shape is at most twice the least.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import Level, host_level
from tilewright.backend.cpu.program import build_program
from tilewright.bench.clock import clock_for
from tilewright.bench.operators import build_product
from tilewright.bench.suites import read_suite
from tilewright.bench.turns import time_variants
from tilewright.compile import Compilation, compile_stages
from tilewright.cost import Machine
from tilewright.policy import POLICIES, BlockSizes, Chosen, Kept, Problem
from tilewright.policy.candidates import product_blocks
from tilewright.policy.prices import Samples, promising, samples_of, space_prices
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import KernelStep
from tilewright.shape import constant, symbol
from tilewright.target import Target, detect
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.variants import THREADS, Accuracy
from tilewright.tune import measure_profile, measured_machine, standard_shapes

MOST = 4096  # of any size
CLOSE = 1.03  # times the best: as good as it
HOPELESS = 2.0  # times the least price: no oracle would take it
FINALISTS = 8  # of each shape that take turns, beside what the configurations choose
BLOCK_MULTIPLY_ADDS = 1 << 22  # at least in what is timed for one block

Shape = tuple[int, int, int]
Blocks = tuple[tuple[BlockSizes, ...], ...]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Recording:
    """A policy that keeps one candidate, and remembers what it was asked and what is promising."""

    problems: list[Problem] = field(default_factory=list[Problem])
    kept: list[Blocks] = field(default_factory=list[Blocks])

    def choose(self, problem: Problem) -> Chosen:
        """See `Policy.choose`."""
        self.problems.append(problem)
        found = promising(problem, samples_of(problem))
        self.kept.append(tuple(space.blocks for space in found.spaces))
        only = Kept(problem.spaces[0].blocks[0], constant(0))
        return Chosen(((only,), *(() for _ in problem.spaces[1:])), with_others=False)


@dataclass(frozen=True)
class Given:
    """A policy that keeps what it was given."""

    blocks: Blocks

    def choose(self, problem: Problem) -> Chosen:
        """See `Policy.choose`; all cost the same, since it is not the runtime that chooses."""
        cost = symbol(problem.sizes[0])
        kept = tuple(tuple(Kept(block, cost) for block in own) for own in self.blocks)
        return Chosen(kept, with_others=False)


@dataclass(frozen=True)
class Candidate:
    """A register tile with a block, with the right operand as it lies (way 0) or packed (way 1)."""

    tile: int
    way: int
    block: BlockSizes

    @property
    def extents(self) -> Shape:
        """The block, within the largest sizes that there are."""
        block = self.block
        return min(block.rows, MOST), min(block.columns, MOST), min(block.depth, MOST)

    def counts(self, shape: Shape, tile: RegisterTile) -> Shape:
        """How many blocks there are along each axis."""
        m, n, k = shape
        columns = max(1, -(-(n - tile.columns // 2) // self.block.columns))
        return -(-m // self.block.rows), columns, -(-k // self.block.depth)


@dataclass
class TileCode:
    """The code of one register tile, with a variant for every candidate of it."""

    tile: RegisterTile
    candidates: tuple[Candidate, ...]
    contents: ArtifactContents
    models: dict[tuple[Candidate, int], CompiledModel] = field(
        default_factory=dict[tuple[Candidate, int], CompiledModel]
    )

    def model(self, candidate: Candidate, threads: int) -> CompiledModel:
        """The product by one candidate."""
        key = candidate, threads
        if key not in self.models:
            ((name, program),) = self.contents.programs.items()
            step = program.steps[self.candidates.index(candidate)]
            assert isinstance(step, KernelStep)
            steps = (replace(step, used=constant(1)),)
            own = replace(program, choices=(), steps=steps)
            contents = replace(self.contents, programs={name: own})
            self.models[key] = CompiledModel.from_contents(contents, num_threads=threads)
        return self.models[key]


class Candidates:
    """All candidates, their code, and what each costs by the model of some machines."""

    def __init__(self, level: Level, machines: Sequence[Machine]) -> None:
        dims = {size: (0, MOST) for size in ("m", "k", "n")}
        self.made = compile_stages(build_product(*dims), dims=dims)
        self.level = level
        self.tiles = register_tile(level, machines[0]).sizes()
        self.recorded: list[list[Recording]] = []
        self.codes: list[TileCode] = []
        for number, tile in enumerate(self.tiles):
            recorded = [Recording() for _ in machines]
            for machine, recording in zip(machines, recorded, strict=True):
                self._build(tile, machine, recording)
            self.recorded.append(recorded)
            together = zip(*(recording.kept[0] for recording in recorded), strict=True)
            blocks = tuple(tuple(sorted(set().union(*own))) for own in together)
            contents = self._build(tile, machines[0], Given(blocks))
            own = (Candidate(number, way, b) for way, row in enumerate(blocks) for b in row)
            self.codes.append(TileCode(tile, tuple(own), contents))
        self.all = tuple(c for code in self.codes for c in code.candidates)

    def _build(
        self, tile: RegisterTile, machine: Machine, policy: Recording | Given
    ) -> ArtifactContents:
        made: Compilation = self.made
        machine = machine.limited(self.level.has_instruction)
        lowering = LoweringOnce(made.graph.scope, tile, Accuracy.STANDARD, machine, policy)
        ((name, plan),) = made.plans.items()
        dimensions = made.contents.programs[name].dimensions
        code = build_program(made.graph, plan, self.level, dimensions, (), lowering)
        return replace(
            made.contents, programs={name: code.program}, images={name: code.image},
            constants={name: code.constants},
        )  # fmt: skip

    def prices(self, machine: int, shapes: Sequence[Shape], threads: int) -> Array:
        """Picoseconds by the model: (candidates, shapes)."""
        columns = np.array(shapes, np.float64).T
        values = {name: column[None, :] for name, column in zip("mnk", columns, strict=True)}
        values[THREADS] = np.full((1, len(shapes)), float(threads))
        samples = Samples(values, len(shapes))
        rows: list[Array] = []
        for code, recorded in zip(self.codes, self.recorded, strict=True):
            for way, space in enumerate(recorded[machine].problems[0].spaces):
                own = tuple(c.block for c in code.candidates if c.way == way)
                rows.append(space_prices(replace(space, blocks=own), samples))
        return np.concatenate(rows)

    def kept_when_compiling(self, machine: int) -> list[int]:
        """The candidates that `policy="auto"` keeps, of the usual tile."""
        chosen = POLICIES["auto"].choose(self.recorded[0][machine].problems[0])
        kept = {(way, k.sizes) for way, own in enumerate(chosen.kept) for k in own}
        return [n for n, c in enumerate(self.all) if c.tile == 0 and (c.way, c.block) in kept]

    def call(self, candidate: int, arrays: dict[str, Any], threads: int) -> Callable[[], object]:
        """A call of the product by one candidate."""
        found = self.all[candidate]
        return partial(self.codes[found.tile].model(found, threads).run, arrays)

    def describe(self, candidate: int) -> str:
        """The tile and the block, for people."""
        found = self.all[candidate]
        tile, block = self.tiles[found.tile], found.block
        packed = ", packed" if found.way else ""
        blocks = f"{block.rows} x {block.columns} x {block.depth}"
        return f"tile {tile.rows} x {tile.columns}, block {blocks}{packed}"

    def allowed(self, target: Target) -> int:
        """How many blocks the machine allows for all tiles together."""
        return sum(
            len(product_blocks(target, "float32", tile.rows, tile.columns, packed))
            for tile in self.tiles
            for packed in (False, True)
        )


def operands(shape: Shape) -> dict[str, Any]:
    """Operands of a product."""
    m, n, k = shape
    return {"a": np.ones((m, k), np.float32), "b": np.ones((k, n), np.float32)}


def least_time(call: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of some calls, after one that is not timed."""
    call()
    found: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return min(found)


# ---------------------------------------------------------------- level 1, measured


def block_times(found: Candidates) -> Array:
    """Picoseconds of one block of each candidate, on one thread with operands in its caches."""
    empty = least_time(found.call(0, operands((1, 1, 1)), 1), 200)
    times: list[float] = []
    for number, candidate in enumerate(found.all):
        rows, columns, depth = candidate.extents
        wanted = -(-BLOCK_MULTIPLY_ADDS // (rows * columns * depth))
        several = max(1, min(wanted, MOST // rows))
        arrays = operands((several * rows, columns, depth))
        seconds = least_time(found.call(number, arrays, 1), 3)
        times.append(1e12 * max(seconds - empty, 1e-9) / several)
    return np.array(times)


def analysed_above(
    found: Candidates, times: Array, shapes: Sequence[Shape], threads: int, target: Target
) -> Array:
    """Picoseconds of whole products made of measured blocks: (candidates, shapes).

    Equations 2 to 4 of the paper: along the depth a block is loaded while the one before is
    computed, and so many rounds of blocks follow as threads need for all of them.
    """
    prices = np.empty((len(found.all), len(shapes)))
    for column, shape in enumerate(shapes):
        m, n, k = shape
        last, memory = target.levels[-2:]
        level = last if 4 * (m * k + k * n + m * n) < last.capacity // 4 else memory
        cycles = level.bandwidth_of(threads) / threads
        picoseconds = 1000.0 / target.clock_ghz / cycles  # for a byte of one thread
        for row, candidate in enumerate(found.all):
            counts = candidate.counts(shape, found.tiles[candidate.tile])
            rows, columns, depth = (size / c for size, c in zip(shape, counts, strict=True))
            part = rows * columns * depth / math.prod(candidate.extents)
            computed = times[row] * part
            loaded = 4 * depth * (rows + columns) * picoseconds
            stored = 4 * rows * columns * picoseconds
            task = loaded + (counts[2] - 1) * max(loaded, computed) + computed + stored
            prices[row, column] = -(-counts[0] * counts[1] // threads) * task
    return prices


# ---------------------------------------------------------------- timing


def screened(found: Candidates, shape: Shape, threads: int, prices: Array) -> Array:
    """Seconds of the candidates at a shape; those that come to the same are timed once.

    Those whose price is far above the least are not timed; they take forever.
    """
    arrays = operands(shape)
    known: dict[tuple[int, int, Shape], float] = {}
    seconds = np.full(len(found.all), np.inf)
    for number in np.flatnonzero(prices <= HOPELESS * prices.min()):
        candidate = found.all[number]
        key = candidate.tile, candidate.way, candidate.counts(shape, found.tiles[candidate.tile])
        if key not in known:
            known[key] = least_time(found.call(int(number), arrays, threads), 2)
        seconds[number] = known[key]
    return seconds


def finals(
    found: Candidates, shape: Shape, wanted: Sequence[int], threads: int, seconds: float
) -> dict[int, float]:
    """Seconds of the candidates that matter, in turns."""
    arrays = operands(shape)
    calls = [found.call(number, arrays, threads) for number in wanted]
    return dict(zip(wanted, time_variants(calls, clock_for(threads), seconds), strict=True))


def most_often(near: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """The row that is near the best at most of the shapes, the first of equals."""
    return int(near.sum(axis=1).argmax())


def usual_choices(found: Candidates, seconds: Array) -> tuple[int, int]:
    """The tile, and the candidate of it, that are close to the best of all most often."""
    tiles = np.array([candidate.tile for candidate in found.all])
    best = np.array([seconds[tiles == t].min(axis=0) for t in range(len(found.tiles))])
    tile = most_often(best <= CLOSE * best.min(axis=0))
    near = (seconds <= CLOSE * best[tile]) & (tiles == tile)[:, None]
    return tile, most_often(near)


def draw_shapes(suite: Path | None, count: int, seed: int, most_flops: float) -> list[Shape]:
    """Shapes of a suite, or with logarithms that are uniform; none that takes too long."""
    generator = np.random.default_rng(seed)
    if suite is not None:
        cases = [case.sizes for case in read_suite(suite)]
        known = [(sizes["M"], sizes["N"], sizes["K"]) for sizes in cases]
        fitting = [s for s in dict.fromkeys(known) if max(s) <= MOST and _flops(s) <= most_flops]
        chosen = generator.permutation(len(fitting))[:count]
        return [fitting[number] for number in chosen]
    shapes: list[Shape] = []
    while len(shapes) < count:
        m, n, k = (round(float(np.exp(generator.uniform(0, np.log(MOST))))) for _ in range(3))
        if 1e6 <= _flops((m, n, k)) <= most_flops:
            shapes.append((m, n, k))
    return shapes


def _flops(shape: Shape) -> float:
    return 2.0 * math.prod(shape)


@dataclass(frozen=True)
class Configuration:
    """A way to choose: seconds before the first call, and the candidate of each shape."""

    name: str
    offline: float
    chosen: tuple[int, ...]


def choose(prices: Array, allowed: Sequence[int] | None = None) -> tuple[int, ...]:
    """The cheapest candidate of each shape, of some or all."""
    rows = np.arange(len(prices)) if allowed is None else np.array(allowed)
    return tuple(int(rows[row]) for row in prices[rows].argmin(axis=0))


def configurations(
    found: Candidates, shapes: Sequence[Shape], threads: int, target: Target,
    offline: tuple[float, float], seconds: Array,
) -> list[Configuration]:  # fmt: skip
    """What is compared; ``offline`` are the seconds of compiling and of measuring level 0."""
    compiling, profiling = offline
    analysed, hybrid = (found.prices(machine, shapes, threads) for machine in (0, 1))
    started = time.perf_counter()
    blocks = analysed_above(found, block_times(found), shapes, threads, target)
    both = compiling + profiling + time.perf_counter() - started
    tile, block = usual_choices(found, seconds)
    own = [number for number, candidate in enumerate(found.all) if candidate.tile == tile]
    level_0 = compiling + profiling
    return [
        Configuration("measured: nothing", compiling, choose(analysed)),
        Configuration("measured: level 0", level_0, choose(hybrid)),
        Configuration("measured: levels 0, 1", both, choose(blocks)),
        Configuration("as compiled", level_0, choose(hybrid, found.kept_when_compiling(1))),
        Configuration("static level 0", level_0, choose(hybrid, own)),
        Configuration("static levels 0, 1", level_0, (block,) * len(shapes)),
    ]


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(description="Compare which levels of a product are measured.")
    parser.add_argument("--shapes", type=int, default=24)
    parser.add_argument("--suite", type=Path, help="a CSV file with columns M, N and K")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="print every shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-flops", type=float, default=4e8, help="of a shape")
    parser.add_argument("--seconds", type=float, default=0.3, help="for the finals of each shape")
    given = parser.parse_args()
    level, target = host_level(), detect()
    started = time.perf_counter()
    profile = measure_profile(level, standard_shapes(level, target), target)
    profiled = time.perf_counter()
    found = Candidates(level, (Machine(target), Machine(*measured_machine(profile, target))))
    offline = time.perf_counter() - profiled, profiled - started
    shapes = draw_shapes(given.suite, given.shapes, given.seed, given.most_flops)
    prices = np.minimum(*(found.prices(machine, shapes, given.threads) for machine in (0, 1)))
    screening = zip(shapes, prices.T, strict=True)
    seconds = np.array([screened(found, s, given.threads, own) for s, own in screening]).T
    compared = configurations(found, shapes, given.threads, target, offline, seconds)
    parts: dict[str, list[float]] = {each.name: [] for each in compared}
    for column, shape in enumerate(shapes):
        best = [int(number) for number in seconds[:, column].argsort()[:FINALISTS]]
        wanted = list(dict.fromkeys([*best, *(each.chosen[column] for each in compared)]))
        took = finals(found, shape, wanted, given.threads, given.seconds)
        for each in compared:
            parts[each.name].append(min(took.values()) / took[each.chosen[column]])
        if given.each:
            fastest = min(took, key=lambda number: took[number])
            print(f"{shape}: {1e6 * took[fastest]:.0f} us, {found.describe(fastest)}")
            for each in compared:
                name = found.describe(each.chosen[column])
                print(f"  {each.name:24} {parts[each.name][-1]:6.1%}  {name}")
    print(
        f"{len(found.tiles)} register tiles, {len(found.all)} of {found.allowed(target)} blocks; "
        f"{len(shapes)} shapes, {given.threads} threads"
    )
    print(f"{'configuration':24} {'offline s':>10} {'of the oracle':>14} {'least':>7}")
    for each in compared:
        mean, least = statistics.fmean(parts[each.name]), min(parts[each.name])
        print(f"{each.name:24} {each.offline:10.1f} {mean:14.1%} {least:7.1%}")


if __name__ == "__main__":
    main()
