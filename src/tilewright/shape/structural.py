"""The rules applied as an expression is built; they need no facts about its symbols.

Each function is one rule: its formula and precondition stand in its decorator, and tests prove it.
A rule returns None where it does not fit. Divisors are never zero: a constant zero is refused, and
a symbolic one is the evaluator's error. Rules are tried in the order of the table.
"""

from __future__ import annotations

from math import gcd
from operator import attrgetter

from tilewright.shape.evaluation import evaluate_operation
from tilewright.shape.expr import (
    Expr,
    Monomial,
    apply_operation,
    as_expr,
    constant,
    from_terms,
)
from tilewright.shape.table import Operation, structural_rule
from tilewright.support.errors import DimensionError

Operands = tuple[Expr, ...]
FLOORDIV, MOD, CEILDIV = Operation.FLOORDIV, Operation.MOD, Operation.CEILDIV
MINIMUM, MAXIMUM = Operation.MINIMUM, Operation.MAXIMUM
EQUAL, LESS_EQUAL, SELECT = Operation.EQUAL, Operation.LESS_EQUAL, Operation.SELECT
AND, OR, NOT = Operation.AND, Operation.OR, Operation.NOT


def content(expression: Expr) -> int:
    """The greatest common divisor of the coefficients, the constant term left out."""
    return gcd(*(size for monomial, size in expression.terms if monomial.atoms))


