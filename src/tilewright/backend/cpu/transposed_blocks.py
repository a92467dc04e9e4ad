"""Blocks of memory that are transposed through registers, by the largest squares of which one fits.

A few columns of rows that lie side by side are picked out of whole vectors, and a few rows are
woven into such vectors: squares of so few would store a part of a vector each. Elements of one
byte, and of two where that pays, are turned in squares as wide as a register, each of which takes
pieces of several rows at once; smaller ones of them, whose rows fill no register, as two squares
beside or below each other, whose columns fill it. Start with :class:`BlockWriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.zipped import zipped_columns
from tilewright.ir.dtype import DType
from tilewright.ir.tile import LINE_BYTES
from tilewright.target.core_model import (
    CLASHING_BYTES,
    FEWEST_REGISTERS,
    LEAST_SQUARE,
    LEAST_VECTOR_BYTES,
    NEAR_SOURCE_BYTES,
    PAGE_BYTES,
    PIECE_BYTES,
    WIDE_LANES,
    WIDE_VECTOR_BYTES,
    most_thin,
    thin_lanes,
)

POINTER = ir.PointerType()
NARROW_BYTES = 2  # elements no wider may be turned by pieces, where a square of registers fits
# Of such a square in a turn of the loop that copies them, each through a register; not measured.
COPIED_ROWS = FEWEST_REGISTERS // 2
# Rows of which a square, of 16 at most, lies within a page begin less than so far apart.
SHORT_BYTES = PAGE_BYTES // WIDE_LANES
# Of a row of the target that a band of squares writes where those rows share sets of the cache: as
# the squares of one column come first, sets take turns, and a line is whole before the next row
# takes its place (Zen 3: 1.0 to 2.5 times as fast as with a line; two and eight lines gain less).
CLASHING_BAND_BYTES = 4 * LINE_BYTES
Place = Callable[[int, ir.Value], ir.Value]  # where a row of a square has a column


def squares_of(registers: int) -> tuple[int, ...]:
    """Rows and columns of the squares that so many registers hold, the largest first.

    Every step takes two registers of a square into two others, so that half of them hold it.
    """
    most = registers // 2
    return tuple(most >> halved for halved in range((most // LEAST_SQUARE).bit_length()))


class BlockWriter:
    """Writes the body of a function that transposes a block of elements of ``dtype``."""

    def __init__(
        self, function: ir.Function, level: Level, dtype: DType, along_target: bool
    ) -> None:
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.level = level
        self.dtype = dtype
        self.along_target = along_target
        self.is_single = False  # whether one piece is as tall as the block
        self.scalar = self.vector = Emitter(self.builder, level)
        self.lanes = self.tall = self.wide = 1
        (self.source, self.source_row, self.target, self.target_row, self.rows,
         self.columns) = function.args  # fmt: skip

    def write(self) -> None:
        """Where a whole square fits, squares alone: the last ones overlap those before them."""
        done = self.builder.append_basic_block("done")
        thin = most_thin(self.level.vector_bytes)
        least = self._minimum(self.rows, self.columns)
        with self.builder.if_then(self.builder.icmp_signed("<=", least, word(thin))):
            for count in range(2, thin + 1):
                self._of_thin(count, done)
        most = self.level.lanes(self.dtype.bytes)
        sizes = dict.fromkeys(min(size, most) for size in squares_of(self.level.registers))
        if self.dtype.bytes > NARROW_BYTES:
            self._of_squares(list(sizes))
        else:
            self._of_registers_square(most, list(sizes))
        self.builder.branch(done)
        self.builder.position_at_end(done)
        self.builder.ret_void()

    def _of_thin(self, count: int, done: ir.Block) -> None:
        """So few rows or columns that lie side by side as whole vectors, where one fits."""
        sides = (
            (self.columns, self.source_row, self.rows, self._picked_out),
            (self.rows, self.target_row, self.columns, self._woven),
        )
        for size, distance, length, body in sides:
            few, beside = (
                self.builder.icmp_signed("==", given, word(count)) for given in (size, distance)
            )
            with self.builder.if_then(self.builder.and_(few, beside)):
                for lanes in thin_lanes(count, self.level.lanes(self.dtype.bytes)):
                    with self.builder.if_then(self.builder.icmp_signed(">=", length, word(lanes))):
                        self._along(length, lanes, partial(body, count=count))
                        self.builder.branch(done)
                if count <= LEAST_SQUARE:
                    self._of_elements()
                    self.builder.branch(done)

    def _along(self, length: ir.Value, lanes: int, body: Callable[[ir.Value], None]) -> None:
        """``body`` for each whole vector, the last of which overlaps the one before."""
        self.lanes = lanes
        self.vector = Emitter(self.builder, self.level, lanes)
        last = self.builder.sub(length, word(lanes))
        self._loop(word(0), length, word(lanes), lambda at: body(self._minimum(at, last)))

    def _picked_out(self, row: ir.Value, count: int) -> None:
        """All columns of as many rows as a vector has elements."""
        first = self.builder.mul(row, word(count))
        values = [
            self.vector.load(self._source(word(0), self._after(first, i)), self.dtype)
            for i in range(count)
        ]
        for column in range(count):
            places = [divmod(i * count + column, self.lanes) for i in range(self.lanes)]
            self._store_picked(values, places, self._target(row, word(column)))

    def _woven(self, column: ir.Value, count: int) -> None:
        """All rows of as many columns as a vector has elements."""
        values = [self.vector.load(self._source(word(i), column), self.dtype) for i in range(count)]
        first = self.builder.mul(column, word(count))
        for number in range(count):
            begin = number * self.lanes
            places = [((begin + i) % count, (begin + i) // count) for i in range(self.lanes)]
            address = self._target(self._after(first, number), word(0))
            self._store_picked(values, places, address)

    def _after(self, first: ir.Value, vectors: int) -> ir.Value:
        return self.builder.add(first, word(vectors * self.lanes))

    def _store_picked(
        self, values: list[ir.Value], places: list[tuple[int, int]], address: ir.Value
    ) -> None:
        """A vector of one element of each place: the number of a vector, and where in it."""
        self.vector.store(self.vector.picked(values, places), address, self.dtype)

    def _of_registers_square(self, lanes: int, others: list[int]) -> None:
        """With squares of as many rows as a register has elements, or with ``others``.

        Where not two of them fit beside each other, the last ones would turn too much again. Two
        bytes take others as well where rows are whole lines, which nothing is gained by copying,
        unless so many rows of the target share sets of the cache, as pages apart they do.
        """
        pays = self._fits(2 * lanes, 2 * lanes)
        if self.dtype.bytes > 1:
            whole = self._are_multiples(self.source_row, self.level.vector_bytes)
            crowded = self._are_multiples(self.target_row, PAGE_BYTES)
            pays = self.builder.and_(pays, self.builder.or_(self.builder.not_(whole), crowded))
        with self.builder.if_else(pays) as (squares, smaller):
            with squares:
                self._of_side(lanes)
                scratch = self._scratch(lanes)
                self._in_bands(lambda row, column: self._by_pieces(row, column, scratch))
            with smaller:
                self._of_squares(others)

    def _of_squares(self, sizes: list[int]) -> None:
        """With the largest squares of which one fits, or element by element."""
        if not sizes:
            self._of_elements()
            return
        size, most = sizes[0], LEAST_VECTOR_BYTES // self.dtype.bytes
        shapes = [(size, size)]
        if 2 * size <= most:  # results of two squares fill a register; the longer side has them
            shapes = [(size, most), (most, size), (size, size)]
        self._of_pieces(shapes, lambda: self._of_squares(sizes[1:]))

    def _of_pieces(self, shapes: list[tuple[int, int]], others: Callable[[], None]) -> None:
        """With pieces of the first of the shapes of which one fits, or with ``others``."""
        if not shapes:
            others()
            return
        tall, wide = shapes[0]
        fits = self._fits(tall, wide)
        if tall < wide:
            is_wide = self.builder.icmp_signed(">=", self.columns, self.rows)
            fits = self.builder.and_(fits, is_wide)
        with self.builder.if_else(fits) as (pieces, smaller):
            with pieces:
                self._of_side(min(tall, wide))
                self.tall, self.wide = tall, wide
                self._in_bands(self._whole)
            with smaller:
                self._of_pieces(shapes[1:], others)

    def _fits(self, tall: int, wide: int) -> ir.Value:
        """Whether there is a piece of so many rows and columns."""
        is_tall, is_wide = (
            self.builder.icmp_signed(">=", size, word(least))
            for size, least in ((self.rows, tall), (self.columns, wide))
        )
        return self.builder.and_(is_tall, is_wide)

    def _are_multiples(self, elements: ir.Value, size: int) -> ir.Value:
        """Whether so many elements are a multiple of so many bytes, a power of two."""
        rest = self.builder.and_(elements, word(size // self.dtype.bytes - 1))
        return self.builder.icmp_signed("==", rest, word(0))

    def _of_side(self, lanes: int) -> None:
        """From here on squares have so many rows."""
        self.lanes = self.tall = self.wide = lanes
        self.vector = Emitter(self.builder, self.level, lanes)

    def _in_bands(self, turn: Callable[[ir.Value, ir.Value], None]) -> None:
        """All squares by ``turn``, band by band.

        Two at a time make whole lines, more where rows of the target share sets of the cache. Where
        rows are far apart and no whole lines, one, as few of them are to share such sets. A large
        matrix whose rows are whole vectors has two in any case, with which it was faster.
        """
        banded, size = (
            (self.rows, self.tall) if not self.along_target else (self.columns, self.wide)
        )
        step = self._step()
        if self.tall == self.wide:
            self._loop(word(0), banded, step, lambda first: self._band(first, step, turn))
            return
        with self.builder.if_else(self.builder.icmp_signed("<=", banded, word(size))) as (
            one,
            more,
        ):
            with one:  # rows are found once for all pieces
                self._single_band(turn)
            with more:
                self._loop(word(0), banded, step, lambda first: self._band(first, step, turn))

    def _single_band(self, turn: Callable[[ir.Value, ir.Value], None]) -> None:
        """All pieces of a block that is as tall as one, or as wide along the target."""
        other, size = (self.rows, self.tall) if self.along_target else (self.columns, self.wide)
        last, zero = self.builder.sub(other, word(size)), word(0)

        def piece(position: ir.Value) -> None:
            here = self._minimum(position, last)
            turn(*((here, zero) if self.along_target else (zero, here)))

        self.is_single = True
        self._loop(zero, other, word(size), piece)
        self.is_single = False

    def _step(self) -> ir.Value:
        """Rows of a band, or columns of one along the target."""
        if self.along_target:
            return word(2 * self.wide)
        two = word(2 * self.tall)
        builder, size = self.builder, self.dtype.bytes
        is_short = builder.icmp_signed("<", self.source_row, word(SHORT_BYTES // size))
        is_whole = self._are_multiples(self.source_row, self.level.vector_bytes)
        step = builder.select(builder.or_(is_short, is_whole), two, word(self.tall))
        if size == 1 or self.level.vector_bytes >= LINE_BYTES:
            return step
        span = builder.mul(self.rows, self.source_row)
        is_near = builder.icmp_signed("<=", span, word(NEAR_SOURCE_BYTES // size))
        taller = builder.and_(self._clash(), builder.or_(is_near, builder.not_(is_whole)))
        return builder.select(taller, word(CLASHING_BAND_BYTES // size), step)

    def _clash(self) -> ir.Value:
        """Whether rows of the target, and not those of the source, share sets of the cache."""
        target, source = (
            self._are_multiples(row, CLASHING_BYTES) for row in (self.target_row, self.source_row)
        )
        return self.builder.and_(target, self.builder.not_(source))

    def _band(
        self, first: ir.Value, step: ir.Value, turn: Callable[[ir.Value, ir.Value], None]
    ) -> None:
        """The squares of a band along one axis, and all along the other."""
        axes = [(self.rows, self.tall), (self.columns, self.wide)]
        (banded, side), (other, length) = axes[::-1] if self.along_target else axes
        limits = [self.builder.sub(banded, word(side)), self.builder.sub(other, word(length))]
        end = self._minimum(self.builder.add(first, step), banded)

        def pair(position: ir.Value) -> None:
            here = self._minimum(position, limits[1])

            def square(across: ir.Value) -> None:
                place = self._minimum(across, limits[0]), here
                turn(*(place[::-1] if self.along_target else place))

            self._loop(first, end, word(side), square)

        self._loop(word(0), other, word(length), pair)

    def _of_elements(self) -> None:
        self._loop(word(0), self.columns, word(1), self._line)

    def _line(self, column: ir.Value) -> None:
        def element(row: ir.Value) -> None:
            value = self.scalar.load(self._source(row, column), self.dtype)
            self.scalar.store(value, self._target(row, column), self.dtype)

        self._loop(word(0), self.rows, word(1), element)

    def _whole(self, row: ir.Value, column: ir.Value) -> None:
        """A square, loaded in pieces where its source is far away and vectors are wide.

        Of the two pieces of shorter ones, to put them together takes as many instructions as the
        step that it saves.
        """
        builder = self.builder
        if not self.along_target and not self.is_single:
            self._prefetch(row, column)
        turns = PIECE_BYTES // self.dtype.bytes
        if self.along_target or self.lanes * self.dtype.bytes < WIDE_VECTOR_BYTES:
            self._turn_rows(row, column)
            return

        def place(number: int, first: ir.Value) -> ir.Value:
            return self._source(builder.add(row, word(number)), builder.add(column, first))

        for first in range(0, self.lanes, turns):
            self._turn_pieces(row, column, (word(first), turns), place)

    def _turn_rows(self, row: ir.Value, column: ir.Value) -> None:
        """A piece whose rows are loaded whole."""
        builder = self.builder
        loading = Emitter(builder, self.level, self.wide)
        storing = Emitter(builder, self.level, self.tall)
        values = [
            loading.load(self._source(builder.add(row, word(i)), column), self.dtype)
            for i in range(self.tall)
        ]
        columns = self._columns(values)
        for j, value in enumerate(columns):
            storing.store(value, self._target(row, builder.add(column, word(j))), self.dtype)

    def _columns(self, values: list[ir.Value]) -> Sequence[ir.Value]:
        """Those of the rows of a piece."""
        most = LEAST_VECTOR_BYTES // self.dtype.bytes
        if 2 * self.lanes <= most:
            return zipped_columns(self.builder, values, most)
        distance = self.lanes // 2
        while distance:
            values = self._exchanged(values, distance)
            distance //= 2
        return values

    def _scratch(self, registers: int) -> ir.Value:
        """Memory of the function for so many registers, aligned as they are."""
        kind = ir.VectorType(ir.IntType(8), self.level.vector_bytes)
        with self.builder.goto_entry_block():
            memory = self.builder.alloca(ir.ArrayType(kind, registers))
        memory.type = POINTER  # llvmlite alone still gives it the type of what it points to
        return memory

    def _by_pieces(self, row: ir.Value, column: ir.Value, scratch: ir.Value) -> None:
        """A square of as many rows as a register has elements.

        Its rows are copied first, each at once, as many of them may share a set of the cache. A
        register then has pieces of several rows, and takes those of all in a few steps.
        """
        builder, lanes = self.builder, self.lanes
        turns = PIECE_BYTES // self.dtype.bytes

        def copied(first: ir.Value) -> None:
            for i in range(COPIED_ROWS):
                number = builder.add(first, word(i))
                value = self.vector.load(self._source(builder.add(row, number), column), self.dtype)
                place = self.scalar.gep(scratch, self.dtype, builder.mul(number, word(lanes)))
                self.vector.store(value, place, self.dtype, alignment=self.level.vector_bytes)

        def place(number: int, first: ir.Value) -> ir.Value:
            at = builder.add(first, word(number * lanes))
            return self.scalar.gep(scratch, self.dtype, at)

        def turned(first: ir.Value) -> None:
            self._turn_pieces(row, column, (first, turns), place)

        self._loop(word(0), word(lanes), word(COPIED_ROWS), copied)
        self._loop(word(0), word(lanes), word(turns), turned)

    def _turn_pieces(
        self, row: ir.Value, column: ir.Value, piece: tuple[ir.Value, int], place: Place
    ) -> None:
        """A piece of all rows of a square: its first column, and how many it has.

        Registers are loaded in pieces of several rows, which takes half the steps from them away.
        """
        first, turns = piece
        values = [self._pieces(place, first, i, turns) for i in range(turns)]
        for _ in range(turns.bit_length() - 1):
            values = self._interleaved_pieces(values)
        for j, value in enumerate(values):
            beside = self.builder.add(self.builder.add(column, first), word(j))
            self.vector.store(value, self._target(row, beside), self.dtype)

    def _pieces(self, place: Place, first: ir.Value, row: int, distance: int) -> ir.Value:
        """A register with pieces from element ``first`` of rows so far apart."""
        narrow = Emitter(self.builder, self.level, distance)
        parts = [
            narrow.load(place(number, first), self.dtype)
            for number in range(row, self.lanes, distance)
        ]
        width = distance
        while len(parts) > 1:
            width *= 2
            order = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(width)))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.builder.shuffle_vector(*pair, order) for pair in pairs]
        return parts[0]

    def _interleaved_pieces(self, values: list[ir.Value]) -> list[ir.Value]:
        """Elements of one half of the registers and the other in turns, within each piece."""
        turns, half = len(values), len(values) // 2
        made: list[ir.Value] = []
        for pair in zip(values[:half], values[half:], strict=True):
            for begin in (0, half):
                order = [
                    piece + begin + i + self.lanes * other
                    for piece in range(0, self.lanes, turns)
                    for i in range(half)
                    for other in (0, 1)
                ]
                made.append(self._shuffle(pair, order))
        return made

    def _prefetch(self, row: ir.Value, column: ir.Value) -> None:
        """Ask for what the next band reads here, as the hardware does not follow so many rows.

        Into the second cache, as rows about a page apart would drive each other out of the first.
        """
        below = self.builder.add(row, self._step())
        for i in range(self.tall):
            place = self._source(self.builder.add(below, word(i)), column)
            self.scalar.prefetch(place, near=False)

    def _exchanged(self, values: list[ir.Value], distance: int) -> list[ir.Value]:
        """Swap the off-diagonal halves of every square of side ``2 * distance``."""
        lanes = self.lanes
        upper = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        lower = [lanes + j if j & distance else j + distance for j in range(lanes)]
        out = list(values)
        for i in range(lanes):
            if not i & distance:
                pair = values[i], values[i + distance]
                out[i] = self._shuffle(pair, upper)
                out[i + distance] = self._shuffle(pair, lower)
        return out

    def _shuffle(self, pair: tuple[ir.Value, ir.Value], order: list[int]) -> ir.Value:
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        return self.builder.shuffle_vector(*pair, ir.Constant(kind, order))

    def _source(self, row: ir.Value, column: ir.Value) -> ir.Value:
        place = self.builder.add(self.builder.mul(row, self.source_row), column)
        return self.scalar.gep(self.source, self.dtype, place)

    def _target(self, row: ir.Value, column: ir.Value) -> ir.Value:
        place = self.builder.add(self.builder.mul(column, self.target_row), row)
        return self.scalar.gep(self.target, self.dtype, place)

    def _minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def _loop(
        self, begin: ir.Value, end: ir.Value, step: ir.Value, body: Callable[[ir.Value], None]
    ) -> None:
        def turn(position: ir.Value, nothing: list[Sums]) -> list[Sums]:
            body(position)
            return nothing

        carrying(self.builder, "loop", (begin, end, step), [], turn)


__all__ = ["BlockWriter", "squares_of"]
