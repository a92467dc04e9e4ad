"""Prices over arrays are those of the expressions; samples fill the declared ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.policy import prices
from tilewright.policy.prices import (
    LONGEST,
    SHAPES,
    UNBOUNDED,
    evaluated,
    promising,
    sampled_shapes,
    samples_of,
    space_prices,
    thread_counts,
)
from tilewright.policy.space import (
    BLOCK_COLUMNS,
    BLOCK_DEPTH,
    BLOCK_ROWS,
    BlockSizes,
    Extents,
    Problem,
    Space,
)
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    equal,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    product,
    select,
    symbol,
)
from tilewright.target import preset

TARGET = preset("zen3")
M, N, T = symbol("m"), symbol("n"), symbol("_threads")
WHOLE = Extents(constant(1), M, N, constant(64))

EXPRESSIONS: tuple[Expr, ...] = (
    constant(7),
    M * N * 3 - N + 1,
    M // (N + 1) + ceil_div(M, N + 2) * (M % (N + 3)),
    minimum(M, N) * maximum(M, constant(5)),
    select(less_equal(M, N), M * M, N - M),
    select(logical_and(equal(M, 3), logical_not(equal(N, 4))), 1, 2) + logical_or(M, N),
    (0 - M) // (N + 1) + (0 - M) % (N + 1),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=20))
def test_arrays_agree_with_single_values(pairs: list[tuple[int, int]]) -> None:
    m, n = (np.array(column, np.float64)[None, :] for column in zip(*pairs, strict=True))
    for expression in EXPRESSIONS:
        found = np.broadcast_to(evaluated(expression, {"m": m, "n": n}), (1, len(pairs)))
        expected = [expression.evaluate({"m": a, "n": b}) for a, b in pairs]
        np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("cells", [1, 30, 1 << 14])
def test_pieces_are_the_whole(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some expressions know candidates or samples only, or nothing at all."""
    monkeypatch.setattr(prices, "_CELLS", cells)
    rows, columns = np.arange(4.0)[:, None], np.arange(11.0)[None, :]
    for expression in (*EXPRESSIONS, M * 3 + 1, N * 3 + 1, M + N + M * M * N + N * N):
        for m, n in ((rows, columns), (columns, rows)):
            found = np.broadcast_to(evaluated(expression, {"m": m, "n": n}), (4, 11))
            for row, column in np.ndindex(4, 11):
                point = {"m": row, "n": column} if m is rows else {"m": column, "n": row}
                assert found[row, column] == expression.evaluate(point)


def test_a_quotient_by_nothing_is_nothing() -> None:
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    assert evaluated(M // N + M % N - M, {"m": one, "n": zero}) == 0


def problem_of(price: Expr, scope: Scope, *blocks: BlockSizes) -> Problem:
    return Problem(
        (Space(price, blocks or (BlockSizes(6, 8, 8),), WHOLE),), (), scope, "_threads", TARGET
    )


def test_samples_fill_the_box_with_its_edges() -> None:
    scope = Scope()
    scope.declare("m", 0, 4096)
    scope.declare("n", 12, None)
    shapes = sampled_shapes(problem_of(symbol("m") + symbol("n"), scope))
    corners = ((1, 12), (1, UNBOUNDED), (4096, 12), (4096, UNBOUNDED))
    assert shapes[:4] == corners
    assert len(set(shapes)) == len(shapes) == 2 * SHAPES
    for m, n in shapes:
        assert 1 <= m <= 4096 and 12 <= n <= UNBOUNDED
    logarithms = np.log2([m for m, _ in shapes])
    assert all(((logarithms >= low) & (logarithms <= low + 3)).sum() >= 5 for low in (0, 3, 6, 9))
    assert sampled_shapes(problem_of(constant(5), scope)) == ((),)


def test_what_takes_too_long_to_be_called_is_no_sample() -> None:
    scope = Scope()
    sizes = [scope.declare(name, 0, 1 << 16) for name in ("a", "b", "c")]
    price = product(sizes) * 1000
    shapes = sampled_shapes(problem_of(price, scope))
    assert len(shapes) == 3 * SHAPES
    assert all(a * b * c * 1000 <= LONGEST for a, b, c in shapes)
    slow = sampled_shapes(problem_of(price * 10**12, scope))
    assert len(slow) == 3 * SHAPES, "the quickest, where all take long"


def test_candidates_that_are_never_near_the_best_are_left_out() -> None:
    scope = Scope()
    scope.declare("m", 1, 1000)
    blocks = tuple(BlockSizes(rows, 8, 8) for rows in (1, 4, 16, 64))
    # Larger blocks are cheaper everywhere but where there are too few for all threads.
    price = ceil_div(ceil_div(M, BLOCK_ROWS), T) * (BLOCK_ROWS + 10) + BLOCK_COLUMNS * BLOCK_DEPTH
    problem = Problem((Space(price, blocks, WHOLE),), (), scope, "_threads", TARGET)
    assert problem.sizes == ("m",)
    samples = samples_of(problem)
    assert samples.count % len(thread_counts(TARGET.units)) == 0
    prices = space_prices(problem.spaces[0], samples)
    assert prices.shape == (4, samples.count)
    values = {name: int(column[0, 9]) for name, column in samples.values.items()}
    for block, row in zip(blocks, prices, strict=True):
        assert row[9] == block.price(price).evaluate(values)
    never = problem.spaces[0].price + M * 1000
    many = tuple(BlockSizes(rows, 8, 8) for rows in range(1, 40))
    both = Problem(
        (Space(price, many, WHOLE), Space(never, blocks, WHOLE)), (), scope, "_threads", TARGET
    )
    kept = promising(both, samples_of(both))
    assert kept.spaces[0].blocks and not kept.spaces[1].blocks


def test_thread_counts_go_up_to_the_cores_and_beyond() -> None:
    assert thread_counts(1) == (1, 4)
    assert thread_counts(2) == (1, 2, 8)
    assert thread_counts(12) == (1, 2, 4, 8, 12, 48)


def test_few_shapes_have_all_corners() -> None:
    scope = Scope()
    scope.declare("m", 1, 4096)
    scope.declare("n", 12, 500)
    problem = problem_of(symbol("m") + symbol("n"), scope)
    samples = samples_of(problem)
    few = samples.some(samples.count)
    found = zip(few.values["m"][0], few.values["n"][0], strict=True)
    assert {(1, 12), (1, 500), (4096, 12), (4096, 500)} <= set(found)
    assert few.count == samples.corners + 1
