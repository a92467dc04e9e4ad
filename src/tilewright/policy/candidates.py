"""Candidate sizes of every level, from the registers up: a sieve of multiples.

Level 0 holds register tiles (warp tiles on a GPU), multiples of one instruction that its registers
and pipes allow; level 1 cache blocks (thread blocks), multiples of level 0 that use their cache
neither too little nor too much; level 2 what all units work on at a time, multiples of level 1.
Each candidate names those of the level below that it can be built from. No sample of a shape is
needed. Products are built from the blocks of :func:`product_blocks`; ``tilewright doctor
--candidates`` shows all levels. The method is the top-down one of Vortex (section 5.1), with the
limits written as what a machine's description says. Imports ``target`` only; nothing is measured.
Start with :func:`candidates`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, lcm

from tilewright.ir.tile import LINE_BYTES
from tilewright.policy.tiles import FELT, product_tiles
from tilewright.target import InstructionTile, MemoryLevel, Target
from tilewright.target.core_model import usual_core
from tilewright.target.description import KEPT_SHARE, element_bytes

_WARP = 32  # threads of a GPU that run together
_STAGES = 2  # one slice of k is computed while the next one arrives
_MOST_SPLITS = 8  # of k, over units
_SCORES = 2  # blocks as large as that of the scores, at most, that a pass over keys writes
_TURNING = 6  # instructions for a vector that is packed: a load, a store, four that turn it


@dataclass(frozen=True)
class Limits:
    """What share of a level a candidate must use at least, and may use at most.

    ``register_share`` of the peak that a register tile must reach by its loads and latencies,
    ``block_share`` the same of a block by what it reads from the next level; ``cache`` the least
    and the greatest share of a level's capacity. Hardware asks ahead for what comes next in so many
    rows at a time as are ``followed``.
    """

    register_share: float = 0.75
    block_share: float = 0.1
    cache: tuple[float, float] = (0.125, KEPT_SHARE)
    registers: float = 1.0
    followed: int = 0


@dataclass(frozen=True)
class Candidate:
    """An m × n × k product of one level.

    ``children`` are positions in the level below. ``share`` of the peak is what the level's own
    loads and latencies allow, and ``used`` what it takes of the level's capacity (registers, cache
    or units). Level 0 also has its ``instruction`` and the ``copies`` of its sums that take turns
    along k.
    """

    m: int
    n: int
    k: int
    share: float
    used: float
    children: tuple[int, ...] = ()
    instruction: str = ""
    copies: int = 1

    @property
    def extents(self) -> tuple[int, int, int]:
        """(m, n, k)."""
        return self.m, self.n, self.k


@dataclass(frozen=True)
class CandidateTable:
    """The candidates of the three levels, each in ascending order of (m, n, k)."""

    target: Target
    dtype: str
    levels: tuple[tuple[Candidate, ...], tuple[Candidate, ...], tuple[Candidate, ...]]


def candidates(target: Target, dtype: str, limits: Limits | None = None) -> CandidateTable:
    """All candidates for products of ``dtype``; empty levels where nothing fits.

    The order is always the same. Raises InputError for a type that no target multiplies.
    """
    element_bytes(dtype)
    bounds = limits or Limits()
    tiles = register_tiles(target, dtype, bounds)
    blocks = cache_blocks(target, dtype, tiles, bounds)
    return CandidateTable(target, dtype, (tiles, blocks, grids(target, dtype, blocks, bounds)))


def register_tiles(target: Target, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Level 0: multiples of each instruction that fit the registers and keep the pipes busy."""
    found: list[Candidate] = []
    for instruction in target.instructions(dtype):
        fits = _warp_tile if target.kind == "gpu" else _vector_tile
        for rows, columns in _register_multiples(target, instruction):
            made = fits(target, instruction, rows, columns, limits)
            if made is not None and made.share >= limits.register_share:
                found.append(made)
    return tuple(sorted(found, key=_register_order))


def _register_order(tile: Candidate) -> tuple[int, int, int, str]:
    return *tile.extents, tile.instruction


