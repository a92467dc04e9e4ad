"""Loops that look for the first or the last of some elements, as a tile program writes them.

They reduce positions: the least one of an element that is looked for, and a position beyond all of
the others. Whoever runs such a loop may stop where it finds one. Start with :func:`sought`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.tile import IDENTITY, Apply, Convert, IndexValue, Local, Loop, Value
from tilewright.ir.tile_walk import value_symbols
from tilewright.shape import constant, symbol


@dataclass(frozen=True)
class Sought:
    """The ``last`` or the first iteration in which ``condition`` is true.

    ``place`` is its position and ``nowhere`` what stands for one where there is none. Where
    ``same`` is given, the condition is that the element ``asked`` equals it, which all iterations
    share, or is no number.
    """

    condition: Value
    place: Value
    nowhere: Value
    last: bool
    asked: Value | None
    same: Value | None


def sought(loop: Loop) -> Sought | None:
    """What an innermost loop looks for; None if it does anything else."""
    if loop.body or len(loop.accumulators) != 1:
        return None
    (position,) = loop.accumulators
    value = position.value
    if not (isinstance(value, Apply) and value.function == "select"):
        return None
    condition, place, nowhere = value.operands
    last = position.kind == "maximum"
    if not (last or position.kind == "minimum") or not _is_place(place, loop.variable):
        return None
    if not _is_beyond(nowhere, loop, last):
        return None
    return Sought(condition, place, nowhere, last, *_compared(condition, loop.variable))


def _is_place(value: Value, variable: str) -> bool:
    """Whether a value is the loop's variable itself, in some type that holds it."""
    number = value.operand if isinstance(value, Convert) else value
    return isinstance(number, IndexValue) and number.expression is symbol(variable)


def _is_beyond(value: Value, loop: Loop, last: bool) -> bool:
    """Whether a value comes after all positions of the loop in the order of the reduction."""
    if isinstance(value, Local):
        return value.name.startswith(IDENTITY)
    number = value.operand if isinstance(value, Convert) else value
    if not isinstance(number, IndexValue):
        return False
    if last:
        return loop.begin is constant(0) and number.expression is constant(-1)
    return number.expression is loop.end


def _compared(condition: Value, variable: str) -> tuple[Value, Value] | tuple[None, None]:
    """An element and what it is compared with, of "equals it, or is no number"."""
    match condition:
        case Apply(
            function="logical_or",
            operands=(
                Apply(function="equal", operands=(element, best)),
                Apply(function="is_nan", operands=(number,)),
            ),
        ) if number is element and not element.dtype.is_half:
            is_same = variable not in value_symbols(best, {})
            return (element, best) if is_same else (None, None)
        case _:
            return None, None


__all__ = ["Sought", "sought"]
