"""The functions that build expressions other than by operators.

Arguments are `Expr` or `int`; results are canonical. May import `expr`. Truth is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.shape.expr import (
    Atom,
    Expr,
    apply_operation,
    as_expr,
    constant,
    rebuild,
)
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

_DIVISIONS = (Operation.FLOORDIV, Operation.MOD, Operation.CEILDIV)


def _operands(values: Iterable[int | Expr], name: str) -> tuple[Expr, ...]:
    operands = tuple(as_expr(value) for value in values)
    if not operands:
        raise DimensionError(f"{name} of no expressions", hint="give at least one operand")
    return operands


def ceil_div(numerator: int | Expr, denominator: int | Expr) -> Expr:
    """The quotient rounded up, for divisors of either sign."""
    return apply_operation(Operation.CEILDIV, (as_expr(numerator), as_expr(denominator)))


def minimum(*values: int | Expr) -> Expr:
    """The least of one or more values."""
    return apply_operation(Operation.MINIMUM, _operands(values, "the minimum"))


def maximum(*values: int | Expr) -> Expr:
    """The greatest of one or more values."""
    return apply_operation(Operation.MAXIMUM, _operands(values, "the maximum"))


def product(values: Iterable[int | Expr]) -> Expr:
    """The product of any number of values; 1 of none."""
    result = constant(1)
    for value in values:
        result = result * value
    return result


def total(values: Iterable[int | Expr]) -> Expr:
    """The sum of any number of values; 0 of none."""
    result = constant(0)
    for value in values:
        result = result + value
    return result


def equal(left: int | Expr, right: int | Expr) -> Expr:
    """1 where the two are equal, else 0."""
    return apply_operation(Operation.EQUAL, (as_expr(left), as_expr(right)))


def less_equal(left: int | Expr, right: int | Expr) -> Expr:
    """1 where left <= right, else 0."""
    return apply_operation(Operation.LESS_EQUAL, (as_expr(left), as_expr(right)))


def less(left: int | Expr, right: int | Expr) -> Expr:
    """1 where left < right, else 0. Canonical form: left + 1 <= right."""
    return less_equal(as_expr(left) + 1, right)


def logical_and(*values: int | Expr) -> Expr:
    """1 where every value is non-zero, else 0; 1 of none."""
    return apply_operation(Operation.AND, tuple(as_expr(value) for value in values))


def logical_or(*values: int | Expr) -> Expr:
    """1 where some value is non-zero, else 0; 0 of none."""
    return apply_operation(Operation.OR, tuple(as_expr(value) for value in values))


def logical_not(value: int | Expr) -> Expr:
    """1 where the value is zero, else 0."""
    return apply_operation(Operation.NOT, (as_expr(value),))


def select(condition: int | Expr, chosen: int | Expr, otherwise: int | Expr) -> Expr:
    """`chosen` where the condition is non-zero, else `otherwise`; both are evaluated."""
    operands = (as_expr(condition), as_expr(chosen), as_expr(otherwise))
    return apply_operation(Operation.SELECT, operands)


def with_positive_divisors(expression: Expr) -> Expr:
    """The same where every divisor is at least 1; a symbolic divisor that is less counts as 1.

    For an expression of the inside of a loop that is evaluated where the loop does not run at all.
    """
    return _with_positive_divisors(expression, {})


def _with_positive_divisors(expression: Expr, done: dict[Atom, Expr | None]) -> Expr:
    """``done`` has what each atom becomes, None where it stays."""
    replace: dict[Atom, Expr] = {}
    for monomial, _ in expression.terms:
        for atom in monomial.atoms:
            if not atom.operands:
                continue
            if atom not in done:
                operands = [_with_positive_divisors(operand, done) for operand in atom.operands]
                if atom.operation in _DIVISIONS and not operands[1].is_constant:
                    operands[1] = maximum(operands[1], 1)
                made = tuple(operands)
                stays = made == atom.operands
                done[atom] = None if stays else apply_operation(atom.operation, made)
            changed = done[atom]
            if changed is not None:
                replace[atom] = changed
    return rebuild(expression, replace) if replace else expression
