"""The innermost level: a register tile of C += A * B, for every height.

Along k the right operand is read in vectors and the left one broadcast. Few sums cannot hide the
latency of a multiply-add, so small tiles keep several copies of them and add the copies up at the
end. Start with :class:`TileLoop`; ``tile_functions`` makes functions of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import call_intrinsic
from tilewright.backend.cpu.narrow_dots import Parts, dots_of, parts_of_word
from tilewright.backend.cpu.tile_ahead import UNROLL, Ahead, RowsAhead
from tilewright.ir.dtype import DType
from tilewright.ir.tile import LINE_BYTES
from tilewright.target.core_model import copies_of, tallest

MANY_SUMS = 16  # of a tile: with more, LLVM spills some where steps are unrolled
# Lines of a run that are asked for: all of those of 192 bytes, which took 0.78 to 0.86 of the time
# then. Longer ones, whose rest hardware foresees, took the same (Zen 3).
RUN_LINES = 3
EVERY_STEP = (1 << 63) - 1  # the largest word: more than there are along any depth


def most_rows(
    level: Level, vectors: int, narrow: DType | None = None, *, listed: bool = False
) -> int:
    """The tallest tile whose sums, columns and one broadcast value fit the registers.

    A table says where rows that are ``listed`` begin.
    """
    parts = parts_of_word(level, narrow)
    registers = level.registers - level.temporaries - parts + 1
    return tallest(registers, vectors, parts, listed=listed)


def most_vectors(level: Level) -> int:
    """How many vectors of columns the widest tile has."""
    return 4 if level.registers >= 32 else 2


@dataclass(frozen=True)
class TileShape:
    """What a tile is specialised for.

    ``left_depth`` and ``right_depth`` are strides along k where they are known (None: an argument).
    ``masked`` reads only the first columns of the right operand. ``gathered`` takes the rows of the
    left operand from a table, anew for every run of k, or if ``shifted`` once for all runs, which
    are equally far apart in all rows. ``padded`` says that runs of several rows which begin in one
    place are zeros: they are left out where all rows have such. ``prefetches`` asks for what the
    right operand is after this panel, ``follows`` for the rows after its block, ``streams`` for the
    rows of the left operand after these.
    With ``narrow`` every step takes words of several elements of that type; see ``narrow_dots``.
    ``beside`` says that rows of the left operand are one element apart: their places differ by
    constants then, and take one register in all. ``halved`` says that the last vector has half of
    its lanes, as no more columns are left; those of its sums beyond them are zeros. ``listed`` has
    the rows of the right operand from a table, one for each step along k.
    """

    dtype: DType
    height: int
    vectors: int
    left_depth: int | None
    right_depth: int | None
    masked: bool = False
    gathered: bool = False
    shifted: bool = False
    prefetches: bool = False
    follows: bool = False
    streams: bool = False
    narrow: DType | None = None
    beside: bool = False
    padded: bool = False
    halved: bool = False
    listed: bool = False

    @property
    def name(self) -> str:
        """A name that says it all."""
        strides = f"{self.left_depth or 'x'}_{self.right_depth or 'x'}"
        kind = ("_masked" if self.masked else "") + ("_beside" if self.beside else "")
        kind += "_gathered" if self.gathered else ""
        kind += "_shifted" if self.shifted else ""
        kind += "_padded" if self.padded else ""
        kind += "_prefetches" if self.prefetches else ""
        kind += "_follows" if self.follows else ""
        kind += "_streams" if self.streams else ""
        kind += "_halved" if self.halved else ""
        kind += "_listed" if self.listed else ""
        kind += f"_of_{self.narrow.value}" if self.narrow else ""
        return f"tile_{self.dtype.value}_{self.height}x{self.vectors}_{strides}{kind}"

    def with_height(self, height: int) -> TileShape:
        """The same with another number of rows."""
        return replace(self, height=height)

    def width(self, lanes: int) -> int:
        """The columns that its vectors hold."""
        return self.vectors * lanes - (lanes // 2 if self.halved else 0)

    @property
    def copies(self) -> int:
        """How many copies of the sums take turns along k, if registers hold them."""
        return copies_of(self.height)

    @property
    def unroll(self) -> int:
        """Steps along k per iteration. Of narrow tiles LLVM would spill what it reads ahead.

        So it would of those with many sums, whose steps hide the instructions of the loop as well.
        """
        sums = self.height * self.vectors
        if sums > MANY_SUMS:
            return 1
        return UNROLL if self.vectors > 1 and sums >= 8 else self.copies


@dataclass(frozen=True)
class Gathered:
    """Rows of the left operand from a table, for each of ``runs`` runs of k.

    ``table`` holds how many bytes after the left pointer every row begins. ``following`` is how
    many entries later those of the next run are. For a shifted tile it is a pointer instead, to how
    many bytes each run lies after the row's beginning.
    """

    runs: ir.Value
    table: ir.Value
    following: ir.Value


@dataclass(frozen=True)
class TileOperands:
    """Where a tile reads: pointers, and strides in elements.

    ``steps`` is the length along k, or of one run of it where rows are gathered. ``columns``, for a
    masked tile, is how many columns of the right operand there are, and ``masked_steps`` are the
    last steps, which need the mask. ``listed`` is a table that says
    how many bytes after ``right`` each of its rows begins. To prefetch is what ``ahead`` says, and
    as many elements as the tile reads from ``left_ahead`` on.
    """

    steps: ir.Value
    left: ir.Value
    left_row: ir.Value
    left_depth: ir.Value
    right: ir.Value
    right_depth: ir.Value
    columns: ir.Value | None = None
    masked_steps: ir.Value | None = None
    gathered: Gathered | None = None
    ahead: Ahead | RowsAhead | None = None
    left_ahead: ir.Value | None = None
    listed: ir.Value | None = None

    @staticmethod
    def types(shape: TileShape) -> list[ir.Type]:
        """The types of :meth:`values` for ``shape``."""
        out: list[ir.Type] = [I64, POINTER, I64, I64, POINTER, I64]
        out += [I64, I64] if shape.masked else []
        out += [I64, POINTER, POINTER if shape.shifted else I64] if shape.gathered else []
        out += [POINTER, I64, I64] if shape.prefetches or shape.follows else []
        out += [POINTER] if shape.streams else []
        return out + ([POINTER] if shape.listed else [])

    @staticmethod
    def of(shape: TileShape, values: Sequence[ir.Value]) -> TileOperands:
        """The inverse of :meth:`values`."""
        steps, left, left_row, left_depth, right, right_depth, *rest = values
        columns, masked = (rest.pop(0), rest.pop(0)) if shape.masked else (None, None)
        gathered = None
        if shape.gathered:
            gathered = Gathered(*rest[:3])
            del rest[:3]
        ahead = None
        if shape.prefetches or shape.follows:
            ahead = (Ahead if shape.prefetches else RowsAhead)(*rest[:3])
            del rest[:3]
        left_ahead = rest.pop(0) if shape.streams else None
        listed = rest.pop(0) if shape.listed else None
        fixed = (steps, left, left_row, left_depth, right, right_depth)
        return TileOperands(*fixed, columns, masked, gathered, ahead, left_ahead, listed)

    def values(self, shape: TileShape) -> list[ir.Value]:
        """What ``shape`` needs of it, as arguments."""
        out = [self.steps, self.left, self.left_row, self.left_depth, self.right, self.right_depth]
        if shape.masked:
            assert self.columns is not None and self.masked_steps is not None
            out += [self.columns, self.masked_steps]
        if shape.gathered:
            assert self.gathered is not None
            g = self.gathered
            out += [g.runs, g.table, g.following]
        if shape.prefetches or shape.follows:
            assert self.ahead is not None
            out += self.ahead.values
        if shape.streams:
            assert self.left_ahead is not None
            out.append(self.left_ahead)
        if shape.listed:
            assert self.listed is not None
            out.append(self.listed)
        return out


def with_masked_steps(builder: ir.IRBuilder, width: int, operands: TileOperands) -> TileOperands:
    """What a masked tile of ``width`` columns is given: which of its steps need the mask.

    In these, whole vectors reach beyond the end of the right operand. They are the same for all
    tiles of a panel, and take a division. Rows that do not follow each other have a mask at every
    step.
    """
    columns, right_depth = operands.columns, operands.right_depth
    assert columns is not None
    missing = builder.sub(word(width), columns)
    forward = builder.icmp_signed(">", right_depth, word(0))
    depth = builder.select(forward, right_depth, word(1))
    rows = builder.udiv(builder.add(missing, builder.sub(depth, word(1))), depth)
    return replace(operands, masked_steps=builder.select(forward, rows, word(EVERY_STEP)))


class TileLoop:
    """Writes the sums of one tile at the builder's position."""

    def __init__(
        self, builder: ir.IRBuilder, level: Level, shape: TileShape, operands: TileOperands
    ) -> None:
        self.builder = builder
        self.level = level
        self.shape = shape
        self.operands = operands
        self.lanes = level.lanes(shape.dtype.bytes)
        self.vector = Emitter(builder, level, self.lanes)
        last = self.vector.with_lanes(self.lanes // 2) if shape.halved else self.vector
        self.columns = [*[self.vector] * (shape.vectors - 1), last]
        self.scalar = Emitter(builder, level)
        self.left_depth = word(shape.left_depth) if shape.left_depth else operands.left_depth
        self.right_depth = word(shape.right_depth) if shape.right_depth else operands.right_depth
        self.right = operands.right
        self.rows: list[ir.Value] = []
        self.mask = self._mask() if shape.masked else None
        self.dots = dots_of(builder, level, shape.narrow)

    def sums(self, start: Sums) -> Sums:
        """``start`` plus the products, row by row: ``height * vectors`` vectors."""
        start = [self._cut(value, j) for j, value in self._numbered(start)]
        dtype = self.shape.dtype
        zeros: Sums = [self.columns[j].constant(0.0, dtype) for j, _ in self._numbered(start)]
        copies = [start, *[zeros for _ in range(self._copies() - 1)]]
        if self.shape.gathered:
            copies = self._runs(copies)
        else:
            self.rows = [self._row(i) for i in range(self.shape.height)]
            copies = self._steps(copies)
        while len(copies) > 1:
            half = len(copies) // 2
            pairs = zip(copies[:half], copies[half:], strict=True)
            copies = [self._added(one, other) for one, other in pairs]
        return [self._relaned(value, self.lanes) for value in copies[0]]

    def _numbered(self, sums: Sums) -> list[tuple[int, ir.Value]]:
        """Sums, each with the number of its vector of columns."""
        return [(number % self.shape.vectors, value) for number, value in enumerate(sums)]

    def _cut(self, vector: ir.Value, j: int) -> ir.Value:
        """The lanes of a whole vector that vector ``j`` of columns has."""
        return self._relaned(vector, self.columns[j].lanes)

    def _relaned(self, vector: ir.Value, lanes: int) -> ir.Value:
        """The first so many lanes; those that there are not are zeros."""
        if not self.shape.halved:
            return vector
        zeros = ir.Constant(vector.type, None)
        order = ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(lanes)))
        return self.builder.shuffle_vector(vector, zeros, order)

    def _fenced(self, vector: ir.Value) -> ir.Value:
        """The same: LLVM would make a vector of fewer lanes by itself, and then this one of it."""
        if not self.shape.halved or self.shape.vectors == 1:
            return vector
        return call_intrinsic(
            self.builder, "arithmetic.fence", vector.type, [vector.type], [vector]
        )

    def _copies(self) -> int:
        """Copies of the sums that fit the registers, with a row of columns and one more value."""
        count, vectors = self.shape.copies, self.shape.vectors
        free = self.level.registers - vectors - 1
        while count > 1 and count * self.shape.height * vectors > free:
            count //= 2
        return count

    def _added(self, one: Sums, other: Sums) -> Sums:
        add = self.builder.fadd if self.shape.dtype.is_float else self.builder.add
        return [add(a, b) for a, b in zip(one, other, strict=True)]

    def _mask(self) -> ir.Value:
        """Of the last vector, as all before it are full."""
        columns, before = self.operands.columns, (self.shape.vectors - 1) * self.lanes
        assert columns is not None
        # As many bits as an element has: of others two masks would have to be put together.
        bits = ir.IntType(8 * self.shape.dtype.bytes)
        count = self.builder.sub(columns, word(before))
        count = self.builder.trunc(count, bits) if bits.width < I64.width else count
        return self.columns[-1].lane_mask(count)

    def _row(self, i: int) -> ir.Value:
        row = word(1) if self.shape.beside else self.operands.left_row
        offset = self.builder.mul(row, word(i))
        return self.scalar.gep(self.operands.left, self.shape.dtype, offset)

    def _runs(self, copies: list[Sums]) -> list[Sums]:
        """All runs, each with rows of its own; the right operand goes on from run to run."""
        operands, builder = self.operands, self.builder
        gathered, first = operands.gathered, operands.right
        assert gathered is not None
        run = builder.mul(operands.steps, self.right_depth)
        heads = self._listed(operands.left, gathered.table) if self.shape.shifted else []

        def body(number: ir.Value, carried: list[Sums]) -> list[Sums]:
            right = self.scalar.gep(first, self.shape.dtype, builder.mul(number, run))
            if self.shape.shifted:
                place = self.scalar.gep(gathered.following, DType.INT64, number)
                shift = self.scalar.load(place, DType.INT64)
                self.rows, self.right = [self._after(head, shift) for head in heads], right
                self._ask_for_run(heads, gathered, number)
                return self._steps(carried)
            place = builder.mul(number, gathered.following)
            places = self._places(self.scalar.gep(gathered.table, DType.INT64, place))
            self.rows, self.right = [self._after(operands.left, p) for p in places], right
            if not self.shape.padded or len(places) == 1:
                return self._steps(carried)
            return self._unless(self._are_equal(places), carried)

        return carrying(self.builder, "run", (word(0), gathered.runs, word(1)), copies, body)

    def _ask_for_run(self, heads: Sequence[ir.Value], gathered: Gathered, number: ir.Value) -> None:
        """Ask for the first lines of the run that comes next, of all rows, if it has several.

        Behind the last one that is the first one, which the tile of the next panel reads again.
        Hardware has seen too little of a row when its run ends, and then waits for the second-level
        cache at every line; of longer runs it foresees what follows.
        """
        builder, line = self.builder, LINE_BYTES // self.shape.dtype.bytes
        with builder.if_then(builder.icmp_signed(">", self.operands.steps, word(line))):
            after = builder.add(number, word(1))
            inside = builder.icmp_signed("<", after, gathered.runs)
            after = builder.select(inside, after, word(0))
            place = self.scalar.gep(gathered.following, DType.INT64, after)
            shift = self.scalar.load(place, DType.INT64)
            for head in heads:
                for asked in range(RUN_LINES):
                    beside = builder.add(shift, word(asked * LINE_BYTES))
                    self.scalar.prefetch(self._after(head, beside))

    def _unless(self, skipped: ir.Value, carried: list[Sums]) -> list[Sums]:
        """The sums after all of k, or as they are where it is ``skipped``."""
        builder, before = self.builder, self.builder.block
        inside = builder.function.append_basic_block("inside")
        outside = builder.function.append_basic_block("outside")
        builder.cbranch(skipped, outside, inside)
        builder.position_at_end(inside)
        made = self._steps(carried)
        after = builder.block
        builder.branch(outside)
        builder.position_at_end(outside)
        results: list[Sums] = [[] for _ in made]
        for result, new, old in zip(results, made, carried, strict=True):
            for last, first in zip(new, old, strict=True):
                phi = builder.phi(first.type)
                phi.add_incoming(first, before)
                phi.add_incoming(last, after)
                result.append(phi)
        return results

    def _are_equal(self, places: Sequence[ir.Value]) -> ir.Value:
        differing = [self.builder.xor(places[0], place) for place in places[1:]]
        some = reduce(self.builder.or_, differing)
        return self.builder.icmp_signed("==", some, word(0))

    def _listed(self, left: ir.Value, table: ir.Value) -> list[ir.Value]:
        """The rows whose distances from ``left`` are at ``table``."""
        return [self._after(left, place) for place in self._places(table)]

    def _places(self, table: ir.Value) -> list[ir.Value]:
        """The entries of a table, one for each row."""
        rows = [self.scalar.gep(table, DType.INT64, word(i)) for i in range(self.shape.height)]
        return [self.scalar.load(row, DType.INT64) for row in rows]

    def _after(self, pointer: ir.Value, distance: ir.Value) -> ir.Value:
        """So many bytes after ``pointer``."""
        return self.builder.gep(pointer, [distance], source_etype=ir.IntType(8))

    def _steps(self, copies: list[Sums]) -> list[Sums]:
        """All of k: several steps at a time, then what is left.

        Masked loads are slow, and needed in the last rows of the right operand only: what vectors
        read after the columns of other rows lies in those that follow, and goes to unused sums.
        """
        steps, count = self.operands.steps, self.shape.unroll
        main = self.builder.and_(self._unmasked_steps(), word(-count))

        def several(k: ir.Value, carried: list[Sums]) -> list[Sums]:
            self._prefetch(k)
            made = list(carried)
            for step in range(count):
                copy = step % len(made)
                made[copy] = self._step(self.builder.add(k, word(step)), made[copy], False)
            return made

        def one(k: ir.Value, carried: list[Sums]) -> list[Sums]:
            return [self._step(k, carried[0], self.shape.masked), *carried[1:]]

        after = carrying(self.builder, "k", (word(0), main, word(count)), copies, several)
        if count == 1 and not self.shape.masked:
            return after
        return carrying(self.builder, "rest", (main, steps, word(1)), after, one)

    def _unmasked_steps(self) -> ir.Value:
        """Steps whose whole vectors end before the right operand does."""
        builder, steps, masked = self.builder, self.operands.steps, self.operands.masked_steps
        if masked is None:
            return steps
        enough = builder.icmp_signed(">", steps, masked)
        return builder.select(enough, builder.sub(steps, masked), word(0))

    def _prefetch(self, k: ir.Value) -> None:
        """Ask for what comes next."""
        ahead, shape = self.operands.ahead, self.shape
        # Less than these sums take per step does not hide requests; a row of wide tiles has four.
        least = 4 if shape.follows else 8
        if ahead is not None and shape.height * shape.vectors >= least:
            ahead.ask(self.scalar, k, shape.dtype, shape.width(self.lanes), shape.unroll)
        if self.operands.left_ahead is not None:
            self._prefetch_left(k, self.operands.left_ahead)

    def _prefetch_left(self, k: ir.Value, ahead: ir.Value) -> None:
        """Ask for rows that lie one after the other, as many elements as are read meanwhile."""
        dtype, height = self.shape.dtype, self.shape.height
        place = self.scalar.gep(ahead, dtype, self.builder.mul(k, word(height)))
        for element in range(0, height * self.shape.unroll, LINE_BYTES // dtype.bytes):
            self.scalar.prefetch(self.scalar.gep(place, dtype, word(element)))

    def _step(self, k: ir.Value, sums: Sums, masked: bool) -> Sums:
        """One outer product of a column of the left and a row of the right operand."""
        builder, dtype = self.builder, self.shape.dtype
        row = self._right_row(k)
        columns: list[Parts] = []
        for j, vector in enumerate(self.columns):
            address = self.scalar.gep(row, dtype, word(j * self.lanes))
            if masked and self.mask is not None and j == self.shape.vectors - 1:
                column = vector.masked_load(address, dtype, self.mask)
            else:
                column = vector.load(address, dtype)
            columns.append(self.dots.right(column))
        place = builder.mul(k, self.left_depth)
        out: Sums = []
        for i in range(self.shape.height):
            scalar = self.scalar.load(self.scalar.gep(self.rows[i], dtype, place), dtype)
            broadcast = self.dots.left(self._fenced(self.vector.splat(scalar)))
            for j, column in enumerate(columns):
                left = tuple(self._cut(part, j) for part in broadcast)
                out.append(self.dots.add(left, column, sums[len(out)]))
        return out

    def _right_row(self, k: ir.Value) -> ir.Value:
        """Where the row of the right operand begins that a step reads."""
        if self.operands.listed is None:
            place = self.builder.mul(k, self.right_depth)
            return self.scalar.gep(self.right, self.shape.dtype, place)
        entry = self.scalar.gep(self.operands.listed, DType.INT64, k)
        return self._after(self.right, self.scalar.load(entry, DType.INT64))
