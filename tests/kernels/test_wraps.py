"""Rows that are read in rows of another length: in parts without a division, reduced or not."""

from __future__ import annotations

import itertools

import pytest

from support.graph_kit import F32, Sizes, Space, apply, check, scalar, softmax
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Dimension, Gather, Iota, Pad, Reduce, Reshape, Slice
from tilewright.ir.tile import Loop, Statement
from tilewright.ir.tile_print import print_program
from tilewright.ir.tile_walk import expressions
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
# Below and above what is too short for parts, vectors ± 1, primes.
LENGTHS = [{"n": n, "t": t} for n, t in
           ((0, 3), (2, 0), (1, 1), (3, 2), (2, 7), (2, 8), (1, 16), (2, 17), (1, 67))]  # fmt: skip


def shifted(scores: Node, n: Expr, t: Expr, by: int = 1) -> Node:
    """Every row further to the left than the one before it, as positions relative to it."""
    zero, one, none = scalar(0.0, scores.dtype), constant(1), constant(0)
    padded = node(Pad((none, none, constant(by)), (none, none, none)), scores, zero)
    rows = node(Reshape((n, t + by, t)), padded)
    return node(Slice((none, one, none), (n, t, t), (one,) * 3), rows)


def divided(body: tuple[Statement, ...]) -> int:
    """How many innermost loops divide in each of their turns."""
    loops = [part for part in body if isinstance(part, Loop)]
    inner = sum(divided(loop.body) for loop in loops)
    for loop in loops:
        if not any(isinstance(part, Loop) for part in loop.body):
            own = (e for e in expressions((loop,)) if e not in (loop.begin, loop.end))
            inner += any("//" in str(e) and loop.variable in e.free_symbols for e in own)
    return inner


@pytest.mark.parametrize("dtype", [F32, DType.INT8])
def test_relative_positions(dtype: DType) -> None:
    space = Space()
    n, t = space.dimensions("n t")
    x = space.input("x", dtype, n, t, t)
    graph = space.graph(shifted(x, n, t))
    (kernel,) = plan_greedily(graph).kernels
    (step,) = lower_kernel(kernel, graph.scope, TILE).variants[0].steps
    assert divided(step.program.body) == 1  # that of short rows
    check(graph, LENGTHS)


def test_relative_positions_of_a_softmax() -> None:
    space = Space()
    n, t = space.dimensions("n t")
    scores, bias = (space.input(name, F32, n, t, t) for name in "xb")
    moved = shifted(scores, n, t)
    graph = space.graph(softmax(moved), softmax(apply("add", moved, bias)))
    check(graph, LENGTHS, length=lambda sizes: max(sizes["t"], 1))


def test_rows_of_several_lengths_are_divided_as_before() -> None:
    """Parts of parts would grow in number with each length, and pricing them take minutes."""
    space = Space()
    n, t = space.dimensions("n t")
    x = space.input("x", F32, n, t, t)
    once = shifted(x, n, t)
    assert "for _q" in printed(space.graph(once))
    graph = space.graph(apply("add", once, shifted(x, n, t, 2)))
    assert "for _q" not in printed(graph)
    check(graph, LENGTHS)


def printed(graph: Graph) -> str:
    (kernel,) = plan_greedily(graph).kernels
    (step,) = lower_kernel(kernel, graph.scope, TILE).variants[0].steps
    return print_program(step.program)


@pytest.mark.parametrize("kind", ["sum", "product", "maximum", "minimum"])
def test_what_is_reduced_goes_through_all_parts(kind: str) -> None:
    """Rows of a length that nothing is known about: none, one or many parts."""
    space = Space()
    n, t, w = space.dimensions("n t w")
    x = space.input("x", F32, n, t, w)
    space.carry(n, t, w)
    one, none = constant(1), constant(0)
    padded = node(Pad((none, one), (none, none)), node(Reshape((n, t * w)), x), scalar(1.0))
    other = node(Slice((none, one), (n, t * w), (one, one)), padded)
    turned = node(Reshape((n, w, t)), node(Slice((none, none), (n, w * t), (one, one)), padded))
    graph = space.graph(node(Reduce(kind, (2,)), turned), node(Reduce(kind, (1,)), other))

    def length(sizes: Sizes) -> int:
        return max(sizes["t"] * sizes["w"], 1)

    cases = [{"n": 2, "t": t, "w": w} for t, w in
             itertools.product((0, 1, 3, 8, 19, 40), (1, 5, 9, 33))]  # fmt: skip
    check(graph, cases, length=length, scale=10.0)


@pytest.mark.parametrize("kind", ["sum", "maximum"])
def test_padded_rows_are_reduced_in_their_interior(kind: str) -> None:
    space = Space()
    n, t = space.dimensions("n t")
    x = space.input("x", F32, n, t)
    two, none = constant(2), constant(0)
    padded = node(Pad((none, two), (none, constant(1))), x, scalar(-0.5))
    graph = space.graph(node(Reduce(kind, (1,)), apply("exponential", padded)))
    check(graph, LENGTHS, length=lambda sizes: sizes["t"] + 3, scale=10.0)


@pytest.mark.parametrize("shift", [3, -3])
def test_rolled_rows(shift: int) -> None:
    """Positions that are computed: the sum with a shift, which may be negative, wraps around."""
    space = Space()
    n = space.dimension("n")
    t = space.dimension("t", 1)
    x = space.input("x", F32, n, t)
    steps = node(Iota((t,), 0))
    places = apply("remainder", apply("add", steps, scalar(shift, DType.INT64)), node(Dimension(t)))
    rolled = node(Gather(1), x, places)
    check(
        space.graph(rolled, node(Reduce("sum", (1,)), rolled)),
        [sizes for sizes in LENGTHS if sizes["t"]],
        length=lambda sizes: sizes["t"],
    )


@pytest.mark.parametrize("before", [0, 5])
def test_rows_in_rows_of_unknown_length(before: int) -> None:
    """A view that begins in the middle: many rows of one in a row of the other, or few."""
    space = Space()
    t, w = space.dimension("t", 1), space.dimension("w", 1)
    x = space.input("x", F32, t, w)
    one, start = constant(1), constant(before)
    high = node(Pad((constant(0), one), (constant(0), constant(0))), x, scalar(2.0))
    flat = node(Reshape((t * (w + 1),)), high)
    tail = node(Pad((start,), (constant(0),)), flat, scalar(3.0))
    rows = node(Slice((constant(0),), (t * w,), (one,)), tail)
    graph = space.graph(node(Reshape((w, t)), rows), node(Reduce("sum", (0,)), rows))
    cases = [{"t": t, "w": w} for t, w in itertools.product((1, 2, 9, 40), (1, 3, 8, 17, 33))]
    check(graph, cases, length=lambda sizes: sizes["t"] * sizes["w"], scale=5.0)
