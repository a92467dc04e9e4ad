"""Products as statements: a block of sums in scratch memory by register tiles.

One function for every kind of operands, shared by all kernels. Columns are outside, so
that a panel of the right operand stays near while the rows pass. Start with
:func:`product_function`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.cover import by_height, by_vectors, heights, stepping
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import (
    TileOperands,
    TileShape,
    most_rows,
    most_vectors,
    with_masked_steps,
)
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.backend.cpu.tile_functions import call_sums, store_sums
from tilewright.ir.dtype import DType

I1 = ir.IntType(1)
# target, its row; left, its row and depth; right, its row and depth; rows, columns, depth; resume.
# Between panels of the right operand there are as many of its rows as a panel is wide.
ARGUMENTS = (POINTER, I64, POINTER, I64, I64, POINTER, I64, I64, I64, I64, I64, I1)


@dataclass(frozen=True)
class ProductShape:
    """What a product's code is specialised for.

    ``tail`` is the number of columns modulo those of the widest tile, None where it is not known.
    ``whole`` says that vectors of the right operand may be read to their end; else the last ones
    are masked. ``left_depth`` is the stride of the left operand along k where it is known;
    ``beside`` says that its rows are one element apart.
    """

    dtype: DType
    tail: int | None
    whole: bool
    left_depth: int | None
    beside: bool

    @property
    def name(self) -> str:
        """A name that says it all."""
        tail = "x" if self.tail is None else self.tail
        kind = "whole" if self.whole else "masked"
        kind += "_beside" if self.beside else ""
        return f"product_{self.dtype.value}_{tail}_{kind}_{self.left_depth or 'x'}"


def product_function(module: ir.Module, level: Level, shape: ProductShape) -> ir.Function:
    """The function of a product, with ``ARGUMENTS``, for a kernel that calls it."""
    shared = SharedFunction(
        shape.name,
        ir.FunctionType(ir.VoidType(), ARGUMENTS),
        lambda function: _Writer(function, level, shape).write(),
    )
    return shared_function(module, shared)


class _Writer:
    def __init__(self, function: ir.Function, level: Level, shape: ProductShape) -> None:
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.level = level
        self.shape = shape
        self.lanes = level.lanes(shape.dtype.bytes)
        self.vectors = most_vectors(level)
        self.scalar = Emitter(self.builder, level)
        (
            self.target, self.target_row, self.left, self.left_row, self.left_depth, self.right,
            self.right_row, self.right_depth, self.rows, self.columns, self.depth, self.resume,
        ) = function.args  # fmt: skip

    def write(self) -> None:
        """All panels of columns, the last of which may be narrower."""
        width = word(self.vectors * self.lanes)
        stepping(self.builder, "panel", (word(0), self.columns), lambda n: self._panel(n, width))
        self.builder.ret_void()

    def _panel(self, first: ir.Value, width: ir.Value) -> ir.Value:
        builder, tail = self.builder, self.shape.tail
        if tail == 0:
            self._tiles(first, self.vectors, masked=False)
            return width
        remaining = builder.sub(self.columns, first)
        with builder.if_else(builder.icmp_signed(">=", remaining, width)) as (whole, part):
            with whole:
                self._tiles(first, self.vectors, masked=False)
            with part:
                self._last(first, remaining)
        return width

    def _last(self, first: ir.Value, columns: ir.Value) -> None:
        """The last panel, of as many vectors as it needs."""
        tail, masked = self.shape.tail, not self.shape.whole
        if tail is not None:
            self._tiles(first, -(-tail // self.lanes), masked and tail % self.lanes > 0)
            return

        def tiles(vectors: int) -> None:
            self._tiles(first, vectors, masked)

        by_vectors(self.builder, columns, self.lanes, self.vectors, tiles)

    def _tiles(self, first: ir.Value, vectors: int, masked: bool) -> None:
        """All rows under one panel."""
        builder, dtype = self.builder, self.shape.dtype
        most = most_rows(self.level, vectors)
        known, beside = self.shape.left_depth, self.shape.beside
        shape = TileShape(dtype, most, vectors, known, None, masked, beside=beside)
        base, taller = heights(builder, self.rows, most)
        turning = builder.mul(taller, builder.add(base, word(1)))
        columns = builder.sub(self.columns, first)
        right = self.scalar.gep(self.right, dtype, builder.mul(first, self.right_row))

        def row(m: ir.Value) -> ir.Value:
            height = builder.add(base, builder.zext(builder.icmp_signed("<", m, turning), I64))
            left = self.scalar.gep(self.left, dtype, builder.mul(m, self.left_row))
            operands = TileOperands(
                self.depth, left, self.left_row, self.left_depth, right, self.right_depth, columns
            )
            if masked:
                operands = with_masked_steps(builder, shape.width(self.lanes), operands)
            place = builder.add(builder.mul(m, self.target_row), first)
            target = [self.scalar.gep(self.target, dtype, place), self.target_row, self.resume]

            def made(rows: int) -> None:
                one = shape.with_height(rows)
                sums = call_sums(builder, self.level, one, operands, target)
                store_sums(builder, self.level, shape, sums, target)

            by_height(builder, height, most, made)
            return height

        stepping(builder, "row", (word(0), self.rows), row)
