"""Structures: equal for programs that are written alike, and different for all others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Literal, Load, Store, TileBuffer, Value
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_structure import structure_of
from tilewright.shape import constant

TEXT = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    _r3 = sum of b0[_i1*columns + _i2]
  o0[_i1] = _r3
"""
BUFFER = TileBuffer("b0", DType.FLOAT32)


def test_what_is_written_alike_is_equal() -> None:
    one, other = (parse_program(TEXT) for _ in range(2))
    assert one.body != other.body
    assert structure_of((one.grid, one.body)) == structure_of((other.grid, other.body))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("masked ", ""),
        ("sum of", "maximum of"),
        ("columns + _i2", "rows + _i2"),
        ("b0: float32", "b0: float64"),
        ("0 ..", "1 .."),
        ("b0", "b1"),
    ],
)
def test_every_difference_counts(old: str, new: str) -> None:
    assert old in TEXT
    one, other = parse_program(TEXT), parse_program(TEXT.replace(old, new))
    assert structure_of(one.body) != structure_of(other.body)


def test_what_is_shared_is_not_what_is_there_twice() -> None:
    """A walk counts a shared value once."""

    def load() -> Load:
        return Load(BUFFER, constant(0))

    def stored(*operands: Value) -> Store:
        return Store(BUFFER, constant(1), Apply("add", operands, DType.FLOAT32))

    shared = load()
    assert structure_of(stored(shared, shared)) == structure_of(stored(*[load()] * 2))
    assert structure_of(stored(shared, shared)) != structure_of(stored(load(), load()))


def test_numbers_are_those_that_are_written() -> None:
    zero = Literal(0.0, DType.FLOAT32)
    assert structure_of(zero) != structure_of(replace(zero, value=-0.0))
    assert structure_of(zero) == structure_of(replace(zero))
