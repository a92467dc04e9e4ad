"""Random expressions and facts: what is built, resolved, bounded and decided is always true."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.generating import SYMBOLS, Tree, build, environments, reference, trees
from tilewright.shape import Expr, Scope, Truth, constant, parse, symbol
from tilewright.support.errors import DimensionError

pytestmark = pytest.mark.filterwarnings("error")
quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def build_or_skip(tree: Tree) -> Expr:
    """The expression; trees that divide by a constant zero are refused and not of interest."""
    try:
        return build(tree)
    except DimensionError:
        assume(False)
        raise


@quick
@given(trees, environments)
def test_the_canonical_form_has_the_value_of_the_tree(tree: Tree, environment: dict[str, int]):
    try:
        expected = reference(tree, environment)
    except ZeroDivisionError:
        return
    assert build_or_skip(tree).evaluate(environment) == expected


@quick
@given(trees)
def test_reading_back_the_text_gives_the_same_object(tree: Tree):
    expression = build_or_skip(tree)
    assert parse(str(expression)) is expression


@quick
@given(trees, trees, trees)
def test_ring_laws_hold_as_identity(first: Tree, second: Tree, third: Tree):
    a, b, c = build_or_skip(first), build_or_skip(second), build_or_skip(third)
    assert (a + b) * c is a * c + b * c
    assert a - b is -(b - a)
    assert (a * b) * c is a * (b * c)
    assert a + b - b is a


@quick
@given(trees, trees, environments)
def test_substitution_is_evaluation_in_steps(tree: Tree, inner: Tree, environment: dict[str, int]):
    expression, replacement = build_or_skip(tree), build_or_skip(inner)
    try:
        value = replacement.evaluate(environment)
        expected = expression.evaluate({**environment, "a": value})
        substituted = expression.substitute({"a": replacement})
    except DimensionError:
        return
    assert substituted.evaluate(environment) == expected


@st.composite
def true_facts(draw: st.DrawFn) -> tuple[Scope, dict[str, int]]:
    """A scope and an environment in which each of its facts holds."""
    environment = draw(environments)
    scope = Scope()
    for name in SYMBOLS:
        value = environment[name]
        low = value - draw(st.integers(0, 3)) if draw(st.booleans()) else None
        high = value + draw(st.integers(0, 4)) if draw(st.booleans()) else None
        multiple = draw(st.sampled_from([d for d in (1, 1, 2, 3, 4) if value % d == 0]))
        scope.declare(name, low, high, multiple)
    for position, name in enumerate(SYMBOLS):
        if position and draw(st.integers(0, 2)) == 0:
            limit = _expression_over(draw, SYMBOLS[:position])
            value = _value(limit, environment)
            slack = draw(st.integers(0, 2))
            if value is not None and not limit.is_constant:
                scope.declare(name, None, limit - value + environment[name] + slack)
    for _ in range(draw(st.integers(0, 2))):
        left, right = _expression_over(draw, SYMBOLS), _expression_over(draw, SYMBOLS)
        left_value, right_value = _value(left, environment), _value(right, environment)
        if left_value is not None and right_value is not None:
            scope.assume_equal(left, right + left_value - right_value)
    return scope, environment


def _expression_over(draw: st.DrawFn, names: tuple[str, ...]) -> Expr:
    if draw(st.booleans()):
        return symbol(draw(st.sampled_from(names)))
    coefficients = draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3)))
    first, second = (symbol(draw(st.sampled_from(names))) for _ in range(2))
    result = first * coefficients[0] + second * coefficients[1]
    shape = draw(st.integers(0, 4))
    if shape == 0:
        return result // 2
    return first * second if shape == 1 else result


def _value(expression: Expr, environment: dict[str, int]) -> int | None:
    try:
        return expression.evaluate(environment)
    except DimensionError:
        return None


@pytest.mark.slow
@settings(quick, max_examples=120)
@given(true_facts(), trees)
def test_resolving_keeps_the_value_and_is_final(facts: tuple[Scope, dict[str, int]], tree: Tree):
    scope, environment = facts
    expression = build_or_skip(tree)
    try:
        resolved = scope.resolve(expression)
        value = expression.evaluate(environment)
    except DimensionError:
        return
    assert resolved.evaluate(environment) == value
    assert scope.resolve(resolved) is resolved


@settings(quick, max_examples=120)
@given(true_facts(), trees)
def test_bounds_hold_the_value(facts: tuple[Scope, dict[str, int]], tree: Tree):
    scope, environment = facts
    expression = build_or_skip(tree)
    try:
        bounds = scope.bounds(expression)
        value = expression.evaluate(environment)
    except DimensionError:
        return
    assert value in bounds


@settings(quick, max_examples=120)
@given(true_facts(), trees, trees, st.integers(1, 6))
def test_answers_are_never_wrong(
    facts: tuple[Scope, dict[str, int]], first: Tree, second: Tree, divisor: int
):
    scope, environment = facts
    left, right = build_or_skip(first), build_or_skip(second)
    try:
        answers = (
            scope.is_equal(left, right),
            scope.is_less(left, right),
            scope.is_less_equal(left, right),
            scope.divisible(left, divisor),
        )
        x, y = left.evaluate(environment), right.evaluate(environment)
    except DimensionError:
        return
    for answer, truth in zip(answers, (x == y, x < y, x <= y, x % divisor == 0), strict=True):
        assert answer is Truth.UNKNOWN or answer is (Truth.YES if truth else Truth.NO)


@quick
@given(true_facts(), trees)
def test_a_copy_concludes_the_same(facts: tuple[Scope, dict[str, int]], tree: Tree):
    scope, _ = facts
    expression = build_or_skip(tree)
    try:
        assert scope.copy().resolve(expression) is scope.resolve(expression)
    except DimensionError:
        return


def test_affine_parts_add_up_to_the_expression():
    i, j, n = symbol("i"), symbol("j"), symbol("n")
    expression = (i * 3 + j * n + 7) * (n + 1) + n // 2
    parts = expression.affine(("i", "j", "k"))
    assert parts is not None
    factors, rest = parts
    assert factors["k"] is constant(0)
    assert factors["i"] * i + factors["j"] * j + rest is expression
    for part, name in itertools.product((*factors.values(), rest), ("i", "j", "k")):
        assert name not in part.free_symbols
    assert (i * j).affine(("i", "j")) is None
    assert (i * i).affine(("i",)) is None
    assert (i // 2).affine(("i",)) is None
    assert (i // 2).affine(("j",)) == ({"j": constant(0)}, i // 2)
