"""The rules of `Scope.resolve`: their preconditions are proved from facts about the symbols.

As in `structural.py`, each function is one rule with its formula and its precondition; tests prove
it. The operands are resolved already. May import `structural` and `facts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.shape.expr import (
    Atom,
    Expr,
    Monomial,
    apply_operation,
    constant,
    from_atoms,
    from_terms,
)
from tilewright.shape.facts import Prover
from tilewright.shape.interval import Interval, apply_to_intervals
from tilewright.shape.structural import (
    CEILDIV,
    EQUAL,
    FLOORDIV,
    LESS_EQUAL,
    MAXIMUM,
    MINIMUM,
    MOD,
    SELECT,
    Operands,
)
from tilewright.shape.table import Operation, scoped_rule

ADD = Operation.ADD


def divide_polynomials(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    """(k, r) with numerator = k*denominator + r, by long division on the leading term.

    Terms whose coefficient or atoms the leading term does not divide stay in the remainder.
    """
    lead, lead_size = denominator.terms[0]
    quotient = rest = constant(0)
    left = numerator
    while left.terms:
        monomial, size = left.terms[0]
        factor = None if size % lead_size else _divide_monomials(monomial, lead)
        if factor is None:
            term = from_terms({monomial: size})
            rest, left = rest + term, left - term
        else:
            term = factor * (size // lead_size)
            quotient, left = quotient + term, left - term * denominator
    return quotient, rest


def _divide_monomials(dividend: Monomial, divisor: Monomial) -> Expr | None:
    left = list(dividend.atoms)
    for atom in divisor.atoms:
        if atom not in left:
            return None
        left.remove(atom)
    return from_atoms(left)


def exact_quotient(numerator: Expr, denominator: Expr) -> Expr | None:
    """The polynomial q with numerator = q*denominator, or None where there is none.

    The identity holds for every value of the symbols; for a non-zero denominator q is the quotient.
    """
    if not denominator.terms:
        return None
    quotient, rest = divide_polynomials(numerator, denominator)
    return None if rest.terms else quotient


# --- division ------------------------------------------------------------------------------------


@scoped_rule(
    FLOORDIV, MOD, CEILDIV, MINIMUM, MAXIMUM,
    formula="f(…) = c", precondition="the bounds of the result are c..c",
)  # fmt: skip
def decided_by_bounds(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    result = apply_to_intervals(operation, [facts.interval(operand) for operand in operands])
    return constant(result.low) if result.is_point and result.low is not None else None


@scoped_rule(
    FLOORDIV, CEILDIV,
    formula="f(k*q + r, q) = k + f(r, q)", precondition="q != 0",
)  # fmt: skip
def quotient_of_symbolic_multiples(
    operation: Operation, operands: Operands, facts: Prover
) -> Expr | None:
    numerator, denominator = operands
    if denominator.is_constant:
        return None
    quotient, rest = divide_polynomials(numerator, denominator)
    if len(rest.terms) >= len(numerator.terms) or not facts.proves_nonzero(denominator, operands):
        return None
    return quotient + (apply_operation(operation, (rest, denominator)) if rest.terms else 0)


@scoped_rule(MOD, formula="(k*q + r) % q = r % q", precondition="q != 0")
def remainder_of_symbolic_multiples(
    operation: Operation, operands: Operands, facts: Prover
) -> Expr | None:
    numerator, denominator = operands
    if denominator.is_constant:
        return None
    _, rest = divide_polynomials(numerator, denominator)
    if len(rest.terms) >= len(numerator.terms) or not facts.proves_nonzero(denominator, operands):
        return None
    return rest % denominator if rest.terms else rest


@scoped_rule(FLOORDIV, formula="p//q = 0", precondition="0 <= p < q")
def quotient_of_smaller(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    return constant(0) if _is_remainder(operands, facts) else None


@scoped_rule(MOD, formula="p % q = p", precondition="0 <= p < q")
def remainder_of_smaller(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    return operands[0] if _is_remainder(operands, facts) else None


def _is_remainder(operands: Operands, facts: Prover) -> bool:
    numerator, denominator = operands
    return facts.proves_nonnegative(numerator, operands) and facts.proves_nonnegative(
        denominator - numerator - 1, operands
    )


@scoped_rule(CEILDIV, formula="ceil_div(p, q) = 1", precondition="0 < p <= q")
def ceiling_of_smaller(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    numerator, denominator = operands
    if facts.proves_nonnegative(numerator - 1, operands) and facts.proves_nonnegative(
        denominator - numerator, operands
    ):
        return constant(1)
    return None


@scoped_rule(MOD, formula="p % d = 0", precondition="d > 0 constant, d divides p")
def remainder_of_divisible(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    divisor = _positive(operands[1])
    return constant(0) if divisor and _divides(divisor, operands[0], facts) else None


@scoped_rule(
    FLOORDIV, MOD,
    formula="f(s + r, d) = f(s, d) + f(r, d)", precondition="d > 0 constant, d divides s",
)  # fmt: skip
def split_off_divisible(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    numerator, denominator = operands
    divisor = _positive(denominator)
    if not divisor or len(numerator.terms) < 2:
        return None
    divisible: dict[Monomial, int] = {}
    for monomial, size in numerator.terms:
        if monomial.atoms and _divides(divisor, from_terms({monomial: size}), facts):
            divisible[monomial] = size
    part = from_terms(divisible)
    if not divisible or part is numerator:
        return None
    return apply_operation(operation, (part, denominator)) + apply_operation(
        operation, (numerator - part, denominator)
    )


@scoped_rule(
    FLOORDIV,
    formula="(g*s + r)//(g*q) = s//q",
    precondition="g > 0 one term, g*q > 0, 0 <= r < g",
)
def quotient_of_scaled_index(
    operation: Operation, operands: Operands, facts: Prover
) -> Expr | None:
    found = _scaled_index(operands, facts)
    return None if found is None else found.index // found.denominator


@scoped_rule(
    MOD,
    formula="(g*s + r) % (g*q) = g*(s % q) + r",
    precondition="g > 0 one term, g*q > 0, 0 <= r < g",
)
def remainder_of_scaled_index(
    operation: Operation, operands: Operands, facts: Prover
) -> Expr | None:
    found = _scaled_index(operands, facts)
    if found is None:
        return None
    return (found.index % found.denominator) * found.scale + found.rest


@dataclass(frozen=True)
class _ScaledIndex:
    """g, s, r and q of the two rules above."""

    scale: Expr
    index: Expr
    rest: Expr
    denominator: Expr


def _scaled_index(operands: Operands, facts: Prover) -> _ScaledIndex | None:
    """Numerator and denominator as multiples of the greatest common scale, or None."""
    numerator, denominator = operands
    positive = denominator.is_constant and denominator.value > 0
    for scale in _common_factors(numerator, denominator):
        index, rest = divide_polynomials(numerator, scale)
        if scale.is_constant:
            index += rest.constant_term // scale.value
            rest = numerator - index * scale
        if (
            facts.proves_nonnegative(rest, operands)
            and facts.proves_nonnegative(scale - 1 - rest, operands)
            and (positive or _is_above_zero(denominator, operands, facts))
        ):
            quotient, _ = divide_polynomials(denominator, scale)
            return _ScaledIndex(scale, index, rest, quotient)
    return None


def _is_above_zero(expression: Expr, operands: Operands, facts: Prover) -> bool:
    return facts.proves_nonnegative(expression) and facts.proves_nonzero(expression, operands)


def _common_factors(numerator: Expr, denominator: Expr) -> list[Expr]:
    """Single terms that divide the denominator and a term of the numerator, the longest first."""
    if not denominator.terms:
        return []
    size = gcd(*(size for _, size in denominator.terms))
    atoms = denominator.terms[0][0].atoms
    for monomial, _ in denominator.terms[1:]:
        atoms = _shared_atoms(atoms, monomial.atoms)
    found: dict[tuple[int, int, Expr], None] = {}
    for monomial, times in numerator.terms:
        if monomial.atoms:
            shared, factor = _shared_atoms(monomial.atoms, atoms), gcd(times, size)
            if shared or factor > 1:
                found[len(shared), factor, from_atoms(shared) * factor] = None
    return [scale for *_, scale in sorted(found, key=lambda f: f[:2], reverse=True)]


def _shared_atoms(first: tuple[Atom, ...], second: tuple[Atom, ...]) -> tuple[Atom, ...]:
    left, shared = list(second), list[Atom]()
    for atom in first:
        if atom in left:
            left.remove(atom)
            shared.append(atom)
    return tuple(shared)


def _divides(divisor: int, expression: Expr, facts: Prover) -> bool:
    return facts.known_divisor(expression) % divisor == 0


def _positive(denominator: Expr) -> int:
    return max(denominator.value, 0) if denominator.is_constant else 0


# --- minimum, maximum, comparisons ---------------------------------------------------------------


@scoped_rule(MINIMUM, MAXIMUM, formula="min(a, b) = a; max(a, b) = b", precondition="a <= b")
def drop_dominated(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    for first in operands:
        for second in operands:
            if first is not second and facts.proves_nonnegative(second - first, operands):
                dropped = second if operation is MINIMUM else first
                kept = tuple(operand for operand in operands if operand is not dropped)
                return apply_operation(operation, kept)
    return None


@scoped_rule(EQUAL, formula="(a == b) = 0", precondition="a != b")
def unequal(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    difference = operands[0] - operands[1]
    return constant(0) if facts.proves_nonzero(difference, operands) else None


@scoped_rule(EQUAL, formula="(p == c) = 0", precondition="g > 1 divides p, but not c")
def unequal_by_divisibility(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    difference = operands[0] - operands[1]
    divisor = facts.known_divisor(difference - difference.constant_term)
    surely = divisor > 1 and difference.constant_term % divisor != 0
    return constant(0) if surely else None


@scoped_rule(LESS_EQUAL, formula="(a <= b) = 1", precondition="a <= b")
def surely_less_equal(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    difference = operands[1] - operands[0]
    return constant(1) if facts.proves_nonnegative(difference, operands) else None


@scoped_rule(LESS_EQUAL, formula="(a <= b) = 0", precondition="b < a")
def surely_greater(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    difference = operands[0] - operands[1]
    return constant(0) if facts.proves_nonnegative(difference - 1, operands) else None


@scoped_rule(SELECT, formula="select(p == q, a, b) = b", precondition="a = b where p = q")
def select_of_equals(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    condition, chosen, otherwise = operands
    atom = condition.atom
    if atom is None or atom.operation is not EQUAL:
        return None
    where_equal = facts.where(atom.operands[0] - atom.operands[1], Interval(0, 0))
    if where_equal is None or where_equal.interval(chosen - otherwise) == Interval(0, 0):
        return otherwise
    return None


# --- sums ----------------------------------------------------------------------------------------


@scoped_rule(ADD, formula="c*(p//d) + … = (c/d)*p + …", precondition="d > 0 divides c and p")
def multiple_of_exact_quotient(
    operation: Operation, operands: Operands, facts: Prover
) -> Expr | None:
    expression = operands[0]
    for monomial, size in expression.terms:
        for position, atom in enumerate(monomial.atoms):
            if atom.operation is not FLOORDIV:
                continue
            numerator, divisor = atom.operands[0], _positive(atom.operands[1])
            if divisor and size % divisor == 0 and _divides(divisor, numerator, facts):
                others = monomial.atoms[:position] + monomial.atoms[position + 1 :]
                exact = from_atoms(others) * numerator * (size // divisor)
                return expression - from_terms({monomial: size}) + exact
    return None


@scoped_rule(ADD, formula="c*d*(p//d) + c*(p % d) = c*p", precondition="d != 0")
def quotient_and_remainder(operation: Operation, operands: Operands, facts: Prover) -> Expr | None:
    expression = operands[0]
    for monomial, size in expression.terms:
        for position, atom in enumerate(monomial.atoms):
            if atom.operation is not MOD:
                continue
            numerator, divisor = atom.operands
            others = monomial.atoms[:position] + monomial.atoms[position + 1 :]
            quotient = apply_operation(FLOORDIV, (numerator, divisor))
            multiple = from_atoms(others) * size * divisor * quotient
            if multiple.terms and dict(multiple.terms).items() <= dict(expression.terms).items():
                remainder = from_terms({monomial: size})
                return expression - multiple - remainder + from_atoms(others) * numerator * size
    return None
