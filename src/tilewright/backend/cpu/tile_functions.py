"""Register tiles as functions that hand their sums over in registers.

A tile's sums are returned by one function and taken by another: :func:`store_sums` or what a kernel
does with finished tiles. So all kernels share the loops along k, which are most of the code, and
what follows them is written once for all heights. Start with :func:`call_sums`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter, register_type
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER, internal_function
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import (
    Sums,
    TileLoop,
    TileOperands,
    TileShape,
)
from tilewright.backend.cpu.shared import SharedFunction, shared_function

TILE_PLACE = (POINTER, I64, ir.IntType(1))  # tile, elements between its rows, add to it?


def call_sums(
    builder: ir.IRBuilder,
    level: Level,
    shape: TileShape,
    operands: TileOperands,
    place: Sequence[ir.Value],
) -> Sums:
    """The sums of one tile, row by row; ``place`` is a TILE_PLACE with those of earlier steps.

    The builder's module is a :class:`~tilewright.backend.cpu.shared.KernelModule`.
    """
    function = shared_function(builder.module, tile_function(level, shape))
    made = builder.call(function, [*operands.values(shape), *place])
    return [builder.extract_value(made, number) for number in range(shape.height * shape.vectors)]


def store_sums(
    builder: ir.IRBuilder,
    level: Level,
    tallest: TileShape,
    sums: Sums,
    place: Sequence[ir.Value],
) -> None:
    """Write the sums of a tile up to ``tallest`` to ``place``, whose last word is not needed."""
    name = f"store_{tallest.dtype.value}_{tallest.height}x{tallest.vectors}"
    function = builder.module.globals.get(name)
    if function is None:
        taker = SumsTaker.declare(builder.module, level, name, tallest, [POINTER, I64])
        tile, row = taker.rest
        for i, values in taker.rows():
            _store_row(taker.builder, level, tallest, values, (tile, row, i))
        function = taker.function
    give_sums(builder, function, tallest, sums, place[:2])


def give_sums(
    builder: ir.IRBuilder,
    function: ir.Function,
    tallest: TileShape,
    sums: Sums,
    rest: Sequence[ir.Value],
) -> None:
    """Call what a :class:`SumsTaker` wrote with the sums of a tile of any height."""
    height = len(sums) // tallest.vectors
    missing = (tallest.height - height) * tallest.vectors
    undefined = ir.Constant(sums[0].type, ir.Undefined)
    builder.call(function, [*sums, *[undefined] * missing, word(height), *rest])


@dataclass(frozen=True)
class SumsTaker:
    """A function that is given the sums of a tile of any height, and ``rest``."""

    function: ir.Function
    builder: ir.IRBuilder
    sums: tuple[Sums, ...]  # by row
    height: ir.Value
    rest: tuple[ir.Value, ...]

    @staticmethod
    def declare(
        module: ir.Module, level: Level, name: str, tallest: TileShape, kinds: Sequence[ir.Type]
    ) -> SumsTaker:
        """One for tiles up to ``tallest``; ``kinds`` are the types of the rest."""
        vector = register_type(tallest.dtype, level.lanes(tallest.dtype.bytes))
        width, count = tallest.vectors, tallest.height * tallest.vectors
        kind = ir.FunctionType(ir.VoidType(), [*[vector] * count, I64, *kinds])
        function, builder = _internal(module, level, name, kind, count)
        sums: list[Sums] = [list(function.args[i : i + width]) for i in range(0, count, width)]
        height, *rest = function.args[count:]
        return SumsTaker(function, builder, tuple(sums), height, tuple(rest))

    def rows(self) -> Iterator[tuple[int, Sums]]:
        """Every row and its sums, with the builder where it is handled; the last one returns."""
        builder = self.builder
        done = self.function.append_basic_block("done")
        for i, values in enumerate(self.sums):
            yield i, values
            if i + 1 == len(self.sums):
                builder.branch(done)
                break
            following = self.function.append_basic_block(f"row{i + 1}")
            more = builder.icmp_signed("<", word(i + 1), self.height)
            builder.cbranch(more, following, done)
            builder.position_at_end(following)
        builder.position_at_end(done)
        builder.ret_void()


def _internal(
    module: ir.Module, level: Level, name: str, kind: ir.FunctionType, sums: int
) -> tuple[ir.Function, ir.IRBuilder]:
    """A function that takes ``sums`` vectors in registers, and its first block.

    One with more than a call can pass becomes a part of every kernel that calls it.
    """
    function = internal_function(module, name, kind)
    function.calling_convention = level.vector_call
    function.attributes.add("noinline" if sums <= level.most_passed else "alwaysinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def tile_function(level: Level, shape: TileShape) -> SharedFunction:
    """The function that returns the sums of a tile.

    One with more sums than a call can pass becomes a part of every kernel that calls it.
    """
    return SharedFunction(
        shape.name,
        _sums_type(level, shape),
        lambda function: _write_sums(function, level, shape),
        level.vector_call,
        inlined=shape.height * shape.vectors > level.most_passed,
    )


def _sums_type(level: Level, shape: TileShape) -> ir.FunctionType:
    vector = register_type(shape.dtype, level.lanes(shape.dtype.bytes))
    returned = ir.LiteralStructType([vector] * (shape.height * shape.vectors))
    return ir.FunctionType(returned, [*TileOperands.types(shape), *TILE_PLACE])


def _write_sums(function: ir.Function, level: Level, shape: TileShape) -> None:
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    *values, tile, row, resume = function.args
    start = _starting_sums(builder, level, shape, (tile, row, resume))
    sums = TileLoop(builder, level, shape, TileOperands.of(shape, values)).sums(start)
    made: ir.Value = ir.Constant(function.function_type.return_type, ir.Undefined)
    for number, value in enumerate(sums):
        made = builder.insert_value(made, value, number)
    builder.ret(made)


def _starting_sums(
    builder: ir.IRBuilder,
    level: Level,
    shape: TileShape,
    place: tuple[ir.Value, ir.Value, ir.Value],
) -> Sums:
    """Zeros, or the sums of earlier blocks of k: (where, elements between rows, whether)."""
    tile, row, resume = place
    vector = Emitter(builder, level, level.lanes(shape.dtype.bytes))
    load = builder.function.append_basic_block("resume")
    begin = builder.function.append_basic_block("begin")
    entry = builder.block
    builder.cbranch(resume, load, begin)
    builder.position_at_end(load)
    loaded = [
        vector.load(address, shape.dtype)
        for i in range(shape.height)
        for address in _row_places(builder, level, shape, (tile, row, i))
    ]
    builder.branch(begin)
    builder.position_at_end(begin)
    zero = vector.constant(0.0, shape.dtype)
    phis: Sums = []
    for value in loaded:
        phi = builder.phi(zero.type)
        phi.add_incoming(zero, entry)
        phi.add_incoming(value, load)
        phis.append(phi)
    return phis


def _store_row(
    builder: ir.IRBuilder,
    level: Level,
    shape: TileShape,
    values: Sums,
    place: tuple[ir.Value, ir.Value, int],
) -> None:
    vector = Emitter(builder, level, level.lanes(shape.dtype.bytes))
    for value, address in zip(values, _row_places(builder, level, shape, place), strict=True):
        vector.store(value, address, shape.dtype)


def _row_places(
    builder: ir.IRBuilder, level: Level, shape: TileShape, place: tuple[ir.Value, ir.Value, int]
) -> list[ir.Value]:
    """The address of every vector of one row of a tile in memory."""
    tile, row, i = place
    scalar, lanes = Emitter(builder, level), level.lanes(shape.dtype.bytes)
    first = scalar.gep(tile, shape.dtype, builder.mul(row, word(i)))
    return [scalar.gep(first, shape.dtype, word(j * lanes)) for j in range(shape.vectors)]
