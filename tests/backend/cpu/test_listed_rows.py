"""Register tiles whose rows a table lists keep their sums in registers."""

from __future__ import annotations

import re

import pytest

from support.graph_kit import F32, Space, check, data, fixed
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, ModuleText, assembly
from tilewright.backend.cpu.shared import KernelModule, shared_module
from tilewright.cost import Machine
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Convolve, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.target import preset
from tilewright.tile.lower import lower_kernel


def first_layer(channels: int) -> Graph:
    """3 x 3 with a stride of 2 over three channels, computed with the channels last."""
    space = Space()
    n, h, w = space.dimensions("n h w")
    x = space.input("x", F32, n, 3, h, w)
    last = node(Transpose((0, 2, 3, 1)), x)
    size = tuple((extent + 1) // 2 for extent in (h, w))
    weights = fixed(data(F32, (channels, 3, 3, 3), 3))
    one = (constant(1),) * 2
    made = node(Convolve((2, 2), (1, 1), (1, 1), one, size, 1, channels_last=True), last, weights)
    return space.graph(node(Transpose((0, 3, 1, 2)), made))


def code(graph: Graph, name: str) -> str:
    """The assembly of the kernel with the tiles that are a part of it, and of those it calls."""
    (kernel,) = plan_greedily(graph).kernels
    level, machine = LEVELS[name], Machine(preset("zen4"))
    lowered = lower_kernel(kernel, graph.scope, register_tile(level, machine), machine=machine)
    generator, module = CodeGenerator(level), KernelModule("kernels")
    generator.add(lowered.variants[0].steps[0].program)
    for unit in generator.units.values():
        unit.write(module)
    inlined = tuple(str(shared_module(shared)) for shared in module.inlined)
    called = [ModuleText(str(shared_module(shared)), ()) for shared in module.compiled]
    texts = (ModuleText(str(module), inlined), *called)
    return "\n".join(assembly(text, level) for text in texts)


@pytest.mark.parametrize("channels", [32, 48, 64])
def test_loops_over_the_depth_store_no_sums(channels: int) -> None:
    blocks = re.split(r"^\.?[A-Za-z0-9_.]+:", code(first_layer(channels), "avx512"), flags=re.M)
    steps = [block for block in blocks if block.count("vfmadd") >= 12]
    stored = r"vmov\w+\s+%zmm\d+, \d+\(%rsp\)"
    assert steps
    assert not any(re.search(stored, block) for block in steps)


@pytest.mark.parametrize("channels", [33, 48])
def test_every_height_of_a_narrow_last_panel(channels: int) -> None:
    widths = (1, 5, 11, 13, 14, 15, 17, 27, 29)
    sizes = [{"n": 1, "h": 1, "w": width} for width in widths] + [{"n": 2, "h": 5, "w": 9}]
    check(first_layer(channels), sizes, length=27)
