"""Alternatives: each is found where it can be applied, and changes no value at any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from support.alternative_cases import CASES, dense, gate, made, projections, weights
from support.graph_kit import F32, Space, apply, inputs_at, scalar, spread
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Contract, Convolve, Pad, Reduce, Slice
from tilewright.ir.verify import verify
from tilewright.ir.views import pull_back
from tilewright.plan.prepare import prepare
from tilewright.rewrite import merging, simplify
from tilewright.rewrite.alternatives import Site, View, replaced
from tilewright.rewrite.menu import ALTERNATIVES
from tilewright.shape import Expr, Scope, constant, symbol

BY_NAME = {rule.name: rule for rule in ALTERNATIVES}
NAMED = [pytest.param(name, build, id=f"{name}-{i}") for i, (name, build) in enumerate(CASES)]
CORNERS = [(0, 2, 3), (1, 1, 1), (3, 0, 2), (2, 3, 0), (2, 5, 4), (7, 1, 13)]


def sites(graph: Graph, name: str) -> list[Site]:
    return list(BY_NAME[name].found(View(graph)))


def rewritten(graph: Graph, site: Site) -> Graph:
    after = prepare(simplify(replaced(graph, site.replaced)))
    verify(after)
    return after


def assert_close(before: Graph, after: Graph, sizes: dict[str, int]) -> None:
    data = inputs_at(before, sizes)
    expected, found = evaluate(before, data, sizes), evaluate(after, data, sizes)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert found[name].shape == values.shape and found[name].dtype == values.dtype
        scale = max(1.0, float(np.abs(values).max(initial=0.0)))
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(("name", "build"), NAMED)
def test_an_alternative_keeps_every_value(name: str, build: Callable[[], Graph]) -> None:
    before = build()
    found = sites(before, name)
    assert found
    for site in found:
        after = rewritten(before, site)
        assert after.roots != before.roots
        for m, n, k in CORNERS:
            assert_close(before, after, {"m": m, "n": n, "k": k})


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(CASES),
    sizes=st.fixed_dictionaries({n: st.integers(0, 9) for n in "mnk"}),
    steps=st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
def test_no_sequence_of_alternatives_changes_a_value(
    case: tuple[str, Callable[[], Graph]], sizes: dict[str, int], steps: list[int]
) -> None:
    before = after = case[1]()
    for step in steps:
        found = [site for rule in ALTERNATIVES for site in rule.found(View(after))]
        if found:
            after = rewritten(after, found[step % len(found)])
    assert_close(before, after, sizes)


def test_every_alternative_has_a_case_and_a_formula() -> None:
    assert set(BY_NAME) == {name for name, _ in CASES}
    assert all("→" in rule.formula for rule in ALTERNATIVES)


# ---------------------------------------------------------------- horizontal merging


def products(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if isinstance(n.primitive, Contract | Convolve)]


def test_what_follows_projections_stays_behind_the_one_product() -> None:
    graph = projections()
    after = rewritten(graph, sites(graph, "products_of_one_operand")[0])
    (product,) = products(after)
    assert product.shape[-1] == constant(4 + 7 + 5)
    # Results are slices: bias and scale were added and multiplied before.
    assert all(isinstance(root.primitive, Slice) for root in after.roots)
    starts = sorted(str(root.primitive.starts[-1]) for root in after.roots)  # type: ignore[union-attr]
    assert starts == ["0", "11", "4"]


def test_different_functions_stay_behind_the_slices() -> None:
    graph = gate()
    after = rewritten(graph, sites(graph, "products_of_one_operand")[0])
    (product,) = products(after)
    functions = [n.primitive.function for n in after.nodes() if hasattr(n.primitive, "function")]  # type: ignore[union-attr]
    assert product.shape[-1] == constant(16) and sorted(functions) == [
        "add",
        "hyperbolic_tangent",
        "multiply",
    ]


def test_weights_that_others_read_are_not_joined() -> None:
    space = Space()
    (m,) = space.dimensions("m")
    shared = weights(6, 4)
    x, y = space.input("x", F32, m, 6), space.input("y", F32, m, 6)
    graph = made(space, dense(x, shared), dense(x, weights(6, 3)), dense(y, shared))
    assert not sites(graph, "products_of_one_operand")


def test_large_weights_stay_in_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_WEIGHTS", 6 * 4)
    assert not sites(gate(), "products_of_one_operand")


def test_convolutions_of_other_strides_are_not_joined() -> None:
    space = Space()
    m, n = space.dimensions("m n")
    image = space.input("image", F32, m, 4, n, n)
    none = (constant(0),) * 2
    outputs = [
        node(Convolve((step, step), (1, 1), (1, 1), none, (n, n), 1), image, weights(2, 4, 1, 1))
        for step in (1, 2)
    ]
    assert not sites(made(space, *outputs), "convolutions_of_one_image")


# ---------------------------------------------------------------- Korch's algebra


def test_a_sum_over_nothing_divided_by_nothing_stays_nothing() -> None:
    space = Space()
    m, k = space.dimensions("m k")
    x = space.input("x", F32, m, k)
    total = node(Reduce("sum", (1,)), apply("absolute", x))
    normal = apply("divide", x, spread(total, x.shape, (0,)))
    graph = made(space, dense(normal, space.input("columns", F32, k, 2)))
    (site,) = sites(graph, "factor_after_product")
    after = rewritten(graph, site)
    sizes = {"m": 3, "k": 0}
    (values,) = evaluate(after, inputs_at(graph, sizes), sizes).values()
    np.testing.assert_array_equal(values, np.zeros((3, 2), np.float32))


def test_a_factor_stays_where_the_product_has_no_fewer_elements() -> None:
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, 4)
    normal = apply("divide", x, spread(space.input("rows", F32, m), x.shape, (0,)))
    assert not sites(made(space, dense(normal, weights(4, 8))), "factor_after_product")


def test_what_a_sum_decides_is_not_multiplied_together_with_it() -> None:
    space = Space()
    m, k = space.dimensions("m k")
    x = space.input("x", F32, m, k)
    total = node(Reduce("sum", (1,)), x)
    spread_out = spread(total, (k, m), (1,))
    graph = made(space, dense(x, apply("add", spread_out, scalar(1.0))))
    assert not sites(graph, "sum_as_column")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_axes_of_sums_and_factors_in_any_order(side: int, order: tuple[int, ...]) -> None:
    """Which axis of an operand is shared, stays or is summed: all arrangements."""
    space = Space()
    sizes = space.dimensions("m n k")
    operand = space.input("operand", F32, *(sizes[axis] for axis in order))
    shared, summed = order.index(0), order.index(2)
    other = space.input("other", F32, sizes[0], sizes[2], 2)
    total = node(Reduce("sum", (summed,)), operand)
    kept_axes = tuple(axis for axis in range(3) if axis != summed)
    positive = apply("add", apply("absolute", total), scalar(1.0))
    normal = apply("divide", operand, spread(positive, operand.shape, kept_axes))
    for data, extra, name in (
        (operand, (total,), "sum_as_column"),
        (normal, (), "factor_after_product"),
    ):
        pairs = [((shared, 0),), ((summed, 1),)]
        operands = (data, other)
        if side:
            pairs = [tuple((j, i) for i, j in pair) for pair in pairs]
            operands = (other, data)
        graph = made(space, node(Contract(pairs[0], pairs[1]), *operands), *extra)
        found = sites(graph, name)
        assert found
        for m, n, k in CORNERS:
            assert_close(graph, rewritten(graph, found[0]), {"m": m, "n": n, "k": k})


# ---------------------------------------------------------------- index arithmetic


def as_z3(expression: Expr) -> Any:
    affine = expression.affine(sorted(expression.free_symbols))
    assert affine is not None
    slopes, base = affine
    terms = [slope.value * z3.Int(name) for name, slope in slopes.items()]
    return z3.Sum([*terms, z3.IntVal(base.value)])


def test_slices_of_a_product_with_a_column_of_ones_are_its_parts() -> None:
    """For every size: columns before the last are those of the operand, the last one is ones."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    left, right = space.input("left", F32, m, k), space.input("right", F32, k, n)
    graph = made(space, dense(left, right), node(Reduce("sum", (1,)), left))
    (site,) = sites(graph, "sum_as_column")
    columns, total = site.replaced.values()
    while not isinstance(total.primitive, Slice):
        total = total.inputs[0]
    (padded,) = [i for i in total.inputs[0].inputs if isinstance(i.primitive, Pad)]
    assert padded.inputs[0] is right and padded.shape[1] == n + 1
    scope = Scope()
    row, column = (scope.declare(name, 0, None) for name in ("row", "column"))
    of_columns = as_z3(pull_back(columns, (row, column), scope)[1])
    of_total = as_z3(pull_back(total, (row, constant(0)), scope)[1])
    size, at = z3.Int("n"), z3.Int("column")
    inside = z3.And(size >= 0, at >= 0, at < size)
    solver = z3.Solver()
    solver.add(
        z3.Not(z3.And(z3.Implies(inside, of_columns == at), z3.Implies(inside, of_columns < size)))
    )
    assert solver.check() == z3.unsat
    solver = z3.Solver()
    solver.add(size >= 0, z3.Not(of_total == size))
    assert solver.check() == z3.unsat


