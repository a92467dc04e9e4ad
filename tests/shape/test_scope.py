"""What a scope concludes from ranges, multiples, symbolic bounds and equalities."""

from __future__ import annotations

import pytest

from tilewright.shape import (
    Interval,
    Scope,
    Truth,
    ceil_div,
    constant,
    equal,
    less,
    maximum,
    minimum,
    select,
    symbol,
)
from tilewright.support.errors import DimensionError

YES, NO, UNKNOWN = Truth.YES, Truth.NO, Truth.UNKNOWN


@pytest.fixture
def scope() -> Scope:
    made = Scope()
    made.declare("n")
    made.declare("m", 1)
    made.declare("batch", 1, 64)
    made.declare("wide", 0, None, 8)
    made.declare("i", 0, symbol("n") - 1)
    made.declare("j", 0, symbol("m") - 1)
    made.declare("k", 0, 767)
    return made


n, m, batch, wide = symbol("n"), symbol("m"), symbol("batch"), symbol("wide")
i, j, k = symbol("i"), symbol("j"), symbol("k")


def test_a_truth_has_no_truth_value():
    for answer in Truth:
        with pytest.raises(TypeError, match="UNKNOWN"):
            bool(answer)


def test_flat_indices_are_taken_apart(scope: Scope):
    assert scope.resolve((i * 768 + k) // 768) is i
    assert scope.resolve((i * 768 + k) % 768) is k
    assert scope.resolve(((i * 768 + k) // 64) % 12) is k // 64
    assert scope.resolve((j * n + i) // n) is j
    assert scope.resolve((j * n + i) % n) is i
    flat = (batch * n + i) * m + j
    assert scope.resolve(flat // (n * m)) is batch
    assert scope.resolve(flat // m % n) is i
    assert scope.resolve(flat % m) is j


def test_facts_of_a_loop_are_not_used_outside_of_it(scope: Scope):
    # Within the loop over i, n is at least 1; outside it may be 0.
    assert scope.is_less(0, n) is UNKNOWN
    assert scope.resolve(maximum(n, 1)) is maximum(n, 1)
    assert scope.resolve((n * batch) // n) is (n * batch) // n
    assert scope.resolve((m * batch) // m) is batch


def test_multiples(scope: Scope):
    assert scope.resolve(wide // 4 * 4) is wide
    assert scope.resolve(wide % 8) is constant(0)
    assert scope.resolve((wide + n) // 8) is wide // 8 + n // 8
    assert scope.divisible(wide * n + 16, 8) is YES
    assert scope.divisible(wide + 3, 8) is NO
    assert scope.divisible(wide, 16) is UNKNOWN
    assert scope.divisible(wide, -4) is YES
    assert scope.is_equal(wide, 3) is NO
    assert scope.known_divisor(2 * wide + 8) == 8
    with pytest.raises(DimensionError):
        scope.divisible(n, 0)


def test_comparisons(scope: Scope):
    assert scope.is_less(i, n) is YES
    assert scope.is_less_equal(n, i) is NO
    assert scope.is_less_equal(n // 2, n) is YES
    assert scope.is_less_equal(minimum(n, batch), n) is YES
    assert scope.is_less_equal(n, maximum(n, batch)) is YES
    assert scope.is_less(n % m, m) is YES
    assert scope.is_less_equal(n, n * m) is YES
    assert scope.is_less_equal(n, ceil_div(n, 4) * 4) is YES
    assert scope.is_less(n, m) is UNKNOWN
    assert scope.is_equal(4 * (n // 4) + n % 4, n) is YES
    assert scope.is_equal(n, n + 1) is NO
    assert scope.is_equal(n, m) is UNKNOWN


def test_functions_are_decided_by_bounds(scope: Scope):
    assert scope.resolve(minimum(batch, 64)) is batch
    assert scope.resolve(maximum(batch, 1, n * 0)) is batch
    assert scope.resolve(select(less(k, 768), n, m)) is n
    assert scope.resolve(equal(batch, 65)) is constant(0)
    assert scope.resolve(less(batch, 65)) is constant(1)
    assert scope.resolve(ceil_div(batch, 64)) is constant(1)
    assert scope.resolve(n % 1) is constant(0)


def test_bounds(scope: Scope):
    assert scope.bounds(batch * 2 - k) == Interval(2 - 767, 128)
    assert scope.bounds(n - i) == Interval(1, None)
    assert scope.bounds(symbol("undeclared")) == Interval(None, None)
    assert scope.bounds(batch * batch - batch) == Interval(0, 63 + 63 * 63)
    assert scope.bounds(symbol("undeclared") % 7) == Interval(0, 6)


def test_a_symbol_with_one_value_is_that_value(scope: Scope):
    one = scope.declare("one", 1, 1)
    assert scope.resolve(one * n) is n


def test_declaring_again_adds_facts():
    scope = Scope()
    x = scope.declare("x", 0, 100)
    assert scope.is_less_equal(x, 50) is UNKNOWN
    scope.declare("x", -5, 50, 4)
    scope.declare("x", 1, None, 6)
    assert scope.symbols["x"] == (12, 48, 12)
    assert scope.is_less_equal(x, 50) is YES
    with pytest.raises(DimensionError, match="no possible value"):
        scope.declare("x", 49)
    with pytest.raises(DimensionError, match="no possible value"):
        Scope().declare("y", 1, 3, 4)
    with pytest.raises(DimensionError, match="multiple of 0"):
        scope.declare("z", multiple_of=0)
    assert list(scope.symbols) == ["x"]


def test_upper_bounds_in_a_circle_are_refused():
    scope = Scope()
    scope.declare("p", 0, symbol("q") + 1)
    with pytest.raises(DimensionError, match="depends on itself"):
        scope.declare("q", 0, symbol("p") + 1)


def test_fresh_names_are_numbered_and_free():
    scope = Scope()
    scope.declare("count_1")
    names = [str(scope.fresh("count", 0, 9)) for _ in range(3)]
    assert names == ["count_0", "count_2", "count_3"]
    assert scope.symbols["count_3"] == (0, 9, 1)


def test_equalities_replace_symbols(scope: Scope):
    h, w = scope.declare("h", 0, 100), scope.declare("w", 10, 200)
    scope.assume_equal(h, w)
    assert scope.resolve(w * 2 + h) is 3 * h
    assert scope.symbols["h"] == (10, 100, 1)
    out = scope.declare("out", 0, 64)
    scope.assume_equal(out, 2 * m + 1)
    assert scope.resolve(out) is 2 * m + 1
    assert scope.symbols["m"] == (1, 31, 1)
    scope.assume_equal(m, batch)
    assert scope.resolve(out - 2 * batch) is constant(1)


def test_equalities_without_a_lone_symbol(scope: Scope):
    scope.assume_equal(n // 2, 3 * batch)
    assert scope.resolve(n // 2 + 1) is 3 * batch + 1
    scope.assume_equal(n * m, 12 * batch * wide)
    assert scope.is_equal(n * m, 12 * batch * wide) is YES
    assert scope.is_equal(-2 * n * m, -24 * batch * wide) is YES


def test_of_two_operations_the_longer_one_is_replaced():
    short, long = ceil_div(n, 2), ceil_div(n - minimum(1, n), 2)
    for sides in ((short, long), (long, short)):
        scope = Scope()
        scope.declare("n", 0, 100)
        scope.assume_equal(*sides)
        assert scope.resolve(long + 1) is short + 1
        assert scope.resolve(short) is short


def test_equalities_that_cannot_hold_are_refused(scope: Scope):
    with pytest.raises(DimensionError, match="cannot hold"):
        scope.assume_equal(batch, 65)
    with pytest.raises(DimensionError, match="cannot hold"):
        scope.assume_equal(wide, 2 * wide + 1)
    with pytest.raises(DimensionError):
        scope.assume_equal(i, n + 3)


def test_facts_declared_late_are_seen():
    scope = Scope()
    x = symbol("x")
    assert scope.resolve(x % 4) is x % 4
    assert scope.is_less(x, 10) is UNKNOWN
    scope.declare("x", 0, 3)
    assert scope.resolve(x % 4) is x
    assert scope.is_less(x, 10) is YES


def test_a_copy_keeps_its_facts_to_itself(scope: Scope):
    inner = scope.copy()
    inner.declare("n", 5, 7)
    inner.assume_equal(m, batch)
    assert inner.is_less(n, 8) is YES
    assert scope.is_less(n, 8) is UNKNOWN
    assert scope.resolve(m) is m


def test_copies_that_declare_the_same_conclude_the_same(scope: Scope):
    """And what one of them concludes is not taken for true where something else was declared."""
    index, inside = symbol("x"), minimum(symbol("x"), 7)
    ends = (7, 9, 7, 100)
    copies = [scope.copy() for _ in ends]
    for copy, end in zip(copies, ends, strict=True):
        copy.declare("x", 0, end)
    found = [copy.resolve(inside) for copy in copies]
    assert found == [index, inside, index, inside]
    for copy in copies:  # what is declared afterwards counts wherever it was asked before
        copy.declare("x", 7)
    assert [copy.resolve(inside) for copy in copies] == [constant(7)] * len(copies)
    again = scope.copy()
    again.assume_equal(n, m)
    assert again.resolve(n - m) == constant(0) and scope.resolve(n - m) == n - m
    again.restore(scope.copy())
    assert again.resolve(n - m) == n - m


def test_where_sizes_have_elements():
    scope = Scope()
    batch, height, width = (scope.declare(name, 0, 512) for name in ("batch", "height", "width"))
    rows, columns = (height + 1) // 4, (width + 1) // 4
    occupied = scope.occupied([batch, rows, columns])
    assert occupied is not None
    assert occupied.bounds(height) == Interval(3, 512)
    assert occupied.resolve(maximum(rows, 1)) is rows
    count = 64 * batch * rows
    assert occupied.resolve(count * columns // maximum(count, 1)) is columns
    assert scope.bounds(height) == Interval(0, 512)
    assert scope.is_equal(maximum(rows, 1), rows) is Truth.UNKNOWN
    product = scope.occupied([batch * height - width])
    assert product is not None
    assert product.is_less(0, batch * height - width) is Truth.YES
    assert scope.occupied([constant(0)]) is None
    assert scope.occupied([height - 512]) is None


@pytest.mark.parametrize("ceil", [False, True])
def test_sizes_after_several_poolings_are_one_quotient(ceil: bool):
    """Windows of 3 two apart, as operators and as models with truncating divisions count them."""
    scope = Scope()
    own = model = scope.declare("n", 0, 4096)
    for _ in range(4):
        room, found = own - 3, model - 3
        if ceil:
            own = minimum(ceil_div(room, 2) + 1, ceil_div(own, 2))
            found = found + 1
        else:
            own = room // 2 + 1
        model = maximum(found // 2, 0) + minimum(ceil_div(found, 2), 0) + 1
        occupied = scope.occupied([own])
        assert occupied is not None
        assert occupied.is_equal(own, model) is Truth.YES, (own, model)
        text = str(occupied.resolve(model))
        assert text.count("//") + text.count("ceil_div") == 1, text


def test_a_definition_is_a_symbol_with_the_range_of_what_it_stands_for() -> None:
    scope = Scope()
    a, b = scope.declare("a", 1, 50, 5), scope.declare("b", 0, 3)
    size = scope.define("size", 4 * a + 20 * b)
    assert scope.bounds(size) == Interval(20, 260)
    assert scope.divisible(size, 20) is YES
    assert scope.define("size", 20 * b + 4 * a) is size
    other = scope.define("size", size * size + b)
    assert other is not size
    assert dict(scope.definitions) == {str(size): 4 * a + 20 * b, str(other): size * size + b}
    assert scope.completed({"a": 5, "b": 1}) == {"a": 5, "b": 1, "size_0": 40, "size_1": 1601}
    assert scope.completed({"b": 1}) == {"b": 1}


def test_definitions_are_copied_and_forgotten() -> None:
    scope = Scope()
    a = scope.declare("a", 0, 9)
    before = scope.copy()
    made = scope.define("size", 3 * a + 1)
    assert list(scope.copy().definitions) == [str(made)] and not before.definitions
    scope.restore(before)
    assert not scope.definitions and str(made) not in scope.symbols
