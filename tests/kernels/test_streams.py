"""Results that are written past the caches: their values, and when that is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOOL,
    BOTH_LEVELS,
    F32,
    F64,
    I64,
    Compiled,
    Space,
    apply,
    check,
    exact,
    inputs_at,
    scalar,
    spread,
)
from tilewright.backend.cpu.program import REGISTER_TILES
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Cast, Concat, Transpose
from tilewright.ir.tile_print import print_tile
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Scope
from tilewright.target import preset
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.streams import with_streams
from tilewright.tile.variants import LoweredStep, Variant

LENGTHS = [{"n": n} for n in (0, 1, 15, 16, 17, 63, 64, 65, 127, 257, 4096, 4099, 9001)]


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results that can be streamed are."""

    def last(
        kernel: Kernel, steps: tuple[LoweredStep, ...], scope: Scope, machine: Machine
    ) -> tuple[Variant, ...]:
        return with_streams(kernel, steps, scope, machine)[-1:]

    monkeypatch.setattr(lower, "with_streams", last)


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("dtype", [F32, F64, I64, DType.FLOAT16, DType.UINT8, BOOL])
def test_every_type(dtype: DType) -> None:
    space = Space()
    n = space.dimension("n", 0, 1 << 40)
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    graph = space.graph(apply("maximum", x, y))
    assert "streamed" in _text(graph, "streamed")
    check(graph, LENGTHS)


@pytest.mark.usefixtures("streamed")
def test_conversions_functions_and_broadcasts() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x, row, column = (
        space.input("x", F32, a, b),
        space.input("r", F32, b),
        space.input("c", F32, a, 1),
    )
    shifted = apply("add", x, spread(row, x.shape))
    made = apply("hyperbolic_tangent", apply("multiply", shifted, scalar(0.5)))
    narrow = node(Cast(DType.FLOAT16), apply("multiply", made, spread(column, x.shape)))
    cases = [{"a": a, "b": b} for a, b in ((0, 3), (1, 1), (3, 67), (2, 1029), (5, 256))]
    check(space.graph(narrow), cases, length=8)


@pytest.mark.usefixtures("streamed")
def test_joined_operands() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, b), space.input("y", F32, a, c)
    cases = [
        {"a": a, "b": b, "c": c} for a, b, c in ((0, 1, 2), (1, 0, 5), (3, 65, 67), (2, 300, 9))
    ]
    check(space.graph(node(Concat(1), x, y)), cases)


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("level", BOTH_LEVELS)
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_results_that_begin_anywhere(level: str, pieces: int) -> None:
    """Results at the end of a page begin at no multiple of a cache line."""
    graph = _sum()
    compiled = Compiled(graph, [level])
    for length in (3, 66, 131, 8209):
        sizes = {"n": length}
        inputs = inputs_at(graph, sizes)
        want = exact(graph, inputs, sizes)
        got = compiled.guarded(level, inputs, sizes, at_end=True, poison=0x7F, pieces=pieces)
        np.testing.assert_allclose(got["y0"], want["y0"], rtol=1e-6)


def test_only_what_no_cache_holds_is_streamed() -> None:
    cost = {variant.name: variant.cost for variant in _variants(_sum())}
    machine = Machine(preset("zen4"))
    last = machine.target.levels[-2].capacity

    def chosen(sizes: Mapping[str, int]) -> str:
        return min(cost, key=lambda name: cost[name].evaluate(sizes))

    most = 2 * last // 12  # of three numbers
    for size in (1, 1000, most // 2, most):
        assert chosen({"n": size}) == "loops"
    for size in (most + 1, last, 10 * last):
        assert chosen({"n": size}) == "streamed"


def test_small_ranges_have_one_variant() -> None:
    assert [v.name for v in _variants(_sum(high=1000))] == ["loops"]


def test_strided_stores_are_not_streamed() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"), 3)
    graph = space.graph(node(Transpose((1, 2, 0)), x))
    assert all("streamed" not in _text(graph, v.name) for v in _variants(graph))


def _sum(high: int = 1 << 40) -> Graph:
    space = Space()
    n = space.dimension("n", 0, high)
    return space.graph(apply("add", space.input("x", F32, n), space.input("y", F32, n)))


def _variants(graph: Graph) -> tuple[Variant, ...]:
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset("zen4"))
    return lower_kernel(kernel, graph.scope, REGISTER_TILES["avx512"], machine=machine).variants


def _text(graph: Graph, name: str) -> str:
    found: dict[str, Any] = {variant.name: variant for variant in _variants(graph)}
    return "\n".join(print_tile(step.program) for step in found[name].steps)
