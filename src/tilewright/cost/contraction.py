"""The time of a contraction: the levels above the register tile, by an analytical model.

Compute is what the tiles of all panels take, and loads of operands from the cache or memory that
holds them overlap with it. Calls of tiles, sums that leave the registers between blocks of k, rows
that collide in the first-level cache, packing and results are added. Tasks are shared out over
threads. All is one integer expression in picoseconds that is evaluated for every new shape, so it
is kept short. Imports ir, shape and target. Start with :func:`contraction_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.tiles import TileLine, TileTime, derived_tiles, tile_line
from tilewright.ir.dtype import DType
from tilewright.ir.epilogue import is_light
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Load, Loop, Statement, Store, TransposeBlock, View
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target import Target
from tilewright.target.loop_costs import LoopCosts, usual_loop_costs

# What the generated code goes by as well.
SHORT_ROW_BYTES = 2048  # of rows up to which those that follow are prefetched

# Cycles that no description of a machine states; fitted once to measured products.
CALL_CYCLES = 24.0  # of one tile: the call, the choice of its height, its first values
# More for a tile with a part of its columns, unless it is known when compiling and finished in its
# registers, and for each row of it: results pass through memory.
PART_CYCLES, PART_ROW_CYCLES = 20.0, 18.0
MASKED_PART_CYCLES, MASKED_PART_ROW_CYCLES = 5.0, 2.0  # the same with registers for masks
STORE_CYCLES = 0.3  # of one result: its epilogue and the store
SCATTERED_CYCLES = 5.0  # the same where neighbouring lanes are rows apart
SPILL_CYCLES = 0.3  # a sum stored for the next block of k and loaded again
PACK_CYCLES = 0.33  # an element copied into a panel
PACK_ROW_CYCLES = (9.0, 20.0)  # and each row of a block, in the second-level cache or beyond
TRANSPOSE_CYCLES = 0.4  # an element transposed into a panel
UNPACK_CYCLES = 0.3  # an element taken out of a word of several, as a float in a panel
REACH_CYCLES = 0.05  # more for each MiB of the operand, since its rows lie on pages of their own
FARTHEST = 30  # MiB from which on that is the same
MOST_NEIGHBOURS = 3  # register tiles side by side that make it worse
EVALUATE_CYCLES = 4.0  # the same for one that does not follow the one before: strided, or computed
FAR_EVALUATE_CYCLES = 12.0  # from beyond the second-level cache: short pieces, far apart
SPLIT_CYCLES = (1.0, 1.2, 1.6, 2.2)  # a tile's step over rows a multiple of 16, 8, 4, 1 apart
SPLIT_BYTES = 64  # of a row that a tile reads for that; where it reads more, it costs less
SPLIT_PAGES = (20, 280)  # of memory: a part of that for few, and all of it for so many
# The same at least for rows of more than so many elements, and what so many steps along k add: what
# the hardware fetches ahead belongs to other panels and takes the place of this one.
WIDE_ROW, WIDE_ROW_CYCLES, WIDE_ROW_STEPS = 36, (0.3, 1.0), 1000
TASK_CYCLES = 150.0  # of a block: its bounds, and what comes before its first tile
CONFLICT_CYCLES = 6.0  # the same where rows are a multiple of a page apart, all in the same sets
SHARED_SETS = ((1024, 2.0), (256, 0.8))  # rows a multiple of so many bytes apart, cycles the same
CONFLICT_NEAR = 8  # elements from such a multiple that make no difference
# Rows of the right operand in memory at a time, and half times as long as their bytes take.
SCATTERED_ROWS = ((16, 4), (32, 6), (256, 7))
SCATTERED_MOST = 9  # the same for more
LONG_ROW, SCATTERED_SHORT = 500, 7  # and at least, for rows of fewer elements than so many
SCATTERED_PACKING = (3, 6)  # and for packing whole rows, or a part of each
SCATTERED_NEAR = 12  # so many halves of that as a part are what it costs in the last cache
STREAMED_CYCLES = 0.5  # of an element of the left operand that comes from memory, in long rows
LEFT_SHOWN = 4  # eighths of the time to read the left operand that wide cores do not hide
# More rows at a time than there are pages at hand: cycles of a row of a tile whose results go to
# memory, or to the last cache; and of a row of the left operand there, for each block of k.
FEW_PAGES = 64
PAGE_CYCLES, NEAR_PAGE_CYCLES = 9.0, 1.5
LEFT_PAGE_CYCLES, NEAR_LEFT_PAGE_CYCLES = 120.0, 50.0
LAST_SHARE = 4  # a part of the last cache that an operand may count on: others use it too
# Eighths of their time that operands read once more do not hide behind multiply-adds: columns are
# asked for ahead, rows are not.
AGAIN_RIGHT, AGAIN_LEFT = 2, 5
PANEL_CYCLES = 4000.0  # of a panel for which nobody asked; all tiles of the one before do that
FEW_ROWS = 24  # with which tiles over rows in place read as fast as memory gives
PAGE_BYTES = 4096
MEBIBYTE = 1 << 20
PARTS = 1024  # by which a task is measured
TASKS_WAITED = 8  # the part of a task for which threads wait for each other at the end
THREAD_NS = 3000  # of work for each thread that the runtime gives to a kernel


@dataclass(frozen=True)
class Machine:
    """A target, and its register tiles as measured; without any, as its pipes would run them."""

    target: Target
    tiles: tuple[TileTime, ...] = ()

    @property
    def is_wide(self) -> bool:
        """Whether it is of the cores with vectors of 64 bytes, registers for masks, more loads."""
        return self.target.vector_bytes >= 64

    @property
    def loops(self) -> LoopCosts:
        """What loops cost on its cores beside what the target says."""
        return usual_loop_costs(self.target)

    def line(self, dtype: DType, columns: int, most: int) -> TileLine:
        """The tiles of ``columns`` columns, for float32 as measured."""
        name = "float64" if dtype.bytes == 8 else "float32"
        tiles = self.tiles if dtype is DType.FLOAT32 else ()
        derived = derived_tiles(self.target, name, columns)
        line = tile_line(tiles, columns, most) or tile_line(derived, columns, max(most, 3))
        assert line is not None, "three heights make a line"
        return line

    def picoseconds(self, cycles: float) -> int:
        """Of so many cycles."""
        return round(1000.0 * cycles / self.target.clock_ghz)

    def holds(self, level: int, elements: Expr, size: int) -> Expr:
        """Whether so many elements of ``size`` bytes stay in a level of the memory."""
        return less_equal(elements, self.target.levels[level].capacity * 3 // 4 // size)

    def reading(self, elements: Expr, size: int, nearest: int, scattered: Expr | int = 2) -> Expr:
        """Picoseconds for 64 of so many elements, read from the level that holds them all.

        That is ``nearest`` or farther away; ``scattered`` is twice the share for memory itself.
        Of the last cache, which others use as well, only a part is counted on.
        """
        levels = self.target.levels
        rates = [self.picoseconds(64 * size / level.bandwidth) for level in levels]
        rate = constant(rates[-1]) * scattered // 2
        last = len(levels) - 2
        for number in range(last, nearest - 1, -1):
            near = constant(rates[number])
            share = 1
            if number == last:
                near = near * (scattered + SCATTERED_NEAR - 2) // SCATTERED_NEAR
                share = LAST_SHARE
            rate = select(self.holds(number, elements * share, size), near, rate)
        return rate


@dataclass(frozen=True)
class Blocks:
    """How many blocks there are along the rows, the columns and the depth."""

    rows: Expr
    columns: Expr
    depth: Expr

    @staticmethod
    def of(nest: ProductNest) -> Blocks:
        """As the program says; whoever made it may know shorter expressions."""
        return Blocks(
            ceil_div(nest.m, nest.rows.block),
            ceil_div(nest.n, nest.columns.block),
            ceil_div(nest.k, nest.depth.block),
        )


def contraction_time(
    nest: ProductNest, machine: Machine, threads: Expr | int, blocks: Blocks | None = None,
    after: Expr | int = 0,
) -> Expr:  # fmt: skip
    """Picoseconds of ``nest`` with ``threads`` threads.

    One takes ``after`` picoseconds for what else the tasks do with their blocks of results.
    """
    blocks = blocks or Blocks.of(nest)
    alone = _alone(nest, machine, blocks) + after
    workers = workers_for(1000 * contraction_work(nest, machine) + after, threads)
    rows = _Division.of(nest.m, blocks.rows, nest.registers.rows)
    columns = _Division.of(nest.n, blocks.columns, nest.registers.columns)
    # Of one batch element, since all of them are alike, and their number may be anything.
    each = alone // maximum(_batch(nest), 1) // PARTS**2
    task = each * rows.whole * columns.whole
    last = each * maximum(rows.rest * columns.whole, rows.whole * columns.rest)
    rounds = ceil_div(_batch(nest) * rows.count * columns.count, workers)
    waiting = minimum(workers - 1, 1) * task // TASKS_WAITED
    return maximum(alone // workers + last - last // workers, task * rounds) + waiting


@dataclass(frozen=True)
class _Division:
    """An axis as ``count`` whole blocks and a rest; parts of the axis in ``PARTS``."""

    count: Expr
    whole: Expr
    rest: Expr

    @staticmethod
    def of(size: Expr, blocks: Expr, unit: int) -> _Division:
        """Balanced blocks of multiples of ``unit``."""
        block = maximum(ceil_div(ceil_div(size, maximum(blocks, 1)), unit) * unit, unit)
        count = maximum(size // block, 1)
        rest = size - minimum(count * block, size)
        some = maximum(size, 1)
        return _Division(count, minimum(block, size) * PARTS // some, rest * PARTS // some)


def workers_for(alone: Expr, threads: Expr | int) -> Expr:
    """How many threads share what takes so many picoseconds on one, as the runtime decides it."""
    return maximum(minimum(threads, alone // (1000 * THREAD_NS)), 1)


def contraction_work(nest: ProductNest, machine: Machine) -> Expr:
    """Nanoseconds of ``nest`` on one thread, roughly: whether to share it out at all."""
    calls = ceil_div(nest.m, nest.registers.rows) * machine.picoseconds(CALL_CYCLES)
    panels = ceil_div(nest.n, nest.registers.columns)
    stored = nest.m * nest.n * machine.picoseconds(_store_cycles(nest.finish.stores))
    computed = panels * (nest.k * _panel_step(nest, machine) + calls)
    read = nest.n * nest.k
    moved = read // 64 * machine.reading(_batch(nest) * read, nest.dtype.bytes, 2)
    return _batch(nest) * (maximum(computed, moved) + stored) // 1000 + 1


def _batch(nest: ProductNest) -> Expr:
    return product([size for _, size in nest.batch])


def _panel_step(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds of one step along k for all rows of a panel."""
    line = machine.line(nest.dtype, nest.registers.columns, nest.registers.rows)
    row_tiles = ceil_div(nest.m, nest.registers.rows)
    return maximum(nest.m * line.per_row + row_tiles * line.per_tile, line.least)


