"""Windows side by side: columns are combined as whole vectors, and picked apart afterwards."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.graph import node
from tilewright.ir.primitives import Window
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.tile.lower import lower_kernel


@pytest.mark.parametrize("kind", ["sum", "maximum"])
def test_each_of_two_phases_is_picked_once(kind: str) -> None:
    space = Space()
    n, h, w = space.dimensions("n h w")
    zero = (constant(0),) * 2
    window = Window(kind, (4, 2), (4, 2), (1, 1), zero, (h // 4, w // 2))
    graph = space.graph(node(window, space.input("x", F32, n, 3, h, w)))
    (kernel,) = plan_greedily(graph).kernels
    level = LEVELS["avx512"]
    code, module = CodeGenerator(level), KernelModule("kernels")
    for variant in lower_kernel(kernel, graph.scope, register_tile(level)).variants:
        for step in variant.steps:
            code.add(step.program)
    for unit in code.units.values():
        unit.write(module)
    assert str(module).count("shufflevector <4 x float>") == 2
