"""Floats become narrow integers by instructions that saturate, where there are such."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import Cast
from tilewright.plan.greedy import plan_greedily
from tilewright.tile.lower import lower_kernel


@pytest.mark.parametrize(
    ("dtype", "instruction"), [(DType.INT8, "vpacksswb"), (DType.INT16, "vpackssdw")]
)
def test_numbers_with_a_sign_are_packed(dtype: DType, instruction: str) -> None:
    """Their lower bytes are not picked out one by one."""
    space = Space()
    graph = space.graph(node(Cast(dtype), space.input("x", F32, space.dimension("n"))))
    (kernel,) = plan_greedily(graph).kernels
    level = LEVELS["avx2"]
    for variant in lower_kernel(kernel, graph.scope, register_tile(level)).variants:
        code, module = CodeGenerator(level), KernelModule("kernels")
        for step in variant.steps:
            code.add(step.program)
        for unit in code.units.values():
            unit.write(module)
        text = assembly(module, level)
        assert instruction in text and "vpunpckldq" not in text
