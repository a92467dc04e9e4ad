"""What sweeps over a row wait for each other, as each needs what the one before has reduced.

The total of a sweep is there only after its lanes are combined and what is made of it, as a
quotient or a root, is computed, one instruction after the other. Meanwhile a core starts what does
not need it, which is behind the instructions that do: the more of these there are, the fewer others
fit beside them among those that wait for operands. Imports ir, shape and target. Start with
:func:`waits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.cost.vector_work import Core, loop_instructions, loop_values
from tilewright.ir.tile import (
    Apply,
    Convert,
    Guarded,
    Let,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.tile_walk import is_innermost, value_loads, value_symbols
from tilewright.shape import Expr, constant, minimum


def waits(core: Core, body: Iterable[Statement], lengths: Mapping[int, Expr]) -> dict[int, Expr]:
    """Thousandths of cycles of each loop of a body that needs what loops before it reduced.

    Loops go by the number of their statement; ``lengths`` are their iterations.
    """
    ready: dict[str, float] = {}  # cycles from the end of a loop until a value is there
    made: dict[int, Expr] = {}
    stored: set[TileBuffer] = set()  # scratch memory with what loops inside others have reduced
    for number, statement in enumerate(body):
        if isinstance(statement, Let):
            late = _chain(core, statement.value, ready, "")
            if any(load.buffer in stored for load in value_loads(statement.value)):
                late = core.costs.wait
            if late is not None:
                ready[statement.name] = late
        if isinstance(statement, Loop):
            chains = (
                _chain(core, value, ready, statement.variable) for value in loop_values(statement)
            )
            late = max((chain for chain in chains if chain is not None), default=None)
            if late is not None:
                made[number] = _exposed(core, statement, late, lengths[number])
                ready.clear()
            ready |= dict.fromkeys((a.name for a in statement.accumulators), core.costs.wait)
            stored |= _stored(statement)
    return made


def _stored(loop: Loop) -> set[TileBuffer]:
    """Scratch memory in which a loop stores what is made of what loops inside it reduce."""
    late = {a.name for part in loop.body if isinstance(part, Loop) for a in part.accumulators}
    found: set[TileBuffer] = set()
    for part in loop.body:
        if isinstance(part, Let | Store) and late.intersection(value_symbols(part.value, {})):
            if isinstance(part, Let):
                late.add(part.name)
            elif part.buffer.scratch:
                found.add(part.buffer)
    return found


def _chain(core: Core, value: Value, ready: Mapping[str, float], variable: str) -> float | None:
    """Cycles until all is there that a value needs, None where it needs nothing that is late.

    What is computed for each iteration of ``variable`` does not count: it is work of the loop.
    """
    match value:
        case Local(name=name):
            return ready.get(name)
        case Apply(operands=operands):
            parts, own = operands, _latency(core, value.function)
        case Convert(operand=operand):
            parts, own = (operand,), core.costs.latency
        case Guarded(inside=inside, outside=outside):
            parts, own = (inside, outside), 0.0
        case _:
            return None
    found = [_chain(core, part, ready, variable) for part in parts]
    late = max((chain for chain in found if chain is not None), default=None)
    if late is None or variable in value_symbols(value, {}):
        return late
    return late + own


def _latency(core: Core, function: str) -> float:
    is_simple = core.costs.function(function) is None
    return core.costs.latency if is_simple else core.costs.chained


def _exposed(core: Core, loop: Loop, late: float, length: Expr) -> Expr:
    """Thousandths of cycles that nothing else fills; all of them where a loop is in the way."""
    full = constant(round(1000 * late))
    if not is_innermost(loop):
        return full
    each = 1000 * late / core.costs.window
    return minimum(full, loop_instructions(core, loop, length, each))


__all__ = ["waits"]
