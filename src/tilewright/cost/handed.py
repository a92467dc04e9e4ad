"""What sweeps wait for vectors that were stored just before them.

A core hands a stored vector to a load that follows while the store is still under way, but only
where the vector was stored whole and on a line and the load begins on one as well. Others wait
until the store has left the core, in order: all before it is finished by then, and what needs the
loaded values has nothing beside it to hide behind. Imports ir, shape and target. Start with
:class:`HandOvers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tilewright.cost.vector_work import Core, ends_under_mask, is_aligned, loop_values
from tilewright.ir.tile import (
    Apply,
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.ir.tile_scratch import used_lengths
from tilewright.ir.tile_walk import is_innermost, stride, value_loads
from tilewright.shape import Expr, constant, maximum, minimum, with_positive_divisors
from tilewright.target.core_model import MASKED_VECTOR_BYTES

ZERO = constant(0)
LOADED = 2  # simple instructions that a load takes as long as


@dataclass
class _Stored:
    """A buffer: loops that stored it, those of which no load gets vectors at once, and waits."""

    ran: Expr = ZERO
    late: Expr = ZERO
    waited: Expr = ZERO


@dataclass(frozen=True)
class HandOvers:
    """Stores and loads of the loops of a program: the middle and the turns of each by its variable.

    Both grow while a program is walked; a loop is known before it is asked for. Of ``whole``
    buffers in scratch memory, loops that may have masks store whole vectors on lines.
    """

    core: Core
    middle: Mapping[str, Expr]
    turns: Mapping[str, Expr]
    whole: Set[TileBuffer] = frozenset()

    def within(self, program: TileProgram) -> HandOvers:
        """The same for the loops of one program."""
        if self.core.target.vector_bytes < MASKED_VECTOR_BYTES:
            return self
        return replace(self, whole=used_lengths(program).keys())

    def waits(self, body: Sequence[Statement], cycles: Mapping[int, Expr]) -> dict[int, Expr]:
        """Thousandths of cycles that each loop of a body waits for stores of loops before it.

        Loops go by the number of their statement; ``cycles`` are what they take by themselves.
        """
        stored: dict[TileBuffer, _Stored] = {}
        made: dict[int, Expr] = {}
        for number, statement in enumerate(body):
            if not isinstance(statement, Loop):
                continue
            inner = list(_innermost(statement, ()))
            some = minimum(self.turns[statement.variable], 1)
            late = self._late(inner, stored, some)
            if late is not ZERO:
                chain = max(_depth(loop) for loop, _ in inner) + LOADED
                full = constant(round(1000 * self.core.costs.latency * chain))
                each = maximum(full - cycles[number], 0) + round(1000 * self.core.costs.handed)
                made[number] = each * minimum(late, 1)
            for loop, around in inner:
                for store in _stores(loop):
                    own = stored.setdefault(store.buffer, _Stored())
                    own.ran = own.ran + some
                    own.late = own.late + some * self._is_late(loop, around, store)
                    own.waited = ZERO
        return made

    def _late(
        self, inner: Sequence[_Inner], stored: Mapping[TileBuffer, _Stored], some: Expr
    ) -> Expr:
        """In how many buffers a nest of loops waits for what no store can hand on.

        Of several sweeps over the same mostly one runs, as for short rows and for long ones.
        """
        flags: dict[TileBuffer, Expr] = {}
        for loop, around in inner:
            for load in _vector_loads(loop):
                if load.buffer in stored:
                    own = self._is_off_line(loop, around, load.offset, load.buffer)
                    before = flags.setdefault(load.buffer, own)
                    flags[load.buffer] = before if own is before else maximum(before, own)
        total = ZERO
        for buffer, flag in flags.items():
            own = stored[buffer]
            late = minimum(own.late + flag * minimum(own.ran, 1), 1)
            if late is not ZERO:
                total = total + late * (minimum(own.waited + some, 1) - minimum(own.waited, 1))
                own.waited = own.waited + some
        return total

    def _is_late(self, loop: Loop, around: Sequence[Loop], store: Store) -> Expr:
        """1 where a store is under a mask or crosses lines."""
        length, lanes = loop.end - loop.begin, self.core.lanes(store.buffer.dtype.bytes)
        off = self._is_off_line(loop, around, store.offset, store.buffer)
        if not ends_under_mask(self.core, loop) or store.buffer in self.whole:
            return off
        return minimum(off + self._usual(length) % lanes, 1)

    def _is_off_line(
        self, loop: Loop, around: Sequence[Loop], offset: Expr, buffer: TileBuffer
    ) -> Expr:
        """1 where the first or the last vectors of loops begin beside a line, 0 elsewhere."""
        lanes = self.core.lanes(buffer.dtype.bytes)
        if is_aligned(self.core, offset + loop.begin, loop.variable, buffer.dtype.bytes):
            return ZERO
        start = offset.substitute({loop.variable: loop.begin})
        nest = {one.variable: one for one in around}
        ends = [start]
        for name, one in nest.items():
            last = one.begin + maximum(self.turns[name] - 1, 0)
            ends = [e.substitute({name: end}) for e in ends for end in (one.begin, last)]
        off = ZERO
        for end in dict.fromkeys(ends):
            for part in self._parts(end):
                off = off + part % lanes
        return minimum(off, 1)

    def _parts(self, start: Expr) -> list[Expr]:
        """What a place is made of: rows of which any may be met, and the rest, as usual."""
        outer = [name for name in start.free_symbols if name in self.middle]
        affine = start.affine(outer) if outer else None
        if affine is None:
            return [self._usual(start)]
        steps, rest = affine
        return [rest, *(self._usual(step) for step in steps.values())]

    def _usual(self, value: Expr) -> Expr:
        own = {n: self.middle[n] for n in value.free_symbols if n in self.middle}
        return with_positive_divisors(value.substitute(own) if own else value)


_Inner = tuple[Loop, tuple[Loop, ...]]  # an innermost loop, and those around it in a nest


def _innermost(loop: Loop, around: tuple[Loop, ...]) -> Iterator[_Inner]:
    if is_innermost(loop):
        yield loop, around
        return
    for part in loop.body:
        if isinstance(part, Loop):
            yield from _innermost(part, (*around, loop))


def _stores(loop: Loop) -> Iterator[Store]:
    return (part for part in loop.body if isinstance(part, Store))


def _vector_loads(loop: Loop) -> Iterator[Load]:
    for value in loop_values(loop):
        yield from (load for load in value_loads(value) if stride(load.offset, loop.variable))


def _depth(loop: Loop) -> int:
    """Instructions of a loop of which each needs the result of the one before, at most."""
    known: dict[str, int] = {}
    depths: dict[int, int] = {}

    def depth(value: Value) -> int:
        if id(value) not in depths:
            match value:
                case Local(name=name):
                    own = known.get(name, 0)
                case Apply(operands=operands):
                    own = 1 + max(map(depth, operands), default=0)
                case _:
                    own = 0
            depths[id(value)] = own
        return depths[id(value)]

    most = 0
    for part in loop.body:
        if isinstance(part, Let | Store):
            own = depth(part.value)
            most = max(most, own)
            if isinstance(part, Let):
                known[part.name] = own
    return most


def largest(parts: Iterable[Mapping[int, Expr]]) -> dict[int, Expr]:
    """The largest of several waits of each loop: they pass at the same time."""
    made: dict[int, Expr] = {}
    for waits in parts:
        for number, wait in waits.items():
            made[number] = maximum(made[number], wait) if number in made else wait
    return made


__all__ = ["HandOvers", "largest"]
