"""Loops along rows, written as vectors.

LLVM's vectoriser ends what it makes of a loop by combining the lanes of its sums, and what is left
for a last vector begins and ends once more. Rows are often as short as a few vectors, and then that
is most of their time. Here the lanes are combined once for each row, the vectors that follow whole
groups of them take no mask but the last one, and maxima are taken without asking every time for
what is no number: that is noted beside them. Start with :func:`row_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.math_arithmetic import call_intrinsic, lanes_of, splat_constant
from tilewright.backend.cpu.vectors import (
    Scalars,
    VectorFrame,
    VectorPlace,
    address_of,
)
from tilewright.ir.dtype import DType
from tilewright.ir.tile import (
    LINE_BYTES,
    Accumulator,
    IndexValue,
    Let,
    Load,
    Loop,
    Store,
    TileBuffer,
)
from tilewright.ir.tile_interleaved import is_picked
from tilewright.ir.tile_walk import (
    is_function,
    is_light_on_bytes,
    lies_near,
    may_fault,
    own_values,
    slope,
    stride,
    value_loads,
    value_parts,
)
from tilewright.shape import Expr, constant, symbol
from tilewright.target.core_model import lanes_along, vectors_together

_I1, _I32 = ir.IntType(1), ir.IntType(32)
State = Sums


class RowScalars(Scalars, Protocol):
    """A ``FunctionFrame``; ``near`` are the buffers of which the row is in cache by now.

    ``lengths`` are the elements in use of those in scratch memory.
    """

    near: set[TileBuffer]
    lengths: dict[str, Expr | None]


@dataclass(frozen=True)
class RowLoop:
    """A loop of which all is done with whole vectors of ``lanes`` elements, ``together`` of them.

    ``length`` is how many iterations there are, if that is known when compiling. What lies
    ``loop.ahead`` bytes beyond the rows of ``asked`` is prefetched. Scratch buffers that are
    ``ending`` where the loop does are read and filled by whole vectors: these lie in their last
    line, and whoever reads a vector of what was stored under a mask would wait for it to leave the
    core.
    """

    loop: Loop
    lanes: int
    together: int
    length: int | None
    asked: tuple[Load, ...]
    ending: frozenset[TileBuffer]


def row_loop(frame: RowScalars, loop: Loop) -> RowLoop | None:
    """How to write a loop along a row, if all that it reads and writes lies side by side."""
    statements = [s for s in loop.body if isinstance(s, Let | Store)]
    if len(statements) < len(loop.body):
        return None
    values = own_values(loop)
    parts = [part for value in values for part in value_parts(value)]
    stores = [s for s in statements if isinstance(s, Store)]
    places = {s.buffer: s.offset for s in stores}
    loads = [load for value in values for load in value_loads(value)]

    def is_picked_out(load: Load) -> bool:
        return frame.level.has_masks and is_picked(stride(load.offset, loop.variable))

    picks = any(map(is_picked_out, loads))
    # Within a vector statements keep their order, and its lanes are iterations.
    in_place = all(places.get(load.buffer, load.offset) == load.offset for load in loads)
    if not (
        (loop.masked or (picks and not loop.independent))
        and all(lies_near(part, loop.variable, is_picked_out) for part in parts)
        and all(slope(s.offset, loop.variable) == 1 for s in stores)
        and (loop.independent or in_place)
        and not any(may_fault(part) for part in parts)
        and (frame.level.has_masks or not is_light_on_bytes(loop))
    ):
        return None
    # Positions are computed in the type that they become.
    dtypes = [part.dtype for part in parts if not isinstance(part, IndexValue)]
    dtypes += [s.buffer.dtype for s in stores]
    count, widest = loop.end - loop.begin, max(dtype.bytes for dtype in dtypes)
    length = max(count.value, 0) if count.is_constant else None
    lanes = lanes_along(length, frame.level.lanes(widest), widest)
    asked = _asked(loads, loop.variable, frame.near | set(places)) if loop.ahead else ()
    frame.near |= {*places, *(load.buffer for load in asked)}
    together = vectors_together(sum(map(is_function, parts)), frame.level.registers)
    if loop.independent:
        together = 1  # there is work enough in each
    return RowLoop(loop, lanes, together, length, asked, _ending(frame, loop, [*stores, *loads]))


def _ending(
    frame: RowScalars, loop: Loop, accesses: Sequence[Store | Load]
) -> frozenset[TileBuffer]:
    """Scratch buffers that a loop goes over from their first to their last element in use."""
    place = symbol(loop.variable)
    if loop.begin is not constant(0):
        return frozenset()
    return frozenset(
        access.buffer
        for access in accesses
        if access.offset is place and frame.lengths.get(access.buffer.name) is loop.end
    )


def _asked(loads: Sequence[Load], variable: str, near: Set[TileBuffer]) -> tuple[Load, ...]:
    """One load of each row that lies in memory; what all rows share is in cache."""
    found: dict[TileBuffer, Load] = {}
    for load in loads:
        others = {name for name in load.offset.free_symbols if name.startswith("_")} - {variable}
        moves = slope(load.offset, variable) == 1 and others
        if moves and not load.buffer.scratch and load.buffer not in near:
            found.setdefault(load.buffer, load)
    return tuple(found.values())


class _Total:
    """A running combination, in as many vectors as are taken together."""

    def __init__(self, vector: Emitter, accumulator: Accumulator, together: int) -> None:
        self.vector = vector
        self.kind = accumulator.kind
        self.dtype = accumulator.value.dtype
        self.together = together

    def begin(self) -> State:
        """Of no elements."""
        return [self.vector.splat(self._nothing())] * self.together

    def add(self, state: State, values: Sequence[ir.Value], mask: ir.Value | None) -> State:
        """With some more vectors of values; only lanes of ``mask`` count."""
        made = list(state)
        for number, value in enumerate(values):
            combined = self._combine(self.vector, made[number], value)
            if mask is not None:
                combined = self.vector.builder.select(mask, combined, made[number])
            made[number] = combined
        return made

    def end(self, state: State) -> ir.Value:
        """The combination of all lanes."""
        vectors, vector = list(state), self.vector
        while len(vectors) > 1:
            half = len(vectors) // 2
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self._combine(vector, a, b) for a, b in pairs]
        made = vectors[0]
        while vector.lanes > 1:
            half = vector.lanes // 2
            vector = vector.with_lanes(half)
            low, high = (_part(vector, made, first) for first in (0, half))
            made = self._combine(vector, low, high)
        return made

    def _nothing(self) -> ir.Value:
        return self.vector.with_lanes(1).identity(self.kind, self.dtype)

    def _combine(self, vector: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
        return vector.combine(self.kind, self.dtype, a, b)


class _Extreme(_Total):
    """The greatest or least of floats; lanes with what is no number are noted in a mask."""

    def begin(self) -> State:
        """Of no elements; the last one is the mask."""
        return [*super().begin(), splat_constant(lanes_of(_I1, self.vector.lanes), 0)]

    def add(self, state: State, values: Sequence[ir.Value], mask: ir.Value | None) -> State:
        """With some more vectors of values; two of them are asked for numbers together."""
        builder, unordered = self.vector.builder, state[-1]
        for number in range(0, len(values), 2):
            pair = (values[number], values[min(number + 1, len(values) - 1)])
            found = builder.fcmp_unordered("uno", *pair)
            if mask is not None:
                found = builder.and_(found, mask)
            unordered = builder.or_(unordered, found)
        return [*super().add(state[:-1], values, mask), unordered]

    def end(self, state: State) -> ir.Value:
        """The extreme, or NaN if one is among the elements."""
        builder, unordered = self.vector.builder, state[-1]
        some = call_intrinsic(builder, "vector.reduce.or", _I1, [unordered.type], [unordered])
        nan = self.vector.with_lanes(1).constant(float("nan"), self.dtype)
        return builder.select(some, nan, super().end(state[:-1]))

    def _combine(self, vector: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
        # In this form one instruction, which gives the second operand where one is no number.
        beyond = vector.builder.fcmp_ordered(">" if self.kind == "maximum" else "<", b, a)
        return vector.builder.select(beyond, b, a)


def _part(vector: Emitter, value: ir.Value, first: int) -> ir.Value:
    """Lanes of a vector from ``first`` on, as many as ``vector`` has; one alone is a scalar."""
    if vector.lanes == 1:
        return vector.builder.extract_element(value, ir.Constant(_I32, first))
    order = ir.Constant(ir.VectorType(_I32, vector.lanes), list(range(first, first + vector.lanes)))
    return vector.builder.shuffle_vector(value, value, order)


def _total(vector: Emitter, accumulator: Accumulator, together: int) -> _Total:
    is_extreme = accumulator.kind in ("maximum", "minimum")
    floats = accumulator.value.dtype in (DType.FLOAT32, DType.FLOAT64)
    return (_Extreme if is_extreme and floats else _Total)(vector, accumulator, together)


def write_row_loop(
    frame: RowScalars, row: RowLoop, bounds: tuple[ir.Value, ir.Value]
) -> list[ir.Value]:
    """The loop within ``bounds``; what its accumulators are after it, each from nothing."""
    builder, (begin, end) = frame.builder, bounds
    vector = Emitter(builder, frame.level, row.lanes)
    totals = [_total(vector, a, row.together) for a in row.loop.accumulators]
    count = builder.sub(end, begin)
    some = builder.icmp_signed("<", word(0), count)
    count = builder.select(some, count, word(0))
    group = row.lanes * row.together
    groups_end = builder.add(begin, builder.and_(count, word(-group)))
    vectors_end = builder.add(begin, builder.and_(count, word(-row.lanes)))
    states = [total.begin() for total in totals]
    rest = None if row.length is None else ir.Constant(_I32, row.length % row.lanes)

    def step(position: ir.Value, states: list[State], vectors: int, is_last: bool) -> list[State]:
        here = None
        if is_last:
            here = builder.trunc(builder.sub(end, position), _I32) if rest is None else rest
        mask = None if here is None else vector.lane_mask(here)
        _ask(frame, row, position, vectors)
        firsts = [builder.add(position, word(n * row.lanes)) for n in range(vectors)]
        places = [
            VectorPlace(row.loop.variable, first, here, is_last, row.ending) for first in firsts
        ]
        values = _vectors(frame, row, places)
        return [
            total.add(state, given, mask)
            for total, state, given in zip(totals, states, values, strict=True)
        ]

    stretch = _Stretches(frame, states)
    stretch.write((begin, groups_end), group, lambda p, s: step(p, s, row.together, False))
    stretch.write((groups_end, vectors_end), row.lanes, lambda p, s: step(p, s, 1, False))
    if rest is None or rest.constant:
        stretch.write((vectors_end, end), row.lanes, lambda p, s: step(p, s, 1, True))
    return [total.end(state) for total, state in zip(totals, stretch.states, strict=True)]


def _ask(frame: Scalars, row: RowLoop, position: ir.Value, vectors: int) -> None:
    """Prefetch what lies beyond so many vectors."""
    for load in row.asked:
        size = load.buffer.dtype.bytes
        for begin in range(0, vectors * row.lanes * size, LINE_BYTES):
            later = frame.builder.add(position, word((row.loop.ahead + begin) // size))
            place = {row.loop.variable: later}
            frame.emitter.prefetch(address_of(frame, load.buffer, load.offset, place))


def _vectors(frame: Scalars, row: RowLoop, places: Sequence[VectorPlace]) -> list[list[ir.Value]]:
    """Vectors of iterations: their stores, and for each accumulator the values that it takes.

    They are computed side by side, one part of a value of all of them after the other.
    """
    vectors = [VectorFrame(frame, row.lanes, place, {}) for place in places]
    for statement in row.loop.body:
        if isinstance(statement, Let):
            for vector in vectors:
                vector.locals[statement.name] = vector.value(statement.value)
        elif isinstance(statement, Store):
            for part in reversed(list(value_parts(statement.value))):
                for vector in vectors:
                    vector.value(part)
            for vector in vectors:
                vector.store(statement)
    return [[vector.value(a.value) for vector in vectors] for a in row.loop.accumulators]


class _Stretches:
    """Loops that follow each other and carry on what the one before has left in ``states``."""

    def __init__(self, frame: Scalars, states: list[State]) -> None:
        self.frame = frame
        self.states = states

    def write(
        self,
        bounds: tuple[ir.Value, ir.Value],
        step: int,
        body: Callable[[ir.Value, list[State]], list[State]],
    ) -> None:
        """Steps of ``body`` within ``bounds``, each of so many elements."""

        def turn(position: ir.Value, states: list[State]) -> list[State]:
            self.frame.enter()
            made = body(position, states)
            self.frame.leave()
            return made

        around = (*bounds, word(step))
        self.states = carrying(self.frame.builder, "vectors", around, self.states, turn)
