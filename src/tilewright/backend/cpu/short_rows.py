"""Rows of a few elements, each as two vectors that overlap.

A loop over a row asks for whole groups of vectors, for single ones and for what is left of them,
and finds where the row lies for each: of a few elements that takes several times as long as their
loads and stores. A row of more than ``n`` and up to ``2 * n`` elements is one vector of ``n`` at
its beginning and one at its end. All is loaded before anything is stored, so that elements in both
are computed from the same. How many there are is asked once for all rows of a call. Start with
:func:`write_short_rows`.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu.function import task_loop
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.vectors import VectorFrame, VectorPlace
from tilewright.ir.dtype import DType
from tilewright.ir.tile import Convert, Let, Loop, Store, TileProgram
from tilewright.ir.tile_walk import (
    is_function,
    is_side_by_side,
    may_fault,
    own_values,
    value_loads,
    value_parts,
)
from tilewright.target.core_model import WIDE_LANES

# Of a vector, unless it is made whole numbers: instructions for that have one register. Of more
# vectors, the usual loop has as many.
MOST_REGISTERS = 2
FLOATS = (DType.FLOAT32, DType.FLOAT64)


def write_short_rows(
    frame: FunctionFrame,
    bounds: tuple[ir.Value, ir.Value],
    program: TileProgram,
    usual: Callable[[], None],
) -> None:
    """The tasks of a program whose tasks are rows, or ``usual`` where rows are not short."""
    (loop,) = program.body
    assert isinstance(loop, Loop), "whole rows are one loop"
    if (loop.end - loop.begin).free_symbols & dict(program.grid).keys():
        usual()
        return
    _by_length(frame, bounds, (program, loop), _widths(frame, loop), usual)


def _by_length(
    frame: FunctionFrame,
    bounds: tuple[ir.Value, ir.Value],
    rows: tuple[TileProgram, Loop],
    widths: list[int],
    usual: Callable[[], None],
) -> None:
    """The tasks by the shortest vectors of which two hold a row, or as usual where none do."""
    if not widths:
        usual()
        return
    lanes, builder, (program, loop) = widths[0], frame.builder, rows
    length = frame.index(loop.end - loop.begin)
    is_short = builder.icmp_signed("<=", length, word(2 * lanes))
    with builder.if_else(is_short) as (short, longer):
        with short:
            frame.enter()
            last = builder.sub(length, word(lanes))
            task_loop(frame, bounds, program.grid, lambda: _row(frame, loop, lanes, last), 1)
            frame.leave()
        with longer:
            _by_length(frame, bounds, rows, widths[1:], usual)


def _row(frame: FunctionFrame, loop: Loop, lanes: int, last: ir.Value) -> None:
    """One row: a vector at its begin, and one that is so many elements behind it."""
    begin = frame.index(loop.begin)
    firsts = (begin, frame.builder.add(begin, last))
    vectors = [VectorFrame(frame, lanes, VectorPlace(loop.variable, at), {}) for at in firsts]
    for part in loop.body:
        assert isinstance(part, Let | Store)
        values = [vector.value(part.value) for vector in vectors]
        for vector, value in zip(vectors, values, strict=True):
            if isinstance(part, Let):
                vector.locals[part.name] = value
            else:
                vector.store(part)


def _widths(frame: FunctionFrame, loop: Loop) -> list[int]:
    """Elements of the vectors that rows of a loop may be two of, the shortest first.

    None where that saves little, as functions take longer, or where what is stored is read again.
    """
    parts = [part for value in own_values(loop) for part in value_parts(value)]
    stores = [part for part in loop.body if isinstance(part, Store)]
    written = {store.buffer for store in stores}
    loads = [load for value in own_values(loop) for load in value_loads(value)]
    again = [load for load in loads if load.buffer in written]
    if not is_side_by_side(loop) or any(is_function(part) or may_fault(part) for part in parts):
        return []
    if again and (len(stores) > 1 or any(load.offset != stores[0].offset for load in again)):
        return []
    dtypes = [part.dtype for part in parts] + [store.buffer.dtype for store in stores]
    is_one = any(isinstance(part, Convert) and part.dtype not in FLOATS for part in parts)
    registers = 1 if is_one else MOST_REGISTERS
    most = min(WIDE_LANES, registers * min(frame.level.lanes(dtype.bytes) for dtype in dtypes))
    return [1 << power for power in range(most.bit_length())]


__all__ = ["write_short_rows"]
