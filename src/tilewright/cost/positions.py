"""What of a position changes with a variable: its divisions, minima and so on.

Start with :func:`applied`.
"""

from __future__ import annotations

from tilewright.shape import Expr
from tilewright.shape.expr import Atom
from tilewright.shape.table import Operation


def applied(expression: Expr, variable: str) -> frozenset[Atom]:
    """The minima, quotients and so on of an expression that a variable moves."""
    atoms = {atom for monomial, _ in expression.terms for atom in monomial.atoms}
    inside = {a: [e for e in a.operands if variable in e.free_symbols] for a in atoms}
    deeper = [applied(operand, variable) for own in inside.values() for operand in own]
    return frozenset(atom for atom, own in inside.items() if own).union(*deeper)


def divisions_in(expression: Expr, variable: str) -> int:
    """Divisions of whole numbers that a variable moves, each as often as it is written."""
    count = 0
    for monomial, _ in expression.terms:
        for atom in monomial.atoms:
            if atom.operation is Operation.SYMBOL:
                continue
            inside = [e for e in atom.operands if variable in e.free_symbols]
            if inside and atom.operation in (
                Operation.FLOORDIV, Operation.MOD, Operation.CEILDIV,
            ):  # fmt: skip
                count += 1
            count += sum(divisions_in(e, variable) for e in inside)
    return count


__all__ = ["applied", "divisions_in"]
