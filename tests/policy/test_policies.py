"""What policies choose for products: it follows the machine, the ranges and the threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.graph_kit import F32, Space, fixed
from tilewright.backend.cpu import machine
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.cost import Machine
from tilewright.ir.graph import node
from tilewright.ir.primitives import Contract
from tilewright.plan.greedy import plan_greedily
from tilewright.policy import POLICIES, Policy
from tilewright.policy.candidates import product_blocks
from tilewright.shape import Expr, constant
from tilewright.target import Target, preset
from tilewright.tile.lower import lower_kernel
from tilewright.tile.variants import THREADS, Variant

LEVELS = {"x86-64": "x86-64", "avx2": "zen3", "avx512": "icelake-server"}


def variants(
    target: Target, columns: int, depth: int, high: int = 4096, policy: Policy = POLICIES["auto"]
) -> tuple[Variant, ...]:
    """Those of m rows by constant weights."""
    space = Space()
    m = space.dimension("m", 0, high)
    weights = fixed(np.zeros((depth, columns), np.float32))
    graph = space.graph(
        node(Contract((), ((1, 0),)), space.input("x", F32, m, constant(depth)), weights)
    )
    (kernel,) = plan_greedily(graph).kernels
    level = next((name for name, usual in LEVELS.items() if target.name == usual), "avx512")
    tile = register_tile(machine.LEVELS[level], Machine(target))
    return lower_kernel(kernel, graph.scope, tile, machine=Machine(target), policy=policy).variants


def names(found: tuple[Variant, ...]) -> list[str]:
    return [variant.name for variant in found]


def least(found: tuple[Variant, ...], m: int, threads: int) -> int:
    return min(price(variant.cost, m, threads) for variant in found)


def price(cost: Expr, m: int, threads: int) -> int:
    return cost.evaluate({"m": m, THREADS: threads})


@pytest.mark.parametrize("usual", LEVELS.values())
def test_few_variants_serve_all_rows_and_threads(usual: str) -> None:
    found = variants(preset(usual), 768, 768)
    assert 2 <= len(found) <= 8
    best = variants(preset(usual), 768, 768, policy=POLICIES["vortex"])
    assert len(found) <= len(best) <= 24
    for threads in (1, 2, preset(usual).units):
        for m in (1, 5, 17, 100, 333, 1024, 4096):
            assert least(found, m, threads) <= 1.2 * least(best, m, threads)


def test_blocks_follow_the_caches() -> None:
    target = preset("icelake-server")
    levels = tuple(
        replace(level, capacity=level.capacity // 8) if level.name == "L2" else level
        for level in target.levels
    )
    small = replace(target, levels=levels)
    allowed = product_blocks(small, "float32", 6, 64, False, 16)
    assert max(m * k for m, _, k in allowed) * 4 <= small.level("L2").capacity
    assert names(variants(target, 3072, 768)) != names(variants(small, 3072, 768))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("level", "change"),
    [
        ("memory", {"bandwidth": 1e6, "total_bandwidth": 1e6}),
        ("L1", {"capacity": 256}),
        ("L1", {"capacity": 1 << 26}),
        ("L2", {"capacity": 1024}),
        ("L2", {"bandwidth": 1e-3, "total_bandwidth": 1e-3}),
    ],
)
def test_any_machine_has_a_block(level: str, change: dict[str, float], packed: bool) -> None:
    target = preset("zen4")
    levels = tuple(
        replace(each, **change) if each.name == level else each for each in target.levels
    )
    blocks = product_blocks(replace(target, levels=levels), "float32", 6, 64, packed, 16)
    assert blocks
    assert all(min(extents) > 0 for extents in blocks)


def test_one_shape_has_the_variants_that_are_best_for_some_threads() -> None:
    found = variants(preset("icelake-server"), 768, 768, high=0)
    assert len(found) >= 1


def test_small_products_are_cut_for_many_threads() -> None:
    """64 columns are one panel: only blocks of rows make tasks."""
    found = variants(preset("icelake-server"), 64, 512)
    assert least(found, 256, 8) < 0.3 * least(found, 256, 1)


def test_the_same_choice_every_time() -> None:
    target = preset("zen3")
    assert names(variants(target, 121, 3703)) == names(variants(target, 121, 3703))
