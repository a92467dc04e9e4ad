"""The values of expressions where every symbol has one.

Expressions share many of their atoms, so an atom is evaluated once for all expressions that are
evaluated together. Start with :func:`evaluate_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

if TYPE_CHECKING:
    from tilewright.shape.expr import Atom, Expr

_MEANINGS: dict[Operation, Callable[[Sequence[int]], int]] = {
    Operation.FLOORDIV: lambda values: values[0] // values[1],
    Operation.MOD: lambda values: values[0] % values[1],
    Operation.CEILDIV: lambda values: -(-values[0] // values[1]),
    Operation.MINIMUM: min,
    Operation.MAXIMUM: max,
    Operation.EQUAL: lambda values: int(values[0] == values[1]),
    Operation.LESS_EQUAL: lambda values: int(values[0] <= values[1]),
    Operation.SELECT: lambda values: values[1] if values[0] else values[2],
    Operation.AND: lambda values: int(all(values)),
    Operation.OR: lambda values: int(any(values)),
    Operation.NOT: lambda values: int(not values[0]),
}


def evaluate_all(expressions: Iterable[Expr], environment: Mapping[str, int]) -> list[int]:
    """The values of several expressions as :meth:`Expr.evaluate` gives each."""
    known: dict[Atom, int] = {}
    return [evaluate(expression, environment, known) for expression in expressions]


def evaluate(expression: Expr, environment: Mapping[str, int], known: dict[Atom, int]) -> int:
    """The value of an expression; ``known`` has the atoms that were evaluated, and gets others."""
    value = 0
    for monomial, coefficient in expression.terms:
        for atom in monomial.atoms:
            found = known.get(atom)
            if found is None:
                found = known[atom] = _evaluate_atom(atom, environment, known)
            coefficient *= found
        value += coefficient
    return value


def _evaluate_atom(atom: Atom, environment: Mapping[str, int], known: dict[Atom, int]) -> int:
    if atom.operation is Operation.SYMBOL:
        if atom.name not in environment:
            raise DimensionError(
                f'dimension "{atom.name}" has no value',
                hint="give the value of every symbol of the expression",
            )
        return environment[atom.name]
    values = [evaluate(operand, environment, known) for operand in atom.operands]
    try:
        return _MEANINGS[atom.operation](values)
    except ZeroDivisionError:
        names = sorted({name for operand in atom.operands for name in operand.free_symbols})
        raise DimensionError(
            f"division by zero in {atom.text}",
            where=", ".join(f"{name} = {environment[name]}" for name in names),
            hint="declare a lower bound of 1 for the dimension that divides",
        ) from None


def evaluate_operation(operation: Operation, values: Sequence[int]) -> int:
    """What the operation does to integers; ZeroDivisionError as Python's `//` and `%`."""
    return _MEANINGS[operation](values)
