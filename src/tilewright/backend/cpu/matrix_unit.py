"""Register tiles of a matrix unit: blocks of sums in tile registers, which memory is loaded into.

Intel's AMX has eight registers of 16 rows by 64 bytes. Four hold sums, 32 rows by 32 columns; two
hold rows of the left operand and two the columns of the right one, 16 words along k at a time
(Intel's optimisation manual, section on AMX). Panels of words lie in memory as the unit wants them.
The words that are left over at the end of k have another shape of registers, so sums go through
memory once before them.

No kernel reads tile registers, so there are few operations, and they are written by a thin layer,
:class:`TileOperations`: tests put an interpreter in its place, written as plain code. Start with
:func:`matrix_tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.ir.dtype import DType
from tilewright.target.core_model import WORD_BYTES

SIDE = 16  # rows of a register, and words in one of them
ROWS, COLUMNS = 2 * SIDE, 2 * SIDE  # of the sums that the registers hold
CONFIGURATION_BYTES = 64  # of the operand that configures the unit
_BYTE, _HALF, _INDEX = ir.IntType(8), ir.IntType(16), ir.IntType(32)
# Steps along k, left, its row, right, its row along k, rows, sums, their row, whether to go on from
# what is there; strides in words.
ARGUMENTS = (I64, POINTER, I64, POINTER, I64, I64, POINTER, I64, ir.IntType(1))
LEFT, RIGHT = 4, 6  # the first registers of the operands; those of sums come before


class TileOperations(Protocol):
    """What kernels do with tile registers, which are named by their numbers.

    ``state`` is memory that belongs to the function; a configuration begins it: the palette in byte
    0, for register n the bytes of a row in the 16 bits at 16 + 2n, and its rows in byte 48 + n.
    Configuring makes all registers zero.
    """

    state_bytes: int

    def configure(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        """Give the registers the shapes that ``state`` begins with."""
        ...

    def zero(self, builder: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        """Make a register zero."""
        ...

    def load(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        """Fill a register from rows that are ``stride`` bytes apart."""
        ...

    def store(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        """Write a register to rows that are ``stride`` bytes apart."""
        ...

    def add_products(
        self, builder: ir.IRBuilder, state: ir.Value, narrow: DType, tiles: tuple[int, int, int]
    ) -> None:
        """Add to (sums, left, right) the first one's products of words of the others."""
        ...

    def release(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        """Say that the registers are free."""
        ...


class AmxOperations:
    """The instructions of AMX, by LLVM's intrinsic functions for numbered registers."""

    state_bytes = CONFIGURATION_BYTES

    def configure(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        _call(builder, "ldtilecfg", [state])

    def zero(self, builder: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        _call(builder, "tilezero", [_number(tile)])

    def load(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        _call(builder, "tileloadd64", [_number(tile), pointer, stride])

    def store(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        _call(builder, "tilestored64", [_number(tile), pointer, stride])

    def add_products(
        self, builder: ir.IRBuilder, state: ir.Value, narrow: DType, tiles: tuple[int, int, int]
    ) -> None:
        name = "tdpbf16ps" if narrow is DType.BFLOAT16 else "tdpbusd"
        _call(builder, name, [_number(tile) for tile in tiles])

    def release(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        _call(builder, "tilerelease", [])


def _number(value: int) -> ir.Constant:
    return ir.Constant(_BYTE, value)


# By what levels call their matrix unit.
OPERATIONS: dict[str, TileOperations] = {"amx": AmxOperations()}


def _call(builder: ir.IRBuilder, name: str, operands: Sequence[ir.Value]) -> None:
    full = f"llvm.x86.{name}"
    function = builder.module.globals.get(full)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        function = ir.Function(builder.module, kind, full)
    builder.call(function, operands)


@dataclass(frozen=True)
class MatrixTile:
    """What the function of a tile is specialised for: types, and registers side by side."""

    narrow: DType
    across: int

    @property
    def name(self) -> str:
        """A name that says it all."""
        return f"matrix_tile_{self.narrow.value}_{self.across}"


def matrix_tile(builder: ir.IRBuilder, level: Level, tile: MatrixTile) -> ir.Function:
    """The function, with ``ARGUMENTS``, that leaves the sums of 1 to ``ROWS`` rows in memory."""
    shared = SharedFunction(
        tile.name,
        ir.FunctionType(ir.VoidType(), ARGUMENTS),
        lambda function: _Writer(function, level, tile).write(),
    )
    return shared_function(builder.module, shared)


class _Writer:
    """Writes the function: whole registers along k, then what is left."""

    def __init__(self, function: ir.Function, level: Level, tile: MatrixTile) -> None:
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.unit = OPERATIONS[level.matrix]
        self.tile = tile
        (
            self.steps, self.left, self.left_row, self.right, self.right_row, self.rows, self.sums,
            self.sums_row, self.resume,
        ) = function.args  # fmt: skip
        size = ir.ArrayType(_BYTE, self.unit.state_bytes)
        self.state = self.builder.alloca(size)
        self.state.type = POINTER  # llvmlite alone still gives it the type of what it points to

    def write(self) -> None:
        builder = self.builder
        whole = builder.and_(self.steps, word(-SIDE))
        rest = builder.sub(self.steps, whole)
        self.builder.store(ir.Constant(ir.ArrayType(_BYTE, CONFIGURATION_BYTES), None), self.state)
        some = builder.icmp_signed(">", whole, word(0))
        # Without steps the sums are zero, or stay as they are.
        with builder.if_then(builder.or_(some, builder.icmp_signed("==", rest, word(0)))):
            self._part(word(0), whole, word(SIDE), self.resume)
        with builder.if_then(builder.icmp_signed(">", rest, word(0))):
            self._part(whole, self.steps, rest, builder.or_(some, self.resume))
        self.unit.release(builder, self.state)
        builder.ret_void()

    def _part(self, begin: ir.Value, end: ir.Value, words: ir.Value, resume: ir.Value) -> None:
        """The steps from begin to end, so many words at a time."""
        tall = self.builder.icmp_signed(">", self.rows, word(SIDE))
        with self.builder.if_else(tall) as (two, one):
            with two:
                below = self.builder.sub(self.rows, word(SIDE))
                self._blocks([word(SIDE), below], (begin, end, words), resume)
            with one:
                self._blocks([self.rows], (begin, end, words), resume)

    def _blocks(
        self, heights: list[ir.Value], depth: tuple[ir.Value, ir.Value, ir.Value], resume: ir.Value
    ) -> None:
        builder, unit, state = self.builder, self.unit, self.state
        begin, end, words = depth
        down, across = range(len(heights)), range(self.tile.across)
        self._configure(heights, words)
        with builder.if_then(resume):  # configured registers are zero
            for i in down:
                for j in across:
                    unit.load(builder, state, self._sum(i, j), *self._sums(i, j))

        def step(k: ir.Value) -> None:
            stride = self._bytes(self.right_row)
            row = builder.mul(k, self.right_row)
            for j in across:
                place = self._after(self.right, builder.add(row, word(j * SIDE)))
                unit.load(builder, state, RIGHT + j, place, stride)
            for i in down:
                first = builder.add(builder.mul(self.left_row, word(i * SIDE)), k)
                place = self._after(self.left, first)
                unit.load(builder, state, LEFT + i, place, self._bytes(self.left_row))
                for j in across:
                    numbers = self._sum(i, j), LEFT + i, RIGHT + j
                    unit.add_products(builder, state, self.tile.narrow, numbers)

        self._loop(begin, end, words, step)
        for i in down:
            for j in across:
                unit.store(builder, state, self._sum(i, j), *self._sums(i, j))

    def _sum(self, i: int, j: int) -> int:
        return i * self.tile.across + j

    def _configure(self, heights: list[ir.Value], words: ir.Value) -> None:
        """The shapes of all registers that are used."""
        whole, part = word(SIDE * WORD_BYTES), self._bytes(words)
        self._store(_number(1), 0)
        for i, height in enumerate(heights):
            self._shape(LEFT + i, height, part)
            for j in range(self.tile.across):
                self._shape(self._sum(i, j), height, whole)
        for j in range(self.tile.across):
            self._shape(RIGHT + j, words, whole)
        self.unit.configure(self.builder, self.state)

    def _shape(self, tile: int, rows: ir.Value, row_bytes: ir.Value) -> None:
        self._store(self.builder.trunc(row_bytes, _HALF), 16 + 2 * tile)
        self._store(self.builder.trunc(rows, _BYTE), 48 + tile)

    def _store(self, value: ir.Value, place: int) -> None:
        address = self.builder.gep(self.state, [word(place)], source_etype=_BYTE)
        self.builder.store(value, address)

    def _sums(self, i: int, j: int) -> tuple[ir.Value, ir.Value]:
        """Where the sums of a register are in memory, and the bytes between their rows."""
        first = self.builder.mul(self.sums_row, word(i * SIDE))
        place = self._after(self.sums, self.builder.add(first, word(j * SIDE)))
        return place, self._bytes(self.sums_row)

    def _after(self, pointer: ir.Value, words: ir.Value) -> ir.Value:
        return self.builder.gep(pointer, [words], source_etype=_INDEX)

    def _bytes(self, words: ir.Value) -> ir.Value:
        return self.builder.mul(words, word(WORD_BYTES))

    def _loop(
        self, begin: ir.Value, end: ir.Value, step: ir.Value, body: Callable[[ir.Value], None]
    ) -> None:
        """``body`` at every position from begin to end."""

        def turn(position: ir.Value) -> ir.Value:
            body(position)
            return step

        stepping(self.builder, "words", (begin, end), turn)


__all__ = ["COLUMNS", "OPERATIONS", "ROWS", "MatrixTile", "TileOperations", "matrix_tile"]