@settings(max_examples=30, deadline=None)
@given(widths=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_slices_of_merged_products_are_disjoint_and_cover_them(widths: list[int]) -> None:
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, 3)
    graph = made(space, *(dense(x, weights(3, width)) for width in widths))
    site = sites(graph, "products_of_one_operand")[0]
    place, scope = z3.Int("place"), Scope()
    row, column = scope.declare("row", 0, None), symbol("column")
    covers: list[Any] = []
    for before, sliced in site.replaced.items():
        width = before.shape[-1].value
        moved = as_z3(pull_back(sliced, (row, column), scope)[1])
        start: Any = z3.substitute(moved, (z3.Int("column"), z3.IntVal(0)))
        covers.append(z3.And(place >= start, place < start + width))
    once = z3.PbEq([(cover, 1) for cover in covers], 1)
    solver = z3.Solver()
    solver.add(place >= 0, place < sum(widths), z3.Not(once))
    assert solver.check() == z3.unsat


def test_new_nodes_are_named_after_the_old_ones() -> None:
    graph = projections()
    site = sites(graph, "products_of_one_operand")[0]
    names = {old: f"layer {number}" for number, old in enumerate(site.replaced)}
    named = replace(graph, labels=names)
    (product,) = products(replaced(named, site.replaced))
    assert replaced(named, site.replaced).labels[product] == "layer 0, layer 1, layer 2"
