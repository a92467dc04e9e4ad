"""Loops that look up functions of bytes, or make bytes of floats, as whole vectors.

LLVM's vectoriser would look up every lane by itself, and take no more floats at a time than a
register has where a function of such a register is called, as for their rounding: of the bytes that
it stores then most of the register is empty. Start with :func:`write_byte_loop`.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace
from tilewright.ir.dtype import DType
from tilewright.ir.tile import Convert, Let, Loop, Store
from tilewright.ir.tile_walk import is_side_by_side, looks_up_bytes, own_values, value_parts

Bounds = tuple[ir.Value, ir.Value]


def write_byte_loop(frame: Scalars, loop: Loop, bounds: Bounds) -> Bounds:
    """The vectors of a loop, and the bounds of what is left of it.

    All is left of a loop without lookups or bytes of floats, or where no instruction is made for
    them, and nothing where the last vector is under a mask.
    """
    lanes = _lanes(frame, loop)
    if not lanes:
        return bounds
    builder, (begin, end) = frame.builder, bounds
    count = builder.sub(end, begin)
    some = builder.icmp_signed("<", word(0), count)
    whole = builder.select(some, builder.and_(count, word(-lanes)), word(0))
    middle = builder.add(begin, whole)

    def vector(first: ir.Value, left: ir.Value | None = None) -> ir.Value:
        frame.enter()
        place = VectorPlace(loop.variable, first, left, is_rest=left is not None)
        made = VectorFrame(frame, lanes, place, {})
        for part in loop.body:
            if isinstance(part, Let):
                made.locals[part.name] = made.value(part.value)
            elif isinstance(part, Store):
                made.store(part)
        frame.leave()
        return word(lanes)

    stepping(builder, f"{loop.variable}.vectors", (begin, middle), vector)
    if not frame.level.has_masks:
        return middle, end
    with builder.if_then(builder.icmp_signed("<", middle, end)):
        vector(middle, builder.trunc(builder.sub(end, middle), ir.IntType(32)))
    return end, end


def _lanes(frame: Scalars, loop: Loop) -> int:
    """How many iterations are one vector; 0 where vectors are left to LLVM.

    Registers for masks come with instructions that narrow each vector by itself.
    """
    stored = [part.buffer.dtype.bytes for part in loop.body if isinstance(part, Store)]
    parts = [part for value in own_values(loop) for part in value_parts(value)]
    if frame.level.has_lookup and looks_up_bytes(loop):
        return frame.level.lanes(max(stored + [part.dtype.bytes for part in parts]))
    narrows = any(
        isinstance(part, Convert) and part.dtype.bytes == 1 and part.operand.dtype is DType.FLOAT32
        for part in parts
    )
    if frame.level.isa == "avx2" and narrows and stored == [1] and is_side_by_side(loop):
        return frame.level.lanes(1)
    return 0


__all__ = ["write_byte_loop"]
