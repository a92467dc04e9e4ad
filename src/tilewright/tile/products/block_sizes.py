"""Sizes of the blocks of a product: rows and columns of a task, and the depth of a step.

They are expressions over the sizes and the number of threads. Start with :func:`row_block`.
"""

from __future__ import annotations

from tilewright.ir.stage_axis import NEVER
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
    symbol,
)
from tilewright.tile.products.frame import Frame
from tilewright.tile.variants import THREADS
from tilewright.tile.work import SHARES

DEPTH_BLOCK = 1024  # sums leave the registers once per block; its right panel streams from cache
MOST_ROWS = 288  # per task, so that there are tasks to share out
MANY_TASKS = 4  # for each thread; with more, it matters little that some have one more than others
COLUMN_BLOCK = 64  # columns per task when the right operand needs no packing
STREAMED_DEPTH = 8192  # where every panel is used by one tile only
PACKED_DEPTH = 384  # depth of a block that is packed
PACKED_COLUMNS = 128  # columns per task when it does
PACKED_ROWS = 1024  # rows per task then: packing is repeated for every row block
RIGHT_PART = 4  # of the room: with half of it, rows first was no faster, and at times slower
PACKED_TILES = 8  # tiles of rows per task at least, to which packing is little


def most_depth(frame: Frame, packing: bool) -> Expr:
    """Depth of a block; panels that only one tile uses stream by, the longer the better."""
    if frame.blocking.depth is not None:
        return constant(frame.blocking.depth)
    if packing:
        return constant(PACKED_DEPTH)
    return select(less_equal(frame.m, frame.tile.rows), STREAMED_DEPTH, DEPTH_BLOCK)


def depth_block(depth: Expr, most: Expr) -> Expr:
    """Balanced blocks along k of at most ``most``, where every depth may begin one."""
    blocks = maximum(ceil_div(depth, most), 1)
    return minimum(maximum(ceil_div(ceil_div(depth, blocks), 8) * 8, 1), maximum(depth, 1))


def pack_row(frame: Frame) -> Expr:
    """Elements between packed rows: a block of columns, and some to spread over cache sets."""
    return column_block(frame, packing=True) + frame.tile.columns


def column_block(frame: Frame, packing: bool) -> Expr:
    """Balanced blocks of columns, multiples of the register tile.

    Few columns in all are cut finer, so that there are tasks to share out.
    """
    width, most = frame.tile.columns, PACKED_COLUMNS if packing else COLUMN_BLOCK
    if frame.blocking.whole:
        return maximum(ceil_div(frame.n, width) * width, width)
    whole = frame.n * _batch(frame)
    share = ceil_div(whole, SHARES * width) * width
    limit, others = minimum(maximum(share, 2 * width), most), symbol(THREADS)
    if frame.blocking.columns is not None:
        limit = constant(max(frame.blocking.columns, width))
        others = _row_count(frame, packing) * _batch(frame)
    blocks = column_blocks(frame.n, limit, width, others)
    return evenly(frame.n, blocks, width)


