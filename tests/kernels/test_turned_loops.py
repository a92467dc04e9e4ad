"""Elementwise kernels whose operands lie in different orders: blocks of them are turned."""

from __future__ import annotations

import pytest

from support.graph_kit import (
    BOOL,
    F32,
    F64,
    I64,
    Space,
    apply,
    check,
    mostly_slow,
    scalar,
    spread,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Cast, Pad, Slice, Transpose
from tilewright.ir.tile import Load, Loop, Statement, Store, TransposeBlock
from tilewright.ir.tile_walk import value_loads
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant
from tilewright.tile import lower
from tilewright.tile.loops.loops import lower_other_order
from tilewright.tile.moves.transposes import STRIP
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering

Sizes = dict[str, int]


def named(names: str, *rows: tuple[int, ...]) -> list[Sizes]:
    return [dict(zip(names, row, strict=True)) for row in rows]


# Nothing, one element, squares of 16 ± 1 and blocks ± 1, primes, and one axis much the longer.
EDGES = named("abc", (0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1), (3, 1, 700), (2, 700, 1),
              (1, 15, 17), (2, 16, 16), (1, 63, 65), (1, 64, 64), (1, 65, 63), (2, 3, 1031),
              (1, 257, 7), (1, 131, 129), (1, 31, 257), (1, 32, 256), (1, 255, 33),
              (1, 66, 515))  # fmt: skip


@pytest.fixture(params=["last axis", "other axis"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels are computed along one of the two axes at all sizes."""
    if request.param == "other axis":
        loops = lower._LOOPS  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setitem(loops, KernelKind.LOOPS, lower_other_order)

    def none(_: Kernel, __: Lowering) -> None:
        return None

    monkeypatch.setattr(lower, "lower_other_order", none)
    return request.param


def turned(x: Node) -> Node:
    """The last two axes exchanged."""
    return node(Transpose((0, 2, 1)), x)


def _sum(dtype: DType, b: Expr | int | None = None, c: Expr | int | None = None) -> Graph:
    """An operand turned, one as it is, one value for each row and one for each column."""
    space = Space()
    a, own_b, own_c = space.dimensions("a b c")
    rows, columns = (own if given is None else given for own, given in ((own_b, b), (own_c, c)))
    shape = (a, *(constant(s) if isinstance(s, int) else s for s in (rows, columns)))
    x = space.input("x", dtype, a, columns, rows)
    y = space.input("y", dtype, *shape)
    bias = space.input("bias", dtype, shape[2])
    scale = space.input("scale", dtype, shape[1])
    scaled = apply("multiply", turned(x), spread(scale, shape, (1,)))
    return space.graph(apply("add", apply("add", scaled, y), spread(bias, shape, (2,))))


@pytest.mark.parametrize("dtype", mostly_slow([F32, F64, I64, DType.FLOAT16], "float32"))
def test_operands_in_two_orders(order: str, dtype: DType) -> None:
    check(_sum(dtype), EDGES, length=3, scale=30.0)


@pytest.mark.parametrize("few", mostly_slow([3, 7, 8, 15, 16, 33, 64, 65], "8", "33"))
@pytest.mark.parametrize("is_last", [False, True])
def test_one_axis_is_known(few: int, is_last: bool) -> None:
    graph = _sum(F32, c=few) if is_last else _sum(F32, b=few)
    name = "b" if is_last else "c"
    sizes = [{"a": a, name: s} for a, s in ((0, 4), (1, 0), (2, 1), (3, 16), (2, 65), (1, 1000))]
    check(graph, sizes, length=3, scale=30.0)


def test_several_results_and_types(order: str) -> None:
    """A comparison that is stored as bytes, which squares do not turn, beside a quotient."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, c, b), space.input("y", F32, a, c, b)
    z = space.input("z", F64, a, b, c)
    quotient = apply("divide", turned(x), apply("add", apply("absolute", turned(y)),
                                                spread(scalar(1.0), (a, b, c))))  # fmt: skip
    wide = apply("add", node(Cast(F64), turned(y)), z)
    check(space.graph(quotient, wide), EDGES, length=3, scale=30.0)


def test_what_a_condition_guards_is_read_where_it_is(order: str) -> None:
    """The elements beside a border do not exist."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, c, b), space.input("y", F32, a, c, b)
    one, none = constant(1), constant(0)
    padded = node(Pad((none, one, none), (none, none, one)), x, scalar(7.0))
    part = node(Slice((none, none, none), (a, c, b), (one, one, one)), padded)
    check(space.graph(apply("add", turned(part), turned(y))), EDGES)


def test_masks_are_bytes(order: str) -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    mask, x = space.input("mask", BOOL, a, b, c), space.input("x", F32, a, c, b)
    nothing = spread(scalar(0.0), (a, b, c))
    check(space.graph(apply("select", mask, turned(x), nothing)), EDGES)


def _statements(body: tuple[Statement, ...]) -> list[Statement]:
    return [s for part in body for s in
            (part, *(_statements(part.body) if isinstance(part, Loop) else ()))]  # fmt: skip


def _moved(graph: Graph) -> list[tuple[int, int]]:
    """For each variant how many operands are turned, and how many results."""
    (kernel,) = plan_greedily(graph).kernels
    tile = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
    found: list[tuple[int, int]] = []
    for variant in lower.lower_kernel(kernel, graph.scope, tile).variants:
        body = variant.steps[-1].program.body
        blocks = [s for s in body if isinstance(s, TransposeBlock)]
        found.append((sum(s.target.scratch for s in blocks), sum(s.source.scratch for s in blocks)))
    return found


def _loads(graph: Graph) -> list[Load]:
    (kernel,) = plan_greedily(graph).kernels
    tile = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
    (variant,) = lower.lower_kernel(kernel, graph.scope, tile).variants
    body = variant.steps[-1].program.body
    return [
        load for s in _statements(body) if isinstance(s, Store) for load in value_loads(s.value)
    ]


def test_fewest_are_turned_and_lengths_decide() -> None:
    """One operand of two is turned, or the other one and the result."""
    assert _moved(_sum(F32)) == [(1, 0), (1, 1)]
    assert _moved(_sum(F32, c=STRIP)) == [(1, 0)]
    assert _moved(_sum(F32, b=4 * STRIP)) == [(1, 0), (1, 1)]
    assert _moved(_sum(F32, b=12)) == [(1, 0)]


def test_what_is_turned_on_the_way_out_is_computed_in_the_order_of_the_operands() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, c, b), space.input("y", F32, a, c, b)
    difference = apply("subtract", apply("maximum", x, y), y)
    assert _moved(space.graph(turned(difference))) == [(0, 1), (2, 0)]


def test_pixels_of_few_planes_are_left_to_vectors() -> None:
    """LLVM stores such pixels whole, faster than squares."""
    assert _moved(_sum(F32, c=3)) == [(0, 0)]
    assert not any(load.buffer.scratch for load in _loads(_sum(F32, c=3)))


def _lengths(graph: Graph, sizes: Sizes) -> tuple[int, ...]:
    """How many iterations the loops over a block of the first variant have."""
    (kernel,) = plan_greedily(graph).kernels
    tile = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
    program = lower.lower_kernel(kernel, graph.scope, tile).variants[0].steps[-1].program
    first = {name: 0 for name, _ in program.grid}
    loops = [s for s in _statements(program.body) if isinstance(s, Loop)]
    return tuple(loop.end.evaluate({**sizes, **first}) for loop in loops)


def test_short_rows_that_follow_each_other_are_one() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, c, b), space.input("y", F32, a, b, c)
    graph = space.graph(apply("add", turned(x), y))
    check(graph, EDGES)
    assert _lengths(graph, {"a": 2, "b": 50, "c": 3}) == (1, 150)
    assert _lengths(graph, {"a": 2, "b": 50, "c": STRIP}) == (1, 50 * STRIP)
    assert _lengths(graph, {"a": 2, "b": 50, "c": STRIP + 1}) == (50, STRIP + 1)
    assert _lengths(_sum(F32), {"a": 2, "b": 50, "c": 3}) == (50, 3), "each has its own bias"
