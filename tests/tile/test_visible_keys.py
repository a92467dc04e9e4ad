"""Which keys a mask of positions hides, read from the values that show scores."""

from __future__ import annotations

import math

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, IndexValue, Literal, Load, Local, TileBuffer, Value
from tilewright.shape import Expr, constant, symbol
from tilewright.tile.attention.visible_keys import visible_keys

F32 = DType.FLOAT32
ROW, KEY = symbol("_m"), symbol("_n")
SCORE = Local("score", F32)
PADDING = Load(TileBuffer("b0", DType.BOOL), KEY)


def number(value: float) -> Literal:
    return Literal(value, F32)


def truth(function: str, *operands: Value) -> Apply:
    return Apply(function, operands, DType.BOOL)


def less(one: Expr, other: Expr, function: str = "less_equal") -> Apply:
    return truth(function, IndexValue(one), IndexValue(other))


def chosen(condition: Value, one: Value, other: Value) -> Apply:
    return Apply("select", (condition, one, other), F32)


def last(shown: Value) -> tuple[Expr, float] | None:
    found = visible_keys(shown, "_m", "_n")
    return None if found is None else (found.last, found.low)


LOW = number(-math.inf)


@pytest.mark.parametrize(
    ("condition", "bound"),
    [
        (less(KEY, ROW), ROW),
        (less(KEY, ROW, "less"), ROW - 1),
        (less(KEY, ROW + 7), ROW + 7),
        (less(KEY, 2 * ROW), 2 * ROW),
        (less(KEY, constant(9)), constant(9)),
        (truth("logical_and", PADDING, less(KEY, ROW)), ROW),
        (truth("logical_not", less(ROW, KEY, "less")), ROW),
    ],
)
def test_conditions_that_bound_the_key(condition: Value, bound: Expr) -> None:
    assert last(chosen(condition, SCORE, LOW)) == (bound, -math.inf)


@pytest.mark.parametrize(
    "condition",
    [
        PADDING,
        less(ROW, KEY),
        less(KEY, -ROW),
        less(2 * KEY, ROW),
        truth("logical_or", PADDING, less(KEY, ROW)),
    ],
)
def test_conditions_that_do_not(condition: Value) -> None:
    assert last(chosen(condition, SCORE, LOW)) is None


def test_a_hidden_key_may_be_chosen_first() -> None:
    assert last(chosen(less(ROW, KEY, "less"), LOW, SCORE)) == (ROW, -math.inf)


def test_masks_that_are_added() -> None:
    mask = chosen(less(KEY, ROW), number(0.0), LOW)
    assert last(Apply("add", (SCORE, mask), F32)) == (ROW, -math.inf)
    assert last(Apply("add", (mask, SCORE), F32)) == (ROW, -math.inf)


def test_numbers_that_may_not_hide() -> None:
    """An added number hides what it makes lower than any sum of scores; another is a bias."""
    small = chosen(less(KEY, ROW), number(0.0), number(-1e9))
    assert last(Apply("add", (SCORE, small), F32)) is None
    assert last(chosen(less(KEY, ROW), SCORE, number(-5.0))) is None
    assert last(chosen(less(KEY, ROW), SCORE, number(-1e9))) == (ROW, -1e9)