def column_blocks(columns: Expr, most: Expr | int, width: int, others: Expr) -> Expr:
    """How many blocks; half a panel goes along with others: alone it would be no full vector.

    There is one for each thread where there are fewer ``others`` beside them, and panels for it.
    """
    panels = maximum(columns - width // 2, 1)
    shared = minimum(ceil_div(symbol(THREADS), maximum(others, 1)), ceil_div(panels, width))
    return maximum(ceil_div(panels, most), shared, 1)


def balanced(size: Expr, most: Expr, unit: int) -> Expr:
    """Blocks of at most ``most``, all about alike, multiples of ``unit`` like it."""
    return evenly(size, ceil_div(size, most), unit)


def evenly(size: Expr, blocks: Expr, unit: int) -> Expr:
    """The size of so many blocks, a multiple of ``unit``."""
    return maximum(ceil_div(ceil_div(size, maximum(blocks, 1)), unit) * unit, unit)


def row_block(frame: Frame, packing: bool) -> Expr:
    """Balanced blocks of rows, multiples of the register tile.

    With packing there are as few as possible, since each packs again; but two if all columns are
    one or two blocks.
    """
    height = frame.tile.rows
    if frame.blocking.rows is not None:
        return evenly(frame.m, _row_count(frame, packing), height)
    if not packing:
        most = minimum(maximum(_resident_rows(frame) // height, 1) * height, MOST_ROWS)
        return shared_rows(frame, balanced(frame.m, most, height))
    few = less_equal(frame.n * _batch(frame), 4 * frame.tile.columns)
    blocks = maximum(ceil_div(frame.m, PACKED_ROWS), select(few, 2, 1))
    return maximum(evenly(frame.m, blocks, height), least_rows(height, packing))


def _row_count(frame: Frame, packing: bool) -> Expr:
    """How many blocks of rows there are, or tiles if their blocks are not given."""
    height = frame.tile.rows
    most = max((frame.blocking.rows or height) // height, 1) * height
    if most == height:
        return ceil_div(frame.m, most)
    least, first = least_rows(height, packing), rows_first(frame)
    return row_blocks(frame.m, constant(most), least, _batch(frame), first)


def _batch(frame: Frame) -> Expr:
    return product([size for _, size in frame.batch])


def least_rows(height: int, packing: bool) -> int:
    """Rows of a block at least where threads share them out, of tiles of ``height`` rows."""
    return height * PACKED_TILES if packing else height


def row_blocks(rows: Expr, most: Expr, least: int, batch: Expr, first: Expr) -> Expr:
    """How many blocks of up to ``most`` rows, as many for each thread if they share out rows.

    They do where ``first`` is not 0. Two that meet in the middle of a block wait for each other's
    lines. For that blocks may be of ``least`` rows.
    """
    threads, blocks = ceil_div(symbol(THREADS), maximum(batch, 1)), ceil_div(rows, most)
    enough = logical_or(less_equal(threads, blocks), less_equal(threads * least, rows))
    alike = ceil_div(blocks, threads) * threads
    return select(logical_and(first, enough), alike, blocks)


def _resident_rows(frame: Frame) -> Expr:
    """Rows of the left operand that stay in cache with a panel of the right and their results."""
    deep = depth_block(frame.depth, constant(DEPTH_BLOCK))
    columns, elements = frame.tile.columns, frame.tile.room // frame.kernel.seed.dtype.bytes
    return (elements - deep * columns) // (deep + columns)


def shared_rows(frame: Frame, rows: Expr) -> Expr:
    """Blocks of at most ``rows`` rows, more of them where there are few for so many threads.

    Then the tasks are a multiple of the threads or a little less, as far as register tiles can be
    shared out, so that none waits long for others. One thread has blocks of ``rows``.
    """
    height, threads = frame.tile.rows, symbol(THREADS)
    columns = maximum(ceil_div(frame.n, column_block(frame, packing=False)), 1)
    each = maximum(columns * _batch(frame), 1)
    tasks = ceil_div(frame.m, rows) * each
    shared = ceil_div(tasks, threads) * threads
    blocks = maximum(ceil_div(select(less(tasks, MANY_TASKS * threads), shared, tasks), each), 1)
    return evenly(frame.m, blocks, height)


def rows_first(frame: Frame) -> Expr:
    """Whether threads share out rows rather than columns, where results lie row by row.

    Then they have lines of results, and pages, for themselves. For that each of them reads the
    right operand for all blocks of its rows, so a part of what a task has room for must hold it;
    rows of the left one and results stream by.
    """
    if frame.mirrored or frame.blocking.whole:
        return NEVER
    elements = frame.tile.room // frame.kernel.seed.dtype.bytes
    return less_equal(frame.n * frame.depth, elements // RIGHT_PART)
