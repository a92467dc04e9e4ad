"""By how much an expression can change from one value of a symbol to the next, proved.

A condition whose slope is never negative holds from some value of the symbol on, one whose slope is
never positive up to some value: where it begins or ends can be found by halving. All of it is sound
(never narrow). May import `expr`, `interval` and `scope`. Start reading at :func:`slope`.
"""

from __future__ import annotations

from tilewright.shape.expr import Atom, Expr, from_atoms
from tilewright.shape.interval import (
    EVERYTHING,
    TRUTH_VALUES,
    Interval,
    add,
    hull,
    intersect,
    multiply,
    negate,
    scale,
)
from tilewright.shape.scope import Scope
from tilewright.shape.table import BOOLEANS, Operation

_DIVISIONS = (Operation.FLOORDIV, Operation.CEILDIV, Operation.MOD)
_NEVER = Interval(0, 0)
_RISES = Interval(0, None)
_FALLS = Interval(None, 0)


def slope(expression: Expr, name: str, scope: Scope) -> Interval | None:
    """Bounds of f(name + 1) - f(name) within the ranges of the scope; None where f may fail.

    Every other symbol keeps its value. A division by what may be zero fails.
    """
    change = _NEVER
    for monomial, coefficient in expression.terms:
        changed = _product(monomial.atoms, name, scope)
        if changed is None:
            return None
        change = add(change, scale(changed, coefficient))
    return change


def _product(atoms: tuple[Atom, ...], name: str, scope: Scope) -> Interval | None:
    """The change of a product: (fg)' = f' g(name + 1) + f g'."""
    change = Interval(0, 0)
    for position, atom in enumerate(atoms):
        changed = _atom(atom, name, scope)
        if changed is None:
            return None
        others = [*atoms[:position], *atoms[position + 1 :]]
        change = add(change, multiply(changed, _factor(others, name, scope)))
    return change


def _factor(atoms: list[Atom], name: str, scope: Scope) -> Interval:
    """Bounds of a product in which each factor is taken at some value of the symbol."""
    value = Interval(1, 1)
    for atom in atoms:
        value = multiply(value, scope.bounds(from_atoms((atom,))))
    return value


def _atom(atom: Atom, name: str, scope: Scope) -> Interval | None:
    if atom.operation is Operation.SYMBOL:
        return Interval(1, 1) if atom.name == name else _NEVER
    changes = [slope(operand, name, scope) for operand in atom.operands]
    known = [change for change in changes if change is not None]
    if len(known) < len(changes):
        return None
    if atom.operation in _DIVISIONS and 0 in scope.bounds(atom.operands[1]):
        return None
    value = TRUTH_VALUES if atom.operation in BOOLEANS else scope.bounds(from_atoms((atom,)))
    return intersect(add(value, negate(value)), _applied(atom, known, scope))


def _applied(atom: Atom, changes: list[Interval], scope: Scope) -> Interval:
    """The change of an application from those of its operands."""
    if all(change == _NEVER for change in changes):
        return _NEVER
    match atom.operation:
        case Operation.MINIMUM | Operation.MAXIMUM | Operation.AND | Operation.OR:
            return _hull(changes)
        case Operation.LESS_EQUAL:
            return _sign(add(changes[1], negate(changes[0])))
        case Operation.NOT:
            return negate(changes[0])
        case Operation.FLOORDIV | Operation.CEILDIV:
            return _quotient(atom, changes, scope)
        case _:
            return EVERYTHING


def _hull(changes: list[Interval]) -> Interval:
    found = changes[0]
    for change in changes[1:]:
        found = hull(found, change)
    return found


def _sign(change: Interval) -> Interval:
    """What a step of truth values can be where their reason changes so."""
    if change.low is not None and change.low >= 0:
        return _RISES
    return _FALLS if change.high is not None and change.high <= 0 else EVERYTHING


def _quotient(atom: Atom, changes: list[Interval], scope: Scope) -> Interval:
    """A rounded quotient changes by at most one more than the exact one, and never against it."""
    numerator, denominator = (scope.bounds(operand) for operand in atom.operands)
    if denominator.is_point and denominator.low is not None and changes[1] == _NEVER:
        change = changes[0] if denominator.low > 0 else negate(changes[0])
        size = abs(denominator.low)
        return Interval(
            None if change.low is None else change.low // size,
            None if change.high is None else -(-change.high // size),
        )
    if denominator.low is None or denominator.low < 1:
        return EVERYTHING
    if numerator.low is None or numerator.low < 0:
        return EVERYTHING
    return _sign(hull(changes[0], negate(changes[1])))
