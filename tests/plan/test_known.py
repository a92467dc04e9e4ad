"""Kernels that read nothing of a call are computed when compiling, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from support.graph_kit import F32, Space, apply, compare_outputs, exact, fixed, inputs_at
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Constant, Contract, GatherElements, Iota
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.known import MOST_ELEMENTS, with_known_kernels
from tilewright.shape import constant


def table(rows: int, columns: int) -> Node:
    """Cosines of every position, which are no constant yet."""
    shape = (constant(rows), constant(columns))
    places = (node(Cast(F32), node(Iota(shape, axis))) for axis in (0, 1))
    return apply("cosine", apply("multiply", *places))


def by(weights: Node) -> Graph:
    """Rows by weights."""
    space = Space()
    x = space.input("x", F32, space.dimension("m"), weights.shape[0])
    return space.graph(node(Contract((), ((1, 0),)), x, weights))


@pytest.mark.parametrize("m", [0, 1, 9])
def test_a_table_becomes_a_constant(m: int) -> None:
    graph = by(table(90, 70))
    made = with_known_kernels(graph)
    (kernel,) = plan_greedily(made).kernels
    assert {type(read.primitive).__name__ for read in kernel.reads} == {"Input", "Constant"}
    inputs = inputs_at(graph, {"m": m})
    got, want = evaluate(made, inputs, {"m": m}), exact(graph, inputs, {"m": m})
    compare_outputs(graph, got, want, (90, 9.0), f"{m} rows")
    assert with_known_kernels(made) is made


def test_kernels_of_known_kernels_are_known() -> None:
    """A product of two tables, which are kernels of their own."""
    pair = node(Contract((), ((1, 0),)), table(80, 90), table(90, 70))
    (kernel,) = plan_greedily(with_known_kernels(by(pair))).kernels
    assert any(isinstance(read.primitive, Constant) for read in kernel.reads)


def test_what_depends_on_a_size_or_is_a_result_stays() -> None:
    space = Space()
    size = space.dimension("m")
    places = node(Cast(F32), node(Iota((size, constant(70)), 0)))
    weights = apply("cosine", places)
    x = space.input("x", F32, constant(3), size)
    graph = space.graph(node(Contract((), ((1, 0),)), x, weights), table(90, 70))
    assert with_known_kernels(graph) is graph


def test_what_is_too_large_stays() -> None:
    graph = by(table(MOST_ELEMENTS // 64, 65))
    assert with_known_kernels(graph) is graph


def test_what_fails_is_left_to_the_call() -> None:
    far = fixed(np.full((90, 70), 90))
    made = with_known_kernels(by(node(GatherElements(0), table(90, 70), far)))
    assert any(isinstance(n.primitive, GatherElements) for n in made.nodes())
