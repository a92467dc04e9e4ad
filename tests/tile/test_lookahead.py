"""Loops along rows ask for lines ahead on cores that gain by it, and on no others."""

from __future__ import annotations

import pytest

from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.tile import TileProgram
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program
from tilewright.shape import constant
from tilewright.target import preset
from tilewright.target.core_model import usual_core
from tilewright.tile.passes.lookahead import with_lookahead
from tilewright.tile.variants import LoweredStep, Variant

SUMS = """
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for _i4 in 0 .. m
    for masked _i2 in 0 .. n
      _r3 = sum of b0[_i1*n + _i2]
    o0[_i1*m + _i4] = _r3
"""


def asking(ahead: int) -> TileProgram:
    step = LoweredStep(parse_program(SUMS), (), ())
    (variant,) = with_lookahead([Variant("rows", (step,), constant(0))], ahead)
    return variant.steps[0].program


def test_loops_along_rows_ask_and_those_around_them_do_not() -> None:
    text = print_program(asking(4096))
    assert "for masked _i2 in 0 .. n asking 4096 bytes ahead\n" in text
    assert "for _i4 in 0 .. m\n" in text


def test_without_a_gain_programs_stay_as_they_are() -> None:
    assert print_program(asking(0)) == print_program(parse_program(SUMS))


@pytest.mark.parametrize("ahead", [0, 4096])
def test_code_prefetches_where_a_loop_asks(ahead: int) -> None:
    level = LEVELS["avx512"]
    code = CodeGenerator(level)
    code.add(asking(ahead))
    module = KernelModule("kernels")
    for unit in code.units.values():
        unit.write(module)
    assert ("prefetcht0" in assembly(module, level)) == (ahead > 0)


def test_cores_that_halve_wide_vectors_follow_rows_on_their_own() -> None:
    assert usual_core(preset("zen4")).loops.ahead == 0
    assert usual_core(preset("zen5")).loops.ahead > 0
