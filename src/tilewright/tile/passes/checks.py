"""Checks of a loop's elements, made by a loop of their own before it.

A check ends the kernel in the middle of a loop, which LLVM's vectoriser does not take. Whether any
element fails is a reduction, which it does take; the loop itself is left without a check. What is
checked is read twice, the second time from the nearest cache, as far as tasks are as short as those
of ``loops``. Start with :func:`with_checks_first`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Check,
    Convert,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
)
from tilewright.ir.tile_walk import ExpressionMap, value_buffers, value_parts
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep

# Operations that are made twice: of more, the check would take longer than it saves.
MOST_REPEATED = 8


def with_checks_first(step: LoweredStep, lowering: Lowering) -> LoweredStep:
    """The step with checks before its innermost loops, where those do not decide about them."""
    program = step.program
    assert isinstance(program, TileProgram)
    return replace(step, program=replace(program, body=_statements(program.body, lowering)))


def _statements(body: Sequence[Statement], lowering: Lowering) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if not isinstance(statement, Loop):
            out.append(statement)
        elif any(isinstance(part, Loop) for part in statement.body):
            out.append(replace(statement, body=_statements(statement.body, lowering)))
        else:
            out += _checked(statement, lowering)
    return tuple(out)


def _checked(loop: Loop, lowering: Lowering) -> Sequence[Statement]:
    """A loop of nothing but values, behind the loops of its checks; or as it was."""
    checks = [part for part in loop.body if isinstance(part, Check)]
    if not all(isinstance(part, Check | Let | Store) for part in loop.body):
        return [loop]
    stored = {part.buffer for part in loop.body if isinstance(part, Store)}
    if not checks or not all(_is_known_before(check, stored) for check in checks):
        return [loop]
    made: list[Statement] = []
    for check in checks:
        variable, found = lowering.variable(loop.end - loop.begin, "k"), lowering.name("r")
        value = ExpressionMap.substitution({loop.variable: variable}).value(check.value)
        failed = Accumulator(found, "maximum", value)
        made.append(Loop(str(variable), loop.begin, loop.end, (), (failed,)))
        made.append(Check(Local(found, DType.BOOL), check.check))
    rest = tuple(part for part in loop.body if not isinstance(part, Check))
    return [*made, replace(loop, body=rest)]


def _is_known_before(check: Check, stored: set[TileBuffer]) -> bool:
    """Whether a check has a light value, of nothing that the loop itself makes."""
    parts = list(value_parts(check.value))
    light = (Apply, Convert, IndexValue, Literal, Load)
    if not all(isinstance(part, light) for part in parts):
        return False
    cost = sum(SCALAR_FUNCTIONS[part.function].cost for part in parts if isinstance(part, Apply))
    return cost <= MOST_REPEATED and stored.isdisjoint(value_buffers(check.value))
