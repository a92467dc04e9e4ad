"""Expressions as a list of plain values, in which each part is written once and read in no time.

A row of the list is one expression: an integer, the name of a symbol, ``[operation, …]`` with the
numbers of the rows that are its operands, or ``[0, [coefficient, …], …]``, a sum of products of
atoms, which are rows, too. Rows refer to rows before them. What is read was canonical when it was
written, so that no rule has to be tried again. May import `expr`. Start with :class:`Listing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from tilewright.shape.expr import Atom, Expr, constant, from_application, from_products, symbol
from tilewright.shape.table import Operation

_SUM = 0  # the kind of row that is a sum; those of functions are numbers of ``Operation``
# How many operands the operations have that do not take any number from one on.
_ARITIES: Mapping[Operation, int] = {
    Operation.FLOORDIV: 2,
    Operation.MOD: 2,
    Operation.EQUAL: 2,
    Operation.LESS_EQUAL: 2,
    Operation.SELECT: 3,
    Operation.CEILDIV: 2,
    Operation.NOT: 1,
}
_APPLICATIONS = {
    operation.value: operation
    for operation in Operation
    if operation not in (Operation.SYMBOL, Operation.ADD)
}


class Listing:
    """Writes expressions; equal parts of all of them are one row of ``rows``."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Expr | Atom, int] = {}

    def number(self, expression: Expr) -> int:
        """The row of an expression, which is added with all its parts unless it is there."""
        found = self._numbers.get(expression)
        if found is None:
            atom = expression.atom
            if expression.is_constant:
                found = self._add(expression.value)
            elif atom is not None:
                found = self._atom(atom)
            else:
                terms = [[c, *map(self._atom, m.atoms)] for m, c in expression.terms]
                found = self._add([_SUM, *terms])
            self._numbers[expression] = found
        return found

    def _atom(self, atom: Atom) -> int:
        found = self._numbers.get(atom)
        if found is None:
            if atom.operation is Operation.SYMBOL:
                found = self._add(atom.name)
            else:
                operands = [self.number(operand) for operand in atom.operands]
                found = self._add([atom.operation.value, *operands])
            self._numbers[atom] = found
        return found

    def _add(self, row: Any) -> int:
        self.rows.append(row)
        return len(self.rows) - 1


def read_listing(rows: Iterable[Any]) -> list[Expr]:
    """The expression of each row.

    ValueError, TypeError, IndexError or DimensionError where a row is none, as in a damaged file.
    """
    found: list[Expr] = []
    for row in rows:
        if isinstance(row, str):
            found.append(symbol(row))
        elif isinstance(row, list):
            found.append(_read(cast("list[Any]", row), found))
        else:
            found.append(constant(_integer(row)))
    return found


def _read(row: list[Any], found: list[Expr]) -> Expr:
    kind = _integer(row[0])
    if kind == _SUM:
        return from_products(
            (tuple(_atom(found[_row(n)]) for n in term[1:]), _integer(term[0])) for term in row[1:]
        )
    operation = _APPLICATIONS.get(kind)
    operands = tuple(found[_row(number)] for number in row[1:])
    if operation is None or not operands or _ARITIES.get(operation, len(operands)) != len(operands):
        raise ValueError(f"{row!r} is no application")
    return from_application(operation, operands)


def _atom(expression: Expr) -> Atom:
    atom = expression.atom
    if atom is None:
        raise ValueError(f"{expression} is no atom")
    return atom


def _row(number: Any) -> int:
    if _integer(number) < 0:
        raise ValueError(f"there is no row {number}")
    return number


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"an integer is expected, not {value!r}")
    return value
