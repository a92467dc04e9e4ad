"""Expressions as postfix byte-code of 64-bit words, which the native runtime evaluates.

A machine with a stack: CONST and SYM push, every other word pops its operands (the last is on top)
and pushes its result. What occurs several times is computed once: KEEP remembers what is on top, in
the order of these words, and RECALL pushes it again. The words of the operations are the values of
`Operation`. May import `expr`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tilewright.shape.expr import Atom, Expr, Monomial
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

SYM, ADD = Operation.SYMBOL.value, Operation.ADD.value
MINIMUM, SELECT = Operation.MINIMUM.value, Operation.SELECT.value
# Words that are no operation of an atom. A test compares all with those of `expression.cpp`.
CONST, SUB, MUL, LESS_THAN, KEEP, RECALL = 0, 3, 4, 10, 17, 18
LEAST, MOST = -(2**63), 2**63 - 1  # numbers with which a call computes
_FOLDED = {Operation.MINIMUM, Operation.MAXIMUM, Operation.AND, Operation.OR}

_Part = Expr | Monomial | Atom


def encode(expression: Expr, slots: Mapping[str, int]) -> tuple[int, ...]:
    """The words that compute the expression from the symbol values in `slots`.

    :class:`DimensionError` where a symbol has no slot or a constant does not fit 64 bits.
    """
    encoder = _Encoder(slots)
    encoder.count(expression)
    encoder.sum(expression)
    return tuple(encoder.words)


def encode_least(expressions: Sequence[Expr], slots: Mapping[str, int]) -> tuple[int, ...]:
    """The words that compute the position of the least, the first of equals; errors as above."""
    encoder = _Encoder(slots)
    for expression in expressions:
        encoder.count(expression)
        encoder.count(expression)  # each is compared, and may be what others are compared with
    encoder.position(expressions, len(expressions) - 1)
    return tuple(encoder.words)


class _Encoder:
    """Writes words; :meth:`count` has to see everything first."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = slots
        self.words: list[int] = []
        self.uses: Counter[_Part] = Counter()
        self.kept: dict[_Part | int, int] = {}

    # ------------------------------------------------------------ how often parts occur

    def count(self, expression: Expr) -> None:
        """Count the parts of an expression that will be written."""
        if expression.is_constant or self._is_known(expression):
            return
        for monomial, _ in expression.terms:
            if not self._is_known(monomial):
                for atom in monomial.atoms:
                    self._count_atom(atom)

    def _is_known(self, part: _Part) -> bool:
        self.uses[part] += 1
        return self.uses[part] > 1

    def _count_atom(self, atom: Atom) -> None:
        if atom.operation is not Operation.SYMBOL and not self._is_known(atom):
            for operand in _operands(atom)[1]:
                self.count(operand)

    # ------------------------------------------------------------ words

    def push(self, value: int) -> None:
        """A constant."""
        if not LEAST <= value <= MOST:
            raise DimensionError(f"the constant {value} does not fit a signed 64-bit integer")
        self.words += (CONST, value)

    def sum(self, expression: Expr) -> None:
        """The value of an expression."""
        if expression.is_constant:
            self.push(expression.value)
        else:
            self._shared(expression, lambda: self._terms(expression))

    def position(self, expressions: Sequence[Expr], last: int) -> None:
        """Which of the expressions up to ``last`` is the least."""
        if last == 0:
            self.push(0)
            return
        self.sum(expressions[last])
        self._least(expressions, last - 1)
        self.words.append(LESS_THAN)
        self.push(last)
        self.position(expressions, last - 1)
        self.words.append(SELECT)

    def _least(self, expressions: Sequence[Expr], last: int) -> None:
        """The least of the expressions up to ``last``."""
        if last in self.kept:
            self.words += (RECALL, self.kept[last])
            return
        self.sum(expressions[last])
        if last:
            self._least(expressions, last - 1)
            self.words.append(MINIMUM)
            self._keep(last)

    def _shared(self, part: _Part, write: Callable[[], None]) -> None:
        """Write a part, or recall it; it is kept if it occurs again and is worth that."""
        if part in self.kept:
            self.words += (RECALL, self.kept[part])
            return
        before = len(self.words)
        write()
        if self.uses[part] > 1 and len(self.words) > before + 2:
            self._keep(part)

    def _keep(self, part: _Part | int) -> None:
        self.kept[part] = len(self.kept)
        self.words.append(KEEP)

    def _terms(self, expression: Expr) -> None:
        # A term that is added comes first, so that a difference needs no negation.
        terms = sorted(expression.terms, key=lambda term: term[1] < 0)
        for position, (monomial, coefficient) in enumerate(terms):
            negative = position > 0 and coefficient < 0
            size = -coefficient if negative else coefficient
            if not monomial.atoms:
                self.push(size)
            else:
                self._shared(monomial, lambda atoms=monomial.atoms: self._product(atoms))
                if size != 1:
                    self.push(size)
                    self.words.append(MUL)
            if position:
                self.words.append(SUB if negative else ADD)

    def _product(self, atoms: Sequence[Atom]) -> None:
        for index, atom in enumerate(atoms):
            if atom.operation is Operation.SYMBOL:
                self._symbol(atom)
            else:
                self._shared(atom, lambda atom=atom: self._application(atom))
            if index:
                self.words.append(MUL)

    def _symbol(self, atom: Atom) -> None:
        if atom.name not in self.slots:
            raise DimensionError(
                f'dimension "{atom.name}" has no slot in the table of symbols',
                hint="bind the symbol from an input's shape or a computed size first",
            )
        self.words += (SYM, self.slots[atom.name])

    def _application(self, atom: Atom) -> None:
        word, operands = _operands(atom)
        for position, operand in enumerate(operands):
            self.sum(operand)
            if atom.operation in _FOLDED and position:
                self.words.append(word)
        if atom.operation not in _FOLDED:
            self.words.append(word)


def _operands(atom: Atom) -> tuple[int, tuple[Expr, ...]]:
    """The word of an application and what it is applied to: a < b instead of a + 1 <= b."""
    operands = atom.operands
    if atom.operation is Operation.LESS_EQUAL and operands[0].constant_term == 1:
        return LESS_THAN, (operands[0] - 1, operands[1])
    return atom.operation.value, operands
