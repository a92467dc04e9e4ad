"""Results with the channels first of convolutions computed with the channels last."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space, apply, check, data, fixed, scalar
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import build_program
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Convolve, Transpose
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import TransposeBlock
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant, maximum


def network(space: Space, outputs: int, groups: int = 1) -> Node:
    """[n, h, w, 8] through 5x5 with bias and rectifier to [n, outputs, h - 2, w - 2]."""
    n, h, w = space.dimension("n"), space.dimension("h", 1), space.dimension("w", 1)
    x = space.input("x", F32, n, h, w, 8)
    weights = fixed(data(F32, (outputs, 8 // groups, 5, 5), 3))
    one, low = (1, 1), (constant(1), constant(1))
    sizes = (maximum(0, h - 2), maximum(0, w - 2))
    made = node(Convolve(one, one, one, low, sizes, groups, channels_last=True), x, weights)
    bias = node(Broadcast(made.shape, (3,)), fixed(data(F32, (outputs,), 5)))
    active = apply("maximum", apply("add", made, bias), scalar(0.0))
    return node(Transpose((0, 3, 1, 2)), active)


SHAPES = [
    dict(zip("nhw", sizes, strict=True))
    for sizes in ((0, 5, 5), (1, 3, 3), (1, 2, 9), (3, 4, 5), (2, 9, 14), (5, 8, 8))
]


@pytest.mark.slow
def test_images_of_a_batch_are_moved_one_by_one() -> None:
    space = Space()
    check(space.graph(network(space, 19)), SHAPES, length=200)


@pytest.mark.slow
def test_groups() -> None:
    space = Space()
    check(space.graph(network(space, 10, groups=2)), SHAPES, length=100)


@pytest.mark.slow
def test_the_transposition_is_part_of_the_kernel() -> None:
    space = Space()
    graph = space.graph(network(space, 16))
    plan = plan_greedily(graph)
    assert [k.outputs[0].primitive for k in plan.kernels] == [Transpose((0, 3, 1, 2))]
    (kernel,) = build_program(graph, plan, LEVELS["x86-64"]).lowered
    program = kernel.variants[0].steps[0].program
    assert program.scratch[-1].name == "stage_o0"
    (loop,) = ProductNest.of(program).blocks.store
    assert isinstance(loop.body[0], TransposeBlock)  # type: ignore[union-attr]