def _register_multiples(target: Target, instruction: InstructionTile) -> Iterator[tuple[int, int]]:
    """(rows, columns) in instructions: every one on a CPU, the usual multiples on a GPU."""
    if target.kind == "gpu":
        multiples = tuple(multiples_up_to(64))
        yield from ((rows, columns) for rows in multiples for columns in multiples)
        return
    most = instruction.registers or target.vector_registers
    for rows in range(1, most):
        yield from ((rows, columns) for columns in range(1, (most - 1) // (rows + 1) + 1))


def _vector_tile(
    target: Target, instruction: InstructionTile, rows: int, columns: int, limits: Limits
) -> Candidate | None:
    """rows × columns sums in registers, with one row of columns and one value of the left."""
    registers = int((instruction.registers or target.vector_registers) * limits.registers)
    room = registers - columns - 1
    sums = rows * columns
    if sums > room:
        return None
    rate = instruction.per_cycle / (instruction.m * instruction.n * instruction.k)
    in_flight = rate * (instruction.latency or target.fma_latency)
    copies = 1
    while copies * sums < in_flight and 2 * copies * sums <= room:
        copies *= 2
    compute = sums / rate
    waiting = compute * max(1.0, in_flight / (copies * sums))
    element = element_bytes(instruction.dtype)
    left = ceil(instruction.m * instruction.k * element / target.vector_bytes)
    right = ceil(instruction.n * instruction.k * element / target.vector_bytes)
    loading = (rows * left + columns * right) / target.loads_per_cycle
    return Candidate(
        rows * instruction.m, columns * instruction.n, copies * instruction.k,
        compute / max(waiting, loading), (copies * sums + columns + 1) / registers,
        instruction=instruction.name, copies=copies,
    )  # fmt: skip


def _warp_tile(
    target: Target, instruction: InstructionTile, rows: int, columns: int, limits: Limits
) -> Candidate | None:
    """Sums and two slices of both operands in the registers of the warps; loads from shared."""
    m, n, k = rows * instruction.m, columns * instruction.n, instruction.k
    element, threads = element_bytes(instruction.dtype), instruction.warps * _WARP
    slices = (m + n) * k * element
    # A matrix instruction spreads its operands over the threads; without one, each thread has its
    # own rows and columns.
    own = (rows + columns) * element if instruction.name == "fma" else slices / threads
    sums = m * n * element_bytes(instruction.accumulator) / threads
    each = (sums + _STAGES * own) / 4
    used = each / target.vector_registers
    if used > limits.registers:
        return None
    compute = m * n * k / instruction.per_cycle
    loading = slices / target.level("shared").bandwidth
    share = min(1.0, compute / loading)
    return Candidate(m, n, k, share, used, instruction=instruction.name)


def multiples_up_to(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, …: powers of two and three times powers of two."""
    power = 1
    while power <= most:
        yield power
        if power > 1 and power // 2 * 3 <= most:
            yield power // 2 * 3
        power *= 2


@dataclass
class _Sieve:
    """Multiples with the children they were reached from; equal ones are one candidate."""

    found: dict[tuple[int, int, int], tuple[float, float, list[int]]]

    def add(self, extents: tuple[int, int, int], share: float, used: float, child: int) -> None:
        best, least, children = self.found.get(extents, (share, used, []))
        children.append(child)
        self.found[extents] = max(best, share), min(least, used), children

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(*extents, share, used, tuple(sorted(set(children))))
            for extents, (share, used, children) in sorted(self.found.items())
        )


def cache_blocks(
    target: Target, dtype: str, tiles: tuple[Candidate, ...], limits: Limits
) -> tuple[Candidate, ...]:
    """Level 1: multiples of register tiles that fit the cache of one unit, or a thread block."""
    sieve = _Sieve({})
    for number, tile in enumerate(tiles):
        if target.kind == "gpu":
            blocks = _thread_blocks(target, dtype, tile, limits)
        else:
            blocks = _core_blocks(target, dtype, tile, limits)
        for extents, share, used in blocks:
            if share >= limits.block_share:
                sieve.add(extents, share, used, number)
    return sieve.candidates()


_CONSIDERED, _FITTING = "multiples of the tile", "fit the second cache"
_FILLING, _FEEDING = "fill the first cache", "are fed by the level behind"
_Block = tuple[tuple[int, int, int], float, float]


def _core_blocks(target: Target, dtype: str, tile: Candidate, limits: Limits) -> Iterable[_Block]:
    """Blocks with the rows in the second cache, and blocks with the columns there."""
    found: dict[tuple[int, int, int], _Block] = {}
    for columns_stay in (False, True):
        for block in _resident_blocks(target, dtype, tile, limits, columns_stay):
            found.setdefault(block[0], block)
    return found.values()


def _resident_blocks(
    target: Target, dtype: str, tile: Candidate, limits: Limits, columns_stay: bool,
    passed: Counter[str] | None = None,
) -> Iterator[_Block]:  # fmt: skip
    """Blocks of which one operand stays in the second cache while the other one streams by.

    A panel of the tile's columns is read for every tile of rows, from the farthest of both caches
    that feeds the multiply-adds. It stays there with the results of all rows, unless it is read
    once: by the only tile of rows.
    No extent is longer than it takes for the second reading of the other operand to vanish; but
    where columns are read once, from memory in a few rows at a time that hardware can follow, or
    the second cache has room for results of whole rows of columns, for these, and for those that
    tiles ask for meanwhile, they are as long as it takes for the wait at their beginning to vanish.
    ``passed`` counts what each filter lets through.
    """
    passed = Counter() if passed is None else passed
    element, (least, most) = element_bytes(dtype), limits.cache
    instruction = _instruction(target, dtype, tile)
    first, second, outer = _core_levels(target)
    memory = target.levels[-1]
    enough = _enough(element * instruction.per_cycle / memory.bandwidth)
    tall = _enough(_TURNING * instruction.per_cycle / target.lanes(dtype))
    longest = _enough(memory.latency * memory.bandwidth / element)
    room = task_room(target) // element
    feeding = element * instruction.per_cycle / tile.m
    panels = second if second.bandwidth >= feeding else first
    deepest = int(panels.capacity * most) // ((tile.n + tile.m) * element)
    for m in _multiples(tile.m, max(tall if columns_stay else enough, tile.m)):
        once = m == tile.m and not columns_stay
        for k in _multiples(tile.k, room // m if once else deepest):
            follows = once and k <= limits.followed
            asked = 0 if columns_stay else min(longest, room // (m + 2 * k))
            most_wide = longest if follows else max(enough, asked)
            widths = tuple(_multiples(tile.n, max(most_wide, tile.n)))
            passed[_CONSIDERED] += len(widths)
            for n in widths:
                stays = n * k if columns_stay else m * k + (0 if once else k * tile.n + m * tile.n)
                if stays > room:
                    break
                passed[_FITTING] += 1
                if k * n * element < least * first.capacity:
                    continue
                passed[_FILLING] += 1
                compute = m * n * k / instruction.per_cycle
                share = min(1.0, compute * outer.bandwidth / ((m * k + k * n) * element))
                yield (m, n, k), share, stays * element / second.capacity


def _enough(cycles: float) -> int:
    """Up to which extent repeated work that takes ``cycles`` of one step is felt."""
    return ceil(cycles / FELT)


@cache
def product_blocks(
    target: Target, dtype: str, rows: int, columns: int, packed: bool, followed: int
) -> tuple[tuple[int, int, int], ...]:
    """(rows, columns, depth) of blocks for products with a register tile of ``rows`` × ``columns``.

    ``packed`` says that the columns are copied to the cache first and stay there; else the rows do.
    Hardware asks ahead for what comes next in so many rows at a time as are ``followed``.
    There is always one: the best by its share of the limit where none is good, and a block of the
    least extents where not even these fit the caches.
    """
    limits = Limits(followed=followed)
    plain = target.instructions(dtype)[0]
    tile = Candidate(rows, columns, plain.k, 1.0, 1.0, instruction=plain.name)
    found = list(_resident_blocks(target, dtype, tile, limits, packed))
    found = found or [((rows, columns, plain.k), 0.0, 1.0)]
    good = min(limits.block_share, max(share for _, share, _ in found))
    return tuple(sorted({extents for extents, share, _ in found if share >= good}))


def attention_blocks(
    target: Target, dtype: str, tile_rows: int, depth: int
) -> tuple[tuple[int, int], ...]:
    """(rows, keys) of the blocks of scores for an attention, ascending.

    Both are multiples of a cache line, and keys, which are the rows of the first product, of its
    register tile. The second cache holds the scores, as many numbers again where a mask is turned,
    and ``depth`` elements of every row and of every key, which both products meet again and again.
    A block of the least extents is always there.
    """
    element, limits = element_bytes(dtype), Limits()
    line = LINE_BYTES // element
    room = task_room(target) // element
    unit = lcm(line, tile_rows)
    found: list[tuple[int, int]] = []
    for rows in _multiples(line, room // depth):
        for keys in _multiples(unit, room // depth):
            used = _SCORES * rows * keys + (rows + keys) * depth
            if room * limits.cache[0] <= used <= room:
                found.append((rows, keys))
    return tuple(sorted(found)) or ((line, unit),)


def task_room(target: Target) -> int:
    """Bytes that all may have together which a task meets more than once.

    They are the share of the second cache that blocks of products may use, too: what streams by
    takes the rest.
    """
    _, second, _ = _core_levels(target)
    return second.room


@dataclass(frozen=True)
class LevelCount:
    """How many candidates of a level each of its filters lets through, and how many are left."""

    level: str
    passed: tuple[tuple[str, int], ...]
    left: int


def product_counts(target: Target, dtype: str) -> tuple[LevelCount, ...]:
    """The candidates for products of a CPU, from the registers up.

    Blocks are those of the usual register tile, with the right operand as it lies and packed.
    """
    sieved = product_tiles(target, dtype)
    levels = [LevelCount("0, register tiles", sieved.counts, len(sieved.tiles))]
    usual = sieved.tiles[0]
    followed = usual_core(target).streams.followed
    limits, lanes = Limits(followed=followed), target.lanes(dtype)
    plain = target.instructions(dtype)[0]
    tile = Candidate(usual.rows, usual.vectors * lanes, plain.k, 1.0, 1.0, instruction=plain.name)
    for name, packed in (("rows stay in cache", False), ("columns stay in cache", True)):
        passed: Counter[str] = Counter()
        found = list(_resident_blocks(target, dtype, tile, limits, packed, passed))
        passed[_FEEDING] = sum(share >= limits.block_share for _, share, _ in found)
        left = len(product_blocks(target, dtype, tile.m, tile.n, packed, followed))
        levels.append(LevelCount(f"1, blocks: {name}", tuple(passed.items()), left))
    return tuple(levels)


def _core_levels(target: Target) -> tuple[MemoryLevel, MemoryLevel, MemoryLevel]:
    """The first cache, the last one that a core need not share, and the level behind that."""
    caches = target.levels[1:-1]
    own = [cache for cache in caches if cache.sharing == 1] or [caches[0]]
    last = own[min(1, len(own) - 1)]
    return caches[0], last, target.levels[target.levels.index(last) + 1]


def _thread_blocks(target: Target, dtype: str, tile: Candidate, limits: Limits) -> Iterable[_Block]:
    """Slices of both operands in shared memory, the sums in the registers of its warps."""
    element, (least, most) = element_bytes(dtype), limits.cache
    instruction = _instruction(target, dtype, tile)
    shared, registers = target.block_shared_bytes, target.level("registers").capacity
    outer = target.level("L2")
    bandwidth = min(outer.bandwidth, outer.total_bandwidth / target.units)
    warps = target.block_threads // _WARP // instruction.warps
    each = tile.used * target.vector_registers * 4 * _WARP * instruction.warps
    for across in multiples_up_to(warps):
        for down in multiples_up_to(warps // across):
            if across * down * each > registers:
                break
            m, n = down * tile.m, across * tile.n
            for k in _multiples(tile.k, int(shared * most) // (_STAGES * (m + n) * element)):
                slices = (m + n) * k * element
                used = _STAGES * slices / shared
                if used >= least:
                    compute = m * n * k / instruction.per_cycle
                    yield (m, n, k), min(1.0, compute * bandwidth / slices), used


def _instruction(target: Target, dtype: str, tile: Candidate) -> InstructionTile:
    return next(i for i in target.instructions(dtype) if i.name == tile.instruction)


def _multiples(unit: int, most: int) -> Iterator[int]:
    return (unit * factor for factor in multiples_up_to(most // unit))


def grids(
    target: Target, dtype: str, blocks: tuple[Candidate, ...], limits: Limits
) -> tuple[Candidate, ...]:
    """Level 2: what one unit, or all units at a time, work on; k may be split over units.

    The operands of all units must fit what the last cache may hold, where the units share one.
    """
    sieve, element = _Sieve({}), element_bytes(dtype)
    last = target.levels[-2]
    room = limits.cache[1] * last.capacity * last.instances if last.sharing > 1 else None
    variants = [
        (factors, units / target.units)
        for units in dict.fromkeys((1, target.units))
        for factors in _factors(units)
    ]
    for number, block in enumerate(blocks):
        for (down, across, splits), used in variants:
            m, n, k = down * block.m, across * block.n, splits * block.k
            if room is None or (m + n) * k * element <= room:
                sieve.add((m, n, k), 1.0, used, number)
    return sieve.candidates()


def _factors(units: int) -> Iterator[tuple[int, int, int]]:
    """All ways to write ``units`` as rows × columns × splits of k."""
    for splits in range(1, min(units, _MOST_SPLITS) + 1):
        if units % splits == 0:
            rest = units // splits
            yield from ((m, rest // m, splits) for m in range(1, rest + 1) if rest % m == 0)
