"""Every rule of both tables, one by one: proved by z3 for all integers, and tried on small ones.

A case is an application and the facts under which its rule has to fire. The rule is called alone,
so that a case shows that this rule, and not another, made the step. Divisors are not zero; integers
may be negative.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import z3

from tilewright.shape import Expr, Scope, parse, symbol
from tilewright.shape.bounds import Bounds
from tilewright.shape.evaluation import evaluate_operation
from tilewright.shape.expr import Atom
from tilewright.shape.table import SCOPED_RULES, STRUCTURAL_RULES, Operation
from tilewright.support.errors import DimensionError

OP = Operation


@dataclass(frozen=True)
class Case:
    """`operation(operands)`, where each named symbol lies in (low, high) and is a multiple.

    A `high` in text is a symbolic upper bound. `decidable`: whether z3 can be expected to finish;
    where not (products of unknowns under a division), only small integers are tried.
    """

    rule: str
    operation: Operation
    operands: tuple[str, ...]
    facts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    decidable: bool = True

    def __str__(self) -> str:
        return f"{self.rule}-{self.operation.name}-{'; '.join(self.operands)}"


def structural_cases() -> Iterator[Case]:
    for numerator, divisor in itertools.product((-7, -6, 0, 5), (-3, -1, 1, 4)):
        for operation in (OP.FLOORDIV, OP.MOD, OP.CEILDIV):
            yield Case("fold_constants", operation, (str(numerator), str(divisor)))
    for left, right in itertools.product((-2, 0, 3), repeat=2):
        for operation in (OP.MINIMUM, OP.MAXIMUM, OP.EQUAL, OP.LESS_EQUAL, OP.AND, OP.OR):
            yield Case("fold_constants", operation, (str(left), str(right)))
        yield Case("fold_constants", OP.SELECT, (str(left), str(right), "9"))
        yield Case("fold_constants", OP.NOT, (str(left),))
    for divisor in (1, 2, 3, 7):
        yield Case("ceil_div_as_floor_div", OP.CEILDIV, ("a", f"{divisor}"))
        yield Case("ceil_div_as_floor_div", OP.CEILDIV, ("2*a - 3*b + 1", f"{divisor}"))
        yield Case("remainder_by_negative", OP.MOD, ("a", f"-{divisor}"))
        yield Case("remainder_by_negative", OP.MOD, ("5*a - 2", f"-{divisor}"))
        for operation in (OP.FLOORDIV, OP.CEILDIV):
            yield Case("quotient_by_negative", operation, ("a", f"-{divisor}"))
            yield Case("quotient_by_negative", operation, ("3*a - b + 1", f"-{divisor}"))
    for numerator, divisor in (
        ("7*a + 3*b - 9", 2), ("a + 5", 3), ("-5*a + 4", 4), ("4*a*b - 6*b", 4), ("a - 1", 2),
    ):  # fmt: skip
        yield Case("quotient_of_multiples", OP.FLOORDIV, (numerator, str(divisor)))
        yield Case("remainder_of_multiples", OP.MOD, (numerator, str(divisor)))
    for numerator, divisor in (("2*a + 1", 4), ("-3*a + 6*b + 2", 9), ("2*a - 4*b - 3", 6)):
        yield Case("quotient_with_common_factor", OP.FLOORDIV, (numerator, str(divisor)))
        yield Case("remainder_with_common_factor", OP.MOD, (numerator, str(divisor)))
    for inner, outer in itertools.product((2, 3, 5), (2, 3)):
        yield Case("quotient_of_quotient", OP.FLOORDIV, (f"a//{inner}", f"{outer}"))
        yield Case("quotient_of_quotient", OP.FLOORDIV, (f"(a - b)//{inner} - 1", f"{outer}"))
        modulus = inner * outer
        yield Case("quotient_of_remainder", OP.FLOORDIV, (f"a % {modulus}", f"{outer}"))
        yield Case("remainder_of_remainder", OP.MOD, (f"a % {modulus} + b", f"{outer}"))
        yield Case("remainder_of_remainder", OP.MOD, (f"2*(a % {inner}) - b", f"{2 * inner}"))
    for inner, divisor in (
        ("max(0, a)", 2), ("max(1, a, b)", 3), ("min(5, 3*a - b)", 4), ("max(a, 7) - 1", 2),
        ("min(a, -3) - 5", 3),
    ):  # fmt: skip
        yield Case("quotient_of_extremes", OP.FLOORDIV, (inner, str(divisor)))
    yield from _extreme_cases()
    yield from _logic_cases()


def _extreme_cases() -> Iterator[Case]:
    for operation, same, other in ((OP.MINIMUM, "min", "max"), (OP.MAXIMUM, "max", "min")):
        yield Case("flatten_extremes", operation, (f"{same}(a, b)", "c"))
        yield Case("drop_constant_distance", operation, ("a + 1", "b", "a - 2"))
        yield Case("drop_constant_distance", operation, ("3", "b", "-1"))
        yield Case("absorb_extremes", operation, ("a", f"{other}(a, b)", "c"))
        yield Case("extremes_without_offset", operation, ("0", "a - 1"))
        yield Case("extremes_without_offset", operation, ("a + 2", "2*b - 1", "-3"))
        yield Case("order_operands", operation, ("b", "a", "b"))
        yield Case("order_operands", operation, ("a",))


def _logic_cases() -> Iterator[Case]:
    for sides in (
        ("a", "a + 1"), ("2*a", "4*b + 1"), ("-2*a", "4*b - 6"), ("b - a", "3"), ("a", "a"),
    ):  # fmt: skip
        yield Case("normalise_equal", OP.EQUAL, sides)
        yield Case("normalise_less_equal", OP.LESS_EQUAL, sides)
    yield Case("normalise_less_equal", OP.LESS_EQUAL, ("3*a + 1", "6*b"))
    for value in ("0", "1", "2"):
        yield Case("equality_of_boolean", OP.EQUAL, ("a <= b", value))
    for operation in (OP.AND, OP.OR):
        for inner in ("logical_and", "logical_or"):
            name = "AND" if inner == "logical_and" else "OR"
            if operation.name == name:
                operands = (f"{inner}(a <= b, b <= c)", "a == c")
                yield Case("flatten_logic", operation, operands)
        for constant in ("0", "1"):
            yield Case("flatten_logic", operation, ("a <= b", constant))
        yield Case("operands_to_boolean", operation, ("a", "b - a"))
        yield Case("complement_logic", operation, ("a <= b", "b + 1 <= a"))
        yield Case("complement_logic", operation, ("a == b", "logical_not(a == b)"))
        yield Case("order_operands", operation, ("b <= c", "a <= c", "b <= c"))
        yield Case("order_operands", operation, ("a <= c",))
    yield Case("not_of_number", OP.NOT, ("a - b",))
    yield Case("not_of_not", OP.NOT, ("logical_not(a == b)",))
    yield Case("not_of_less_equal", OP.NOT, ("a <= 2*b + 1",))
    yield Case("select_decided", OP.SELECT, ("a", "b", "b"))
    yield Case("select_decided", OP.SELECT, ("1", "a", "b"))
    yield Case("select_decided", OP.SELECT, ("0", "a", "b"))
    yield Case("select_by_boolean", OP.SELECT, ("a", "b", "c"))
    yield Case("select_of_boolean", OP.SELECT, ("logical_not(a == b)", "b", "c"))
    yield Case("select_of_boolean", OP.SELECT, ("a <= b", "1", "0"))


SMALL = {"a": (-3, 3)}
EVEN = {"a": (None, None, 2), "c": (0, None, 4)}
INDEX = {"b": (1, None), "j": (0, "b - 1")}
DIGIT = {"b": (0, 3), "c": (1, None)}  # the last of a number
DIGITS = {"b": (1, None), "c": (1, None), "j": (0, "b - 1")}
ONCE = {"b": (0, 3), "c": (0, None), "d": (0, None)}
COUNTED = ONCE | {"a": (0, "(5*c*(d//3))//(b + 1) - 1")}  # so that c and d//3 are not 0
SCOPED_CASES = (
    Case("decided_by_bounds", OP.FLOORDIV, ("a", "4"), {"a": (-4, -1)}),
    Case("decided_by_bounds", OP.MOD, ("a", "b"), {"a": (3, 3), "b": (4, 9)}),
    Case("decided_by_bounds", OP.CEILDIV, ("a", "b"), {"a": (1, 2), "b": (2, 9)}),
    Case("decided_by_bounds", OP.MINIMUM, ("a", "b", "2"), {"a": (2, 9), "b": (2, None)}),
    Case("decided_by_bounds", OP.MAXIMUM, ("a", "-2"), {"a": (None, -2)}),
    Case("quotient_of_symbolic_multiples", OP.FLOORDIV, ("a*b + c", "b"), {"b": (1, None)}, False),
    Case("quotient_of_symbolic_multiples", OP.FLOORDIV, ("a*b", "b"), {"b": (None, -1)}, False),
    Case("quotient_of_symbolic_multiples", OP.FLOORDIV, ("a*b + j", "b"), {"j": (0, "b-1")}, False),
    Case(
        "quotient_of_symbolic_multiples", OP.FLOORDIV,
        ("a*b + a + c", "b + 1"), {"b": (0, None)}, False,
    ),
    Case("quotient_of_symbolic_multiples", OP.CEILDIV, ("2*a*b + c", "b"), {"b": (1, None)}, False),
    Case("remainder_of_symbolic_multiples", OP.MOD, ("a*b - c", "b"), {"b": (1, None)}, False),
    Case("remainder_of_symbolic_multiples", OP.MOD, ("4*a*b + c", "2*b"), {"b": (1, None)}, False),
    Case("quotient_of_smaller", OP.FLOORDIV, ("j", "b"), INDEX),
    Case("quotient_of_smaller", OP.FLOORDIV, ("j", "b"), {"j": (0, "b - 1")}),
    Case("remainder_of_smaller", OP.MOD, ("j", "b"), INDEX),
    Case("remainder_of_smaller", OP.MOD, ("a + 3", "7"), SMALL),
    Case("ceiling_of_smaller", OP.CEILDIV, ("j + 1", "b"), INDEX),
    Case("remainder_of_divisible", OP.MOD, ("3*a - 9*c", "6"), EVEN),
    Case("split_off_divisible", OP.FLOORDIV, ("a + b + 3", "4"), {"a": (None, None, 4)}),
    Case("split_off_divisible", OP.MOD, ("a - b + 3", "4"), {"a": (None, None, 8)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8"), {"b": (0, 3)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("-6*a + b + 7", "12"), {"b": (-1, 4)}),
    Case("remainder_of_scaled_index", OP.MOD, ("4*a + b", "8"), {"b": (0, 3)}),
    Case("remainder_of_scaled_index", OP.MOD, ("-6*a + 2*b + 9", "12"), {"b": (0, 1)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8*c"), DIGIT, False),
    Case("remainder_of_scaled_index", OP.MOD, ("4*a + b - 4", "8*c"), DIGIT, False),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("a*b + j", "2*b*c"), DIGITS, False),
    Case("remainder_of_scaled_index", OP.MOD, ("a*b + j", "2*b*c"), DIGITS, False),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8*c*(d//3)"), COUNTED, False),
    Case("drop_dominated", OP.MINIMUM, ("a", "b"), {"a": (None, 3), "b": (3, None)}),
    Case("drop_dominated", OP.MINIMUM, ("j", "b", "c"), INDEX),
    Case("drop_dominated", OP.MAXIMUM, ("a", "b//2", "b"), {"b": (0, None)}),
    Case("select_of_equals", OP.SELECT, ("a//2 == 1", "max(1, a//2)", "a//2"), {}),
    Case("select_of_equals", OP.SELECT, ("2*a == -6", "a*2 + 6", "0"), {}),
    Case("unequal", OP.EQUAL, ("a", "b"), {"a": (None, 3), "b": (4, None)}),
    Case("unequal_by_divisibility", OP.EQUAL, ("a", "3*c + 1"), EVEN),
    Case("surely_less_equal", OP.LESS_EQUAL, ("j", "b"), INDEX),
    Case("surely_less_equal", OP.LESS_EQUAL, ("a % 5", "4"), {}),
    Case("surely_greater", OP.LESS_EQUAL, ("b", "j"), INDEX),
    Case("multiple_of_exact_quotient", OP.ADD, ("6*(a//3)*b - c",), {"a": (None, None, 3)}, False),
    Case("multiple_of_exact_quotient", OP.ADD, ("4*(a//4) + c",), {"a": (None, None, 4)}),
    Case("quotient_and_remainder", OP.ADD, ("12*(a//4) + 3*(a % 4) - b",), {}),
    Case("quotient_and_remainder", OP.ADD, ("b*(a//b) + a % b",), {}, False),
)  # fmt: skip


# One step outside of a precondition: here the formula would be wrong, or may be.
REFUSED_CASES = (
    Case("decided_by_bounds", OP.FLOORDIV, ("a", "4"), {"a": (-4, 0)}),
    Case("quotient_of_symbolic_multiples", OP.FLOORDIV, ("a*b + c", "b"), {"b": (0, None)}),
    Case("quotient_of_symbolic_multiples", OP.FLOORDIV, ("a*b + c", "b"), {"b": (-1, 1)}),
    Case("remainder_of_symbolic_multiples", OP.MOD, ("a*b + c", "b"), {"b": (0, None)}),
    Case("quotient_of_smaller", OP.FLOORDIV, ("j", "b"), {"b": (1, None), "j": (0, "b")}),
    Case("quotient_of_smaller", OP.FLOORDIV, ("j", "b"), {"b": (1, None), "j": (-1, "b - 1")}),
    Case("remainder_of_smaller", OP.MOD, ("j", "b"), {"b": (1, None), "j": (0, "b")}),
    Case("remainder_of_smaller", OP.MOD, ("a + 3", "7"), {"a": (-3, 4)}),
    Case("remainder_of_smaller", OP.MOD, ("a + 3", "7"), {"a": (-4, 3)}),
    Case("ceiling_of_smaller", OP.CEILDIV, ("j", "b"), INDEX),
    Case("remainder_of_divisible", OP.MOD, ("a", "4"), EVEN),
    Case("split_off_divisible", OP.FLOORDIV, ("a + b", "4"), EVEN),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8"), {"b": (0, 4)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8"), {"b": (-1, 3)}),
    Case("remainder_of_scaled_index", OP.MOD, ("4*a + b", "8"), {"b": (0, 4)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("4*a + b", "8*c"), DIGIT | {"c": (0, None)}),
    Case("remainder_of_scaled_index", OP.MOD, ("4*a + b", "8*c"), DIGIT | {"c": (None, -1)}),
    Case("quotient_of_scaled_index", OP.FLOORDIV, ("a*b + j", "2*b*c"), DIGITS | {"j": (0, "b")}),
    Case(
        "quotient_of_scaled_index",
        OP.FLOORDIV,
        ("4*a + b", "8*c*(d//3)"),
        ONCE | {"a": (0, "(c + d//3)//(b + 1) - 1")},
    ),
    Case("drop_dominated", OP.MINIMUM, ("a", "b"), {"a": (None, 3), "b": (2, None)}),
    Case("select_of_equals", OP.SELECT, ("a//2 == 2", "max(1, a)", "a//2"), {}),
    Case("select_of_equals", OP.SELECT, ("a <= 1", "max(1, a)", "1"), {}),
    Case("unequal", OP.EQUAL, ("a", "b"), {"a": (None, 3), "b": (3, None)}),
    Case("unequal_by_divisibility", OP.EQUAL, ("a", "3*c + 2"), EVEN),
    Case("surely_less_equal", OP.LESS_EQUAL, ("j + 2", "b"), INDEX),
    Case("surely_greater", OP.LESS_EQUAL, ("b", "j + 1"), INDEX),
    Case("multiple_of_exact_quotient", OP.ADD, ("4*(a//4) + c",), {"a": (None, None, 2)}),
    Case("quotient_and_remainder", OP.ADD, ("8*(a//4) + 3*(a % 4)",), {}),
)


def _apply(case: Case) -> tuple[tuple[Expr, ...], Expr | None]:
    """The operands, and what the rule alone makes of them, or None where it does not fit."""
    operands = tuple(parse(text) for text in case.operands)
    for rule in STRUCTURAL_RULES[case.operation]:
        if rule.name == case.rule:
            return operands, rule.apply(case.operation, operands)
    scope = Scope()
    for name, (low, high, *multiple) in case.facts.items():
        if isinstance(high, str):
            scope.declare(name, low, parse(high))
        else:
            scope.declare(name, low, high, *multiple)
    (rule,) = (rule for rule in SCOPED_RULES[case.operation] if rule.name == case.rule)
    return operands, rule.apply(case.operation, operands, _bounds(scope))


def fire(case: Case) -> tuple[tuple[Expr, ...], Expr]:
    """The operands and the result of a rule that has to fit."""
    operands, result = _apply(case)
    assert result is not None, "the rule does not fire"
    return operands, result


def _bounds(scope: Scope) -> Bounds:
    return scope._bounds  # pyright: ignore[reportPrivateUsage]


# --- proofs --------------------------------------------------------------------------------------


def z3_floor_divide(x: Any, y: Any) -> Any:
    """z3's `/` rounds down for positive divisors only."""
    return z3.If(y > 0, x / y, (-x) / (-y))


