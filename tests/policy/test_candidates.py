from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.policy.candidates import (
    Candidate,
    CandidateTable,
    Limits,
    attention_blocks,
    cache_blocks,
    candidates,
    register_tiles,
)
from tilewright.support.errors import InputError
from tilewright.target import Target, preset

LIMITS = Limits()


def check(table: CandidateTable, limits: Limits = LIMITS) -> None:
    """What holds for every table: order, multiples of children, capacities."""
    tiles, blocks, grids = table.levels
    for level in table.levels:
        keys = [(c.extents, c.instruction) for c in level]
        assert keys == sorted(set(keys))
        assert all(0 < c.used <= 1 and 0 < c.share <= 1 for c in level)
    instructions = {i.name: i for i in table.target.instructions(table.dtype)}
    for tile in tiles:
        instruction = instructions[tile.instruction]
        extents = (instruction.m, instruction.n, instruction.k * tile.copies)
        assert is_multiple(tile.extents, extents)
        assert tile.share >= limits.register_share and not tile.children
    for below, level in ((tiles, blocks), (blocks, grids)):
        for candidate in level:
            assert candidate.children == tuple(sorted(set(candidate.children)))
            assert candidate.children
            assert all(is_multiple(candidate.extents, below[c].extents) for c in candidate.children)
    for block in blocks:
        assert block.used <= limits.cache[1]
        assert block.share >= limits.block_share
    for grid in grids:
        for child in grid.children:
            quotients = [a // b for a, b in zip(grid.extents, blocks[child].extents, strict=True)]
            units = quotients[0] * quotients[1] * quotients[2]
            assert units in (1, table.target.units)


def is_multiple(extents: tuple[int, int, int], of: tuple[int, int, int]) -> bool:
    return all(a % b == 0 for a, b in zip(extents, of, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("x86-64", "float32"),
        ("zen3", "int8"),
        ("k80", "float32"),
        ("v100", "float16"),
        ("a100", "tfloat32"),
        ("h100", "bfloat16"),
    ],
)
def test_presets(name: str, dtype: str) -> None:
    table = candidates(preset(name), dtype)
    assert all(table.levels)
    check(table)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    registers=st.integers(4, 14),
    first=st.integers(12, 64),
    second=st.integers(64, 256),
    units=st.integers(1, 12),
    pipes=st.sampled_from([1.0, 2.0]),
    least=st.sampled_from([0.1, 0.3, 0.5]),
)
def test_any_machine(
    registers: int, first: int, second: int, units: int, pipes: float, least: float
) -> None:
    target = machine(registers, first << 10, second << 10, units, pipes)
    limits = Limits(cache=(least, 0.75))
    table = candidates(target, "float32", limits)
    assert table == candidates(target, "float32", limits)
    check(table, limits)
    for tile in table.levels[0]:
        rows, columns = tile.m, tile.n // 8
        assert tile.copies * rows * columns + columns + 1 <= registers
    second = target.level("L2").capacity
    for block in table.levels[1]:
        assert least * target.level("L1").capacity <= 4 * block.n * block.k
        rows_stay = 4 * block.m * block.k <= 0.75 * second
        columns_stay = 4 * block.k * block.n <= 0.75 * second
        assert rows_stay or columns_stay


def machine(registers: int, first: int, second: int, units: int, pipes: float) -> Target:
    base = preset("zen3")
    capacities = {"L1": first, "L2": second}
    levels = tuple(
        replace(level, capacity=capacities.get(level.name, level.capacity)) for level in base.levels
    )
    rates = (("float32", 8 * pipes),)
    return replace(
        base, vector_registers=registers, units=units, levels=levels, fma_pipes=pipes,
        multiply_adds=rates,
    )  # fmt: skip


def tile(target: str, dtype: str, m: int, n: int) -> Candidate | None:
    level = register_tiles(preset(target), dtype, LIMITS)
    return next((c for c in level if (c.m, c.n) == (m, n)), None)


@pytest.mark.parametrize(
    ("name", "m", "n"), [("zen3", 6, 16), ("haswell", 6, 16), ("zen5", 14, 32), ("zen5", 9, 48)]
)
def test_the_tiles_that_people_use_are_kept(name: str, m: int, n: int) -> None:
    found = tile(name, "float32", m, n)
    assert found is not None and found.share == 1.0 and found.copies == 1


def test_the_instruction_set_is_a_filter() -> None:
    # 6 x 24 needs 18 sums, AVX2 has 16 registers; 1 x 8 waits for its loads and its own sums.
    assert tile("zen3", "float32", 6, 24) is None
    assert tile("zen3", "float32", 1, 8) is None
    short = tile("zen3", "float32", 2, 16)
    assert short is not None and short.copies == 2, "two copies of four sums hide the latency"
    assert tile("sapphire-rapids", "bfloat16", 32, 32) is not None, "the eight registers of AMX"
    assert tile("sapphire-rapids", "bfloat16", 48, 48) is None


@pytest.mark.slow
def test_warp_tiles_are_made_of_matrix_instructions() -> None:
    table = candidates(preset("a100"), "float16")
    kinds = {c.instruction for c in table.levels[0]}
    assert kinds == {"fma", "mma"}
    for c in table.levels[0]:
        if c.instruction == "mma":
            assert c.m % 16 == 0 and c.n % 8 == 0 and c.k == 16
            assert c.m * c.n / 32 <= 255
    assert any(c.extents == (128, 128, 32) for c in table.levels[1])
    shared = preset("a100").block_shared_bytes
    assert all(2 * 2 * (c.m + c.n) * c.k <= shared for c in table.levels[1])


@pytest.mark.slow
def test_wider_limits_keep_more() -> None:
    target, wide = machine(8, 16 << 10, 128 << 10, 1, 2.0), Limits(0.4, 0.2, (0.05, 0.9))
    few, many = (register_tiles(target, "float32", limits) for limits in (LIMITS, wide))
    assert {c.extents for c in few} < {c.extents for c in many}
    fewer = cache_blocks(target, "float32", few, LIMITS)
    more = cache_blocks(target, "float32", many, wide)
    assert {c.extents for c in fewer} < {c.extents for c in more}


def test_types_that_a_target_cannot_multiply() -> None:
    assert candidates(preset("zen3"), "float16").levels == ((), (), ())
    with pytest.raises(InputError, match="int3"):
        candidates(preset("zen3"), "int3")


@pytest.mark.parametrize("name", ["zen3", "zen4", "icelake-server", "x86-64"])
@pytest.mark.parametrize("depth", [1, 128, 100_000])
def test_blocks_of_attention_fit_the_second_cache(name: str, depth: int) -> None:
    target = preset(name)
    blocks = attention_blocks(target, "float32", 6, depth)
    room = LIMITS.cache[1] * target.level("L2").capacity
    assert blocks == tuple(sorted(set(blocks))) and blocks
    assert all(rows % 16 == 0 and keys % 48 == 0 for rows, keys in blocks)
    used = [4 * (2 * rows * keys + (rows + keys) * depth) for rows, keys in blocks]
    assert all(size <= room for size in used) or blocks == ((16, 48),)


def test_blocks_of_attention_follow_the_cache() -> None:
    target = preset("zen4")
    small = replace(
        target,
        levels=tuple(
            replace(level, capacity=level.capacity // 4) if level.name == "L2" else level
            for level in target.levels
        ),
    )
    most = [max(r * k for r, k in attention_blocks(t, "float32", 6, 128)) for t in (target, small)]
    assert most[1] < most[0] / 2
