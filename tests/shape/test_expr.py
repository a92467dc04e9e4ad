"""Expressions as objects: identity, text, names, immutability, threads."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest

from tilewright.shape import (
    Expr,
    as_expr,
    ceil_div,
    constant,
    equal,
    exact_quotient,
    expr,
    interning,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    parse,
    parsing,
    product,
    select,
    symbol,
    total,
    with_positive_divisors,
)
from tilewright.support.errors import DimensionError

a, b, c, h = symbol("a"), symbol("b"), symbol("c"), symbol("h")


def test_one_canonical_form_is_one_object():
    assert (a + b) * c is a * c + b * c
    assert a + a is 2 * a
    assert a - a is constant(0)
    assert (4 * a + 6) // 2 is 2 * a + 3
    assert ceil_div(h, 2) is (h + 1) // 2
    assert (a // 2) // 3 is a // 6
    assert (a % 12) // 4 is (a // 4) % 3
    assert minimum(a, minimum(b, a)) is minimum(b, a)
    assert less(a, b) is less_equal(a + 1, b)
    assert logical_not(less(a, b)) is less_equal(b, a)
    assert equal(2 * a, 2 * b) is equal(b, a)
    assert product([2, a, b]) is total([a * b, b * a])
    assert product([]) is constant(1)
    assert total([]) is constant(0)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (12 * a * b + 1, "12*a*b + 1"),
        (ceil_div(h, 2), "ceil_div(h, 2)"),
        (ceil_div(a, b), "ceil_div(a, b)"),
        (minimum(a, b), "min(a, b)"),
        (b - a, "-a + b"),
        (a // 4 * 4, "4*(a//4)"),
        (a % b + 1, "(a % b) + 1"),
        (-(a // 3), "-(a//3)"),
        (a * a * b, "a*a*b"),
        (constant(-3), "-3"),
        (less(a, b), "a < b"),
        (less_equal(a, b) + 1, "(a <= b) + 1"),
        (select(equal(a, 1), b, c), "select(a == 1, b, c)"),
        (b * less_equal(ceil_div(a, 2) * c, 3), "b*(c*ceil_div(a, 2) <= 3)"),
        (b * (ceil_div(a, 2) // c), "b*((ceil_div(a, 2))//c)"),
        (logical_or(equal(a, b), less(a, 0)), "logical_or(a + 1 <= 0, a == b)"),
    ],
)
def test_text_is_readable_and_reads_back(expression: Expr, text: str):
    shown = str(expression)
    assert parse(shown) is expression
    assert repr(expression) == shown
    if text.startswith("logical_or"):
        assert parse(text) is expression
    else:
        assert shown == text


@pytest.mark.parametrize(
    "text",
    ["", "a +", "2a", "(a", "a b", "f(a)", "min()", "select(a, b)", "a < b < c", "a @ b", "1.5"],
)
def test_text_that_is_no_expression_is_refused(text: str):
    with pytest.raises(DimensionError, match="is not an expression"):
        parse(text)


@pytest.mark.parametrize("name", ["", "2a", "a-b", "a b", "²", "a/b", "a\n", ".a"])
def test_names_that_cannot_be_read_back_are_refused(name: str):
    with pytest.raises(DimensionError, match="cannot name a dimension"):
        symbol(name)


@pytest.mark.parametrize("name", ["and", "min", "select", "_x", "a.b.0", "layer.1.size"])
def test_names_that_look_like_words_are_symbols(name: str):
    assert parse(f"2*{name} + 1") is 2 * symbol(name) + 1


def test_constants_know_their_value_and_others_have_none():
    assert constant(5).value == 5
    assert (a - a).is_constant
    assert as_expr(True) is constant(1)
    assert not a.is_constant
    with pytest.raises(DimensionError, match="not a constant"):
        _ = a.value
    with pytest.raises(TypeError):
        bool(a == a and a)
    assert bool(constant(2))


def test_free_symbols_are_sorted_and_go_into_operands():
    assert (c + a // b + minimum(h, 2)).free_symbols == ("a", "b", "c", "h")
    assert constant(1).free_symbols == ()


def test_evaluating_needs_every_symbol_and_non_zero_divisors():
    assert (-7 // b).evaluate({"b": 2}) == -4
    assert (a % b).evaluate({"a": 7, "b": -3}) == -2
    assert ceil_div(a, b).evaluate({"a": -7, "b": 2}) == -3
    with pytest.raises(DimensionError, match='"b" has no value'):
        (a + b).evaluate({"a": 1})
    for expression in (a // b, a % b, ceil_div(a, b)):
        with pytest.raises(DimensionError, match="Division by zero") as error:
            expression.evaluate({"a": 1, "b": 0})
        assert "a = 1, b = 0" in str(error.value)


def test_operands_may_be_integers_on_either_side():
    assert 1 + a is a + 1
    assert 1 - a is -(a - 1)
    assert 2 * a is a * 2
    assert (7 // a).evaluate({"a": 2}) == 3
    assert (7 % a).evaluate({"a": 4}) == 3


def test_expressions_do_not_change_and_copies_are_the_object():
    expression = (a + 1) // b + minimum(a, c)
    with pytest.raises(AttributeError):
        expression.terms = ()
    assert copy.copy(expression) is expression
    assert copy.deepcopy({"k": [expression]})["k"][0] is expression
    assert pickle.loads(pickle.dumps(expression)) is expression


def test_substituting_is_simultaneous():
    assert (a + 2 * b).substitute({"a": b, "b": a}) is b + 2 * a
    assert ((a + 1) // b).substitute({"a": 7, "b": 4}) is constant(2)
    assert (a // 4).substitute({"a": 4 * c}) is c
    assert (a // b).substitute({"x": 1}) is a // b


def test_exact_quotient_divides_polynomials():
    assert exact_quotient((a + 1) * (b + 2) * 3, a + 1) is (b + 2) * 3
    assert exact_quotient(a * b * 768, 12 * b) is 64 * a
    assert exact_quotient(a * b, b + 1) is None
    assert exact_quotient(3 * a, 2 * a) is None
    assert exact_quotient(a, constant(0)) is None
    assert exact_quotient(constant(0), a) is constant(0)


def test_logic_of_nothing():
    assert logical_and() is constant(1)
    assert logical_or() is constant(0)
    for function in (minimum, maximum):
        with pytest.raises(DimensionError):
            function()


def test_threads_that_race_get_the_same_objects():
    results: list[list[Expr]] = []
    barrier = threading.Barrier(4)

    def build() -> None:
        barrier.wait()
        made: list[Expr] = []
        for number in range(300):
            x, y = symbol(f"race{number}"), symbol(f"race{number + 1}")
            made.append((x * y + number) // 7 + minimum(x, y + 1) * y)
        results.append(made)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for made in results[1:]:
        assert all(one is other for one, other in zip(made, results[0], strict=True))


def test_what_nothing_uses_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is made, tables keep what they keep of the last, here a thousand."""
    monkeypatch.setattr(interning, "_MOST_RECENT", 1000)
    tables = (expr._ATOMS, expr._MONOMIALS, expr._EXPRESSIONS)  # pyright: ignore[reportPrivateUsage]
    before = [len(table) for table in tables]
    kept = symbol("kept") * 7 + 3
    text = str(kept)
    for number in range(10_000):
        made = (symbol(f"dimension_{number}") + number) // 3
        assert made is (symbol(f"dimension_{number}") + number) // 3
    gc.collect()
    after = [len(table) for table in tables]
    assert all(new - old < 5_000 for old, new in zip(before, after, strict=True))
    assert symbol("kept") * 7 + 3 is kept
    assert str(kept) == text


