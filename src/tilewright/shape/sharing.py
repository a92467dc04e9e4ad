"""Parts of an expression that occur several times, each under a name of its own.

A price is a graph in which parts are shared again and again: its text, which writes a part at every
place, may be thousands of times as long as the graph is large. Start with :func:`shared_parts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tilewright.shape.expr import Atom, Expr, from_application, from_atoms, from_products, symbol
from tilewright.shape.table import Operation

_Part = Expr | Atom


def shared_parts(
    expression: Expr, name: Callable[[Expr, int], str | None]
) -> tuple[list[tuple[str, Expr]], Expr]:
    """Names with what they stand for, those that others are made of first, and the expression.

    ``name`` is asked once for each part: it gets the part and at how many places of others it
    stands, and returns the symbol that stands for it, or None where the part is written out.
    Symbols may be operands that no rule would leave where they are: the results are for printing.
    """
    sharing = _Sharing(name)
    sharing.count(expression)
    written = sharing.expression(expression)
    return sharing.named, written


class _Sharing:
    """Puts symbols in the place of parts; :meth:`count` has to see everything first."""

    def __init__(self, name: Callable[[Expr, int], str | None]) -> None:
        self.named: list[tuple[str, Expr]] = []
        self._name = name
        self._uses: Counter[_Part] = Counter()
        self._known: dict[_Part, Expr] = {}

    def count(self, expression: Expr) -> None:
        """Count how often each part is an operand, or a factor, of another one."""
        part = _part(expression)
        self._uses[part] += 1
        if self._uses[part] > 1:
            return
        if isinstance(part, Atom):
            self._count_operands(part)
            return
        for monomial, _ in part.terms:
            for atom in monomial.atoms:
                self._uses[atom] += 1
                if self._uses[atom] == 1:
                    self._count_operands(atom)

    def _count_operands(self, atom: Atom) -> None:
        for operand in atom.operands:
            self.count(operand)

    def expression(self, expression: Expr) -> Expr:
        """The expression with symbols for what is named within it, or for itself."""
        part = _part(expression)
        if isinstance(part, Atom):
            return self._atom(part)
        if part not in self._known:
            terms = [
                (tuple(_factor(self._atom(atom)) for atom in monomial.atoms), coefficient)
                for monomial, coefficient in part.terms
            ]
            self._known[part] = self._shared(part, part, from_products(terms))
        return self._known[part]

    def _atom(self, atom: Atom) -> Expr:
        if atom not in self._known:
            if atom.operation is Operation.SYMBOL:
                self._known[atom] = symbol(atom.name)
            else:
                operands = tuple(map(self.expression, atom.operands))
                made = from_application(atom.operation, operands)
                self._known[atom] = self._shared(atom, from_atoms((atom,)), made)
        return self._known[atom]

    def _shared(self, part: _Part, meant: Expr, made: Expr) -> Expr:
        if made.is_constant:
            return made
        name = self._name(meant, self._uses[part])
        if name is None:
            return made
        self.named.append((name, made))
        return symbol(name)


def _part(expression: Expr) -> _Part:
    """The atom that an expression is, or itself."""
    return expression.atom or expression


def _factor(expression: Expr) -> Atom:
    atom = expression.atom
    assert atom is not None, "an atom stays one"
    return atom


__all__ = ["shared_parts"]
