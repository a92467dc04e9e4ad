"""Bounds of what values stand for."""

from __future__ import annotations

import math

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Convert, Literal, Load, TileBuffer, Value
from tilewright.ir.tile_magnitudes import magnitude
from tilewright.shape import constant

F32 = DType.FLOAT32
BYTE = Convert(Load(TileBuffer("x", DType.INT8), constant(0)), F32)
FLOAT = Load(TileBuffer("y", F32), constant(0))


def number(value: float) -> Literal:
    return Literal(value, F32)


def applied(function: str, *operands: Value) -> Value:
    return Apply(function, operands, F32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (BYTE, 256.0),
        (applied("add", applied("multiply", BYTE, number(-0.5)), number(3.0)), 131.0),
        (applied("subtract", BYTE, BYTE), 512.0),
        (applied("divide", BYTE, number(-2.0)), 128.0),
        (applied("select", FLOAT, BYTE, number(300.0)), 300.0),
        (applied("divide", BYTE, number(0.0)), math.inf),
        (applied("divide", BYTE, BYTE), math.inf),
        (applied("multiply", BYTE, number(math.nan)), math.inf),
        (applied("multiply", BYTE, FLOAT), math.inf),
        (applied("exponential", BYTE), math.inf),
    ],
)
def test_literals_and_types_tell(value: Value, expected: float) -> None:
    assert magnitude(value) == expected


def test_shared_parts_are_looked_at_once() -> None:
    value: Value = BYTE
    for _ in range(64):
        value = applied("maximum", value, value)
    assert magnitude(value) == 256.0 + 64
