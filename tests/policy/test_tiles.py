"""Level 0: which register tiles an instruction set allows, and that code is as the sieve says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.register_tile import most_rows
from tilewright.cost import Machine
from tilewright.policy.tiles import product_tiles
from tilewright.target import preset, preset_names
from tilewright.target.core_model import ADDRESSED_ROWS, LISTED, tallest
from tilewright.target.description import TEMPORARIES

CPUS = [name for name in preset_names() if preset(name).kind == "cpu"]


@pytest.mark.parametrize(
    ("level", "usual"),
    [("x86-64", (4, 8)), ("avx2", (6, 16)), ("avx512", (6, 64)), ("avx512-vnni", (6, 64))],
)
def test_usual_tiles_of_the_levels(level: str, usual: tuple[int, int]) -> None:
    tile = register_tile(LEVELS[level])
    assert (tile.rows, tile.columns) == usual
    assert usual not in tile.others


@pytest.mark.parametrize("name", CPUS)
def test_tiles_fit_the_registers_and_each_filter_lets_fewer_through(name: str) -> None:
    target = preset(name)
    sieved = product_tiles(target, "float32")
    for tile in sieved.tiles:
        used = tile.sums + tile.vectors + 1
        assert used + TEMPORARIES.get(target.isa, 0) <= target.vector_registers
        assert tile.rows <= ADDRESSED_ROWS
    counts = [count for _, count in sieved.counts]
    assert counts == sorted(counts, reverse=True) and counts[-1] > 0


def test_tiles_follow_the_registers_of_a_machine() -> None:
    target = preset("zen4")
    half = Machine(replace(target, vector_registers=16))
    tile, whole = (register_tile(LEVELS["avx512"], m) for m in (half, Machine(target)))
    assert (tile.rows, tile.columns) == (6, 32)
    assert (whole.rows, whole.columns) == (6, 64)
    assert tile.others != whole.others


@given(st.integers(4, 64), st.integers(1, 16))
def test_no_taller_tile_of_the_width_fits(registers: int, vectors: int) -> None:
    rows = tallest(registers, vectors)
    assert rows == 1 or rows * vectors + vectors + 1 <= registers
    assert rows == ADDRESSED_ROWS or (rows + 1) * vectors + vectors + 1 > registers
    assert tallest(registers, vectors, listed=True) == min(rows, LISTED)


def test_the_registers_of_levels_and_of_descriptions_agree() -> None:
    for level in LEVELS.values():
        assert level.temporaries == TEMPORARIES.get(level.isa, 0)
        target = usual_machine(level).target
        assert target.vector_registers == level.registers
        lanes = level.lanes(4)
        tile = register_tile(level)
        for rows, columns in ((tile.rows, tile.columns), *tile.others):
            assert rows == most_rows(level, columns // lanes)