def z3_apply(operation: Operation, x: list[Any]) -> Any:
    truth = {
        OP.EQUAL: lambda: x[0] == x[1],
        OP.LESS_EQUAL: lambda: x[0] <= x[1],
        OP.AND: lambda: z3.And([y != 0 for y in x]),
        OP.OR: lambda: z3.Or([y != 0 for y in x]),
        OP.NOT: lambda: x[0] == 0,
    }
    if operation in truth:
        return z3.If(truth[operation](), z3.IntVal(1), z3.IntVal(0))
    match operation:
        case OP.FLOORDIV:
            return z3_floor_divide(x[0], x[1])
        case OP.MOD:
            return x[0] - x[1] * z3_floor_divide(x[0], x[1])
        case OP.CEILDIV:
            return -z3_floor_divide(-x[0], x[1])
        case OP.SELECT:
            return z3.If(x[0] != 0, x[1], x[2])
        case OP.ADD:
            return x[0]
        case _:
            result = x[0]
            for y in x[1:]:
                keep = result <= y if operation is OP.MINIMUM else result >= y
                result = z3.If(keep, result, y)
            return result


def to_z3(expression: Expr, divisors: list[Any]) -> Any:
    """The expression in z3; what it divides by is added to `divisors`."""

    def atom(inner: Atom) -> Any:
        if inner.operation is OP.SYMBOL:
            return z3.Int(inner.name)
        operands = [to_z3(operand, divisors) for operand in inner.operands]
        if inner.operation in (OP.FLOORDIV, OP.MOD, OP.CEILDIV):
            divisors.append(operands[1])
        return z3_apply(inner.operation, operands)

    result = z3.IntVal(0)
    for monomial, coefficient in expression.terms:
        term = z3.IntVal(coefficient)
        for factor in monomial.atoms:
            term = term * atom(factor)
        result = result + term
    return result


