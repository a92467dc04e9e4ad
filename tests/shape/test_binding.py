"""Dimensions solved from actual shapes, and the sentences where they do not fit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from tilewright.shape import (
    BindingPlan,
    Guard,
    InputPattern,
    Scope,
    bind_inputs,
    constant,
    equal,
    less_equal,
    size_symbol,
    symbol,
)
from tilewright.support.errors import DimensionError


@dataclass(frozen=True)
class Declared:
    """A dimension as it was imported."""

    name: str
    low: int = 0
    high: int | None = None
    origin: str = "given"
    reason: str = ""


def plan(scope: Scope, **shapes: tuple[object, ...]) -> BindingPlan:
    """A plan for inputs whose axes are given as expressions or integers."""
    patterns = [
        InputPattern(name, tuple(constant(0) + size for size in shape))  # pyright: ignore
        for name, shape in shapes.items()
    ]
    return bind_inputs(patterns, scope)


def message(binding: BindingPlan, *shapes: tuple[int, ...]) -> str:
    with pytest.raises(DimensionError) as error:
        binding.solve(shapes)
    return str(error.value)


def test_a_bound_beyond_64_bits_is_no_guard():
    """No value of a call is greater, and no call could ask for it."""
    scope = Scope()
    n, size = scope.declare("n", 1, 1 << 40), scope.declare("size", 0, 1 << 70)
    scope.assume_equal(size, n * n)
    guards = plan(scope, x=(n, n)).guards
    assert not any("1180591620717411303424" in str(guard.condition) for guard in guards)


def test_equal_dimensions_name_both_inputs():
    scope = Scope()
    batch, seq = scope.declare("batch", 0, 64), scope.declare("seq", 1)
    binding = plan(scope, input_ids=(batch, seq), attention_mask=(batch, seq))
    assert binding.symbols == ("batch", "seq")
    assert binding.solve([(2, 5), (2, 5)]) == {"batch": 2, "seq": 5}
    assert binding.solve([(0, 5), (0, 5)]) == {"batch": 0, "seq": 5}
    assert message(binding, (2, 5), (2, 7)) == (
        'Input "attention_mask", axis 1: size 7 differs from dimension "seq" = 5, '
        'as set by axis 1 of input "input_ids"'
    )
    assert message(binding, (65, 5), (65, 5)) == (
        'Input "input_ids", axis 0: 65 is outside the declared range 0..64 of dimension "batch"'
    )
    assert 'axis 1: 0 is outside the declared range 1.. of dimension "seq"' in message(
        binding, (2, 0), (2, 0)
    )


def test_constants_ranks_and_numbers_of_inputs():
    scope = Scope()
    binding = plan(scope, image=(scope.declare("n"), 3), scale=())
    assert binding.solve([(4, 3), ()]) == {"n": 4}
    assert message(binding, (4, 5), ()) == (
        'Input "image", axis 1: size 5 differs from 3, which the model states'
    )
    assert message(binding, (4,), ()) == (
        'Input "image" has 1 axis, but the model states 2: (n, 3)'
    )
    assert "1 shapes are given for 2 inputs" in message(binding, (4, 3))


def test_multiples_are_guarded():
    scope = Scope()
    binding = plan(scope, x=(scope.declare("width", 0, None, 8),))
    assert binding.solve([(16,)]) == {"width": 16}
    assert message(binding, (12,)) == (
        'Input "x", axis 0: 12 is not a multiple of 8, as declared for dimension "width"'
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_affine_dimensions_are_inverted_exactly(swapped: bool):
    scope = Scope()
    n, b = scope.declare("n", 0, 9), scope.declare("b", 1, 4)
    shape = (b, 2 * n + 1)
    binding = plan(scope, x=tuple(reversed(shape)) if swapped else shape)
    for b_value, size in itertools.product(range(1, 5), range(25)):
        actual = (size, b_value) if swapped else (b_value, size)
        if size % 2 and size <= 19:
            assert binding.solve([actual]) == {"b": b_value, "n": size // 2}
        else:
            assert f"size {size} " in message(binding, actual)
    assert 'size 8 is not 2*n + 1 for any "n"' in message(binding, (8, 1) if swapped else (1, 8))
    assert 'size 21 makes dimension "n" 10, which is outside the declared range 0..9' in message(
        binding, (21, 1) if swapped else (1, 21)
    )


def test_other_dimensions_help_to_invert():
    scope = Scope()
    heads, size = scope.declare("heads", 1), scope.declare("size", 1)
    binding = plan(scope, x=(heads * size + heads,), y=(heads,))
    assert binding.solve([(12,), (3,)]) == {"heads": 3, "size": 3}
    assert '"size", where "heads" = 3' in message(binding, (13,), (3,))


def test_a_factor_that_may_be_zero_is_guarded_before_it_divides():
    scope = Scope()
    heads, size = scope.declare("heads"), scope.declare("size")
    binding = plan(scope, x=(heads * size,), y=(heads,))
    assert binding.solve([(12,), (3,)]) == {"heads": 3, "size": 4}
    assert message(binding, (0,), (0,)) == (
        'The inputs do not determine every dimension, because heads is zero, where "heads" = 0'
    )


def test_exact_quotients_are_inverted():
    scope = Scope()
    n = scope.declare("n", 0, None, 4)
    binding = plan(scope, x=(3 * (n // 4) + 2,))
    assert binding.solve([(8,)]) == {"n": 8}
    assert message(binding, (9,)) == 'Input "x", axis 0: size 9 is not 3*(n//4) + 2 for any "n"'


def test_quotients_are_guards_where_the_symbol_is_solved_elsewhere():
    scope = Scope()
    h = scope.declare("h")
    binding = plan(scope, half=((h + 1) // 2,), image=(h,))
    assert binding.solve([(3,), (5,)]) == {"h": 5}
    assert message(binding, (3,), (7,)) == (
        'Input "half", axis 0: size 3 differs from ceil_div(h, 2), where "h" = 7'
    )


@pytest.mark.parametrize("text", ["n//2", "n*n", "n + k", "n % 3"])
def test_dimensions_that_nothing_determines_are_refused(text: str):
    scope = Scope()
    expressions = {
        "n//2": symbol("n") // 2,
        "n*n": symbol("n") * symbol("n"),
        "n + k": symbol("n") + symbol("k"),
        "n % 3": symbol("n") % 3,
    }
    with pytest.raises(DimensionError, match="Nothing determines dimension") as error:
        plan(scope, x=(expressions[text],))
    assert 'where: input "x", axis 0' in str(error.value)
    assert "try: " in str(error.value)


def test_equalities_of_the_scope_are_guards_or_sources():
    scope = Scope()
    h, w, pixels = scope.declare("h"), scope.declare("w"), scope.declare("pixels")
    scope.assume_equal(h, w)
    binding = plan(scope, image=(h, w))
    assert binding.solve([(4, 4)]) == {"h": 4, "w": 4}
    assert '"h" = 4 and "w" = 5' in message(binding, (4, 5))
    scope.assume_equal(pixels, 2 * h)
    binding = plan(scope, image=(h,), flat=(pixels + 2 * w // 3,))
    assert binding.solve([(3,), (8,)]) == {"h": 3, "w": 3, "pixels": 6}
    assert "needs pixels to be equal to 2*h" in message(binding, (3,), (9,))


def test_equalities_of_run_time_symbols_stay_guards():
    scope = Scope()
    n, count = scope.declare("n"), scope.fresh("count")
    scope.assume_equal(count, n)
    binding = plan(scope, x=(n,))
    assert binding.symbols == ("n",)
    assert binding.solve([(3,)]) == {"n": 3}
    (guard,) = (g for g in binding.guards if "count_0" in g.condition.free_symbols)
    guard.check({"n": 3, "count_0": 3})
    with pytest.raises(DimensionError, match='"count_0" = 2 and "n" = 3'):
        guard.check({"n": 3, "count_0": 2})


def test_a_demand_of_the_model_says_more_than_the_equality_it_causes():
    scope = Scope()
    n, m = scope.declare("n", 0, 9), scope.declare("m")
    scope.assume_equal(n * 2, m * 3)
    demand = Guard(equal(n * 2, m * 3), 'Reshape "r": sizes differ.')
    patterns = [InputPattern("x", (n, m))]
    binding = bind_inputs(patterns, scope, [Declared("n", 0, 9)], [demand])
    assert binding.solve([(3, 2)]) == {"n": 3, "m": 2}
    assert message(binding, (3, 3)) == 'Reshape "r": sizes differ'
    assert "outside the declared range 0..9" in message(binding, (12, 8))


def test_declared_dimensions_that_no_pattern_names_any_more_follow_from_equalities():
    scope = Scope()
    n, m = scope.declare("n"), scope.declare("m", 2, 8)
    scope.assume_equal(n, m)
    binding = bind_inputs([InputPattern("x", (n, n))], scope, [Declared("n"), Declared("m")])
    assert binding.solve([(3, 3)]) == {"n": 3, "m": 3}
    assert "9 is outside the declared range 2..8" in message(binding, (9, 9))
    assert "size 4 differs" in message(binding, (3, 4))


def test_ranges_that_follow_from_equalities_are_guarded():
    scope = Scope()
    area, h, w = scope.declare("area", 0, 12), scope.declare("h"), scope.declare("w")
    scope.assume_equal(area, h * w)
    binding = plan(scope, x=(h, w))
    assert binding.solve([(3, 4)]) == {"h": 3, "w": 4}
    assert message(binding, (3, 5)) == (
        'The model needs h*w to be in the range 0..12, but it is not, where "h" = 3 and "w" = 5'
    )


def test_symbolic_upper_bounds_are_guarded():
    scope = Scope()
    n = scope.declare("n")
    past = scope.declare("past", 0, n - 1)
    binding = plan(scope, cache=(past,), ids=(n,))
    assert binding.solve([(2,), (3,)]) == {"past": 2, "n": 3}
    assert '"past" = 3 is greater than n - 1' in message(binding, (3,), (3,))


def test_solved_symbols_satisfy_every_dimension():
    scope = Scope()
    a, b = scope.declare("a", 0, 5), scope.declare("b", 0, 6, 2)
    binding = plan(scope, x=(a + b // 2, a), y=(3 * a + 1,))
    for x0, x1, y0 in itertools.product(range(8), range(8), range(20)):
        try:
            found = binding.solve([(x0, x1), (y0,)])
        except DimensionError:
            continue
        assert (found["a"] + found["b"] // 2, found["a"], 3 * found["a"] + 1) == (x0, x1, y0)
        assert 0 <= found["a"] <= 5
        assert found["b"] in (0, 2, 4, 6)
    for a_value, b_value in itertools.product(range(6), range(0, 7, 2)):
        shapes = [(a_value + b_value // 2, a_value), (3 * a_value + 1,)]
        assert binding.solve(shapes) == {"a": a_value, "b": b_value}


def test_guard_messages_show_values():
    guard = Guard(less_equal(symbol("n"), 4), "Here n is {n}, {unknown} stays, {not a name} too")
    guard.check({"n": 4})
    with pytest.raises(DimensionError) as error:
        guard.check({"n": 5})
    assert str(error.value) == "Here n is 5, {unknown} stays, {not a name} too"


def test_sizes_have_symbols_of_their_own():
    assert str(size_symbol(1, 0)) == "_size.1.0"


def test_definitions_are_solved_from_what_they_name():
    scope = Scope()
    a, b = scope.declare("a", 0, 5), scope.declare("b", 1, 6)
    size = scope.define("size", a * b + 1)
    other = scope.define("size", size * size - a)
    binding = plan(scope, x=(a, b))
    assert binding.solve([(2, 3)]) == {"a": 2, "b": 3, "size_0": 7, "size_1": 47}
    ends = [str(guard.condition) for guard in binding.guards]
    assert not any("size_" in end for end in ends)  # what a definition implies needs no guard
    scope.assume_equal(other, 47)
    scope.declare("size_0", 7)
    binding = plan(scope, x=(a, b))
    assert binding.solve([(2, 3)])["size_1"] == 47
    assert "to be equal to 47, but they differ" in message(binding, (2, 4))
    assert '"size_0" = 5' in message(binding, (2, 2))
