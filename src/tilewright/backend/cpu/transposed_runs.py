"""Transposing blocks of short runs: those as long as an element of some size are turned as one.

How long runs are is often known in a call only, and asked once for each block. Others are copied
element by element, which prices know. Start with :func:`write_transposed`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.shared import SharedFunction, shared_function
from tilewright.backend.cpu.transpose import ARGUMENTS, KINDS, transpose_function
from tilewright.ir.dtype import DType
from tilewright.ir.tile import SINGLE, TransposeBlock
from tilewright.shape import Expr


def write_transposed(
    builder: ir.IRBuilder,
    level: Level,
    block: TransposeBlock,
    arguments: Sequence[ir.Value],
    length: ir.Value,
) -> None:
    """Transpose a block, whose runs have so many elements; ``arguments`` count elements."""
    dtype = block.target.dtype
    if block.run is SINGLE:
        function = transpose_function(
            builder.module, level, dtype, block.source.scratch, block.makes_words
        )
        builder.call(function, arguments)
        return
    _write_runs(builder, level, dtype, arguments, (block.run, length))


def _write_runs(
    builder: ir.IRBuilder,
    level: Level,
    dtype: DType,
    arguments: Sequence[ir.Value],
    run: tuple[Expr, ir.Value],
) -> None:
    """Transpose a block of runs by the size of an element that is as long."""
    known, length = run
    source, source_row, target, target_row, rows, columns = arguments
    done = builder.append_basic_block("turned")
    for size, kind in KINDS.items():
        count = size // dtype.bytes
        if not count or (known.is_constant and known.value != count):
            continue
        with builder.if_then(builder.icmp_signed("==", length, word(count))):
            halved = word(count.bit_length() - 1)
            apart = [builder.ashr(row, halved) for row in (source_row, target_row)]
            function = transpose_function(builder.module, level, kind, False, False)
            builder.call(function, [source, apart[0], target, apart[1], rows, columns])
            builder.branch(done)
    shared = SharedFunction(
        f"transpose_runs_{dtype.bytes}",
        ir.FunctionType(ir.VoidType(), (*ARGUMENTS, I64)),
        lambda function: _write_copied(function, level, KINDS[dtype.bytes]),
        distinct=(0, 2),
    )
    builder.call(shared_function(builder.module, shared), [*arguments, length])
    builder.branch(done)
    builder.position_at_end(done)


def _write_copied(function: ir.Function, level: Level, dtype: DType) -> None:
    """All runs one after the other, each element by element."""
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emitter = Emitter(builder, level)
    source, source_row, target, target_row, rows, columns, length = function.args

    def loop(ends: Sequence[ir.Value], places: Sequence[ir.Value]) -> None:
        if not ends:
            _copy(places)
            return

        def turn(position: ir.Value, nothing: list[Sums]) -> list[Sums]:
            loop(ends[1:], (*places, position))
            return nothing

        carrying(builder, "loop", (word(0), ends[0], word(1)), [], turn)

    def _copy(places: Sequence[ir.Value]) -> None:
        column, row, place = places

        def address(pointer: ir.Value, far: tuple[ir.Value, ir.Value], near: ir.Value) -> ir.Value:
            beside = builder.add(builder.mul(near, length), place)
            return emitter.gep(pointer, dtype, builder.add(builder.mul(*far), beside))

        value = emitter.load(address(source, (row, source_row), column), dtype)
        emitter.store(value, address(target, (column, target_row), row), dtype)

    loop((columns, rows, length), ())
    builder.ret_void()


__all__ = ["write_transposed"]