def _alone(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds on one thread."""
    sixteenths, width = _filled_columns(nest, machine), nest.registers.columns
    row_tiles = ceil_div(nest.m, nest.registers.rows)
    panel = _panel_step(nest, machine)
    tiles = row_tiles * ceil_div(nest.n, width)
    again = machine.picoseconds(CALL_CYCLES + SPILL_CYCLES * nest.registers.rows * width)
    first = machine.picoseconds(CALL_CYCLES) - again
    steps = tiles * _step_penalty(nest, machine, blocks) * nest.k
    stored = nest.m * nest.n * machine.picoseconds(_store_cycles(nest.finish.stores))
    compute, packed = nest.k * sixteenths * panel // 16, constant(0)
    left = _left_moved(nest, machine)
    compute = compute + left * LEFT_SHOWN // 8 if machine.is_wide else maximum(compute, left)
    moved = _moved(nest, machine, blocks)
    if _is_unpacking(nest):  # what it reads is short, and hides behind it
        packed = nest.n * nest.k * blocks.rows * machine.picoseconds(UNPACK_CYCLES)
    elif nest.is_packing:  # which waits for what it reads; tiles do not
        packed = maximum(_packing(nest, machine, blocks), moved)
    elif nest.right.panel:
        compute = maximum(compute, moved) + _read_again(nest, machine, blocks)
    else:  # tiles of many rows wait as well: too few loads are under way at a time
        few = less_equal(nest.m, FEW_ROWS)
        waited = moved * (4 + round(4 * _row_share(nest))) // 8
        compute = select(few, maximum(compute, moved), compute + waited)
    parts = logical_and(nest.n % width, _has_parts(nest, machine, blocks))
    tile, row = PART_CYCLES, PART_ROW_CYCLES
    if machine.is_wide:
        tile, row = MASKED_PART_CYCLES, MASKED_PART_ROW_CYCLES
    part = row_tiles * machine.picoseconds(tile) + nest.m * machine.picoseconds(row)
    part = select(parts, part, 0)
    called = tiles * (blocks.depth * again) + tiles * first + part
    begun = blocks.columns * blocks.rows * machine.picoseconds(TASK_CYCLES)
    streamed = _streamed(nest, machine) + _paged(nest, machine, blocks)
    return _batch(nest) * (compute + called + begun + steps + stored + packed + streamed)


def _has_parts(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Whether sums of the last panel pass through memory: it cannot be moved back in its block."""
    if nest.registers.tail is not None and is_light(nest.finish.stores):
        return constant(0)
    if nest.right.panel:
        return constant(1)
    lanes, width = _lanes(nest, machine), nest.registers.columns
    block = ceil_div(ceil_div(nest.n, maximum(blocks.columns, 1)), width) * width
    last = nest.n - maximum(blocks.columns - 1, 0) * block
    return less(last, ceil_div(nest.n % width, lanes) * lanes)


def _lanes(nest: ProductNest, machine: Machine) -> int:
    return max(1, machine.target.vector_bytes // nest.dtype.bytes)


def _filled_columns(nest: ProductNest, machine: Machine) -> Expr:
    """Panels in sixteenths: the last one costs less where fewer vectors hold its columns."""
    width = nest.registers.columns
    lanes = _lanes(nest, machine)
    rest = nest.n % width
    height = nest.registers.rows
    whole = machine.line(nest.dtype, width, height).at(height)
    last = constant(16)
    for vectors in range(width // lanes - 1, 0, -1):
        # Where the number of columns is known, tiles of few vectors are made twice as high.
        high = 2 if nest.registers.tail is not None and vectors <= 2 else 1
        narrow = machine.line(nest.dtype, vectors * lanes, high * height).at(high * height)
        share = min(16, round(16 * narrow / (high * whole)))
        last = select(less_equal(rest, vectors * lanes), share, last)
    return nest.n // width * 16 + select(rest, last, 0)


def _step_penalty(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds of a step of a tile over unpacked rows: they cross lines, or collide in sets."""
    right = nest.right
    if nest.is_packing or right.panel:
        return constant(0)
    size = nest.dtype.bytes
    share = _row_share(nest)
    best, good, fair, bad = (machine.picoseconds(share * cycles) for cycles in SPLIT_CYCLES)
    line, page = 64 // size, PAGE_BYTES // size
    row = right.depth
    odd = select(row % (line // 2), select(row % (line // 4), bad, fair), good)
    split = select(row % line, odd, best)
    few, many = SPLIT_PAGES
    pages = minimum(nest.n * nest.k // (maximum(blocks.depth, 1) * page) + few, many)
    shared = constant(0)
    for distance, cycles in reversed(SHARED_SETS):
        # So many lines, six in each set, stay in the first-level cache from tile to tile.
        few_lines = less_equal(nest.k, 6 * PAGE_BYTES // distance)
        collides = select(few_lines, shared, machine.picoseconds(share * cycles))
        shared = select(row % (distance // size), shared, collides)
    near = less_equal((row + CONFLICT_NEAR) % page, 2 * CONFLICT_NEAR)
    near = logical_and(less_equal(page // 2, row), near)
    first, more = (machine.picoseconds(share * cycles) for cycles in WIDE_ROW_CYCLES)
    wide = first + minimum(nest.k, WIDE_ROW_STEPS) * more // WIDE_ROW_STEPS
    wide = select(less_equal(row, WIDE_ROW), 0, wide)
    lines = maximum(split * pages // many, wide) + shared
    return select(near, machine.picoseconds(CONFLICT_CYCLES), lines)


def _store_cycles(stores: Sequence[Store]) -> float:
    """Cycles of one element of all results; neighbouring columns may lie apart."""
    cycles = 0.0
    for store in stores:
        step = _column_step(store.offset)
        near = step is None or (step.is_constant and step.value <= 1)
        cycles += STORE_CYCLES if near else SCATTERED_CYCLES
    return cycles


def _moved(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds to read the right operand: once from where it lies, then for more blocks of rows.

    Those follow each other, so that it comes from the cache that holds one batch element of it.
    """
    elements, size = nest.n * nest.k, nest.dtype.bytes
    scattered = _scattered(nest, machine, blocks)
    rate = machine.reading(_batch(nest) * elements, size, 2, scattered)
    if nest.batch:
        again = machine.reading(elements, size, 2, scattered)
        return elements // 64 * (rate + maximum(blocks.rows - 1, 0) * again)
    return elements * blocks.rows // 64 * rate


def _left_moved(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds to read the left operand once from where it lies."""
    if not isinstance(nest.left, View) or nest.left.panel:
        return constant(0)
    elements = nest.m * nest.k
    return elements // 64 * machine.reading(_batch(nest) * elements, nest.dtype.bytes, 2)


def _read_again(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds that operands add each time that they come from beyond the second-level cache.

    If it holds a block of rows, a panel and their results, rows come once for each block of
    columns, and columns for each block of rows; else rows for each panel, and columns for each tile
    of rows.
    """
    size, batch = nest.dtype.bytes, _batch(nest)
    deep = ceil_div(nest.k, maximum(blocks.depth, 1))
    tall = ceil_div(nest.m, maximum(blocks.rows, 1))
    width = nest.registers.columns
    inside = machine.holds(2, deep * (tall + width) + tall * width, size)
    elements = nest.n * nest.k
    tiles = ceil_div(nest.m, nest.registers.rows)
    again = maximum(select(inside, blocks.rows, tiles) - 1, 0)
    rate = machine.reading(batch * elements, size, 3) * AGAIN_RIGHT // 8
    time = elements * again // 64 * rate
    panels = ceil_div(nest.n, nest.registers.columns)
    far = select(machine.holds(2, batch * elements, size), 0, machine.picoseconds(PANEL_CYCLES))
    time = time + panels * blocks.depth * far // maximum(tiles, 1)
    if isinstance(nest.left, View) and not nest.left.panel:
        elements = nest.m * nest.k
        again = maximum(select(inside, blocks.columns, panels) - 1, 0)
        rate = machine.reading(batch * elements, size, 3) * AGAIN_LEFT // 8
        time = time + elements * again // 64 * rate
    return time


def _scattered(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Twice the time over that of the bytes: rows in memory lie apart, each on its own pages."""
    right = nest.right
    if nest.is_packing:
        whole, part = SCATTERED_PACKING
        return select(less_equal(blocks.columns, 1), whole, part)
    if right.panel or machine.is_wide:  # wide cores have more misses under way
        return constant(2)
    rows = ceil_div(nest.k, maximum(blocks.depth, 1))
    share = constant(SCATTERED_MOST)
    for most, halves in reversed(SCATTERED_ROWS):
        share = select(less_equal(rows, most), halves, share)
    return select(less(nest.n, LONG_ROW), maximum(share, SCATTERED_SHORT), share)


def _row_share(nest: ProductNest) -> float:
    """What part of the usual it costs to come to a row: the less the more of it is read then."""
    return min(1.0, SPLIT_BYTES / (nest.registers.columns * nest.dtype.bytes))


def _streamed(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds to wait for a left operand in memory: long rows are many streams at a time."""
    left = nest.left
    if not isinstance(left, View) or left.panel or machine.is_wide:
        return constant(0)
    elements = nest.m * nest.k
    fits = machine.holds(-2, _batch(nest) * elements * LAST_SHARE, nest.dtype.bytes)
    short = less_equal(nest.k, SHORT_ROW_BYTES // nest.dtype.bytes)
    return select(logical_or(fits, short), 0, elements * machine.picoseconds(STREAMED_CYCLES))


def _paged(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds that many rows at a time cost, each on pages of its own, where they are far."""
    size, batch = nest.dtype.bytes, _batch(nest)
    results = batch * nest.m * nest.n
    far, near = (machine.picoseconds(cycles) for cycles in (PAGE_CYCLES, NEAR_PAGE_CYCLES))
    each = select(machine.holds(-2, results, size), near, far)
    each = select(machine.holds(2, results, size), 0, each)
    paged = nest.m * ceil_div(nest.n, nest.registers.columns) * each
    if isinstance(nest.left, View) and not nest.left.panel:
        far, near = LEFT_PAGE_CYCLES, NEAR_LEFT_PAGE_CYCLES
        elements = batch * nest.m * nest.k
        inside = machine.holds(-2, elements * LAST_SHARE, size)
        each = select(inside, machine.picoseconds(near), machine.picoseconds(far))
        short = less_equal(nest.k, SHORT_ROW_BYTES // size)
        few = logical_or(machine.holds(2, elements, size), short)
        paged = paged + select(few, 0, nest.m * blocks.depth * each)
    return select(less(FEW_PAGES * blocks.rows, nest.m), paged, 0)


def _packing(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds to fill the panels of the right operand, for every block of rows."""
    copied = nest.k * blocks.rows
    elements = nest.n * nest.k
    if nest.is_transposing:
        per_mebibyte = machine.picoseconds(REACH_CYCLES)
        far = minimum(elements // (MEBIBYTE // nest.dtype.bytes), FARTHEST) * per_mebibyte
        block = maximum(blocks.columns, 1) * nest.registers.columns
        wide = minimum(maximum(ceil_div(nest.n, block), 1), MOST_NEIGHBOURS) - 1
        return copied * nest.n * (machine.picoseconds(TRANSPOSE_CYCLES) + far * wide)
    near, far = (machine.picoseconds(cycles) for cycles in PACK_ROW_CYCLES)
    element = constant(machine.picoseconds(PACK_CYCLES))
    if not _is_copy(nest.steps.load):
        cycles = (EVALUATE_CYCLES, FAR_EVALUATE_CYCLES)
        all_inside = machine.holds(2, _batch(nest) * elements, nest.dtype.bytes)
        element = select(all_inside, *(machine.picoseconds(c) for c in cycles))
    inside = less_equal(elements * nest.dtype.bytes, machine.target.levels[2].capacity)
    return copied * (nest.n * element + blocks.columns * select(inside, near, far))


def _is_unpacking(nest: ProductNest) -> bool:
    """Whether blocks of the right operand are made of words that hold several elements each."""
    body: Sequence[Statement] = nest.steps.load
    while len(body) == 1 and isinstance(body[0], Loop):
        body = body[0].body
    return nest.product.narrow is None and sum(isinstance(s, Store) for s in body) > 1


def _is_copy(body: Sequence[Statement]) -> bool:
    """Whether packing reads elements that lie side by side."""
    stores: list[Store] = []
    waiting = list(body)
    while waiting:
        match waiting.pop():
            case Loop(body=inner):
                waiting += inner
            case Store() as store:
                stores.append(store)
            case TransposeBlock():
                continue
            case _:
                return False
    values = [store.value for store in stores]
    return all(isinstance(v, Load) and _column_step(v.offset) is constant(1) for v in values)


def _column_step(offset: Expr) -> Expr | None:
    """Elements from one column to the next, None where it is not always the same."""
    affine = offset.affine(["_n"])
    return None if affine is None else affine[0].get("_n", constant(0))


__all__ = [
    "LAST_SHARE",
    "SHORT_ROW_BYTES",
    "Blocks",
    "Machine",
    "contraction_time",
    "contraction_work",
    "workers_for",
]
