"""Bytes computed of one byte are looked up where that takes less time, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.cost import Machine
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import Apply, Loop, Store, TileProgram
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program
from tilewright.target import preset
from tilewright.tile.passes.byte_tables import with_byte_tables
from tilewright.tile.variants import LoweredStep

ROWS = """
buffer b0: {0}
buffer b1: uint8
result o0: {1}
work 1
grid _c0 < n
  for _i1 in 0 .. {2}
    o0[_i1] = {3}
"""
QUANTISED = "{1}(minimum(maximum(round_even(multiply({2}, 64.0)), 0.0), 127.0))"
TANGENT = QUANTISED.format(0, "int8", "hyperbolic_tangent(float32(b0[_i1]))")


def made_of(
    value: str, types: tuple[str, str] = ("int8", "int8"), machine: str = "zen4", length: str = "n"
) -> TileProgram:
    program = parse_program(ROWS.format(*types, length, value))
    (step,) = with_byte_tables([LoweredStep(program, (), ())], Machine(preset(machine)))
    assert isinstance(step.program, TileProgram)
    return step.program


def looked_up(program: TileProgram) -> Apply:
    (loop,) = program.body
    assert isinstance(loop, Loop)
    (store,) = loop.body
    assert isinstance(store, Store)
    assert isinstance(store.value, Apply)
    return store.value


@pytest.mark.parametrize("machine", ["zen4", "zen3", "x86-64"])
def test_what_a_table_holds(machine: str) -> None:
    found = looked_up(made_of(TANGENT, machine=machine))
    x = np.arange(-128, 128).astype(np.int8)
    wanted = np.clip(np.rint(np.tanh(x.astype(np.float32)) * 64), 0, 127).astype(np.int8)
    np.testing.assert_array_equal(SCALAR_FUNCTIONS[found.function].meaning(x), wanted)


def test_tables_are_written_and_read() -> None:
    program = made_of(TANGENT)
    text = print_program(program)
    assert "table_" in text
    assert print_program(parse_program(text)) == text


def test_values_of_names_are_part_of_what_is_looked_up() -> None:
    text = "minimum(maximum(round_even(_t2), 0.0), 127.0)"
    body = ROWS.format("int8", "int8", "n", f"int8({text})").replace(
        "    o0[", "    _t2 = exponential(float32(b0[_i1]))\n    o0["
    )
    step = LoweredStep(parse_program(body), (), ())
    (made,) = with_byte_tables([step], Machine(preset("zen4")))
    assert isinstance(made.program, TileProgram)
    assert looked_up(made.program).function.startswith("table_")


@pytest.mark.parametrize(
    ("value", "types"),
    [
        ("add(b0[_i1], 1:int8)", ("int8", "int8")),  # takes less time itself
        (TANGENT.replace("float32(b0[_i1])", "b0[_i1]"), ("float32", "int8")),
        (TANGENT.replace("float32(b0[_i1])", "float32(add(b0[_i1], b1[_i1]))"), ("uint8", "int8")),
        (TANGENT.replace("b0[_i1]", "b0[2*_i1]"), ("int8", "int8")),
        ("int8(divide(1.0, float32(b0[_i1])))", ("int8", "int8")),  # nothing is known of 1/0
    ],
)
def test_what_is_computed(value: str, types: tuple[str, str]) -> None:
    assert "table_" not in print_program(made_of(value, types))


def test_parts_of_a_value_are_looked_up() -> None:
    inner = TANGENT.replace("int8(", "uint8(", 1)
    text = print_program(made_of(f"maximum({inner}, b1[_i1])", ("uint8", "uint8")))
    assert "table_" in text
    assert "maximum(" in text
