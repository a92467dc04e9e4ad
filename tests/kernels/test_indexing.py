"""Gather and scatter, their checks, and integer division by zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOTH_LEVELS,
    F32,
    F64,
    I64,
    Compiled,
    Space,
    apply,
    check,
    data,
    fixed,
    inputs_at,
    mostly_slow,
    scalar,
)
from tilewright.backend.cpu.checked_loops import (
    LEAST_CHECKED,
    PIECE,
    changes_positions,
    checked_loop,
    only_looks_up,
)
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import (
    Cast,
    Gather,
    GatherElements,
    GatherND,
    Reduce,
    ScatterElements,
    ScatterND,
)
from tilewright.ir.tile import Loop
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.support.errors import ExecutionError
from tilewright.tile.lower import lower_kernel

Array = np.ndarray[Any, Any]


def indices_below(limit: int) -> Any:
    """Indices in [-limit, limit) for inputs called "at"."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape, seed=len(name))
        if name != "at":
            return made
        return np.random.default_rng(sum(shape)).integers(-limit, limit, shape)

    return fill


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_along_any_axis(axis: int) -> None:
    space = Space()
    sizes = [*space.dimensions("a b")]
    sizes.insert(axis, constant(5))
    x = space.input("x", F32, *sizes)
    at = space.input("at", I64, *space.dimensions("i j"))
    picked = node(Gather(axis), x, at)
    cases = [{"a": 2, "b": 3, "i": 4, "j": 5}, {"a": 1, "b": 1, "i": 1, "j": 1},
             {"a": 2, "b": 3, "i": 0, "j": 2}, {"a": 3, "b": 33, "i": 7, "j": 1}]  # fmt: skip
    graph = space.graph(picked, apply("exponential", picked))
    check(graph, cases, length=4, fill=indices_below(5))


def test_an_embedding_normalised() -> None:
    space = Space()
    at = space.input("at", I64, *space.dimensions("b s"))
    table, places = fixed(data(F32, (11, 24))), space.input("places", F32, constant(24))
    total = apply("add", node(Gather(0), table, at), places)
    mean = apply("divide", node(Reduce("sum", (2,)), total), scalar(24.0))
    cases = [{"b": b, "s": s} for b, s in ((0, 3), (2, 0), (1, 1), (3, 17))]
    check(space.graph(total, mean), cases, length=24, fill=indices_below(11))