ALL_CASES = (*structural_cases(), *SCOPED_CASES)


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.decidable], ids=str)
def test_rule_is_proved_for_all_integers(case: Case):
    operands, result = fire(case)
    divisors: list[Any] = []
    terms = [to_z3(operand, divisors) for operand in operands]
    if case.operation in (OP.FLOORDIV, OP.MOD, OP.CEILDIV):
        divisors.append(terms[1])
    solver = z3.Solver()
    solver.set("timeout", 10000)
    solver.add([divisor != 0 for divisor in divisors])
    for name, (low, high, *multiple) in case.facts.items():
        if low is not None:
            solver.add(z3.Int(name) >= low)
        if high is not None:
            limit = parse(high) if isinstance(high, str) else symbol("a") * 0 + high
            solver.add(z3.Int(name) <= to_z3(limit, []))
        for divisor in multiple:
            solver.add(z3.Int(name) % divisor == 0)
    solver.add(z3_apply(case.operation, terms) != to_z3(result, []))
    assert solver.check() == z3.unsat, f"{result}: {solver.check()}"


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_rule_holds_for_small_integers(case: Case):
    operands, result = fire(case)
    names = sorted({name for operand in operands for name in operand.free_symbols})
    names += [name for name in result.free_symbols if name not in names]
    tried = 0
    for values in itertools.product(range(-6, 8), repeat=len(names)):
        environment = dict(zip(names, values, strict=True))
        if not _facts_hold(case, environment):
            continue
        try:
            inputs = [operand.evaluate(environment) for operand in operands]
            if case.operation is OP.ADD:
                expected = inputs[0]
            else:
                expected = evaluate_operation(case.operation, inputs)
        except (DimensionError, ZeroDivisionError):
            continue
        tried += 1
        assert result.evaluate(environment) == expected, environment
    assert tried > 0


