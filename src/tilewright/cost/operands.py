"""What a contraction takes for its operands: to read them, to pack them, to step over their rows.

Imports ir, shape and target. Start with :func:`right_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.levels import (
    line_rate,
    memory_time,
    of_memory,
    pieces_time,
    unforeseen_time,
    written_time,
)
from tilewright.cost.loops import statement_cycles
from tilewright.cost.machine import Machine
from tilewright.ir.listed_view import ListedView
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import (
    LINE_BYTES,
    Load,
    Loop,
    RunTable,
    Statement,
    Store,
    TransposeBlock,
    View,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target.core_model import PAGE_BYTES, SHORT_ROW_BYTES

FORESEEN = constant(2)  # halves: once the time that memory takes, as hardware asks for it ahead


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


def batch_size(nest: ProductNest) -> Expr:
    """How many products of matrices there are."""
    return product([size for _, size in nest.batch])


def step_penalty(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds of a step of a tile over unpacked rows: they cross lines, or collide in sets."""
    costs = machine.core.rows
    right = nest.right
    if nest.is_packing or right.panel:
        return constant(0)
    size = nest.dtype.bytes
    share = row_share(nest, machine)
    best, good, fair, bad = (machine.picoseconds(share * cycles) for cycles in costs.split)
    line, page = LINE_BYTES // size, PAGE_BYTES // size
    row = right.depth
    odd = select(row % (line // 2), select(row % (line // 4), bad, fair), good)
    split = select(row % line, odd, best)
    few, many = costs.split_pages
    # What one tile of rows reads once comes from where it lies, however deep its blocks are.
    once = less_equal(nest.m, nest.registers.rows)
    deep = select(once, 1, maximum(blocks.depth, 1))
    pages = minimum(nest.n * nest.k // (deep * page) + few, many)
    shared = constant(0)
    for distance, cycles in reversed(costs.shared_sets):
        # So many lines, six in each set, stay in the first-level cache from tile to tile.
        few_lines = less_equal(nest.k, 6 * PAGE_BYTES // distance)
        collides = select(few_lines, shared, machine.picoseconds(share * cycles))
        shared = select(row % (distance // size), shared, collides)
    near = less_equal((row + costs.conflict_near) % page, 2 * costs.conflict_near)
    near = logical_and(less_equal(page // 2, row), near)
    first, more = (machine.picoseconds(share * cycles) for cycles in costs.wide)
    steps = ceil_div(nest.k, maximum(blocks.depth, 1))
    wide = first + minimum(steps, costs.wide_steps) * more // costs.wide_steps
    wide = select(less_equal(row, costs.wide_row), 0, wide)
    lines = maximum(split * pages // many, wide) + shared
    return select(near, machine.picoseconds(costs.conflict), lines)


def right_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds to read the right operand: once from where it lies, then for more blocks of rows.

    Those follow each other, so that it comes from the cache that holds a block of its columns.
    """
    elements, size = _read_elements(nest, blocks), nest.dtype.bytes
    if nest.right.panel:
        return _panels_time(nest, machine, blocks)
    scattered = _scattered(nest, machine, blocks)
    rate = machine.reading(batch_size(nest) * elements, size, 2, scattered)
    again = machine.reading(elements // maximum(blocks.columns, 1), size, 2, scattered)
    once = elements // 64 * rate
    if scattered is FORESEEN and nest.is_transposing:
        once = once + _of_element(nest, _turned_rows_time(nest, machine, blocks))
    return once + elements // 64 * maximum(blocks.rows - 1, 0) * again


def _read_elements(nest: ProductNest, blocks: Blocks) -> Expr:
    """Elements of the right operand of a batch element, or of copies of it that steps share."""
    elements, right = nest.n * nest.k, nest.right
    if isinstance(right, ListedView) and right.buffer.elements is not None:
        return minimum(elements, right.buffer.elements * blocks.columns)
    return elements


def _copies_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds for copies that steps share, whose lines another cache gives and takes back.

    Those of a block that the first one holds stay there.
    """
    copies, size = nest.right.buffer.elements, nest.dtype.bytes
    if not isinstance(nest.right, ListedView) or copies is None:
        return constant(0)
    moved = 2 * (blocks.columns * copies // 64 * machine.reading(copies, size, 2))
    return select(machine.holds(1, copies, size), 0, moved)


def _turned_rows_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds lost where a panel takes a few rows along the depth at a time."""
    size = nest.dtype.bytes
    moved = batch_size(nest) * nest.n * nest.k * size
    lanes = constant(machine.target.vector_bytes // size)
    runs = batch_size(nest) * nest.n * blocks.depth
    return _lost_time(machine, moved, nest.k * size, lanes, runs)


def waiting_time(nest: ProductNest, machine: Machine, blocks: Blocks, shown: Expr) -> Expr:
    """Picoseconds for which tiles wait for rows in memory that are read in place.

    In ``shown`` of them the bytes move that multiply-adds do not hide.

    A panel has a piece of each row. Of a few rows at a time hardware sees how they go on, and what
    a block of columns has of each begins anew, before it moves. Of more, each line of a piece is
    waited for, with as many under way as a core has misses. That hides nothing: multiply-adds
    behind a load fill the window of instructions that the core sees.
    """
    if nest.is_packing or nest.right.panel or machine.core.streams.scattered_rows:
        return constant(0)
    size, width, batch = nest.dtype.bytes, nest.registers.columns, batch_size(nest)
    memory, streams = machine.target.levels[-1], machine.core.streams
    whole, across = width * size // LINE_BYTES, nest.n * size % LINE_BYTES
    panels, rest = nest.n // width, nest.n % width
    lines = panels * whole + ceil_div(rest * size, LINE_BYTES)
    # Where rows begin anywhere, a piece ends in a line that the next one begins in.
    lines = lines + select(across, panels + minimum(rest, 1), 0)
    each, moved = machine.picoseconds(memory.latency / streams.misses), batch * nest.n * nest.k
    waited = of_memory(nest.k * lines * each, moved * size, machine)
    begun = _of_element(nest, pieces_time(batch * nest.k * blocks.columns, moved * size, machine))
    followed = less_equal(ceil_div(nest.k, maximum(blocks.depth, 1)), streams.followed)
    waited = select(followed, minimum(shown + begun, waited), waited)
    none = logical_or(are_asked_for(nest, blocks, machine.room), less_equal(nest.n, width))
    return select(none, 0, waited)


def are_asked_for(nest: ProductNest, blocks: Blocks, room: int) -> Expr:
    """Whether tiles ask for rows of columns, which are read in place, a block of them ahead.

    They have a panel's part of each row, so that hardware sees no stretch in memory. It takes rows
    that lie side by side, and ``room`` bytes of the second-level cache for both blocks. Programs
    say so where they are far (``Finish.ahead``): what that cache has need not be asked for.
    """
    left, right, size = nest.left, nest.right, nest.dtype.bytes
    in_place = not (nest.is_packing or right.panel or isinstance(right, ListedView))
    if not (in_place and isinstance(left, View) and right.row is constant(1)):
        return constant(0)
    beside = logical_and(equal(right.depth, nest.n), less_equal(blocks.columns, 1))
    deep = ceil_div(nest.k, maximum(blocks.depth, 1))
    beside = logical_and(beside, less(nest.registers.columns, nest.n))
    return logical_and(beside, less_equal(2 * deep * nest.n, room // size))


def _apart(nest: ProductNest, size: int) -> Expr:
    """Bytes from a row of columns to the next, none where a panel has all of them."""
    return select(less_equal(nest.n, nest.registers.columns), 0, nest.n * size)


def _of_element(nest: ProductNest, time: Expr) -> Expr:
    """The time of one batch element."""
    return time // maximum(batch_size(nest), 1)


def _lost_time(machine: Machine, moved: Expr, row: Expr, rows: Expr, runs: Expr) -> Expr:
    """Picoseconds more than it takes to move so many bytes that lie in memory in rows of ``row``.

    Hardware follows a few ``rows`` at a time, whose ``runs`` begin anew. Of more, which a panel
    leaves for the next one before hardware has seen where they go on, each line is waited for, but
    for neighbouring rows of the same page.
    """
    page = moved // PAGE_BYTES * minimum(row, PAGE_BYTES)
    lost = unforeseen_time(page // LINE_BYTES, moved, machine)
    begun = pieces_time(runs, moved, machine)
    followed = less_equal(rows, machine.core.streams.followed)
    return select(followed, minimum(begun, lost), lost)


def _panels_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds to read panels, the last of which may be filled up with zeros.

    Tiles need the lines with columns only, but beyond the second-level cache hardware fetches what
    lies between them as well.
    """
    size, batch = nest.dtype.bytes, batch_size(nest)
    line, width = LINE_BYTES // size, nest.registers.columns
    needed = ceil_div(nest.n, line) * line * nest.k
    fetched = ceil_div(nest.n, width) * width * nest.k

    def read(touched: Expr, brought: Expr) -> Expr:
        near = needed // 64 * machine.reading(touched, size, 2)
        far = fetched // 64 * machine.reading(brought, size, 3)
        return select(machine.holds(2, touched, size), near, far)

    between, columns = constant(machine.constants // size), maximum(blocks.columns, 1)
    first = read(maximum(needed * batch, between), maximum(fetched * batch, between))
    again = read(needed // columns, fetched // columns)
    return first + maximum(blocks.rows - 1, 0) * again


def left_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds to read the left operand once from where it lies."""
    if not isinstance(nest.left, View) or nest.left.panel:
        return constant(0)
    elements = nest.m * nest.k
    return elements // 64 * machine.reading(batch_size(nest) * elements, nest.dtype.bytes, 2)


def result_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds in which what holds all results takes those of one batch element.

    Their lines are read before they are written, unless they are streamed, and twice where a block
    of columns ends within them and all rows of the next one come later.
    """
    buffers = [store.buffer for store in nest.finish.stores if not store.buffer.scratch]
    size = sum(buffer.dtype.bytes for buffer in buffers)
    if not size:
        return constant(0)
    moved, columns = nest.m * nest.n * size, maximum(blocks.columns, 1)
    whole = batch_size(nest) * moved
    each = line_rate(machine, whole)
    ends = logical_and(nest.n * size % LINE_BYTES, less(1, columns))
    ends = logical_and(ends, logical_not(machine.holds(2, nest.m * nest.n // columns, size)))
    lines = moved // LINE_BYTES + select(ends, nest.m * columns, 0)
    streamed = nest.finish.streamed
    time = select(streamed, 0, lines * each) + written_time(lines, whole, machine, 1)
    runs, tall = batch_size(nest) * nest.m * columns, ceil_div(nest.m, maximum(blocks.rows, 1))
    lost = _of_element(nest, _lost_time(machine, whole, _apart(nest, size), tall, runs))
    paged = _paged_time(nest, machine, blocks)
    return time + maximum(select(streamed, 0, lost), paged)


def shared_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds that any number of threads take for what memory moves, results and operands.

    It is read and written at the same time.
    """
    size, batch = nest.dtype.bytes, batch_size(nest)
    results = sum(s.buffer.dtype.bytes for s in nest.finish.stores if not s.buffer.scratch)
    moved = batch * nest.m * nest.n * results
    columns = batch * _read_elements(nest, Blocks.of(nest)) * size
    between = maximum(columns, machine.constants) if nest.right.panel else columns
    lines = moved // LINE_BYTES
    read = select(nest.finish.streamed, 0, memory_time(lines, moved, machine))
    read = read + memory_time(columns // LINE_BYTES, between, machine)
    if isinstance(nest.left, View) and not nest.left.panel:
        rows = batch * nest.m * nest.k * size
        read = read + memory_time(rows // LINE_BYTES, rows, machine)
    return maximum(read, written_time(lines, moved, machine))


def _paged_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds that results of many rows at a time cost, each on a page of its own."""
    tiles, size = machine.core.tile, nest.dtype.bytes
    results = batch_size(nest) * nest.m * nest.n
    far, near = (machine.picoseconds(cycles) for cycles in (tiles.far_page, tiles.near_page))
    each = select(machine.holds(-2, results, size), near, far)
    each = select(machine.holds(2, results, size), 0, each)
    paged = nest.m * ceil_div(nest.n, nest.registers.columns) * each
    return select(_are_many_pages(nest, machine, blocks), paged, 0)


def again_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds that operands add each time that they come from beyond the second-level cache.

    If it holds a block of rows, a panel and their results, rows come once for each block of
    columns, and columns for each block of rows; else rows for each panel, and columns for each tile
    of rows.
    """
    streams = machine.core.streams
    size, batch = nest.dtype.bytes, batch_size(nest)
    deep = ceil_div(nest.k, maximum(blocks.depth, 1))
    tall = ceil_div(nest.m, maximum(blocks.rows, 1))
    width = nest.registers.columns
    inside = machine.holds(2, deep * (tall + width) + tall * width, size)
    elements = nest.n * nest.k
    tiles = ceil_div(nest.m, nest.registers.rows)
    again = maximum(select(inside, blocks.rows, tiles) - 1, 0)
    rate = machine.reading(batch * elements, size, 3) * streams.again_right // 8
    time = elements * again // 64 * rate
    if isinstance(nest.left, View) and not nest.left.panel:
        elements = nest.m * nest.k
        again = maximum(select(inside, blocks.columns, ceil_div(nest.n, width)) - 1, 0)
        rate = machine.reading(batch * elements, size, 3) * streams.again_left // 8
        time = time + elements * again // 64 * rate
    return time


def _scattered(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Twice the time over that of the bytes: rows in memory lie apart, each on its own pages."""
    streams = machine.core.streams
    right = nest.right
    row = nest.k * nest.dtype.bytes  # several that share a line are read in parts of it
    shares = row.is_constant and row.value < LINE_BYTES
    if nest.is_transposing and not (shares or streams.scattered_rows):
        return FORESEEN
    if nest.is_packing:
        whole, part = streams.scattered_packing
        return select(less_equal(blocks.columns, 1), whole, part)
    if right.panel or not streams.scattered_rows:  # enough misses are under way
        return FORESEEN
    rows = ceil_div(nest.k, maximum(blocks.depth, 1))
    share = constant(streams.scattered_most)
    for most, halves in reversed(streams.scattered_rows):
        share = select(less_equal(rows, most), halves, share)
    return select(less(nest.n, streams.long_row), maximum(share, streams.scattered_short), share)


def row_share(nest: ProductNest, machine: Machine) -> float:
    """What part of the usual it costs to come to a row: the less the more of it is read then."""
    return min(1.0, machine.core.rows.split_bytes / (nest.registers.columns * nest.dtype.bytes))


def streaming_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds to wait for a left operand in memory: long rows are many streams at a time."""
    streams, left, size = machine.core.streams, nest.left, nest.dtype.bytes
    if not isinstance(left, View) or left.panel or not streams.streamed:
        return constant(0)
    elements = nest.m * nest.k
    waited = elements * machine.picoseconds(streams.streamed)
    waited = of_memory(waited, batch_size(nest) * elements * size, machine)
    return select(less_equal(nest.k, SHORT_ROW_BYTES // size), 0, waited)


def left_page_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds that rows of the left operand cost, each on pages of its own, where it is far."""
    streams = machine.core.streams
    if not isinstance(nest.left, View) or nest.left.panel:
        return constant(0)
    size, elements = nest.dtype.bytes, batch_size(nest) * nest.m * nest.k
    near, far = (
        machine.picoseconds(each) for each in (streams.near_left_page, streams.far_left_page)
    )
    each = near + of_memory(constant(max(far - near, 0)), elements * size, machine)
    short = less_equal(nest.k, SHORT_ROW_BYTES // size)
    few = logical_or(machine.holds(2, elements, size), short)
    few = logical_or(few, less_equal(nest.m, machine.core.tile.pages * blocks.rows))
    return select(few, 0, nest.m * blocks.depth * each)


def _are_many_pages(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Whether a block of results, whose short rows share pages, has more than are at hand."""
    row = minimum(nest.n * nest.dtype.bytes, PAGE_BYTES)
    return less(machine.core.tile.pages * PAGE_BYTES * blocks.rows, nest.m * row)


def packing_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds to fill the panels of the right operand, for every block of rows."""
    panels = machine.core.panels
    copied = nest.k * blocks.rows
    elements = nest.n * nest.k
    if nest.is_transposing:
        filling = statement_cycles(_over_all_blocks(nest, nest.steps.load), machine, nest.batch)
        return blocks.rows * (filling * machine.picoseconds(1) // 1000)
    near, far = (machine.picoseconds(cycles) for cycles in (panels.near_row, panels.far_row))
    inside = less_equal(elements * nest.dtype.bytes, machine.target.levels[2].capacity)
    rows = copied * (blocks.columns * select(inside, near, far))
    if not _is_copy(nest.steps.load):
        filling = statement_cycles(_over_all_blocks(nest, nest.steps.load), machine, nest.batch)
        filling = filling * machine.picoseconds(1) // 1000
        return blocks.rows * (filling + _copies_time(nest, machine, blocks)) + rows
    return copied * nest.n * machine.picoseconds(panels.copied) + rows


def block_moves_time(nest: ProductNest, machine: Machine, blocks: Blocks) -> Expr:
    """Picoseconds of what each block is loaded with before its products, and stored after them.

    Those are tables of where rows lie and copies of lines, which every block of columns makes anew,
    and results that are turned on their way out. Of few rows it is short runs that are moved.
    """
    rows = maximum(blocks.rows, 1)
    loads, stores = (
        statement_cycles(_over_all_blocks(nest, moves, rows), machine, nest.batch)
        for moves in (nest.blocks.load, nest.blocks.store)
    )
    cycles = rows * (loads * maximum(blocks.columns, 1) + stores)
    return cycles * machine.picoseconds(1) // 1000


def runs_time(nest: ProductNest, machine: Machine) -> Expr:
    """Picoseconds that all tiles take to come to the runs of their rows, which a table lists.

    A tile looks up where each of its rows lies, and enters the loop along the run anew.
    """
    if not isinstance(nest.left, RunTable):
        return constant(0)
    costs = machine.core.loops
    panels = ceil_div(nest.n, nest.registers.columns)
    runs = ceil_div(nest.k, maximum(nest.left.run, 1)) * panels
    row, tile = (machine.picoseconds(each) for each in (2 * costs.scalar, costs.enter))
    return runs * (nest.m * row + ceil_div(nest.m, nest.registers.rows) * tile)


def apart_lines_time(nest: ProductNest, machine: Machine, apart: int) -> Expr:
    """Picoseconds of all tiles to read lines whose rows of the left operand are columns in memory.

    Neighbouring rows lie ``apart`` elements from each other, so that every step reads a line or two
    from the second cache beside those of its panel. As long as they take half of what multiply-adds
    do they hide behind these; what is more is added, up to the left operand's own (with six rows
    2.6 of 6 cycles at AVX2, none of 24 at AVX-512 with one multiply-add a cycle, Zen 4).
    """
    size, rows, columns = nest.dtype.bytes, nest.registers.rows, nest.registers.columns
    if nest.n.is_constant:  # of fewer columns a tile has fewer vectors
        lanes = machine.target.vector_bytes // size
        columns = max(min(columns, -(-nest.n.value // lanes) * lanes), lanes)
    line = LINE_BYTES / machine.target.levels[2].bandwidth
    own = line * (1 + (rows - 1) * apart * size / LINE_BYTES)
    whole = own + line * columns * size / LINE_BYTES
    step = machine.line(nest.dtype, columns, rows).at(rows)
    shown = min(machine.picoseconds(own), max(0, round(2 * machine.picoseconds(whole) - step)))
    tiles = ceil_div(nest.m, rows) * ceil_div(nest.n, columns)
    return batch_size(nest) * nest.k * tiles * shown


def _over_all_blocks(
    nest: ProductNest, moves: Sequence[Statement], rows: Expr | int = 1
) -> tuple[Statement, ...]:
    """What is moved for a block, as if one of so many blocks of ``rows`` had all the rest."""
    bounds: dict[str, Expr] = {}
    for axis in (nest.rows, nest.columns, nest.depth):
        bounds |= {str(axis.begin): constant(0), str(axis.end): axis.extent}
    bounds[str(nest.rows.end)] = ceil_div(nest.rows.extent, rows)
    return ExpressionMap.substitution(bounds).statements(moves)


def _is_copy(body: Sequence[Statement]) -> bool:
    """Whether packing reads one row of elements that lie side by side for each step of the depth.

    Rows that are put together of several, as of the pixels of many images, begin anew in each.
    """
    stores: list[Store] = []
    waiting = list(body)
    while waiting:
        match waiting.pop():
            case Loop(variable="_k" | "_n", body=inner):
                waiting += inner
            case Store() as store:
                stores.append(store)
            case TransposeBlock():
                continue
            case _:
                return False
    values = [store.value for store in stores]
    return all(isinstance(v, Load) and column_step(v.offset) is constant(1) for v in values)


def column_step(offset: Expr) -> Expr | None:
    """Elements from one column to the next, None where it is not always the same."""
    affine = offset.affine(["_n"])
    return None if affine is None else affine[0].get("_n", constant(0))
