"""Transposing a block of memory: one function per element size, shared by all kernels.

Four rows of bytes become words, through rows as long as a register; all else is in
``transposed_blocks``. Start with :func:`transpose_function`.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.backend.cpu.transposed_blocks import BlockWriter
from tilewright.ir.dtype import DType
from tilewright.target.core_model import (
    LEAST_VECTOR_BYTES,
    WORD_BYTES,
)

POINTER = ir.PointerType()
# Columns of the fewest words that are made in registers: two rows of bytes of so many, interleaved,
# fill the shortest one.
LEAST_COLUMNS = LEAST_VECTOR_BYTES // 2
# (source, elements between its rows, target, elements between its rows, rows, columns)
ARGUMENTS = (POINTER, I64, POINTER, I64, I64, I64)
# What elements are moved as, by how many bytes they have.
KINDS = {1: DType.UINT8, 2: DType.INT16, 4: DType.FLOAT32, 8: DType.FLOAT64}


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
    writer = _WordWriter if words else BlockWriter
    shared = SharedFunction(
        name,
        ir.FunctionType(ir.VoidType(), ARGUMENTS),
        lambda function: writer(function, level, kind, along_target).write(),
        distinct=(0, 2),
    )
    return shared_function(module, shared)


class _WordWriter(BlockWriter):
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
