"""The native evaluator agrees with the expressions of `shape`, and names what overflows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import _native
from tilewright.shape import (
    Expr,
    ceil_div,
    encode,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
    symbol,
)
from tilewright.support.errors import ArtifactError, DimensionError

A, B = symbol("a"), symbol("b")
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x // y,
    lambda x, y: x % y,
    ceil_div,
    minimum,
    maximum,
    equal,
    less,
    less_equal,
    logical_and,
    logical_or,
]


def native(expr: Expr, a: int, b: int) -> int:
    return _native.evaluate(encode(expr, {"a": 0, "b": 1}), str(expr), [a, b])


@given(
    st.sampled_from(range(len(BINARY))),
    st.sampled_from(range(len(BINARY))),
    st.integers(-50, 50),
    st.integers(-50, 50),
    st.integers(-9, 9),
)
def test_agrees_with_python(first: int, second: int, a: int, b: int, c: int) -> None:
    try:
        expr = BINARY[second](BINARY[first](A + c, B), A - 2 * B + logical_not(B))
        expected = expr.evaluate({"a": a, "b": b})
    except DimensionError:
        return
    assert native(expr, a, b) == expected


@pytest.mark.parametrize(
    ("expr", "a", "b", "words"),
    [
        (A * B, 1 << 40, 1 << 40, "64-bit"),
        (A + B, (1 << 63) - 1, 1, "64-bit"),
        (A // B, -(1 << 63), -1, "64-bit"),
        (A // B, 3, 0, "divides by zero"),
        (A % B, 3, 0, "divides by zero"),
    ],
)
def test_faults_name_the_expression(expr: Expr, a: int, b: int, words: str) -> None:
    with pytest.raises(DimensionError, match=words) as caught:
        native(expr, a, b)
    assert str(expr) in str(caught.value)


def test_a_fault_in_the_branch_not_taken_is_none() -> None:
    expr = select(equal(B, 0), A, A // B)
    assert native(expr, 7, 0) == 7
    assert native(expr, 7, 2) == 3
    assert native(A % B, -(1 << 63), -1) == 0


@pytest.mark.parametrize(
    "code",
    [
        *([], [0], [2], [0, 1, 0, 2], [1, 5], [1, -1], [99], [0, 1, 12], [0, 1, 2]),
        *([17], [18, 0], [0, 1, 17, 18, 1, 2], [0, 1, 17, 18, -1, 2], [0, 1, 17, 18]),
    ],
)
def test_malformed_code_is_refused(code: list[int]) -> None:
    with pytest.raises(ArtifactError):
        _native.evaluate(code, "?", [1, 2])
