"""The code of kernels as LLVM is given it, for tests that read its instructions."""

from __future__ import annotations

from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.graph import Graph
from tilewright.plan.greedy import plan_greedily
from tilewright.tile.lower import lower_kernel


def modules_of_variants(graph: Graph, level: str) -> list[KernelModule]:
    """A module for each variant of the only kernel of ``graph``."""
    (kernel,) = plan_greedily(graph).kernels
    made: list[KernelModule] = []
    for variant in lower_kernel(kernel, graph.scope, register_tile(LEVELS[level])).variants:
        code, module = CodeGenerator(LEVELS[level]), KernelModule("kernels")
        for step in variant.steps:
            code.add(step.program)
        for unit in code.units.values():
            unit.write(module)
        made.append(module)
    return made
