"""The functions that build expressions other than by operators.

Arguments are `Expr` or `int`; results are canonical. May import `expr`. Truth is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.shape.expr import Expr, apply_operation, as_expr, constant
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError


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
