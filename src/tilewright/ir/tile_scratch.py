"""How much of a scratch buffer loops use that go over it from its first element on.

A vector of such a buffer may be whole where the loop ends within it: nobody reads what lies beyond.
Start with :func:`used_lengths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.ir.tile import (
    Check,
    Let,
    LetIndex,
    Loop,
    Stage,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.ir.tile_walk import value_loads
from tilewright.shape import Expr, constant, symbol


def used_lengths(program: TileProgram) -> dict[TileBuffer, Expr]:
    """The elements in use of each scratch buffer that is touched by loops over its first ones.

    They are as many in all of them, and as many in each of their turns. Other buffers are not
    among them, and none is where statements other than loops touch memory.
    """
    walk = _Walk()
    walk.statements(program.body, {})
    if not walk.only_loops:
        return {}
    return {
        buffer: end
        for buffer, ends in walk.ends.items()
        for end in ends
        if len(ends) == 1 and end is not None and walk.changing.isdisjoint(end.free_symbols)
    }


class _Walk:
    """Notes where loops over the first elements of a buffer end; None for any other access."""

    def __init__(self) -> None:
        self.ends: dict[TileBuffer, set[Expr | None]] = {}
        self.changing: set[str] = set()  # names that change within a task
        self.only_loops = True

    def statements(self, body: Iterable[Statement], around: Mapping[Expr, Expr]) -> None:
        """``around`` are the variables of loops from 0 on, and where they end."""
        for part in body:
            match part:
                case Let(value=value) | Check(value=value):
                    self._value(value, around)
                case LetIndex(name=name, value=value):
                    self.changing.add(name)
                    self._value(value, around)
                case Store(buffer=buffer, offset=offset, value=value):
                    self._value(value, around)
                    self._access(buffer, offset, around)
                case Loop():
                    self._loop(part, around)
                case Stage(axes=axes, load=load, body=inner, store=store):
                    self.changing |= {str(name) for axis in axes for name in (axis.begin, axis.end)}
                    for own in (load, inner, store):
                        self.statements(own, around)
                case _:
                    self.only_loops = False

    def _loop(self, loop: Loop, around: Mapping[Expr, Expr]) -> None:
        self.changing.add(loop.variable)
        inside = dict(around)
        if loop.begin is constant(0):
            inside[symbol(loop.variable)] = loop.end
        for accumulator in loop.accumulators:
            self._value(accumulator.value, inside)
        self.statements(loop.body, inside)

    def _value(self, value: Value, around: Mapping[Expr, Expr]) -> None:
        for load in value_loads(value):
            self._access(load.buffer, load.offset, around)

    def _access(self, buffer: TileBuffer, offset: Expr, around: Mapping[Expr, Expr]) -> None:
        if buffer.scratch:
            self.ends.setdefault(buffer, set()).add(around.get(offset))


__all__ = ["used_lengths"]