def _facts_hold(case: Case, environment: Mapping[str, int]) -> bool:
    for name, (low, high, *multiple) in case.facts.items():
        if name not in environment:
            continue
        value = environment[name]
        most = parse(high).evaluate(environment) if isinstance(high, str) else high
        if (low is not None and value < low) or (most is not None and value > most):
            return False
        if any(value % divisor for divisor in multiple):
            return False
    return True


@pytest.mark.parametrize("case", REFUSED_CASES, ids=str)
def test_rule_does_not_fire_without_its_precondition(case: Case):
    assert _apply(case)[1] is None


def test_every_rule_has_a_case():
    tested = {(case.rule, case.operation) for case in ALL_CASES}
    entered = {
        (rule.name, operation)
        for table in (STRUCTURAL_RULES, SCOPED_RULES)
        for operation, rules in table.items()
        for rule in rules
    }
    refusals = {("refuse_zero_divisor", op) for op in (OP.FLOORDIV, OP.MOD, OP.CEILDIV)}
    assert entered - refusals == tested
    scoped = {rule.name for rules in SCOPED_RULES.values() for rule in rules}
    assert scoped == {case.rule for case in REFUSED_CASES}


def test_quotients_stay_two_where_their_divisors_do_not_fit_a_number_of_64_bits():
    large = 1 << 40
    assert str(symbol("a") // large // 4) == f"a//{4 * large}"
    assert str(symbol("a") // large // large) == f"(a//{large})//{large}"


@pytest.mark.parametrize("text", ["a//0", "a % 0", "ceil_div(a, 0)", "3//0", "a//(b - b)"])
def test_division_by_zero_is_refused(text: str):
    with pytest.raises(DimensionError, match="divided by zero"):
        parse(text)


def test_names_of_rules_and_their_formulas_are_given():
    for table in (STRUCTURAL_RULES, SCOPED_RULES):
        for rules in table.values():
            assert len({rule.name for rule in rules}) == len(rules)
            for rule in rules:
                assert rule.formula
                assert rule.precondition
