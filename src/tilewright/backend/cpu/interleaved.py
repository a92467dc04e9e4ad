"""Loops over a few lanes that read neighbouring elements in turn, as whole vectors.

LLVM's vectoriser picks the elements of each lane out of whole vectors as soon as these are loaded,
and combines what it has picked: a window of 2x2 elements picks four times. Combined first, two
vectors of columns are left, and it is picked twice; on Zen 4 a pick of 64 bytes takes as long as
two loads. Start with :func:`write_interleaved`.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace, address_of
from tilewright.ir.tile import IndexValue, Let, Loop, Store, Value
from tilewright.ir.tile_interleaved import Interleaved, Key, Phase, interleaved_loop
from tilewright.ir.tile_walk import value_parts


def write_interleaved(frame: Scalars, loop: Loop) -> bool:
    """A loop of which values are combined before they are picked; False where none are."""
    interleaved = interleaved_loop(loop)
    if interleaved is None:
        return False
    statements = [part for part in loop.body if isinstance(part, Let | Store)]
    parts = [part for statement in statements for part in value_parts(statement.value)]
    widest = max(part.dtype.bytes for part in parts if not isinstance(part, IndexValue))
    count = loop.end.value
    lanes = min(frame.level.lanes(widest), count)
    if count % lanes:
        return False
    for first in range(0, count, lanes):
        place = VectorPlace(loop.variable, word(first))
        frame.enter()
        values = InterleavedFrame(frame, lanes, place, interleaved)
        for statement in statements:
            if isinstance(statement, Let):
                values.locals[statement.name] = values.value(statement.value)
            else:
                values.store(statement)
        frame.leave()
    return True


class InterleavedFrame(VectorFrame):
    """Values in lanes, of which those with a phase are picked out of whole vectors."""

    def __init__(
        self, frame: Scalars, lanes: int, place: VectorPlace, interleaved: Interleaved
    ) -> None:
        super().__init__(frame, lanes, place, {})
        self._interleaved = interleaved
        self._whole: dict[Key, list[ir.Value]] = {}

    def _value(self, value: Value) -> ir.Value:
        phase = self._interleaved.phase(value)
        if phase is None:
            return super()._value(value)
        # Lane i is element ``number + step * i`` of the vectors beside each other.
        lanes = range(self.lanes)
        places = [divmod(phase.number + phase.step * lane, self.lanes) for lane in lanes]
        return self.vector.picked(self._vectors(phase), places)

    def _vectors(self, phase: Phase) -> list[ir.Value]:
        """The elements of all phases, as many vectors as there are of them."""
        if phase.key not in self._whole:
            self._whole[phase.key] = self._made(phase)
        return self._whole[phase.key]

    def _made(self, phase: Phase) -> list[ir.Value]:
        load = phase.first
        if load is None:
            operands = [self._vectors(operand) for operand in phase.operands]
            return [
                self.vector.apply(phase.function, phase.dtype, list(pieces))
                for pieces in zip(*operands, strict=True)
            ]
        dtype, names = load.buffer.dtype, {self.place.variable: self.place.first}
        first = address_of(self.frame, load.buffer, load.offset, names)
        places = [
            self.vector.gep(first, dtype, word(part * self.lanes)) for part in range(phase.step)
        ]
        return [self.vector.load(place, dtype) for place in places]