def test_divisors_of_what_does_not_run_count_as_one():
    inner = ceil_div(1024, a - 1) + b // (a * c)
    bounded = with_positive_divisors(inner)
    for values in ({"a": 3, "b": 20, "c": 2}, {"a": 7, "b": 5, "c": 1}):
        assert bounded.evaluate(values) == inner.evaluate(values)
    assert bounded.evaluate({"a": 1, "b": 20, "c": 0}) == 1024 + 20
    nested = with_positive_divisors(maximum(minimum(c, 8 // a), 0))
    assert nested.evaluate({"a": 0, "c": 100}) == 8
    assert with_positive_divisors(a // 4 + b % 3) is a // 4 + b % 3


def test_calls_that_are_written_alike_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shared within a price is written out each time, to megabytes for some kernels."""
    made: list[int] = []

    def counted(*operands: Expr) -> Expr:
        made.append(len(operands))
        return minimum(*operands)

    monkeypatch.setitem(parsing._FUNCTIONS, "min", (counted, 1, 9))
    inner = "min(a, b + 1)"
    for _ in range(12):
        inner = f"max({inner} // 2, {inner} + 1)"
    assert parsing.parse(inner) == parsing.parse(f"1*({inner})") and len(made) == 2
    for wrong in ("min(a, max(b, 2)", "min(", "min(a))", "min(a, min(b)"):
        with pytest.raises(DimensionError):
            parsing.parse(wrong)
