"""Kernels and parts of kernels that are alike are lowered once, to what each is alone."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space, apply, data, fixed, kept, scalar, spread
from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import KernelKind
from tilewright.ir.primitives import Contract
from tilewright.ir.tile_print import print_program
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.policy import POLICIES
from tilewright.tile.alike import LoweringOnce, outline_key
from tilewright.tile.lower import LoweredKernel, lower_kernel
from tilewright.tile.stitched import variants
from tilewright.tile.variants import Accuracy

WIDTH = 48


def centred(x: Node) -> Node:
    """Each row less its mean, over the largest of what is left."""
    axes = (x.rank - 1,)
    count = spread(scalar(float(WIDTH), x.dtype), x.shape)
    left = apply("subtract", x, apply("divide", kept(x, "sum", axes), count))
    return apply("divide", left, kept(left, "maximum", axes))


def texts(lowered: LoweredKernel) -> list[tuple[str, str, list[str], list[int]]]:
    """What the variants of a kernel are, and where each step takes its operands from."""
    places = {read: number for number, read in enumerate(lowered.kernel.reads)}
    return [
        (
            variant.name,
            str(variant.cost.key),
            [print_program(step.program) for step in variant.steps],
            [places.get(read, -1) for step in variant.steps for read in step.reads],
        )
        for variant in lowered.variants
    ]


def test_rows_behind_different_products_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space()
    rows = space.dimension("rows")
    roots: list[Node] = []
    for name, depth in (("x", 24), ("y", 40), ("z", 24)):
        weights = fixed(data(F32, (depth, WIDTH), depth))
        x = space.input(name, F32, rows, depth)
        roots.append(centred(node(Contract((), ((1, 0),)), x, weights)))
    graph = prepare(space.graph(*roots))
    kernels = plan_greedily(graph).kernels
    assert [kernel.kind for kernel in kernels] == [KernelKind.ROW_PRODUCT] * 3
    assert outline_key(kernels[0]) is outline_key(kernels[2])
    assert outline_key(kernels[0]) is not outline_key(kernels[1])

    calls: list[str] = []
    for name in ("lower_rows", "contraction_variants"):
        plain = getattr(variants, name)

        def counted(*arguments: object, name: str = name, plain: object = plain) -> object:
            calls.append(name)
            assert callable(plain)
            return plain(*arguments)

        monkeypatch.setattr(variants, name, counted)
    machine, tile = usual_machine(LEVELS["avx512"]), register_tile(LEVELS["avx512"])
    once = LoweringOnce(graph.scope, tile, Accuracy.STANDARD, machine, POLICIES["auto"])
    made = [once.lowered(kernel) for kernel in kernels]
    assert sorted(calls) == ["contraction_variants", "contraction_variants", "lower_rows"]
    for kernel, lowered in zip(kernels, made, strict=True):
        alone = lower_kernel(kernel, graph.scope, tile, Accuracy.STANDARD, machine)
        assert texts(lowered) == texts(alone)
