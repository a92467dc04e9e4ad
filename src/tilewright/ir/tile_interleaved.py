"""What the iterations of a loop read in turn: elements of one stretch, of which none is left out.

Iteration x reads the elements ``step * x`` to ``step * x + step - 1``, each in a load of its own,
whose *phase* is the rest. Vectors of all of them are whole vectors of memory, out of which those of
a phase are picked. Where values of one phase are combined, whole vectors can be combined before
anything is picked: the other phases need the same, and fewer elements are left to pick. Who writes
the code and who prices it both ask here. Start with :class:`Interleaved`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from tilewright.ir.dtype import DType
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Let, Load, Loop, Store, TileBuffer, Value
from tilewright.ir.tile_walk import (
    is_innermost,
    lies_near,
    may_fault,
    slope,
    stride,
    value_loads,
    value_parts,
)
from tilewright.shape import Expr, constant

MOST_PICKED = 4  # elements from lane to lane up to which whole vectors are loaded and picked from

_COMBINING = frozenset(COMBINE.values())
Key: TypeAlias = tuple[object, ...]


def is_picked(step: int | None) -> TypeGuard[int]:
    """Whether elements so far apart are picked out of whole vectors."""
    return step is not None and 1 < step <= MOST_PICKED


@dataclass(frozen=True)
class Phase:
    """Every ``step``-th element from ``number`` on of the vectors that ``key`` stands for.

    These are loaded from ``first`` on, if they are, or else combined by ``function`` of those of
    ``operands``.
    """

    step: int
    number: int
    key: Key
    dtype: DType
    first: Load | None = None
    function: str = ""
    operands: tuple[Phase, ...] = ()


class Interleaved:
    """The loads of a loop's values that read a stretch in turn, and what combines them."""

    def __init__(self, values: Iterable[Value], variable: str) -> None:
        loads = {id(load): load for value in values for load in value_loads(value)}
        self._known: dict[int, Phase | None] = {}
        for phase, load in _turns(list(loads.values()), variable):
            self._known[id(load)] = phase

    def __bool__(self) -> bool:
        return bool(self._known)

    def phase(self, value: Value) -> Phase | None:
        """Out of which vectors a value is picked; None where it is not."""
        if id(value) not in self._known:
            self._known[id(value)] = self._combined(value)
        return self._known[id(value)]

    def _combined(self, value: Value) -> Phase | None:
        if not isinstance(value, Apply) or value.function not in _COMBINING:
            return None
        operands: list[Phase] = []
        for operand in value.operands:
            phase = self.phase(operand)
            if phase is None:
                return None
            operands.append(phase)
        one = operands[0]
        if any((other.step, other.number) != (one.step, one.number) for other in operands):
            return None
        key = (value.function, *(operand.key for operand in operands))
        return Phase(
            one.step, one.number, key, value.operand_type, None, value.function, tuple(operands)
        )


def interleaved_loop(loop: Loop) -> Interleaved | None:
    """What a loop over some lanes reads in turn and combines; None where it does not.

    Everything else that it reads and writes lies side by side, or is the same for all lanes.
    """
    is_vector = loop.begin is constant(0) and loop.end.is_constant and loop.end.value > 1
    if not (loop.independent and is_vector and is_innermost(loop)) or loop.accumulators:
        return None
    statements = [part for part in loop.body if isinstance(part, Let | Store)]
    stores = [part for part in statements if isinstance(part, Store)]
    interleaved = Interleaved([statement.value for statement in statements], loop.variable)
    if not interleaved or any(slope(store.offset, loop.variable) != 1 for store in stores):
        return None
    parts = [part for statement in statements for part in value_parts(statement.value)]
    combines = any(isinstance(part, Apply) and interleaved.phase(part) for part in parts)
    if not combines or any(map(may_fault, parts)):
        return None

    near = (
        lies_near(part, loop.variable, lambda load: interleaved.phase(load) is not None)
        for part in parts
    )
    return interleaved if all(near) else None


def _turns(loads: list[Load], variable: str) -> Iterator[tuple[Phase, Load]]:
    """Loads that read whole stretches, each with its phase."""
    for near in _near(loads, variable):
        step = stride(near[0].offset, variable)
        assert step is not None
        places: dict[int, list[Load]] = {}
        for load in near:
            places.setdefault(load.offset.constant_term, []).append(load)
        taken = None
        for begin in sorted(places):
            stretch = range(begin, begin + step)
            if (taken is not None and begin < taken) or not all(p in places for p in stretch):
                continue
            taken = begin + step
            first = places[begin][0]
            key = (first.buffer, first.offset)
            for number, place in enumerate(stretch):
                for load in places[place]:
                    yield Phase(step, number, key, load.buffer.dtype, first), load


def _near(loads: list[Load], variable: str) -> list[list[Load]]:
    """Loads of one buffer with the same step, whose places are a known distance apart."""
    groups: dict[tuple[TileBuffer, Expr], list[Load]] = {}
    for load in loads:
        step = stride(load.offset, variable)
        if is_picked(step):
            start = load.offset - load.offset.constant_term
            groups.setdefault((load.buffer, start), []).append(load)
    return list(groups.values())


__all__ = ["MOST_PICKED", "Interleaved", "Phase", "interleaved_loop", "is_picked"]
