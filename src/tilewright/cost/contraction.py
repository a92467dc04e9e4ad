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

from tilewright.cost.machine import SIXTEENTHS, Machine, workers_for
from tilewright.cost.operands import (
    Blocks,
    again_time,
    are_asked_for,
    batch_size,
    block_moves_time,
    column_step,
    left_page_time,
    left_time,
    packing_time,
    result_time,
    right_time,
    row_share,
    runs_time,
    shared_time,
    step_penalty,
    streaming_time,
    waiting_time,
)
from tilewright.cost.vector_work import Core, loop_work
from tilewright.ir.epilogue import COLUMN, is_light
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import LINE_BYTES, Loop, RunTable, Statement, Store, View
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)
from tilewright.target.core_model import MASKED_VECTOR_BYTES, PAGE_BYTES, ends_in_half, tallest

PANEL = 64  # by which what the columns of a panel take is measured
PARTS = 1024  # by which a task is measured, and a share of a time


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
    workers = minimum(workers, maximum(batch_size(nest) * rows.tasks * columns.tasks, 1))
    # Of one batch element, since all of them are alike, and their number may be anything.
    each = alone // maximum(batch_size(nest), 1)
    task = _share(each, rows.whole, columns.whole)
    last = maximum(_share(each, rows.rest, columns.whole), _share(each, rows.whole, columns.rest))
    whole, even = batch_size(nest) * rows.count * columns.count, alone // workers
    # Whole tasks come first: what is left comes on top only where every thread has as many of them.
    even = select(whole % workers, even, even + last - last // workers)
    waiting = minimum(workers - 1, 1) * task // machine.core.threads.waited
    begun = 1000 * machine.core.threads.call_ns
    even = maximum(even, _contested_time(nest, machine, workers, (rows.tasks, columns.tasks)))
    shared, shown = shared_time(nest, machine), round(PARTS * machine.core.loops.shown)
    even = maximum(even, shared) + minimum(even, shared) * shown // PARTS
    return maximum(even, task * ceil_div(whole, workers)) + waiting + begun


def _contested_time(
    nest: ProductNest, machine: Machine, workers: Expr, tasks: tuple[Expr, Expr]
) -> Expr:
    """Picoseconds for lines that two threads write, where rows of results end within one.

    With as many blocks of columns as threads share a batch element, or a part of them, threads
    write neighbouring blocks of the same rows at the same time, unless they share out rows.
    """
    rows, columns = tasks
    sharing = maximum(workers // maximum(batch_size(nest), 1), 1)
    apart = logical_and(nest.rows_first, less_equal(sharing, rows))
    alike = logical_and(less(1, columns), less_equal(sharing % maximum(columns, 1), 0))
    inside = nest.n % (LINE_BYTES // nest.dtype.bytes)
    lines = batch_size(nest) * nest.m * (1000 * machine.core.threads.contested_ns)
    return select(logical_and(logical_not(apart), alike, inside), lines, 0)


def _share(time: Expr, rows: Expr, columns: Expr) -> Expr:
    """The part of a time that a task has with so many ``PARTS`` of the rows and columns."""
    return time * rows // PARTS * columns // PARTS


@dataclass(frozen=True)
class _Division:
    """An axis as ``count`` whole blocks and a rest, ``tasks`` together; parts in ``PARTS``."""

    count: Expr
    tasks: Expr
    whole: Expr
    rest: Expr

    @staticmethod
    def of(size: Expr, blocks: Expr, unit: int) -> _Division:
        """Balanced blocks of multiples of ``unit``."""
        block = maximum(ceil_div(ceil_div(size, maximum(blocks, 1)), unit) * unit, unit)
        count = maximum(size // block, 1)
        rest = size - minimum(count * block, size)
        some = maximum(size, 1)
        parts = minimum(block, size) * PARTS // some, rest * PARTS // some
        return _Division(count, count + minimum(rest, 1), *parts)


def task_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds of ``nest`` in one task, which has it in one block, on one thread."""
    one = constant(1)
    return _alone(nest, machine, Blocks(one, one, one))


def contraction_work(nest: ProductNest, machine: Machine) -> Expr:
    """Nanoseconds of ``nest`` on one thread, roughly: whether to share it out at all."""
    calls = ceil_div(nest.m, nest.registers.rows) * machine.picoseconds(machine.core.tile.call)
    panels = nest.lines * ceil_div(nest.line, nest.registers.columns)
    stored = nest.m * nest.n * machine.picoseconds(_store_cycles(nest, machine))
    computed = panels * (nest.k * _panel_step(nest, machine) + calls)
    read = nest.n * nest.k
    moved = read // 64 * machine.reading(batch_size(nest) * read, nest.dtype.bytes, 2)
    return batch_size(nest) * (maximum(computed, moved) + stored) // 1000 + 1


def tiles_time(nest: ProductNest, machine: Machine, last_rows: int) -> Expr:
    """Picoseconds of all register tiles of ``nest`` in one block: level 0 alone.

    The last panel has tiles of up to ``last_rows`` rows; it counts in proportion where the number
    of columns is not known. Steps hide behind reading the right operand once; calls, and to come to
    the results of a row of a tile that lie on a page of their own, are on top of both.
    """
    width, rows = nest.registers.columns, nest.registers.rows
    step, called = _panel_times(nest, machine, (rows, width))
    if nest.line.is_constant:
        last = _held(nest.line.value % width, nest, machine)
        more = _panel_times(nest, machine, (last_rows, last)) if last else (0, 0)
        panels = nest.line.value // width
        steps, calls = panels * step + more[0], panels * called + more[1]
        steps, calls = nest.lines * steps, nest.lines * calls
    else:
        steps, calls = nest.n * step // width, nest.n * called // width
    one = Blocks(constant(1), constant(1), constant(1))
    moved = right_time(nest, machine, one)
    return maximum(batch_size(nest) * nest.k * steps, moved) + batch_size(nest) * calls


def _panel_times(nest: ProductNest, machine: Machine, tile: tuple[int, int]) -> tuple[Expr, Expr]:
    """Of the tiles of a panel, (rows, columns) each: a step of all, and what they take beside."""
    rows, columns = tile
    line, count = machine.line(nest.dtype, columns, rows), ceil_div(nest.m, rows)
    costs = machine.core.tile
    call, row = machine.picoseconds(costs.call), machine.picoseconds(costs.row)
    apart = less_equal(PAGE_BYTES // nest.dtype.bytes, nest.n)
    step = maximum(nest.m * line.per_row + count * line.per_tile, line.least)
    return step, count * call + select(apart, nest.m * row, 0)


def _panel_step(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds of one step along k for all rows of a panel."""
    registers = nest.registers
    line = machine.line(nest.dtype, registers.columns, registers.rows, nest.product.narrow)
    row_tiles = ceil_div(nest.m, nest.registers.rows)
    return maximum(nest.m * line.per_row + row_tiles * line.per_tile, line.least)


def _alone(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds on one thread."""
    costs = machine.core.tile
    parts, width = _filled_columns(nest, machine), nest.registers.columns
    row_tiles = ceil_div(nest.m, nest.registers.rows)
    panel = _panel_step(nest, machine)
    tiles = row_tiles * nest.lines * ceil_div(nest.line, width)
    height = minimum(nest.m, nest.registers.rows)
    again = height * _spilled_time(nest, machine, blocks) + machine.picoseconds(costs.call)
    first = machine.picoseconds(costs.call) - again
    steps = tiles * step_penalty(nest, machine, blocks) * nest.k
    stored = nest.m * nest.n * machine.picoseconds(_store_cycles(nest, machine))
    compute, packed = nest.k * parts * panel // PANEL, constant(0)
    left = left_time(nest, machine)
    shown = machine.core.streams.left_shown
    compute = compute + left * shown // 8 if shown else maximum(compute, left)
    called = tiles * (blocks.depth * again) + tiles * first + _parts_time(nest, machine, blocks)
    moved = right_time(nest, machine, blocks)
    if _is_unpacking(nest):  # what it reads is short, and hides behind it
        packed = nest.n * nest.k * blocks.rows * machine.picoseconds(machine.core.panels.unpacked)
    elif nest.is_transposing:  # which waits for each of its rows
        packed = packing_time(nest, machine, blocks) + moved
    elif nest.is_packing:  # which waits for what it reads; tiles do not
        packed = maximum(packing_time(nest, machine, blocks), moved)
    elif nest.right.panel:
        # Tiles ask for the next panel while they compute.
        compute = maximum(compute, moved) + again_time(nest, machine, blocks)
    else:  # tiles of many rows wait as well, unless they ask: too few loads are under way
        few = less_equal(nest.m, machine.core.streams.few_rows)
        few = logical_or(few, are_asked_for(nest, blocks, machine.room))
        waited = moved * (4 + round(4 * row_share(nest, machine))) // 8
        shown = maximum(moved - compute, 0)
        compute = select(few, maximum(compute, moved - called), compute + waited)
        compute = compute + maximum(waiting_time(nest, machine, blocks, shown) - shown, 0)
    begun = blocks.columns * blocks.rows * machine.picoseconds(costs.block)
    streamed = streaming_time(nest, machine) + left_page_time(nest, machine, blocks)
    moved = block_moves_time(nest, machine, blocks) + runs_time(nest, machine)
    streamed = streamed + moved
    own = compute + called + steps + stored + packed + streamed
    written = result_time(nest, machine, blocks)  # while later tiles are computed
    shown = round(SIXTEENTHS * machine.core.loops.shown)
    both, tasks = minimum(own, written), blocks.rows * blocks.columns
    # There is no earlier tile for the first one of a task.
    own = maximum(own, written) + both * shown // SIXTEENTHS + both * tasks // maximum(tiles, 1)
    return batch_size(nest) * (own + begun)


def _spilled_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds of a row of a tile's sums between blocks of the depth, from the cache of all."""
    width, size = nest.registers.columns, nest.dtype.bytes
    near, second = machine.core.tile.spilled * width, machine.target.levels[2]
    sums = ceil_div(nest.m, maximum(blocks.rows, 1)) * ceil_div(nest.n, maximum(blocks.columns, 1))
    far = near + 2 * width * size / second.bandwidth
    return select(machine.holds(1, sums, size), *map(machine.picoseconds, (near, far)))


def _parts_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds more of tiles with a part of their columns.

    Their sums pass through memory, or their last vectors have masks: of what is stored, and of
    the last steps of an operand that is read in place, which are a loop of their own.
    """
    costs, light = machine.core.tile, is_light(nest.finish.stores)
    if nest.registers.tail is not None and light:
        return constant(0)
    row_tiles = ceil_div(nest.m, nest.registers.rows)
    if light and not nest.right.panel and machine.target.vector_bytes >= MASKED_VECTOR_BYTES:
        part = nest.m * machine.picoseconds(costs.masked_row)
        if not nest.is_packing:
            part = part + row_tiles * machine.picoseconds(machine.core.loops.enter)
    else:
        vectors = ceil_div(nest.line % nest.registers.columns, _lanes(nest, machine))
        part = row_tiles * machine.picoseconds(costs.part)
        part = part + nest.m * vectors * machine.picoseconds(costs.part_vector)
    there = logical_and(nest.line % nest.registers.columns, _has_parts(nest, machine, blocks))
    return select(there, part * nest.lines, 0)


def _has_parts(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Whether the last panel cannot be moved back in its block until its vectors are full."""
    if nest.right.panel:
        return constant(1)
    lanes, width = _lanes(nest, machine), nest.registers.columns
    if nest.has_lines:
        return less(nest.line, ceil_div(nest.line % width, lanes) * lanes)
    block = ceil_div(ceil_div(nest.n, maximum(blocks.columns, 1)), width) * width
    last = nest.n - maximum(blocks.columns - 1, 0) * block
    return less(last, ceil_div(nest.n % width, lanes) * lanes)


def _lanes(nest: ProductNest, machine: Machine) -> int:
    return max(1, machine.target.vector_bytes // nest.dtype.bytes)


def _held(columns: int, nest: ProductNest, machine: Machine) -> int:
    """The lanes of the vectors that hold so many columns, whose number is known."""
    lanes = _lanes(nest, machine)
    whole = -(-columns // lanes) * lanes
    is_half = nest.product.narrow is None
    is_half = is_half and ends_in_half(columns, lanes, machine.target.vector_bytes)
    return whole - lanes // 2 if is_half else whole


def _filled_columns(nest: ProductNest, machine: Machine) -> Expr:
    """Panels in ``PANEL``: the last one costs less where fewer vectors hold its columns."""
    width, tail = nest.registers.columns, nest.registers.tail
    lanes = _lanes(nest, machine)
    height = nest.registers.rows
    held = nest.product.narrow
    whole = machine.line(nest.dtype, width, height, held).at(height)

    def share(columns: int) -> int:
        # Where the number of columns is known, tiles are as high as so few vectors allow.
        high = height
        if tail is not None and not _left_panel(nest):
            free, listed = machine.target.free_registers, isinstance(nest.left, RunTable)
            high = max(height, tallest(free, -(-columns // lanes), listed=listed))
        part = machine.line(nest.dtype, columns, high, held).at(high)
        return min(PANEL, round(PANEL * part * height / (high * whole)))

    if tail is not None:
        last = constant(share(_held(tail, nest, machine)) if tail else 0)
        return nest.lines * (nest.line // width * PANEL + last)
    rest, last = nest.line % width, constant(PANEL)
    for columns in range(width - lanes, 0, -lanes):
        last = select(less_equal(rest, columns), share(columns), last)
    return nest.lines * (nest.line // width * PANEL + select(rest, last, 0))


def _left_panel(nest: ProductNest) -> bool:
    """Whether the rows of tiles are packed, so that their number is fixed."""
    return isinstance(nest.left, View) and bool(nest.left.panel)


def _store_cycles(nest: ProductNest, machine: Machine) -> float:
    """Cycles of one element of all results; neighbouring columns may lie apart."""
    costs = machine.core.tile
    cycles = _finish_cycles(nest, machine)
    for store in nest.finish.stores:
        step = column_step(store.offset)
        near = step is None or (step.is_constant and step.value <= 1)
        cycles += costs.result / _lanes(nest, machine) if near else costs.scattered_result
    return cycles


def _finish_cycles(nest: ProductNest, machine: Machine) -> float:
    """Cycles of what is made of one sum, where that is more than a tile does in its registers."""
    stores = nest.finish.stores
    if is_light(stores):
        return 0.0
    core = Core(machine.target, machine.core.loops)
    lanes, work = loop_work(core, Loop(COLUMN, constant(0), nest.n, stores))
    return work.arithmetic / lanes if work.is_vector else work.single(core.costs)


def _is_unpacking(nest: ProductNest) -> bool:
    """Whether blocks of the right operand are made of words that hold several elements each."""
    body: Sequence[Statement] = nest.steps.load
    while len(body) == 1 and isinstance(body[0], Loop):
        body = body[0].body
    return nest.product.narrow is None and sum(isinstance(s, Store) for s in body) > 1


__all__ = ["contraction_time", "contraction_work", "task_time", "tiles_time"]
