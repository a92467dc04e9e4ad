"""Transposing a block of memory through registers: squares of vectors, the rest element by element.

A few columns of rows that lie side by side are picked out of whole vectors, and a few rows are
woven into such vectors: squares of so few would store a part of a vector each. Four rows
of bytes become words, through rows as long as a register. Elements of one byte, and of two where
that pays, are turned in squares as wide as a register, each of which takes pieces of several rows
at once. One function per element size, shared by all kernels. Start with
:func:`transpose_function`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.backend.cpu.zipped import zipped_columns
from tilewright.ir.dtype import DType
from tilewright.target.core_model import (
    FEWEST_REGISTERS,
    LEAST_SQUARE,
    LEAST_VECTOR_BYTES,
    PAGE_BYTES,
    PIECE_BYTES,
    WIDE_LANES,
    WIDE_VECTOR_BYTES,
    WORD_BYTES,
    most_thin,
    thin_lanes,
)

POINTER = ir.PointerType()
NARROW_BYTES = 2  # elements no wider may be turned by pieces, where a square of registers fits
# Of such a square in a turn of the loop that copies them, each through a register; not measured.
COPIED_ROWS = FEWEST_REGISTERS // 2
# Columns of the fewest words that are made in registers: two rows of bytes of so many, interleaved,
# fill the shortest one.
LEAST_COLUMNS = LEAST_VECTOR_BYTES // 2
# Rows of which a square, of 16 at most, lies within a page begin less than so far apart.
SHORT_BYTES = PAGE_BYTES // WIDE_LANES
# (source, elements between its rows, target, elements between its rows, rows, columns)
ARGUMENTS = (POINTER, I64, POINTER, I64, I64, I64)
# What elements are moved as, by how many bytes they have.
KINDS = {1: DType.UINT8, 2: DType.INT16, 4: DType.FLOAT32, 8: DType.FLOAT64}
Place = Callable[[int, ir.Value], ir.Value]  # where a row of a square has a column


def transpose_function(
    module: ir.Module, level: Level, dtype: DType, along_target: bool, words: bool
) -> ir.Function:
    """The function for elements of ``dtype``, for a kernel that calls it.

    ``target[c * target_row + r] = source[r * source_row + c]`` for all r below rows, c below
    columns. Of source and target the one that is farther away should be gone along: the target, or
    else the source. With ``words``, four rows of bytes become a row of words.
    """
    name = f"transpose_{dtype.bytes}" + ("_along_target" if along_target else "")
    name += "_words" if words else ""
    kind = KINDS[dtype.bytes]
    writer = _WordWriter if words else _Writer
    shared = SharedFunction(
        name,
        ir.FunctionType(ir.VoidType(), ARGUMENTS),
        lambda function: writer(function, level, kind, along_target).write(),
        distinct=(0, 2),
    )
    return shared_function(module, shared)


def squares_of(registers: int) -> tuple[int, ...]:
    """Rows and columns of the squares that so many registers hold, the largest first.

    Every step takes two registers of a square into two others, so that half of them hold it.
    """
    most = registers // 2
    return tuple(most >> halved for halved in range((most // LEAST_SQUARE).bit_length()))


class _Writer:
    def __init__(
        self, function: ir.Function, level: Level, dtype: DType, along_target: bool
    ) -> None:
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.level = level
        self.dtype = dtype
        self.along_target = along_target
        self.scalar = self.vector = Emitter(self.builder, level)
        self.lanes = 1
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
        pays = self._fits(2 * lanes)
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
        with self.builder.if_else(self._fits(sizes[0])) as (squares, smaller):
            with squares:
                self._of_side(sizes[0])
                self._in_bands(self._whole)
            with smaller:
                self._of_squares(sizes[1:])

    def _fits(self, lanes: int) -> ir.Value:
        """Whether there is a square of so many rows."""
        tall, wide = (
            self.builder.icmp_signed(">=", size, word(lanes)) for size in (self.rows, self.columns)
        )
        return self.builder.and_(tall, wide)

    def _are_multiples(self, elements: ir.Value, size: int) -> ir.Value:
        """Whether so many elements are a multiple of so many bytes, a power of two."""
        rest = self.builder.and_(elements, word(size // self.dtype.bytes - 1))
        return self.builder.icmp_signed("==", rest, word(0))

    def _of_side(self, lanes: int) -> None:
        """From here on squares have so many rows."""
        self.lanes = lanes
        self.vector = Emitter(self.builder, self.level, lanes)

    def _in_bands(self, turn: Callable[[ir.Value, ir.Value], None]) -> None:
        """All squares by ``turn``, band by band.

        Two at a time make whole lines. Where rows are far apart and no whole lines, one, as few of
        them are to share sets of the cache.
        """
        banded = self.columns if self.along_target else self.rows
        step = self._step()
        self._loop(word(0), banded, step, lambda first: self._band(first, step, turn))

    def _step(self) -> ir.Value:
        """Rows of a band, or columns of one along the target."""
        two = word(2 * self.lanes)
        if self.along_target:
            return two
        builder, size = self.builder, self.dtype.bytes
        is_short = builder.icmp_signed("<", self.source_row, word(SHORT_BYTES // size))
        is_whole = self._are_multiples(self.source_row, self.level.vector_bytes)
        return builder.select(builder.or_(is_short, is_whole), two, word(self.lanes))

    def _band(
        self, first: ir.Value, step: ir.Value, turn: Callable[[ir.Value, ir.Value], None]
    ) -> None:
        """One or two squares along one axis, and all along the other."""
        banded, other = self.rows, self.columns
        if self.along_target:
            banded, other = other, banded
        limits = [self.builder.sub(size, word(self.lanes)) for size in (banded, other)]
        end = self._minimum(self.builder.add(first, step), banded)

        def pair(position: ir.Value) -> None:
            here = self._minimum(position, limits[1])

            def square(across: ir.Value) -> None:
                place = self._minimum(across, limits[0]), here
                turn(*(place[::-1] if self.along_target else place))

            self._loop(first, end, word(self.lanes), square)

        self._loop(word(0), other, word(self.lanes), pair)

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
        if not self.along_target:
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
        """A square whose rows are loaded whole."""
        builder = self.builder
        values = [
            self.vector.load(self._source(builder.add(row, word(i)), column), self.dtype)
            for i in range(self.lanes)
        ]
        columns = self._columns(values)
        for j, value in enumerate(columns):
            self.vector.store(value, self._target(row, builder.add(column, word(j))), self.dtype)

    def _columns(self, values: list[ir.Value]) -> Sequence[ir.Value]:
        """Those of a square of rows."""
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
        for i in range(self.lanes):
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


class _WordWriter(_Writer):
    """Four rows of bytes as words, one for each column."""

    def write(self) -> None:
        """Where a whole register fits, registers alone: the last ones overlap those before them."""
        self._of_registers(self.level.lanes(self.dtype.bytes))
        self.builder.ret_void()

    def _of_registers(self, lanes: int) -> None:
        """With the longest registers of which one fits, or column by column."""
        builder = self.builder
        if lanes < LEAST_COLUMNS:
            self._loop(word(0), self.columns, word(1), self._line)
            return
        wide = builder.icmp_signed(">=", self.columns, word(lanes))
        with builder.if_else(wide) as (registers, fewer):
            with registers:
                self.lanes = lanes
                self.vector = Emitter(builder, self.level, lanes)
                last = builder.sub(self.columns, word(lanes))
                self._loop(
                    word(0), self.columns, word(lanes),
                    lambda column: self._words(self._minimum(column, last)),
                )  # fmt: skip
            with fewer:
                self._of_registers(lanes // 2)

    def _line(self, column: ir.Value) -> None:
        """A single word."""
        self.lanes = 1
        self.vector = Emitter(self.builder, self.level, 1)
        self._words(column)

    def _words(self, column: ir.Value) -> None:
        """The words of as many columns as a register has bytes."""
        rows = [self._bytes(word(i), column) for i in range(WORD_BYTES)]
        low, high = self._interleaved(rows[0], rows[1], 8), self._interleaved(rows[2], rows[3], 8)
        words = self._interleaved(low, high, 16)
        address = self._target(word(0), column)
        Emitter(self.builder, self.level, WORD_BYTES * self.lanes).store(words, address, self.dtype)

    def _bytes(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Those of a row, zeros where there is none."""
        builder = self.builder
        there = builder.icmp_signed("<", row, self.rows)
        place = self._source(builder.select(there, row, word(0)), column)
        values = self.vector.load(place, self.dtype)
        return builder.select(there, values, ir.Constant(values.type, None))

    def _interleaved(self, one: ir.Value, other: ir.Value, bits: int) -> ir.Value:
        """Elements of two registers in turns."""
        count = self.lanes
        kind = ir.VectorType(ir.IntType(bits), count)
        first, second = self.builder.bitcast(one, kind), self.builder.bitcast(other, kind)
        order = [place for i in range(count) for place in (i, count + i)]
        indices = ir.Constant(ir.VectorType(ir.IntType(32), 2 * count), order)
        joined = self.builder.shuffle_vector(first, second, indices)
        return self.builder.bitcast(joined, ir.VectorType(ir.IntType(8), 2 * count * bits // 8))
