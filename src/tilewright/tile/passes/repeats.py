"""Rows that are repeated: one task makes all of those that hold the same.

Where an axis of the grid moves what is stored by each of its steps, but what is read only by every
second, third or fourth, as along an axis that a resize repeats, a task makes these steps one after
the other. Short rows are most of the time what is asked before each task, and the positions of
fewer tasks are one axis more often. That is done where values are repeated along the rows too. To
store a value to all rows at once takes fewer loads, but from the second cache on it took up to 2.4
times as long (Zen 4; probably since both streams of stores lie in one page). Start with
:func:`with_repeats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.ir.tile import Let, Loop, Statement, Store, TileProgram
from tilewright.ir.tile_repeated import MOST_REPEATED, repeats
from tilewright.ir.tile_walk import ExpressionMap, value_expressions
from tilewright.shape import Expr, constant
from tilewright.tile.nests import collapse
from tilewright.tile.values.lowering import Lowering


def with_repeats(program: TileProgram, lowering: Lowering) -> TileProgram:
    """The program, where steps of an axis that read alike are made by one task."""
    if not _repeats(program.body):
        return program
    for number, (name, size) in enumerate(program.grid):
        for times in range(MOST_REPEATED, 1, -1):
            rows = lowering.scope.resolve(size // times)
            if rows * times is not size:
                continue
            row = lowering.variable(rows)
            if _reads_alike(program.body, name, [row * times + step for step in range(times)]):
                step = lowering.variable(constant(times))
                body = _AtSteps(name, row * times, step).statements(program.body)
                body = (Loop(str(step), constant(0), constant(times), body),)
                outer = [*program.grid[:number], (str(row), rows)]
                outer, body = collapse(lowering, outer, body)
                return replace(program, grid=(*outer, *program.grid[number + 1 :]), body=body)
    return program


def _repeats(body: Sequence[Statement]) -> bool:
    """Whether a task does nothing but loops within each other that repeat values."""
    match body:
        case (Loop() as loop,):
            return repeats(loop) is not None or _repeats(loop.body)
        case _:
            return False


def _reads_alike(body: Iterable[Statement], name: str, steps: Sequence[Expr]) -> bool:
    """Whether all but where elements are stored is the same at each of some steps of an axis."""
    return all(_is_alike(part, name, steps) for part in body)


def _is_alike(part: Statement, name: str, steps: Sequence[Expr]) -> bool:
    match part:
        case Loop(begin=begin, end=end, body=body):
            bounds = [*begin.free_symbols, *end.free_symbols]
            return name not in bounds and _reads_alike(body, name, steps)
        case Let(value=value) | Store(value=value):
            read = [e for e in value_expressions(value) if name in e.free_symbols]
            return all(len({e.substitute({name: step}) for step in steps}) == 1 for e in read)
        case _:
            return False


class _AtSteps(ExpressionMap):
    """Statements that compute at the first of some steps of an axis, and store at one of them."""

    def __init__(self, name: str, first: Expr, step: Expr) -> None:
        super().__init__(lambda expression: expression.substitute({name: first}))
        self._place = {name: first + step}

    def statement(self, statement: Statement) -> Statement:
        """One statement rewritten."""
        if isinstance(statement, Store):
            place = statement.offset.substitute(self._place)
            return Store(statement.buffer, place, self.value(statement.value))
        return super().statement(statement)


__all__ = ["with_repeats"]
