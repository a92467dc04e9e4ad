"""Masks are asked for where rests of vectors take long, and only where vectors are all it takes."""

from __future__ import annotations

import pytest

from tilewright.cost import Machine
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program
from tilewright.target import preset
from tilewright.tile.passes.masks import with_masks
from tilewright.tile.variants import LoweredStep

ROWS = """
buffer b0: {0}
result o0: {1}
work 1
grid _i1 < rows
  for _i2 in 0 .. {2}
    o0[_i1*{2} + _i2] = {3}
"""

FLOATS = ("float32", "float32")


SUMS = ROWS.replace("o0[_i1*{2} + _i2] = {3}", "_r3 = sum of {3}") + "  o0[_i1] = _r3\n"


def is_masked(
    value: str, length: str, machine: str, types: tuple[str, str] = FLOATS, rows: str = ROWS
) -> bool:
    text = rows.format(*types, length, value.format(f"b0[_i1*({length} + 1) + _i2]"))
    step = LoweredStep(parse_program(text), (), ())
    (made,) = with_masks([step], Machine(preset(machine)))
    return "for masked" in print_program(made.program)


@pytest.mark.parametrize("machine", ["zen4", "zen3"])
def test_of_rows_of_any_length_those_have_masks_that_are_stored_or_heavy(machine: str) -> None:
    """What several vectors have summed is summed once more, which takes as long as a few elements.

    Those that are stored are computed one by one without a mask, each in a turn of its own loop.
    """
    for value in ("exponential({})", "maximum({}, 0.0)"):
        assert is_masked(value, "n", machine)
    assert is_masked("exponential({})", "n", machine, rows=SUMS)
    assert not is_masked("maximum({}, 0.0)", "n", machine, rows=SUMS)


@pytest.mark.parametrize("value", ["exponential({})", "maximum({}, 0.0)"])
def test_of_rows_of_known_length_all_but_short_ones_have_masks(value: str) -> None:
    assert [n for n in (1, 3, 4, 7, 8, 31) if is_masked(value, str(n), "zen3")] == [4, 7, 8, 31]
    assert [n for n in (1, 3, 7, 8, 9, 31) if is_masked(value, str(n), "zen4")] == [8, 9, 31]


def test_bytes_have_masks_where_registers_hold_them() -> None:
    value, types = "exponential(float32({}))", ("int8", "float32")
    assert is_masked(value, "n", "zen4", types)
    assert not is_masked(value, "n", "zen3", types)
    assert is_masked(value, "31", "zen3", types)


def test_what_is_no_vector_has_no_mask() -> None:
    assert not is_masked("exponential(b0[2*_i2])", "31", "zen4")
    assert not is_masked("divide({0}, {0})", "31", "zen4", ("int32", "int32"))
    assert not is_masked("exponential({})", "31", "neoverse-n1")