def split_multiples(expression: Expr, divisor: int) -> tuple[Expr, Expr]:
    """(k, r) with expression = divisor*k + r and r's coefficients reduced, for `divisor` > 0.

    Coefficients are cut towards zero, so that a small negative one stays what it is; the constant
    term of r lies in 0..divisor-1.
    """
    multiples: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, size in expression.terms:
        cut_up = size < 0 and bool(monomial.atoms)
        quotient = -(-size // divisor) if cut_up else size // divisor
        multiples[monomial] = quotient
        rest[monomial] = size - quotient * divisor
    return from_terms(multiples), from_terms(rest)


def _divisor(operands: Operands) -> int:
    """The divisor if it is a positive constant, else 0."""
    return max(operands[1].value, 0) if operands[1].is_constant else 0


def _divided(expression: Expr, divisor: int) -> Expr:
    return from_terms({monomial: size // divisor for monomial, size in expression.terms})


# --- every operation -----------------------------------------------------------------------------


@structural_rule(FLOORDIV, MOD, CEILDIV, formula="a / 0 is refused")
def refuse_zero_divisor(operation: Operation, operands: Operands) -> Expr | None:
    if operands[1].is_constant and operands[1].value == 0:
        raise DimensionError(
            f"{operands[0]} is divided by zero",
            hint="divide by a dimension that is declared with a lower bound of 1",
        )
    return None


@structural_rule(
    *(operation for operation in Operation if operation > Operation.ADD),
    formula="f(constants) = the value",
    precondition="no division by zero",
)
def fold_constants(operation: Operation, operands: Operands) -> Expr | None:
    for operand in operands:
        if not operand.is_constant:
            return None
    return constant(evaluate_operation(operation, [operand.value for operand in operands]))


# --- division ------------------------------------------------------------------------------------


@structural_rule(CEILDIV, formula="ceil_div(a, d) = (a + d - 1)//d", precondition="d > 0 constant")
def ceil_div_as_floor_div(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    return (operands[0] + (divisor - 1)) // divisor if divisor else None


@structural_rule(FLOORDIV, CEILDIV, formula="f(a, -d) = f(-a, d)", precondition="-d < 0 constant")
def quotient_by_negative(operation: Operation, operands: Operands) -> Expr | None:
    if operands[1].is_constant and operands[1].value < 0:
        return apply_operation(operation, (-operands[0], -operands[1]))
    return None


@structural_rule(MOD, formula="a % -d = -(-a % d)", precondition="-d < 0 constant")
def remainder_by_negative(operation: Operation, operands: Operands) -> Expr | None:
    if operands[1].is_constant and operands[1].value < 0:
        return -(-operands[0] % -operands[1])
    return None


@structural_rule(FLOORDIV, formula="(d*k + r)//d = k + r//d", precondition="d > 0 constant")
def quotient_of_multiples(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    if not divisor:
        return None
    multiples, rest = split_multiples(operands[0], divisor)
    return multiples + rest // divisor if multiples.terms else None


@structural_rule(MOD, formula="(d*k + r) % d = r % d", precondition="d > 0 constant")
def remainder_of_multiples(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    if not divisor:
        return None
    multiples, rest = split_multiples(operands[0], divisor)
    return rest % divisor if multiples.terms else None


@structural_rule(
    FLOORDIV,
    formula="(g*p + c)//(g*d) = (p + c//g)//d",
    precondition="g > 1 and d > 0 constant, c the constant term",
)
def quotient_with_common_factor(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    factor = gcd(divisor, content(operands[0])) if divisor else 1
    return _divided(operands[0], factor) // (divisor // factor) if factor > 1 else None


@structural_rule(
    MOD,
    formula="(g*p + c) % (g*d) = g*((p + c//g) % d) + c % g",
    precondition="g > 1 and d > 0 constant, c the constant term",
)
def remainder_with_common_factor(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    factor = gcd(divisor, content(operands[0])) if divisor else 1
    if factor <= 1:
        return None
    remainder = _divided(operands[0], factor) % (divisor // factor)
    return remainder * factor + operands[0].constant_term % factor


@structural_rule(
    FLOORDIV,
    formula="(x//a + c)//b = (x + a*c)//(a*b)",
    precondition="a > 0 and b > 0 constant, a*b fits 62 bits, since calls compute with 64",
)
def quotient_of_quotient(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    offset = operands[0].constant_term
    inner = (operands[0] - offset).atom
    if not divisor or inner is None or inner.operation is not FLOORDIV:
        return None
    inner_divisor = _divisor(inner.operands)
    if not inner_divisor or inner_divisor * divisor >= 1 << 62:
        return None
    return (inner.operands[0] + inner_divisor * offset) // (inner_divisor * divisor)


@structural_rule(
    FLOORDIV,
    formula="(x % (d*m))//d = (x//d) % m",
    precondition="d > 0 and m > 0 constant",
)
def quotient_of_remainder(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    inner = operands[0].atom
    if not divisor or inner is None or inner.operation is not MOD:
        return None
    modulus = _divisor(inner.operands)
    if not modulus or modulus % divisor:
        return None
    return (inner.operands[0] // divisor) % (modulus // divisor)


@structural_rule(
    MOD,
    formula="(k*(y % m) + r) % d = (k*y + r) % d",
    precondition="d > 0 and m > 0 constant, d divides k*m",
)
def remainder_of_remainder(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    if not divisor:
        return None
    for monomial, size in operands[0].terms:
        if len(monomial.atoms) == 1 and monomial.atoms[0].operation is MOD:
            value, modulus = monomial.atoms[0].operands
            if modulus.is_constant and (size * modulus.value) % divisor == 0:
                remainder = from_terms({monomial: size})
                return (operands[0] - remainder + value * size) % divisor
    return None


@structural_rule(
    FLOORDIV,
    formula="(f(k, a) + c)//d = f((k + c)//d, (a + c)//d)",
    precondition="f = min, max; k, c and d > 0 constant",
)
def quotient_of_extremes(operation: Operation, operands: Operands) -> Expr | None:
    divisor = _divisor(operands)
    offset = operands[0].constant_term
    inner = (operands[0] - offset).atom
    if not divisor or inner is None or inner.operation not in (MINIMUM, MAXIMUM):
        return None
    if not any(operand.is_constant for operand in inner.operands):
        return None
    quotients = tuple((operand + offset) // divisor for operand in inner.operands)
    return apply_operation(inner.operation, quotients)


# --- minimum and maximum -------------------------------------------------------------------------


@structural_rule(MINIMUM, MAXIMUM, formula="f(a, f(b, c)) = f(a, b, c)")
def flatten_extremes(operation: Operation, operands: Operands) -> Expr | None:
    flat: list[Expr] = []
    for operand in operands:
        atom = operand.atom
        flat.extend(atom.operands if atom and atom.operation is operation else (operand,))
    return apply_operation(operation, tuple(flat)) if len(flat) > len(operands) else None


@structural_rule(MINIMUM, MAXIMUM, formula="f(a, a + c) = a or a + c, by the sign of c")
def drop_constant_distance(operation: Operation, operands: Operands) -> Expr | None:
    first_with: dict[object, Expr] = {}
    for second in operands:
        offset = second.constant_term
        first = first_with.setdefault(second.terms[:-1] if offset else second.terms, second)
        if first is not second:
            larger = second if offset > first.constant_term else first
            smaller = first if larger is second else second
            dropped = larger if operation is MINIMUM else smaller
            kept = tuple(operand for operand in operands if operand is not dropped)
            return apply_operation(operation, kept)
    return None


@structural_rule(MINIMUM, MAXIMUM, formula="f(a, g(a, b)) = a", precondition="f, g = min, max")
def absorb_extremes(operation: Operation, operands: Operands) -> Expr | None:
    opposite = MAXIMUM if operation is MINIMUM else MINIMUM
    for operand in operands:
        atom = operand.atom
        if atom and atom.operation is opposite and not set(operands).isdisjoint(atom.operands):
            kept = tuple(other for other in operands if other is not operand)
            return apply_operation(operation, kept)
    return None


@structural_rule(
    MINIMUM,
    MAXIMUM,
    formula="f(a + c, b + d) = f(a, b + d - c) + c",
    precondition="c the least constant term of the operands that are no constants",
)
def extremes_without_offset(operation: Operation, operands: Operands) -> Expr | None:
    offset = min((o.constant_term for o in operands if not o.is_constant), default=0)
    if offset == 0:
        return None
    return apply_operation(operation, tuple(operand - offset for operand in operands)) + offset


@structural_rule(MINIMUM, MAXIMUM, AND, OR, formula="f(b, a, a) = f(a, b); f(a) = a")
def order_operands(operation: Operation, operands: Operands) -> Expr | None:
    ordered = tuple(sorted(dict.fromkeys(operands), key=attrgetter("key")))
    if len(ordered) == 1 and (operation in (MINIMUM, MAXIMUM) or ordered[0].is_boolean):
        return ordered[0]
    return apply_operation(operation, ordered) if ordered != operands else None


# --- comparisons ---------------------------------------------------------------------------------


def _sides(difference: Expr) -> tuple[Expr, Expr]:
    """(p, n) with difference = p - n and only positive coefficients in both."""
    positive = from_terms({monomial: max(size, 0) for monomial, size in difference.terms})
    return positive, positive - difference


@structural_rule(
    EQUAL,
    formula="(a == b) = (p == n) where g*(p - n) = ±(a - b), or 0 where that has no solution",
    precondition="g the content of a - b; p and n have no common term and positive coefficients",
)
def normalise_equal(operation: Operation, operands: Operands) -> Expr | None:
    difference = operands[0] - operands[1]
    if difference.is_constant:
        return constant(int(difference.value == 0))
    factor = content(difference)
    if difference.constant_term % factor:
        return constant(0)
    if difference.terms[0][1] < 0:
        factor = -factor
    sides = _sides(_divided(difference, factor))
    return apply_operation(operation, sides) if sides != operands else None


@structural_rule(EQUAL, formula="(b == 1) = b; (b == 0) = not b", precondition="b is 0 or 1")
def equality_of_boolean(operation: Operation, operands: Operands) -> Expr | None:
    condition, value = operands
    if not condition.is_boolean or not value.is_constant:
        return None
    if value.value not in (0, 1):
        return constant(0)
    return condition if value.value else apply_operation(NOT, (condition,))


@structural_rule(
    LESS_EQUAL,
    formula="(a <= b) = (n <= p) where p - n = (b - a)//g, rounded down in the constant term",
    precondition="g the content of b - a; p and n have no common term and positive coefficients",
)
def normalise_less_equal(operation: Operation, operands: Operands) -> Expr | None:
    difference = operands[1] - operands[0]
    if difference.is_constant:
        return constant(int(difference.value >= 0))
    right, left = _sides(_divided(difference, content(difference)))
    sides = (left, right)
    return apply_operation(operation, sides) if sides != operands else None


# --- logic ---------------------------------------------------------------------------------------


def _as_boolean(operand: Expr) -> Expr:
    """1 where the operand is non-zero, else 0."""
    if operand.is_boolean:
        return operand
    return apply_operation(NOT, (apply_operation(EQUAL, (operand, constant(0))),))


@structural_rule(AND, OR, formula="f(a, b) = f(a != 0, b != 0)")
def operands_to_boolean(operation: Operation, operands: Operands) -> Expr | None:
    truths = tuple(_as_boolean(operand) for operand in operands)
    return apply_operation(operation, truths) if truths != operands else None


@structural_rule(AND, OR, formula="f(a, f(b, c)) = f(a, b, c); and(1, a) = a; or(1, a) = 1, …")
def flatten_logic(operation: Operation, operands: Operands) -> Expr | None:
    neutral = constant(int(operation is AND))
    flat: list[Expr] = []
    for operand in operands:
        atom = operand.atom
        if operand.is_constant and operand is not neutral:
            return operand
        if atom is not None and atom.operation is operation:
            flat.extend(atom.operands)
        elif operand is not neutral:
            flat.append(operand)
    return apply_operation(operation, tuple(flat)) if tuple(flat) != operands else None


@structural_rule(AND, OR, formula="and(a, not a) = 0; or(a, not a) = 1")
def complement_logic(operation: Operation, operands: Operands) -> Expr | None:
    for operand in operands:
        if apply_operation(NOT, (operand,)) in operands:
            return constant(int(operation is OR))
    return None


@structural_rule(NOT, formula="not a = (a == 0)", precondition="a is not known to be 0 or 1")
def not_of_number(operation: Operation, operands: Operands) -> Expr | None:
    if operands[0].is_boolean:
        return None
    return apply_operation(EQUAL, (operands[0], constant(0)))


@structural_rule(NOT, formula="not not a = a", precondition="a is 0 or 1")
def not_of_not(operation: Operation, operands: Operands) -> Expr | None:
    atom = operands[0].atom
    return atom.operands[0] if atom is not None and atom.operation is NOT else None


@structural_rule(NOT, formula="not (a <= b) = (b + 1 <= a)")
def not_of_less_equal(operation: Operation, operands: Operands) -> Expr | None:
    atom = operands[0].atom
    if atom is None or atom.operation is not LESS_EQUAL:
        return None
    return apply_operation(LESS_EQUAL, (atom.operands[1] + 1, atom.operands[0]))


@structural_rule(SELECT, formula="select(c, a, a) = a; select(1, a, b) = a; select(0, a, b) = b")
def select_decided(operation: Operation, operands: Operands) -> Expr | None:
    condition, chosen, otherwise = operands
    if chosen is otherwise:
        return chosen
    if condition.is_constant:
        return chosen if condition.value else otherwise
    return None


@structural_rule(SELECT, formula="select(c, a, b) = select(c != 0, a, b)")
def select_by_boolean(operation: Operation, operands: Operands) -> Expr | None:
    condition, chosen, otherwise = operands
    if condition.is_boolean:
        return None
    return apply_operation(operation, (_as_boolean(condition), chosen, otherwise))


@structural_rule(SELECT, formula="select(not c, a, b) = select(c, b, a); select(c, 1, 0) = c")
def select_of_boolean(operation: Operation, operands: Operands) -> Expr | None:
    condition, chosen, otherwise = operands
    atom = condition.atom
    if atom is not None and atom.operation is NOT:
        return apply_operation(operation, (atom.operands[0], otherwise, chosen))
    if chosen is as_expr(1) and otherwise is as_expr(0):
        return condition
    return None
