"""Products by weights of few bits: words taken apart in registers, multiplied by all rows there.

A word of 32 bits holds the numbers of one column at several k; a vector of words those of several
columns. A number becomes a float without a conversion: its bits are masked where they lie and take
the place of low bits of a float whose exponent gives them the weight 1, 2**(23 - place) + number,
exactly; that offset and the zero point go in one difference, exactly as well. Only numbers that
would reach the exponent are shifted first, all that are left in one step. So a vector of numbers
takes a mask, a difference and a multiply-add for each row. Sums of a block are scaled once, when it
ends. Start with :func:`code_product_function`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, by_height, carrying, heights, stepping
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import lanes_of, splat_constant
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.ir.dtype import DType

# target, its row; left, its row and depth; words, and how many a panel has along k; scales, zero
# points, and how many a panel has; rows, columns, depth
ARGUMENTS = (
    POINTER, I64, POINTER, I64, I64, POINTER, I64, POINTER, POINTER, I64, I64, I64, I64
)  # fmt: skip
MANTISSA, BIAS = 23, 127  # bits of a float32, and what its exponent is counted from
SUMS_IN_FLIGHT = 8  # a latency of 4 cycles and two multiply-adds that start in each
BYTE, I32, F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()


@dataclass(frozen=True)
class CodeShape:
    """What the code of a product by codes is specialised for.

    Numbers have ``bits`` bits and scales ``block`` of them along k; ``tail`` of them are in the
    last word, 0 if it is full. ``zero`` is the zero point, None where every block has its own.
    Panels have ``panel`` columns. ``left_depth`` is the stride of the left operand along k where it
    is known.
    """

    bits: int
    block: int
    tail: int
    zero: int | None
    panel: int
    left_depth: int | None

    @property
    def per_word(self) -> int:
        """How many numbers a word holds."""
        return 32 // self.bits

    @property
    def name(self) -> str:
        """A name that says it all."""
        kind = f"{self.bits}_{self.block}_{self.tail}_{'x' if self.zero is None else self.zero}"
        return f"codes_{kind}_{self.panel}_{self.left_depth or 'x'}"

    def places(self) -> Iterator[tuple[int, int]]:
        """Of the numbers of a word: by how much it is shifted, and where the bits are then."""
        together = MANTISSA // self.bits
        for number in range(self.per_word):
            yield number // together * together * self.bits, number % together * self.bits


def most_rows(level: Level) -> int:
    """Rows of one loop, so that their sums stay in registers."""
    return 4 if level.registers > 16 or level.has_fma else 2


def code_product_function(module: ir.Module, level: Level, shape: CodeShape) -> ir.Function:
    """The function of a product by codes, with ``ARGUMENTS``, for a kernel that calls it."""
    shared = SharedFunction(
        shape.name,
        ir.FunctionType(ir.VoidType(), ARGUMENTS),
        lambda function: _Writer(function, level, shape).write(),
    )
    return shared_function(module, shared)


@dataclass(frozen=True)
class _Panel:
    """Where the parts of a panel of weights, and of the rows that meet it, begin."""

    words: ir.Value
    scales: ir.Value
    zeros: ir.Value
    left: ir.Value


class _Writer:
    def __init__(self, function: ir.Function, level: Level, shape: CodeShape) -> None:
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.shape = shape
        self.most = most_rows(level)
        self.lanes = level.lanes(4)
        self.vectors = shape.panel // self.lanes
        self.scalar = Emitter(self.builder, level)
        self.vector = Emitter(self.builder, level, self.lanes)
        (
            self.target, self.target_row, self.left, self.left_row, self.left_depth, self.words,
            self.words_along, self.scales, self.zeros, self.blocks, self.rows, self.columns,
            self.depth,
        ) = function.args  # fmt: skip

    def write(self) -> None:
        """All panels, and for each of them all rows."""
        panel = word(self.shape.panel)

        def columns(first: ir.Value) -> ir.Value:
            self._rows(first)
            return panel

        stepping(self.builder, "panel", (word(0), self.columns), columns)
        self.builder.ret_void()

    def _rows(self, first: ir.Value) -> None:
        builder, scalar = self.builder, self.scalar
        parameter = builder.mul(first, self.blocks)
        words = scalar.gep(self.words, DType.INT32, builder.mul(first, self.words_along))
        scales = scalar.gep(self.scales, DType.FLOAT32, parameter)
        zeros = scalar.gep(self.zeros, DType.UINT8, parameter)
        base, taller = heights(builder, self.rows, self.most)
        turning = builder.mul(taller, builder.add(base, word(1)))

        def row(m: ir.Value) -> ir.Value:
            more = builder.zext(builder.icmp_signed("<", m, turning), I64)
            height = builder.add(base, more)
            left = scalar.gep(self.left, DType.FLOAT32, builder.mul(m, self.left_row))
            place = builder.add(builder.mul(m, self.target_row), first)
            target = scalar.gep(self.target, DType.FLOAT32, place)

            def made(count: int) -> None:
                panel = _Panel(words, scales, zeros, left)
                self._store(target, self._tile(panel, count))

            by_height(builder, height, self.most, made)
            return height

        stepping(builder, "row", (word(0), self.rows), row)

    def _store(self, target: ir.Value, sums: Sums) -> None:
        for number, value in enumerate(sums):
            i, vector = divmod(number, self.vectors)
            offset = self.builder.mul(word(i), self.target_row)
            offset = self.builder.add(offset, word(vector * self.lanes))
            place = self.scalar.gep(target, DType.FLOAT32, offset)
            self.vector.store(value, place, DType.FLOAT32)

    # ------------------------------------------------------------ one panel by a few rows

    def _tile(self, panel: _Panel, height: int) -> Sums:
        """The sums of ``height`` rows, row by row."""
        builder, shape = self.builder, self.shape
        zero: ir.Value = self.vector.constant(0.0, DType.FLOAT32)
        totals: Sums = [zero] * (height * self.vectors)
        whole = builder.udiv(self.depth, word(shape.per_word))
        along = shape.block // shape.per_word
        blocks = builder.udiv(builder.add(whole, word(along - 1)), word(along))

        def block(number: ir.Value, sums: Sums) -> Sums:
            first = builder.mul(number, word(along))
            last = builder.add(first, word(along))
            few = builder.icmp_signed("<", whole, last)
            last = builder.select(few, whole, last)
            return self._block(panel, height, (number, first, last), sums)

        totals = self._over("block", (word(0), blocks), totals, block)
        if shape.tail:
            number = builder.udiv(whole, word(along))
            offsets = self._offsets(panel, number)
            sums: Sums = [zero] * (height * self.vectors)
            sums = self._word(panel, (height, whole), offsets, sums, shape.tail)
            totals = self._scaled(panel, number, sums, totals)
        return totals

    def _over(
        self,
        name: str,
        bounds: tuple[ir.Value, ir.Value],
        start: Sums,
        body: Callable[[ir.Value, Sums], Sums],
    ) -> Sums:
        """Sums that ``body`` makes of those before at every position within ``bounds``."""
        (made,) = carrying(
            self.builder, name, (*bounds, word(1)), [start], lambda at, sums: [body(at, *sums)]
        )
        return made

    def _block(
        self, panel: _Panel, height: int, bounds: tuple[ir.Value, ir.Value, ir.Value], totals: Sums
    ) -> Sums:
        """What the words of one block add to ``totals``."""
        number, first, last = bounds
        zero: ir.Value = self.vector.constant(0.0, DType.FLOAT32)
        count = height * self.vectors
        copies = 1
        while copies * count < SUMS_IN_FLIGHT and copies < self.shape.per_word:
            copies *= 2
        offsets = self._offsets(panel, number)

        def step(at: ir.Value, sums: Sums) -> Sums:
            return self._word(panel, (height, at), offsets, sums, self.shape.per_word)

        sums = self._over("word", (first, last), [zero] * (copies * count), step)
        while len(sums) > count:
            half = len(sums) // 2
            pairs = zip(sums[:half], sums[half:], strict=True)
            added: Sums = [self.builder.fadd(a, b) for a, b in pairs]
            sums = added
        return self._scaled(panel, number, sums, totals)

    def _scaled(self, panel: _Panel, number: ir.Value, sums: Sums, totals: Sums) -> Sums:
        """``totals`` and the sums of a block times its scales."""
        out: Sums = []
        scales = [
            self.vector.load(self._parameter(panel.scales, DType.FLOAT32, number, v), DType.FLOAT32)
            for v in range(self.vectors)
        ]
        for at, (value, total) in enumerate(zip(sums, totals, strict=True)):
            scale = scales[at % self.vectors]
            out.append(self.vector.multiply_add(DType.FLOAT32, value, scale, total))
        return out

    def _parameter(self, begin: ir.Value, dtype: DType, number: ir.Value, vector: int) -> ir.Value:
        """The address of a vector of what belongs to a block."""
        place = self.builder.mul(number, word(self.shape.panel))
        place = self.builder.add(place, word(vector * self.lanes))
        return self.scalar.gep(begin, dtype, place)

    def _offsets(self, panel: _Panel, number: ir.Value) -> dict[int, Sums]:
        """What floats made of the bits at a place are larger by than numbers less zero points."""
        builder, shape = self.builder, self.shape
        floats = lanes_of(F32, self.lanes)
        places = sorted({place for _, place in shape.places()})
        bases = {place: float(1 << (MANTISSA - place)) for place in places}
        if shape.zero is not None:
            return {
                place: [self.vector.constant(base + shape.zero, DType.FLOAT32)] * self.vectors
                for place, base in bases.items()
            }
        zeros: Sums = []
        for v in range(self.vectors):
            address = self._parameter(panel.zeros, DType.UINT8, number, v)
            read = builder.load(address, align=1, typ=lanes_of(BYTE, self.lanes))
            wide = builder.zext(read, lanes_of(I32, self.lanes))
            zeros.append(builder.sitofp(wide, floats))
        return {
            place: [builder.fadd(z, splat_constant(floats, base)) for z in zeros]
            for place, base in bases.items()
        }

    def _word(
        self,
        panel: _Panel,
        where: tuple[int, ir.Value],
        offsets: dict[int, Sums],
        sums: Sums,
        count: int,
    ) -> Sums:
        """``count`` numbers of every word of one place along k, times those of so many rows."""
        builder, shape, (height, at) = self.builder, self.shape, where
        made, size = list(sums), height * self.vectors
        first = builder.mul(at, word(shape.panel))
        words = [
            self._words(panel.words, builder.add(first, word(v * self.lanes)))
            for v in range(self.vectors)
        ]
        k = builder.mul(at, word(shape.per_word))
        for number, (shift, place) in zip(range(count), shape.places(), strict=False):
            data = self._data(panel.left, builder.add(k, word(number)), height)
            begin = number * size % len(made)
            for v in range(self.vectors):
                value = self._number(words[v], shift, place, offsets[place][v])
                for i in range(height):
                    to = begin + i * self.vectors + v
                    made[to] = self.vector.multiply_add(DType.FLOAT32, data[i], value, made[to])
        return made

    def _words(self, begin: ir.Value, place: ir.Value) -> ir.Value:
        return self.vector.load(self.scalar.gep(begin, DType.INT32, place), DType.INT32)

    def _data(self, left: ir.Value, k: ir.Value, height: int) -> Sums:
        """The element at k of every row, in all lanes."""
        builder, known = self.builder, self.shape.left_depth
        step = self.left_depth if known is None else word(known)
        found: Sums = []
        for i in range(height):
            place = builder.add(builder.mul(word(i), self.left_row), builder.mul(k, step))
            address = self.scalar.gep(left, DType.FLOAT32, place)
            found.append(self.vector.splat(self.scalar.load(address, DType.FLOAT32)))
        return found

    def _number(self, words: ir.Value, shift: int, place: int, offset: ir.Value) -> ir.Value:
        """The numbers at some bits of words, less their zero points, as floats."""
        builder, kind = self.builder, words.type
        shifted = builder.lshr(words, splat_constant(kind, shift)) if shift else words
        mask = ((1 << self.shape.bits) - 1) << place
        bits = builder.and_(shifted, splat_constant(kind, mask))
        exponent = (BIAS + MANTISSA - place) << MANTISSA
        bits = builder.or_(bits, splat_constant(kind, exponent))
        return builder.fsub(builder.bitcast(bits, lanes_of(F32, self.lanes)), offset)