def test_gather_of_a_scalar_position() -> None:
    space = Space()
    x = space.input("x", F32, constant(5), space.dimension("a"))
    at = space.input("at", I64)
    check(
        space.graph(node(Gather(0), x, at)), [{"a": n} for n in (0, 1, 70)], fill=indices_below(5)
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements(axis: int) -> None:
    space = Space()
    a, b = space.dimension("a"), space.dimension("b")
    shape = [a, b]
    shape[axis] = constant(4)
    x, at = space.input("x", F32, *shape), space.input("at", I64, a, b)
    cases = [{"a": i, "b": j} for i, j in ((0, 3), (1, 1), (5, 33))]
    check(space.graph(node(GatherElements(axis), x, at)), cases, fill=indices_below(4))


EDGES = (0, 1, 2, 7, 8, LEAST_CHECKED - 1, LEAST_CHECKED, LEAST_CHECKED + 1, 31, 33, 67)
LONG = (PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5, 4 * PIECE + 17)


@pytest.mark.parametrize("low", [-101, 0], ids=["from the end, too", "from the beginning"])
@pytest.mark.parametrize("dtype", mostly_slow((F32, F64, DType.FLOAT16, DType.UINT8), "float32"))
def test_elements_looked_up_piece_by_piece(dtype: DType, low: int) -> None:
    """Rows of positions as long as the pieces in which they are checked, one more and one less."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        if name == "x":
            return data(dtype, shape)
        return np.random.default_rng(sum(shape)).integers(low, 101, shape).astype(dtype.numpy)

    space = Space()
    a, b = space.dimension("a"), space.dimension("b", high=5000)
    x, at = space.input("x", dtype, a, constant(101)), space.input("at", I64, a, b)
    narrow = space.input("narrow", DType.INT32, a, b)
    outputs = [
        node(GatherElements(1), x, at),
        apply("negate", node(GatherElements(1), x, node(Cast(I64), narrow))),
    ]
    cases = [{"a": 2, "b": length} for length in EDGES] + [{"a": 1, "b": b} for b in LONG]
    check(space.graph(*outputs), cases, fill=fill)


@pytest.mark.parametrize("place", [0, 30, PIECE - 1, PIECE, 2 * PIECE + 2])
@pytest.mark.parametrize("value", [7, -8, 2**63 - 1, -(2**63)])
def test_an_index_out_of_bounds_in_any_piece(place: int, value: int) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape, low=0, high=4)
        if name == "at":
            made[1, place] = value
        return made

    space = Space()
    a, b = space.dimension("a"), space.dimension("b", high=5000)
    x, at = space.input("x", F32, a, constant(7)), space.input("at", I64, a, b)
    message = f"index {value} is out of bounds for an axis of size 7"
    refuses(
        space.graph(node(GatherElements(1), x, at)), {"a": 3, "b": 2 * PIECE + 3}, fill, message
    )


def test_which_positions_are_checked_beforehand() -> None:
    """Those that lie side by side and follow from no other position; then they only look up."""
    space = Space()
    a, b = space.dimension("a"), space.dimension("b")
    x, at = space.input("x", F32, a, constant(7)), space.input("at", I64, a, b)
    beside = _last_loop(space.graph(node(GatherElements(1), x, at)))
    checked = checked_loop(beside)
    assert checked is not None and len(checked.positions) == 1
    assert only_looks_up(checked.trusting) and not only_looks_up(beside)

    space = Space()
    a, b = space.dimension("a"), space.dimension("b")
    x, at = space.input("x", F32, a, constant(7)), space.input("at", I64, a, b)
    of = space.input("of", I64, a, constant(9))
    chained = node(GatherElements(1), x, node(GatherElements(1), of, at))
    assert checked_loop(_last_loop(space.graph(chained))) is None


def test_which_loops_change_elements_at_positions() -> None:
    """Those that an instruction would scatter, which takes longer than stores one by one."""
    space = Space()
    a, n = space.dimensions("a n")
    x, at = space.input("x", F32, constant(6), a), space.input("at", I64, n, a)
    updates = space.input("updates", F32, n, a)
    updated = _last_loop(space.graph(node(ScatterElements(0, "add"), x, at, updates)))
    while isinstance(updated.body[-1], Loop):
        updated = updated.body[-1]
    assert changes_positions(updated)

    space = Space()
    x = space.input("x", F32, space.dimension("a"), constant(7))
    at = space.input("at", I64, space.dimension("n"))
    rows = _last_loop(space.graph(node(Gather(0), x, at)))
    assert not changes_positions(rows)


def _last_loop(graph: Graph) -> Loop:
    lowered = lower_kernel(
        plan_greedily(graph).kernels[-1], graph.scope, register_tile(LEVELS["avx512"])
    )
    (loop,) = [s for s in lowered.variants[0].steps[-1].program.body if isinstance(s, Loop)]
    return loop


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_by_several_coordinates(batch: int) -> None:
    space = Space()
    n, m = space.dimensions("n m")
    lead = [n] * batch
    x = space.input("x", F32, *lead, constant(3), constant(3), space.dimension("c"))
    at = space.input("at", I64, *lead, m, constant(2))
    cases = [{"n": i, "m": j, "c": k} for i, j, k in ((1, 1, 1), (2, 5, 17), (2, 0, 3), (0, 2, 3))]
    if not batch:
        space.carry(n)
    check(space.graph(node(GatherND(batch), x, at)), cases, fill=indices_below(3))


@pytest.mark.parametrize("reduction", ["none", "add", "multiply", "maximum", "minimum"])
def test_scatter_elements_in_order(reduction: str) -> None:
    space = Space()
    n, m = space.dimensions("n m")
    x = space.input("x", F32, constant(6), m)
    at, updates = space.input("at", I64, n, m), space.input("updates", F32, n, m)
    outputs = [node(ScatterElements(0, reduction), x, at, apply("add", updates, updates))]
    # Strips of columns, of which the last one may be short, begin with 129.
    sizes = (0, 3), (1, 1), (9, 7), (3, 0), (5, 128), (5, 129), (5, 257)
    cases = [{"n": i, "m": j} for i, j in sizes]
    check(space.graph(*outputs), cases, length=9, fill=indices_below(6))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fewer_updates_than_elements_along_every_axis(axis: int) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b c"))
    sizes = space.dimensions("d e f")
    at, updates = space.input("at", I64, *sizes), space.input("updates", F32, *sizes)
    made = node(ScatterElements(axis, "add"), x, at, updates)
    shapes = [(3, 3, 3), (4, 3, 5), (3, 5, 1029), (6, 4, 17)]
    parts = [(2, 1, 3), (3, 2, 2), (1, 3, 515), (0, 3, 2)]
    cases = [dict(zip("abcdef", (*s, *p), strict=True)) for s, p in zip(shapes, parts, strict=True)]
    check(space.graph(made), cases, length=9, fill=indices_below(3))


def test_no_position_is_read_where_there_are_no_updates() -> None:
    space = Space()
    most_one = space.dimension("w", high=1)  # so that the position of its only element is known
    x = space.input("x", F32, 1, 1)
    at, updates = space.input("at", I64, 1, most_one), space.input("updates", F32, 1, most_one)
    made = node(ScatterElements(0, "none"), x, at, updates)
    check(space.graph(made), [{"w": 0}, {"w": 1}], length=2, fill=indices_below(1))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_of_slices(reduction: str) -> None:
    space = Space()
    n, c = space.dimensions("n c")
    x = space.input("x", F32, constant(4), constant(4), c)
    at, updates = space.input("at", I64, n, constant(2)), space.input("updates", F32, n, c)
    doubled = apply("add", x, x)
    made = node(ScatterND(reduction), doubled, at, updates)
    cases = [{"n": i, "c": j} for i, j in ((0, 3), (1, 1), (9, 17), (3, 0))]
    check(space.graph(apply("negate", made)), cases, length=9, fill=indices_below(4))


# ---------------------------------------------------------------- what kernels refuse


def refuses(graph: Graph, sizes: dict[str, int], fill: Any, message: str) -> None:
    compiled = Compiled(graph)
    inputs = inputs_at(graph, sizes, fill)
    for level in BOTH_LEVELS:
        with pytest.raises(ExecutionError, match=message):
            compiled.guarded(level, inputs, sizes, pieces=2)
    with pytest.raises(ExecutionError, match=message):
        compiled.model.run(inputs)
    # A failed call leaves nothing behind: the next one with good data is right.
    good = {name: np.ones_like(array) for name, array in inputs.items()}
    first, again = compiled.model.run(good), compiled.model.run(good)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])


def indexed(kind: str, space: Space) -> Node:
    n = space.dimension("n")
    at = space.input("at", I64, n, constant(1))
    x = space.input("x", F32, constant(5), constant(7))
    updates = space.input("updates", F32, n, constant(1))
    slices = space.input("slices", F32, n, constant(7))
    match kind:
        case "gather":
            return node(Gather(0), x, at)
        case "elements":
            return node(GatherElements(0), x, at)
        case "coordinates":
            return node(GatherND(0), x, at)
        case "scatter":
            return node(ScatterElements(0, "none"), x, at, updates)
        case _:
            return node(ScatterND("add"), x, at, slices)


@pytest.mark.parametrize("kind", ["gather", "elements", "coordinates", "scatter", "slices"])
@pytest.mark.parametrize("value", [5, -6, 2**62, -(2**63)])
def test_an_index_out_of_bounds(kind: str, value: int) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape, low=0, high=4)
        if name == "at":
            made[-1] = value
        return made

    space = Space()
    graph = space.graph(apply("negate", indexed(kind, space)))
    refuses(graph, {"n": 9}, fill, f"index {value} is out of bounds for an axis of size 5")


@pytest.mark.parametrize("function", ["divide", "remainder", "truncated_remainder"])
@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT8, I64])
def test_integer_division_by_zero(function: str, dtype: DType) -> None:
    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        made = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(kind.numpy)
        if name == "y":
            made[-1] = 0
        return made

    space = Space()
    (n,) = space.dimensions("n")
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    refuses(space.graph(apply(function, x, y)), {"n": 20}, fill, "Integer division by zero")


def test_the_least_integer_divided_by_minus_one() -> None:
    """Traps on the processor unless taken care of; wraps around, as numpy says."""

    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        least = np.iinfo(kind.numpy).min
        return np.full(shape, -1 if name.startswith("y") else least, kind.numpy)

    space = Space()
    (n,) = space.dimensions("n")
    outputs = []
    for dtype in (DType.INT32, I64):
        x = space.input(f"x{dtype.value}", dtype, n)
        y = space.input(f"y{dtype.value}", dtype, n)
        outputs += [apply(f, x, y) for f in ("divide", "remainder")]
    check(space.graph(*outputs), [{"n": 1}, {"n": 19}], fill=fill)
