"""Expressions as text that people read and `parsing.parse` reads back to the same object.

Imports only the operation table. `atom_text` writes an atom, `expression_text` a polynomial, and
`once` either, if its text is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import TYPE_CHECKING, TypeVar

from tilewright.shape.table import COMPARISONS, Operation

if TYPE_CHECKING:
    from tilewright.shape.expr import Atom, Expr

_Part = TypeVar("_Part", "Atom", "Expr")


class _Texts(local):
    """What a thread has written of the long text that it is writing, by part."""

    known: dict[Atom | Expr, str] | None = None


_TEXTS = _Texts()

FUNCTION_NAMES = {
    Operation.MINIMUM: "min",
    Operation.MAXIMUM: "max",
    Operation.SELECT: "select",
    Operation.CEILDIV: "ceil_div",
    Operation.AND: "logical_and",
    Operation.OR: "logical_or",
    Operation.NOT: "logical_not",
}


def once(part: _Part, write: Callable[[_Part], str]) -> str:
    """``write(part)``; within it, parts that it has at many places are written once."""
    known = _TEXTS.known
    if known is not None:
        if part not in known:
            known[part] = write(part)
        return known[part]
    _TEXTS.known = {}
    try:
        return write(part)
    finally:
        _TEXTS.known = None


def _is_simple(expression: Expr) -> bool:
    """Whether the text of the expression binds tighter than every operator."""
    if expression.is_constant:
        return expression.value >= 0
    atom = expression.atom
    return atom is not None and (
        atom.operation is Operation.SYMBOL or atom.operation in FUNCTION_NAMES
    )


def _operand(expression: Expr) -> str:
    text = str(expression)
    return text if _is_simple(expression) else f"({text})"


def _comparison_side(expression: Expr) -> str:
    atom = expression.atom
    text = str(expression)
    return f"({text})" if atom is not None and atom.operation in COMPARISONS else text


def atom_text(atom: Atom) -> str:
    """The atom as text, without brackets around it."""
    operation, operands = atom.operation, atom.operands
    if operation is Operation.SYMBOL:
        return atom.name
    if operation is Operation.FLOORDIV:
        numerator, denominator = operands
        if _rounds_up(atom):
            return f"ceil_div({numerator - (denominator.value - 1)}, {denominator})"
        return f"{_operand(numerator)}//{_operand(denominator)}"
    if operation is Operation.MOD:
        return f"{_operand(operands[0])} % {_operand(operands[1])}"
    if operation is Operation.EQUAL:
        return f"{_comparison_side(operands[0])} == {_comparison_side(operands[1])}"
    if operation is Operation.LESS_EQUAL:
        left, right = operands
        if left.constant_term == 1 and not left.is_constant:
            return f"{_comparison_side(left - 1)} < {_comparison_side(right)}"
        return f"{_comparison_side(left)} <= {_comparison_side(right)}"
    return f"{FUNCTION_NAMES[operation]}({', '.join(str(operand) for operand in operands)})"


def _rounds_up(atom: Atom) -> bool:
    """Whether the atom is (n + d - 1)//d with a constant d, which is written as a call."""
    if atom.operation is not Operation.FLOORDIV:
        return False
    numerator, denominator = atom.operands
    if not denominator.is_constant or numerator.is_constant:
        return False
    return denominator.value > 1 and numerator.constant_term == denominator.value - 1


def _factor(atom: Atom) -> str:
    bare = atom.operation is Operation.SYMBOL or atom.operation in FUNCTION_NAMES
    return atom.text if bare or _rounds_up(atom) else f"({atom.text})"


def _term_text(atoms: tuple[Atom, ...], size: int, first: bool, alone: bool) -> str:
    """The term `size * product(atoms)` for `size` >= 1, fit to follow an operator."""
    if not atoms:
        return str(size)
    if size == 1 and len(atoms) == 1:
        text = atoms[0].text
        if alone or (atoms[0].operation is Operation.FLOORDIV and first):
            return text
        return _factor(atoms[0])
    factors = [_factor(atom) for atom in atoms]
    if size != 1:
        factors.insert(0, str(size))
    return "*".join(factors)


def expression_text(expression: Expr) -> str:
    """The polynomial as a sum of terms, highest degree first."""
    terms = expression.terms
    if not terms:
        return "0"
    pieces: list[str] = []
    for monomial, coefficient in terms:
        negative = coefficient < 0
        first = not pieces and not negative
        text = _term_text(monomial.atoms, abs(coefficient), first, len(terms) == 1 and not negative)
        if pieces:
            pieces.append(" - " if negative else " + ")
        elif negative:
            pieces.append("-")
        pieces.append(text)
    return "".join(pieces)
