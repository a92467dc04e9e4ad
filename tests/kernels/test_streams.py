"""Results that are written past the caches: their values, and when that is done."""

from __future__ import annotations

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
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Cast, Concat, Contract, Transpose
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import Loop, Statement
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant
from tilewright.target import preset
from tilewright.tile.lower import lower_kernel
from tilewright.tile.passes import streams

_ZEN4 = Machine(preset("zen4"))
LENGTHS = [{"n": n} for n in (0, 1, 15, 16, 17, 63, 64, 65, 127, 257, 4096, 4099, 9001)]


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results that can be streamed are."""

    def always(_: Kernel, capacity: int) -> Expr:
        assert capacity > 0
        return constant(1)

    monkeypatch.setattr(streams, "_exceeds", always)


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("dtype", [F32, F64, I64, DType.FLOAT16, DType.UINT8, BOOL])
def test_every_type(dtype: DType) -> None:
    space = Space()
    n = space.dimension("n", 0, 1 << 40)
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    graph = space.graph(apply("maximum", x, y))
    assert _conditions(graph)
    check(graph, LENGTHS)


@pytest.mark.slow
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


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("level", BOTH_LEVELS)
@pytest.mark.parametrize("heavy", [False, True])
def test_products(level: str, heavy: bool) -> None:
    """Rows of whole lines, and others; results that begin on a line, and in the middle of one."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    made = _product(space.input("x", F32, m, k), space.input("y", F32, k, n))
    graph = space.graph(apply("error_function", apply("exponential", made)) if heavy else made)
    compiled = Compiled(graph, [level])
    for sizes in ((1, 64, 3), (7, 128, 1), (13, 80, 9), (5, 72, 2), (6, 1, 4), (0, 64, 4)):
        named = dict(zip("mnk", sizes, strict=True))
        inputs = inputs_at(graph, named)
        want = exact(graph, inputs, named)
        for at_end in (False, True):
            got = compiled.guarded(level, inputs, named, at_end=at_end, poison=0x7F, pieces=1)
            np.testing.assert_allclose(got["y0"], want["y0"], rtol=1e-5, atol=1e-6)


def test_products_are_streamed_where_their_rows_are_whole_lines() -> None:
    space = Space()
    m, n, k = (space.dimension(name, 0, 1 << 20) for name in "mnk")
    graph = space.graph(_product(space.input("x", F32, m, k), space.input("y", F32, k, n)))
    (kernel,) = plan_greedily(graph).kernels
    tile = register_tile(LEVELS["avx512"], _ZEN4)
    lowered = lower_kernel(kernel, graph.scope, tile, machine=_ZEN4)
    nests = [ProductNest.find(step.program) for v in lowered.variants for step in v.steps]
    conditions = {nest.finish.streamed for nest in nests if nest is not None}
    (condition,) = conditions - {NEVER}
    for columns, rows, streamed in ((4096, 4096, 1), (4095, 4096, 0), (4096, 16, 0)):
        assert condition.evaluate({"m": rows, "n": columns, "k": 16}) == streamed


def test_only_what_no_cache_holds_is_streamed() -> None:
    (condition,) = _conditions(_sum())
    last = _ZEN4.target.levels[-2].capacity
    most = 2 * last // 12  # of three numbers
    for size in (1, 1000, most // 2, most):
        assert condition.evaluate({"n": size}) == 0
    for size in (most + 1, last, 10 * last):
        assert condition.evaluate({"n": size}) == 1


def test_short_runs_are_not_streamed() -> None:
    space = Space()
    a, b = space.dimension("a", 0, 1 << 30), space.dimension("b", 0, 1 << 10)
    x, row = space.input("x", F32, a, b), space.input("r", F32, b)
    (condition,) = _conditions(space.graph(apply("add", x, spread(row, x.shape))))
    assert condition.evaluate({"a": 1 << 30, "b": 255}) == 0
    assert condition.evaluate({"a": 1 << 30, "b": 256}) == 1


def test_small_ranges_have_no_such_loop() -> None:
    assert _conditions(_sum(high=1000)) == []


def test_strided_stores_are_not_streamed() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"), 3)
    assert _conditions(space.graph(node(Transpose((1, 2, 0)), x))) == []


def _product(x: Node, y: Node) -> Node:
    """The product of two matrices."""
    return node(Contract((), ((1, 0),)), x, y)


def _sum(high: int = 1 << 40) -> Graph:
    space = Space()
    n = space.dimension("n", 0, high)
    return space.graph(apply("add", space.input("x", F32, n), space.input("y", F32, n)))


def _conditions(graph: Graph) -> list[Expr]:
    """When the loops of the last step of a graph's only kernel are streamed, if they may be."""
    (kernel,) = plan_greedily(graph).kernels
    (variant,) = lower_kernel(
        kernel, graph.scope, register_tile(LEVELS["avx512"]), machine=_ZEN4
    ).variants
    program = variant.steps[-1].program
    found: list[Expr] = []

    def collect(body: tuple[Statement, ...]) -> None:
        for loop in body:
            if isinstance(loop, Loop):
                found.extend([loop.streamed] * loop.may_stream)
                collect(loop.body)

    collect(program.body)
    return found
