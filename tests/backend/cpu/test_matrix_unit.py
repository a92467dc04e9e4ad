"""Tiles of a matrix unit: the instructions are there, and kernels are right by an interpreter.

No processor with AMX was at hand: what is compared with numpy here is the code around the tile
operations, with these in software.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from llvmlite import ir

from support import graph_kit
from support.graph_kit import F32, Space, apply, check, data, fixed, scalar
from support.software_tiles import SoftwareTiles
from tilewright.backend.cpu import matrix_unit
from tilewright.backend.cpu.machine import AVX512_AMX, LEVELS, assembly, host_levels
from tilewright.backend.cpu.matrix_unit import MatrixTile, matrix_tile
from tilewright.backend.cpu.shared import KernelModule, shared_module
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Cast, Contract, Map
from tilewright.target import preset

BF16, U8, S8, I32 = DType.BFLOAT16, DType.UINT8, DType.INT8, DType.INT32
NEEDED = {"avx512vnni", "avx512bf16"}
runs_wide = pytest.mark.skipif(
    not any(NEEDED & set(level.features) for level in host_levels()),
    reason="the code around the tiles needs AVX-512",
)
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 67)


def product(left: DType, depth: int, columns: int, outputs: int = 1) -> Graph:
    """Rows of ``depth`` elements by a constant, with a light epilogue."""
    space = Space()
    x = space.input("x", left, space.dimension("m"), depth)
    right, sums = (BF16, F32) if left is BF16 else (S8, I32)
    weights = fixed(data(right, (depth, columns), low=-128, high=127))
    made = node(Contract((), ((1, 0),), sums), x, weights)
    if sums is I32:
        made = node(Cast(F32), node(Map("add"), made, made))
    return space.graph(apply("maximum", made, scalar(0.0)))


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> str:
    """The level with tile operations in software, as graph_kit names levels."""
    level = replace(
        AVX512_AMX,
        adjustments=LEVELS["avx512"].adjustments + ",+avx512vnni,+avx512bf16",
        features=tuple(f for f in AVX512_AMX.features if not f.startswith("amx")),
        matrix="software",
    )
    monkeypatch.setitem(matrix_unit.OPERATIONS, "software", SoftwareTiles())
    monkeypatch.setitem(graph_kit.LEVELS, level.name, level)
    return level.name


@runs_wide
@pytest.mark.parametrize("left", [BF16, U8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(
    "size", [(4, 1), (60, 16), (64, 17), (68, 33), (132, 65), (2180, 40)], ids=str
)
def test_products_at_edges(software: str, left: DType, size: tuple[int, int]) -> None:
    depth, columns = size
    check(
        product(left, depth, columns),
        [{"m": m} for m in ROWS],
        length=depth,
        fill=lambda _, dtype, shape: data(dtype, shape, low=0, high=255),
        levels=(software,),
    )


@pytest.mark.parametrize("across", [1, 2])
@pytest.mark.parametrize(("narrow", "name"), [(BF16, "tdpbf16ps"), (U8, "tdpbusd")])
def test_instructions_are_used(narrow: DType, name: str, across: int) -> None:
    module = KernelModule("kernel")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "kernel")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    matrix_tile(builder, AVX512_AMX, MatrixTile(narrow, across))
    (shared,) = module.shared.values()
    text = assembly(shared_module(shared), AVX512_AMX)
    # Two parts of the depth, with two registers of rows or with one; loops may be unrolled.
    assert text.count(name) >= 2 * (2 * across + across)
    assert text.count("ldtilecfg") == 4 and text.count("tilerelease") == 1
    assert text.count("tilestored") == 2 * (2 * across + across)
    assert not any(other in text for other in {"tdpbf16ps", "tdpbusd"} - {name})


@pytest.mark.parametrize(("narrow", "rate"), [(BF16, 512), (U8, 1024)])
def test_a_step_is_priced_by_the_rate_of_the_unit(narrow: DType, rate: int) -> None:
    target = preset("sapphire-rapids")
    line = Machine(target).line(F32, 32, 32, narrow)
    sums = 32 * 32 * (4 // narrow.bytes)
    assert line.at(32) == pytest.approx(1000 * sums / rate / target.clock_ghz, rel=0.02)
    plain = Machine(target).limited(lambda unit: unit.m == 1).line(F32, 32, 32, narrow)
    assert plain.at(6) > 6 / 32 * line.at(32)


def test_only_named_levels_and_targets_have_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.backend.cpu import machine

    everything = {feature: True for level in LEVELS.values() for feature in level.features}
    monkeypatch.setattr(machine.llvm, "get_host_cpu_features", lambda: everything)
    assert not machine.host_level("uint8").matrix and not machine.host_level("bfloat16").matrix


@runs_wide
def test_few_rows_of_zeros_are_zero(software: str) -> None:
    graph = product(U8, 64, 40)
    check(graph, [{"m": 3}], fill=lambda _, t, s: np.zeros(s, t.numpy), levels=(software,))
