"""What follows what: sweeps of a task, and blocks that are turned within a loop."""

from __future__ import annotations

import pytest

from tilewright.cost import Machine, loop_price
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import constant
from tilewright.target import preset

MACHINE = Machine(preset("zen4"))
READ = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < 1048576
  for masked _i2 in 0 .. {length}
    _r3 = sum of b0[_i1*8192 + _i2]
  o0[_i1] = _r3
"""
SUMMED = """\
buffer b0: float32
result o0: float32
scratch s0: float32 of 4096
work 1
grid _i1 < 1
  for _i2 in 0 .. 2048
    for independent _i3 in 0 .. 768
      s0[_i3] = add(b0[_i2*{row} + _i3], s0[_i3])
  for independent _i4 in 0 .. 768
    o0[_i4] = s0[_i4]
"""
TURNED = """\
buffer b0: float32
result o0: float32
scratch s0: float32 of 8192, fixed
work 1
grid _i1 < 4096
{}"""
COMPUTED = """\
  for masked _i2 in 0 .. 4096
    s0[_i2] = exponential(exponential(b0[_i2]))
"""
STORED = "  o0[_i1*256], row 1048576 = transposed s0[0], row 16: 256 x 16\n"


def alone(body: str) -> int:
    """Picoseconds of 16 planes that no cache holds, on one thread."""
    sizes = {"b0": constant(8192), "o0": constant(16 << 20)}
    return loop_price(parse_program(TURNED.format(body)), MACHINE, sizes).alone.evaluate({})


def test_lines_of_a_turned_block_do_not_hide_behind_what_is_computed_before() -> None:
    """The stores of 4,096 vectors are more than a core has under way while it computes again."""
    computed, stored, both = alone(COMPUTED), alone(STORED), alone(COMPUTED + STORED)
    looped = "  for _i9 in 0 .. 1\n" + "".join(
        f"  {line}\n" for line in (COMPUTED + STORED).splitlines()
    )
    assert both > 0.9 * (computed + stored)
    assert alone(looped) > 0.9 * (computed + stored)


def test_runs_of_memory_take_longer_until_hardware_follows() -> None:
    """By so much for each part of a run, up to two pages; what follows itself is one run."""

    def more(length: int) -> float:
        """Cycles for each row that parts of rows take more than as many elements in one run."""
        sizes = {"b0": constant(1 << 33), "o0": constant(1 << 20)}
        whole, part = (
            loop_price(parse_program(READ.format(length=n)), MACHINE, sizes).alone.evaluate({})
            for n in (8192, length)
        )
        return (part - whole * length / 8192) / (1 << 20) * MACHINE.target.clock_ghz / 1000

    piece = MACHINE.core.loops.piece
    for length, pieces in ((128, 1), (512, 4), (2048, 16), (4096, 16)):
        assert more(length) == pytest.approx(pieces * piece, rel=0.1), length


def test_vectors_that_begin_beside_lines_hide_less() -> None:
    """From the last cache, as much as their share of the core says, and lines that runs share."""
    size = {"o0": constant(768)}

    def cycles(row: int) -> float:
        """Of a line, of rows that are so far apart; what is computed hides what is read."""
        sizes = {**size, "b0": constant(2048 * row)}
        price = loop_price(parse_program(SUMMED.format(row=row)), MACHINE, sizes)
        return price.alone.evaluate({}) * MACHINE.target.clock_ghz / 1000 / (2048 * 48)

    costs = MACHINE.core.loops
    computed = costs.load + costs.aligned_load
    assert cycles(770) > computed + 0.8 * costs.crossing * 64 / MACHINE.target.levels[3].bandwidth
    assert cycles(768) < computed
