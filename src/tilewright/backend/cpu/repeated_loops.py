"""Loops that store each of their values several times side by side, as whole vectors.

LLVM's vectoriser makes several long vectors of such a loop at a time and leaves what is no whole
one to single elements, which takes the most of a row of 40 pixels. Here the last vector ends where
the row does, and stores some elements again; a row shorter than a vector is one under a mask. Start
with :func:`write_repeats`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.checked_loops import LoopFrame
from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.vectors import VectorFrame, VectorPlace, address_of
from tilewright.ir.tile import IndexValue, Loop, Store, Value
from tilewright.ir.tile_repeated import Repeats, repeats
from tilewright.ir.tile_walk import value_parts

_I32 = ir.IntType(32)


def write_repeats(frame: LoopFrame, loop: Loop, bounds: tuple[ir.Value, ir.Value]) -> bool:
    """Write a loop that repeats its values; False where it does anything else.

    Without registers for masks vectors are shorter, and LLVM's code is as good (Zen 4, AVX2).
    """
    repeated = repeats(loop)
    if repeated is None or not frame.level.has_masks:
        return False
    values = [part.value for part in (*repeated.lets, *repeated.stores)]
    parts = [part for value in values for part in value_parts(value)]
    sizes = [part.dtype.bytes for part in parts if not isinstance(part, IndexValue)]
    sizes += [store.buffer.dtype.bytes for store in repeated.stores]
    _Vectors(frame, repeated, *bounds).write(frame.level.lanes(max(sizes)))
    return True


@dataclass(frozen=True)
class _Vectors:
    """The iterations in [begin, end) of a loop, as vectors."""

    frame: LoopFrame
    repeated: Repeats
    begin: ir.Value
    end: ir.Value

    def write(self, lanes: int) -> None:
        """All of them, as vectors of so many lanes."""
        builder = self.frame.builder
        count = builder.sub(self.end, self.begin)
        with builder.if_else(builder.icmp_signed("<=", word(lanes), count)) as (whole, few):
            with whole:
                self._whole(lanes, count)
            with few, builder.if_then(builder.icmp_signed("<", word(0), count)):
                self._vector(lanes, self.begin, builder.trunc(count, _I32))

    def _whole(self, lanes: int, count: ir.Value) -> None:
        """At least one vector, and what is left: a whole one or half of one that ends there."""
        builder, half = self.frame.builder, lanes // 2
        middle = builder.add(self.begin, builder.and_(count, word(-lanes)))

        def whole(first: ir.Value) -> ir.Value:
            self._vector(lanes, first)
            return word(lanes)

        stepping(builder, f"{self.repeated.loop.variable}.repeat", (self.begin, middle), whole)
        rest = builder.and_(count, word(lanes - 1))
        with builder.if_then(builder.icmp_signed("<", word(half), rest)):
            self._vector(lanes, builder.sub(self.end, word(lanes)))
        is_short = builder.icmp_unsigned("<", builder.sub(rest, word(1)), word(half))
        with builder.if_then(is_short):
            self._vector(half, builder.sub(self.end, word(half)))

    def _vector(self, lanes: int, first: ir.Value, count: ir.Value | None = None) -> None:
        """A vector of iterations, of which only ``count`` are stored where it is given."""
        self.frame.enter()
        place = VectorPlace(self.repeated.loop.variable, first, count, is_rest=count is not None)
        made = VectorFrame(self.frame, lanes, place, {})
        for let in self.repeated.lets:
            made.locals[let.name] = made.value(let.value)
        wide: dict[Value, ir.Value] = {}
        for store in self.repeated.stores:
            if store.value not in wide:
                wide[store.value] = self._repeated(made, store.value)
            self._store(made, store, wide[store.value])
        self.frame.leave()

    def _repeated(self, made: VectorFrame, value: Value) -> ir.Value:
        """A vector of which each element is repeated: as long as several registers."""
        vector, times = made.value(value), self.repeated.times
        order = [lane for lane in range(made.lanes) for _ in range(times)]
        lanes = ir.Constant(ir.VectorType(_I32, len(order)), order)
        return self.frame.builder.shuffle_vector(vector, vector, lanes)

    def _store(self, made: VectorFrame, store: Store, wide: ir.Value) -> None:
        place, times, dtype = made.place, self.repeated.times, store.buffer.dtype
        names = {place.variable: place.first}
        address = address_of(self.frame, store.buffer, store.offset, names)
        vector = made.vector.with_lanes(times * made.lanes)
        if place.count is None:
            vector.store(wide, address, dtype)
            return
        left = self.frame.builder.mul(place.count, ir.Constant(place.count.type, times))
        vector.masked_store(wide, address, dtype, vector.lane_mask(left))


__all__ = ["write_repeats"]
