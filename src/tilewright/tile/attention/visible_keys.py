"""Up to which key a row of an attention sees any: what a causal mask leaves out is not computed.

A mask that compares positions shows as a choice between a score and a very low number. Where the
comparison bounds the position of the key by that of the row, all keys behind the bound of a
block's last row are hidden from the whole block. Start with :func:`visible_keys`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ir.tile import Apply, Convert, IndexValue, Literal, Value
from tilewright.shape import Expr, constant

LEAST_HIDDEN = -1e4  # a number that hides a score is below it
LEAST_ADDED = -1e30  # and one that is added to a score, of which nothing is known, below this


@dataclass(frozen=True)
class VisibleKeys:
    """Keys at positions above ``last``, an expression that grows with the row, show as ``low``."""

    last: Expr
    low: float


def visible_keys(shown: Value, row: str, key: str) -> VisibleKeys | None:
    """What is known of ``shown``, a value over the positions of that name; None if nothing is."""
    found = _of_choice(shown, row, key)
    if found is not None:
        return found
    match shown:
        case Apply(function="add", operands=(one, other)):
            for added, rest in ((one, other), (other, one)):
                found = _of_choice(added, row, key)
                if found is not None and found.low <= LEAST_ADDED and _is_choice_of_zero(added):
                    return found
                inner = visible_keys(rest, row, key)
                if inner is not None and inner.low == -math.inf:
                    return inner
        case _:
            pass
    return None


def _of_choice(value: Value, row: str, key: str) -> VisibleKeys | None:
    match value:
        case Apply(function="select", operands=(condition, chosen, other)):
            for side, holds in ((other, True), (chosen, False)):
                if isinstance(side, Literal) and side.value <= LEAST_HIDDEN:
                    last = _last(condition, holds, row, key)
                    return None if last is None else VisibleKeys(last, float(side.value))
        case _:
            pass
    return None


def _is_choice_of_zero(value: Value) -> bool:
    """Whether a choice adds nothing where it hides nothing."""
    return isinstance(value, Apply) and any(
        isinstance(side, Literal) and side.value == 0 for side in value.operands[1:]
    )


def _last(condition: Value, holds: bool, row: str, key: str) -> Expr | None:
    """The last key for which a condition holds, or does not; None if it says nothing of that."""
    match condition:
        case Apply(function="logical_not", operands=(inner,)):
            return _last(inner, not holds, row, key)
        case Apply(function="logical_and" | "logical_or" as function, operands=operands):
            if (function == "logical_and") is not holds:
                return None
            bounds = (_last(operand, holds, row, key) for operand in operands)
            return next((bound for bound in bounds if bound is not None), None)
        case Apply(function="less" | "less_equal" as function, operands=(one, other)):
            low, high = _position(one), _position(other)
            if low is None or high is None:
                return None
            if holds:
                return _solved(high - low - (function == "less"), row, key)
            return _solved(low - high - (function == "less_equal"), row, key)
        case _:
            return None


def _position(value: Value) -> Expr | None:
    """A position, or a sum of positions and integers, as an expression."""
    match value:
        case IndexValue(expression=expression):
            return expression
        case Literal(value=int(number)):
            return constant(int(number))
        case Convert(operand=operand) if value.dtype.is_integer:
            return _position(operand)
        case Apply(function="add" | "subtract" as function, operands=(one, other)):
            left, right = _position(one), _position(other)
            if left is None or right is None:
                return None
            return left + right if function == "add" else left - right
        case _:
            return None


def _solved(least_zero: Expr, row: str, key: str) -> Expr | None:
    """The greatest key for which an expression is at least 0, if that grows with the row."""
    affine = least_zero.affine((row, key))
    if affine is None or affine[0][key] is not constant(-1):
        return None
    slope = affine[0][row]
    if not slope.is_constant or slope.value < 0:
        return None
    return least_zero.substitute({key: constant(0)})
