"""Expressions as postfix byte-code of 64-bit words, which the native runtime evaluates.

A machine with a stack: CONST and SYM push, every other word pops its operands (the last is on top)
and pushes its result. The words of the operations are the values of `Operation`. May import `expr`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.shape.expr import Atom, Expr
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

CONST, SYM, ADD, SUB, MUL, LESS_THAN = 0, 1, 2, 3, 4, 10
_LEAST, _MOST = -(2**63), 2**63 - 1
_FOLDED = {Operation.MINIMUM, Operation.MAXIMUM, Operation.AND, Operation.OR}


def encode(expression: Expr, slots: Mapping[str, int]) -> tuple[int, ...]:
    """The words that compute the expression from the symbol values in `slots`.

    :class:`DimensionError` where a symbol has no slot or a constant does not fit 64 bits.
    """
    words: list[int] = []
    _encode_sum(expression, slots, words)
    return tuple(words)


def _push(value: int, words: list[int]) -> None:
    if not _LEAST <= value <= _MOST:
        raise DimensionError(f"the constant {value} does not fit a signed 64-bit integer")
    words += (CONST, value)


def _encode_sum(expression: Expr, slots: Mapping[str, int], words: list[int]) -> None:
    if expression.is_constant:
        _push(expression.value, words)
        return
    # A term that is added comes first, so that a difference needs no negation.
    terms = sorted(expression.terms, key=lambda term: term[1] < 0)
    for position, (monomial, coefficient) in enumerate(terms):
        negative = position > 0 and coefficient < 0
        size = -coefficient if negative else coefficient
        if not monomial.atoms:
            _push(size, words)
        for index, atom in enumerate(monomial.atoms):
            _encode_atom(atom, slots, words)
            if index:
                words.append(MUL)
        if monomial.atoms and size != 1:
            _push(size, words)
            words.append(MUL)
        if position:
            words.append(SUB if negative else ADD)


def _encode_atom(atom: Atom, slots: Mapping[str, int], words: list[int]) -> None:
    operation, operands = atom.operation, atom.operands
    if operation is Operation.SYMBOL:
        if atom.name not in slots:
            raise DimensionError(
                f'dimension "{atom.name}" has no slot in the table of symbols',
                hint="bind the symbol from an input's shape or a computed size first",
            )
        words += (SYM, slots[atom.name])
        return
    if operation is Operation.LESS_EQUAL and operands[0].constant_term == 1:
        _encode_sum(operands[0] - 1, slots, words)
        _encode_sum(operands[1], slots, words)
        words.append(LESS_THAN)
        return
    for position, operand in enumerate(operands):
        _encode_sum(operand, slots, words)
        if operation in _FOLDED and position:
            words.append(operation.value)
    if operation not in _FOLDED:
        words.append(operation.value)
