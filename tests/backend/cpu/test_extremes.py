"""Extremes that are kept in memory: whole vectors are stored, not all but their NaNs."""

from __future__ import annotations

import re

import pytest

from support.graph_kit import F32, Space
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.graph import node
from tilewright.ir.primitives import Reduce
from tilewright.plan.greedy import plan_greedily
from tilewright.tile.lower import lower_kernel


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_running_extremes_are_stored_without_a_mask(kind: str) -> None:
    space = Space()
    rows, columns = space.dimensions("r c")
    graph = space.graph(node(Reduce(kind, (0,)), space.input("x", F32, rows, columns)))
    (kernel,) = plan_greedily(graph).kernels
    level = LEVELS["avx2"]
    stored: list[str] = []
    for variant in lower_kernel(kernel, graph.scope, register_tile(level)).variants:
        code, module = CodeGenerator(level), KernelModule("kernels")
        for step in variant.steps:
            code.add(step.program)
        for unit in code.units.values():
            unit.write(module)
        text = assembly(module, level)
        assert re.search(rf"v{kind[:3]}ps .*%ymm", text.replace("\t", " "))
        stored += re.findall(r"vmaskmovps\s+%ymm\d+, %ymm\d+, .*\(", text)
    assert not stored
