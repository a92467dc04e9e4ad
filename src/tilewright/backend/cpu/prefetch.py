"""What the register tiles of a product ask for before it is needed.

Hardware foresees long rows and what follows in memory. Tiles ask for the rest: for the next panel
of weights, for the next rows of columns that panels have parts of, for short rows of the next tile,
and for those of the tasks that follow. Start with :class:`Prefetcher`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.blocks import K0, K1, M0, M1, N0, N1, Place, origin
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.math_arithmetic import call_intrinsic
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.tile_ahead import UNROLL, Ahead, RowsAhead
from tilewright.ir.epilogue import met_elements
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import TileBuffer, TransposeBlock, View
from tilewright.shape import (
    Expr,
    constant,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    product,
    select,
    symbol,
)
from tilewright.target.core_model import FEW_STEPS, NEAR_RESULT_BYTES, SHORT_ROW_BYTES


def asks_for_results(nest: ProductNest) -> Expr:
    """Whether tiles ask for the lines of their results: these are far and not foreseen.

    With them go those of what they add. Results that go past the caches are not asked for, so that
    nothing is asked then where tiles add nothing.

    Rows of a single panel follow each other in memory, as one stream that hardware sees where a
    tile takes few steps. To ask for its lines took 9 to 14 % longer (12 and 13 columns, 8 deep, two
    threads, AVX2 on Zen 4), and not to ask 2 to 3 % where it takes 96 (48 and 64 columns).
    """
    elements = product([size for _, size in nest.batch]) * nest.m * nest.n
    far = less_equal(NEAR_RESULT_BYTES // nest.dtype.bytes, elements)
    apart = less(nest.registers.columns, nest.n)
    each = {name for name, _ in nest.batch}  # has steps of its own where a depth is cut
    deep = constant(1) if each.intersection(nest.k.free_symbols) else less(FEW_STEPS, nest.k)
    apart = logical_or(apart, deep)
    adds = not all(to_write for *_, to_write in met_elements(nest.finish.stores))
    useful = constant(1) if adds else logical_not(nest.finish.streamed)
    return logical_and(far, apart, useful)


@dataclass
class _Later:
    """Rows at ``pointer``, ``row`` elements apart, that the tiles at column ``panel`` prefetch."""

    pointer: ir.Value
    row: ir.Value
    panel: ir.Value


class Prefetcher:
    """Where the tiles of a product's blocks prefetch.

    ``asks_right`` and ``asks_left`` say whether they ask for parts of either operand at all,
    ``asks_rows`` whether these are the right operand's rows of columns.
    """

    def __init__(self, frame: FunctionFrame, nest: ProductNest) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.nest = nest
        self.dtype = nest.dtype
        self.columns = nest.registers.columns
        left = nest.left
        alone = nest.n.is_constant and nest.n.value <= nest.registers.columns
        self.asks_right = nest.right.panel > 0 and not alone
        self.asks_rows = nest.finish.ahead != NEVER
        self.asks_left = isinstance(left, View) and not left.panel and left.depth is constant(1)
        self.later: list[_Later] = []

    def begin_task(self) -> None:
        """Note what the tasks after this one read, its bounds being named."""
        if self.asks_left:
            self.later = self._later()

    def right(self, place: Place, right: ir.Value, most: int) -> Ahead | None:
        """The part of the next panel that this tile asks for.

        The tiles of a panel, of at most ``most`` rows, have equal parts, so that memory is busy all
        the time. A tile asks for two steps along k of a panel at a time, and so not in every turn
        where there are more than two. Where a panel has one tile, memory is the limit and the
        hardware knows what comes next; behind a single panel there is none.
        """
        if not self.asks_right:
            return None
        builder, names = self.builder, self.frame.names
        columns = word(self.columns)
        rows = builder.sub(names[M1], names[M0])
        tiles = builder.udiv(builder.add(rows, word(most - 1)), word(most))
        single = builder.icmp_signed("<=", self.frame.index(self.nest.n), columns)
        alone = builder.or_(builder.icmp_signed("<=", tiles, word(1)), single)
        whole = builder.add(word(self.columns * UNROLL - 1), tiles)
        step = builder.udiv(whole, tiles)
        turns = builder.udiv(builder.sub(names[K1], names[K0]), word(UNROLL))
        panel = builder.mul(self.frame.index(self.nest.right.row), columns)
        part = builder.mul(builder.mul(step, turns), place.number)
        start = self.frame.emitter.gep(right, self.dtype, builder.add(panel, part))
        # So many turns are two steps, if that is a power of two.
        every = self._power_of_two(builder.udiv(tiles, word(UNROLL // 2)))
        skipped = builder.select(alone, word(-1), builder.sub(every, word(1)))
        return Ahead(start, step, skipped)

    def rows(self, place: Place, most: int) -> RowsAhead | None:
        """The part of the rows behind this block of the depth that this tile asks for.

        A panel has a part of each row. Hardware, which sees these parts one far behind the other,
        brings a line in 6 to 10 ns from memory; asked for in the order of memory, while the block
        before is multiplied, it brings one in 2 to 3 (Zen 4). The program says where that is
        done (``Finish.ahead``). The last block is followed by the next matrix of a batch.
        """
        if not self.asks_rows:
            return None
        builder, frame, nest = self.builder, self.frame, self.nest
        right, names = nest.right, self.frame.names
        block = builder.sub(names[K1], names[K0])
        own = [(name, size) for name, size in nest.batch if name in right.offset.free_symbols]
        first = origin(right, N0)
        here, inside = first + symbol(K1) * right.depth, less(symbol(K1), nest.k)
        there, another = next_of_batch(first, own)
        more = logical_or(inside, another)
        start = frame.index(select(inside, here, there))
        panel = builder.mul(builder.sub(names["_np"], names[N0]), block)
        start = builder.add(start, panel)
        useful = frame.index(logical_and(nest.finish.ahead, more))
        rows = builder.sub(names[M1], names[M0])
        tiles = builder.udiv(builder.add(rows, word(most - 1)), word(most))
        mask = builder.sub(self._power_of_two(tiles), word(1))
        turn = builder.select(builder.trunc(useful, ir.IntType(1)), place.number, word(-1))
        pointer = frame.pointers[right.buffer.name]
        return RowsAhead(frame.emitter.gep(pointer, self.dtype, start), turn, mask)

    def _power_of_two(self, value: ir.Value) -> ir.Value:
        """The greatest that is no more than a positive value; undefined for 0."""
        kind, of_zero = ir.IntType(64), ir.Constant(ir.IntType(1), 1)
        zeros = call_intrinsic(self.builder, "ctlz", kind, [kind], [value, of_zero])
        return self.builder.shl(word(1), self.builder.sub(word(63), zeros))

    def left(self, place: Place, left: ir.Value, row: ir.Value, steps: ir.Value) -> ir.Value:
        """Short rows: of the next tile under the very first panel, else those of a later task.

        The hardware foresees long rows; of short ones it has seen too little when they end. Where
        there is nothing to ask for, it is what the tile reads itself.
        """
        builder, dtype = self.builder, self.dtype
        short = builder.icmp_signed("<=", steps, word(SHORT_ROW_BYTES // dtype.bytes))
        useful = builder.and_(short, builder.icmp_signed("==", row, steps))
        first = builder.and_(useful, builder.icmp_signed("==", place.n, word(0)))
        offset = builder.select(first, builder.mul(row, place.height), word(0))
        ahead = self.frame.emitter.gep(left, dtype, offset)
        rows = builder.sub(place.m, self.frame.names[M0])
        for later in self.later:
            here = builder.and_(short, builder.icmp_signed("==", place.n, later.panel))
            alike = builder.and_(here, builder.icmp_signed("==", later.row, steps))
            there = self.frame.emitter.gep(later.pointer, dtype, builder.mul(rows, later.row))
            ahead = builder.select(alike, there, ahead)
        return ahead

    def _later(self) -> list[_Later]:
        """What to ask for under which panel for the tasks that follow this one.

        The columns of the next one, where packing transposes them, and the rows of the next batch
        element, if those of this one are a single block.
        """
        nest, left = self.nest, self.nest.left
        assert isinstance(left, View)
        width = self.columns
        last, alone = less_equal(nest.n, symbol(N1)), less_equal(nest.n, nest.columns.block)
        made = list[_Later]()
        if nest.batch:
            # The very first panel is taken; under a block's only panel there is no other.
            rows = logical_and(last, less_equal(nest.m, nest.rows.block))
            panel = select(rows, symbol(N0) + select(alone, width, 0), -1)
            base, _ = next_of_batch(origin(left, M0), nest.batch)
            made.append(self._asked(left.buffer, base, left.row, panel))
        for block in nest.steps.load:
            if isinstance(block, TransposeBlock):
                base = block.source_offset.substitute({K0: constant(0)})
                there, _ = next_of_batch(base.substitute({N0: constant(0)}), nest.batch)
                base = select(last, there, base.substitute({N0: symbol(N1)}))
                panel = symbol(N0) + select(alone, 2 * width, width)
                made.append(self._asked(block.source, base, block.source_row, panel))
        return made

    def _asked(self, buffer: TileBuffer, base: Expr, row: Expr, panel: Expr) -> _Later:
        pointer = self.frame.pointers[buffer.name]
        place = self.frame.emitter.gep(pointer, self.dtype, self.frame.index(base))
        return _Later(place, self.frame.index(row), self.frame.index(panel))


def next_of_batch(offset: Expr, batch: Sequence[tuple[str, Expr]]) -> tuple[Expr, Expr]:
    """An offset for the next element of a batch, and whether there is one; else it stays.

    The last axis moves on first; where it ends, the one before does, as of channels in groups the
    next image comes after the last group.
    """
    if not batch:
        return offset, constant(0)
    *before, (name, size) = batch
    inside = less(symbol(name) + 1, size)
    beyond, more = next_of_batch(offset.substitute({name: constant(0)}), before)
    outside = select(more, beyond, offset)
    here = offset.substitute({name: symbol(name) + 1})
    return select(inside, here, outside), logical_or(inside, more)
