"""Loops that look up functions of bytes, as whole vectors.

LLVM's vectoriser would look up every lane by itself. Start with :func:`write_table_loop`.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace
from tilewright.ir.tile import Let, Loop, Store
from tilewright.ir.tile_walk import looks_up_bytes, own_values, value_parts

Bounds = tuple[ir.Value, ir.Value]


def write_table_loop(frame: Scalars, loop: Loop, bounds: Bounds) -> Bounds:
    """The vectors of a loop, and the bounds of what is left of it.

    All is left of a loop without lookups, or where no instruction is made for them, and nothing
    where the last vector is under a mask.
    """
    if not (frame.level.has_lookup and looks_up_bytes(loop)):
        return bounds
    builder, (begin, end) = frame.builder, bounds
    parts = [part for value in own_values(loop) for part in value_parts(value)]
    sizes = [part.dtype.bytes for part in parts]
    sizes += [part.buffer.dtype.bytes for part in loop.body if isinstance(part, Store)]
    lanes = frame.level.lanes(max(sizes))
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

    stepping(builder, f"{loop.variable}.looked_up", (begin, middle), vector)
    if not frame.level.has_masks:
        return middle, end
    with builder.if_then(builder.icmp_signed("<", middle, end)):
        vector(middle, builder.trunc(builder.sub(end, middle), ir.IntType(32)))
    return end, end


__all__ = ["write_table_loop"]
