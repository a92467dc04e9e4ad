"""Rewriting by price: what is found, what is left alone, and that results stay right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.alternative_cases import dense, made, summed_rows, weights
from support.graph_kit import F32, Space, apply, check, few_or_many, scalar, softmax
from support.random_graphs import build, fill, largest
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import KernelKind
from tilewright.ir.primitives import Concat, Contract, Reshape, Slice, Transpose
from tilewright.ir.printing import print_graph
from tilewright.ir.verify import verify
from tilewright.plan import rewriting
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.plan.rewriting import Rewriting, rewritten_by_price
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.rewrite.alternatives import Alternative, View, replaced
from tilewright.rewrite.menu import ALTERNATIVES
from tilewright.shape import constant

LEVEL = "x86-64"  # of code that is run
PRICED = "avx512"  # with the prices of a usual machine
SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]


def by_price(graph: Graph, **given: Any) -> Rewriting:
    found = rewritten_by_price(graph, [lowering_of(graph, LEVELS[PRICED])], **given)
    verify(found.graph)
    assert problems(found.graph, plan_greedily(found.graph)) == []
    return found


def heads(layers: int = 1) -> Graph:
    """Products of one and of four columns, as a detector has them; they share what they read."""
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, 64)
    outputs: list[Node] = []
    for _ in range(layers):
        x = apply("maximum", dense(x, weights(64, 64)), scalar(0.0))
        x = apply("divide", x, apply("add", apply("absolute", x), scalar(1.0)))
        certain = apply("hyperbolic_tangent", dense(x, weights(64, 1)))
        outputs.append(node(Concat(1), certain, dense(x, weights(64, 4))))
    return made(space, *outputs, x)


def attention(width: int = 32, head: int = 8) -> Graph:
    space = Space()
    batch, length = space.dimensions("a b")
    x = space.input("x", F32, batch, length, width)
    count = width // head

    def part(order: tuple[int, ...]) -> Node:
        made_of = apply("add", dense(x, weights(width, width)), weights(width))
        shape = (batch, length, constant(count), constant(head))
        return node(Transpose(order), node(Reshape(shape), made_of))

    query, key, value = part((0, 2, 1, 3)), part((0, 2, 1, 3)), part((0, 2, 1, 3))
    scores = node(Contract(((0, 0), (1, 1)), ((3, 3),)), query, key)
    context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), softmax(scores), value)
    merged = node(Reshape((batch, length, constant(width))), node(Transpose((0, 2, 1, 3)), context))
    return prepare(simplify(space.graph(dense(merged, weights(width, width)))))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be applied is taken, however dear."""
    monkeypatch.setattr(rewriting, "DEARER", 1e9)
    prices = rewriting.FormPrices

    def falling(self: object, kernels: Mapping[object, object], counts: object) -> Any:
        del kernels, counts
        length = sum(len(own.points) for own in self._prices)  # type: ignore[attr-defined]
        self.spent = getattr(self, "spent", 1e9) * 0.9  # type: ignore[attr-defined]
        return np.full(length, self.spent)  # type: ignore[attr-defined]

    def taken(*_: object) -> bool:
        return True

    monkeypatch.setattr(prices, "of", falling)
    monkeypatch.setattr(rewriting, "is_worth_it", taken)
    whole = rewriting._Rewriter  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(whole, "_is_cheaper", taken)


# ---------------------------------------------------------------- by its own prices


def test_narrow_products_of_one_operand_become_one() -> None:
    graph = heads()
    found = by_price(graph)
    (applied,) = found.applied
    assert applied.rules == ("products_of_one_operand",) and applied.saves > 0.05
    assert "saves" in str(applied)
    before, after = plan_greedily(graph).kernels, plan_greedily(found.graph).kernels
    assert len(after) < len(before)


def test_layers_that_are_alike_are_decided_once() -> None:
    few, many = by_price(heads(4)), by_price(heads(8))
    assert few.tried == many.tried
    assert len(few.applied) == 4 and len(many.applied) == 8


def test_what_is_not_cheaper_stays_the_same_graph() -> None:
    graph = summed_rows()  # a column of ones would have to be copied beside a large operand
    found = by_price(graph)
    assert found.tried == 1
    assert found.graph is graph and not found.applied


def test_a_graph_without_sites_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "plan_greedily", None)
    space = Space()
    (m,) = space.dimensions("m")
    graph = made(space, dense(space.input("x", F32, m, 8), weights(8, 8)))
    assert rewritten_by_price(graph, []).graph is graph


def test_the_same_graph_is_rewritten_alike() -> None:
    graph = heads(2)
    first, second = (by_price(graph) for _ in range(2))
    assert first.applied == second.applied and len(first.applied) == 2
    assert print_graph(first.graph) == print_graph(second.graph)


# ---------------------------------------------------------------- the search


def test_the_search_goes_through_a_dearer_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step makes the graph dearer, the second one cheaper than it was."""
    space = Space()
    (m,) = space.dimensions("m")
    graph = made(space, apply("negate", space.input("x", F32, m)))
    order = ("negate", "exponential", "sine")
    price = dict(zip(order, (1.0, 1.1, 0.5), strict=True))

    def following(view: View) -> Iterator[Mapping[Node, Node]]:
        """f → the one after f."""
        for current in view.nodes:
            function = getattr(current.primitive, "function", "sine")
            if function != "sine":
                yield {current: apply(order[order.index(function) + 1], *current.inputs)}

    def priced(self: object, kernels: Mapping[Any, Any], counts: Any) -> Any:
        del self
        functions = [kernels[key].body[-1].primitive.function for key in counts]
        return np.full(2, sum(1e6 * price[function] for function in functions))

    monkeypatch.setattr(rewriting.FormPrices, "of", priced)
    monkeypatch.setattr(rewriting.FormPrices, "bound", priced)
    found = by_price(graph, alternatives=[Alternative(following)])
    (applied,) = found.applied
    assert applied.rules == ("following", "following")
    assert applied.saves == pytest.approx(0.5)
    monkeypatch.setattr(rewriting, "DEARER", 1.05)
    assert by_price(graph, alternatives=[Alternative(following)]).graph is graph


def test_one_shape_that_loses_keeps_the_graph() -> None:
    is_worth_it = rewriting.is_worth_it
    assert is_worth_it(np.array([0.3, 0.0, 0.1]))
    assert not is_worth_it(np.array([0.3, -0.05, 0.1]))
    assert not is_worth_it(np.array([0.001, 0.0, 0.0]))


# ---------------------------------------------------------------- results


def test_an_attention_reads_slices_of_one_projection_in_place() -> None:
    graph = attention()
    site = next(ALTERNATIVES[0].found(View(graph)))
    merged = prepare(simplify(replaced(graph, site.replaced)))
    kinds = [kernel.kind for kernel in plan_greedily(merged).kernels]
    assert kinds == [KernelKind.CONTRACTION, KernelKind.ATTENTION, KernelKind.CONTRACTION]
    whole = plan_greedily(merged).kernels[1]
    assert len(whole.reads) == 1 and any(isinstance(n.primitive, Slice) for n in whole.body)
    sizes = [{"a": 2, "b": 7}, {"a": 1, "b": 1}, {"a": 3, "b": 0}, {"a": 0, "b": 4}]
    check(merged, sizes, length=100, scale=100, levels=(LEVEL,))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("count", few_or_many(10, 150))
def test_whatever_is_applied_the_graph_stays_right(count: int) -> None:
    chance = np.random.default_rng(29)
    applied = 0
    for _ in range(count):
        numbers = chance.integers(0, 1 << 16, 90).tolist()
        graph = prepare(simplify(build(numbers, int(chance.integers(6, 14)))))
        found = by_price(graph)
        if found.applied:
            applied += 1
            scale = max(largest(graph, sizes) for sizes in SIZES)
            check(found.graph, SIZES[:3], length=4000, scale=scale, fill=fill, levels=(LEVEL,))
    assert applied or count < 20


def test_a_compiled_model_says_what_was_applied(tmp_path: Any) -> None:
    from onnx import parser

    from tilewright.compile import compile_stages

    source = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        heads (float[m, 4] x) => (float[m, 1] y, float[m, 2] z)
        <float[4, 1] v = {1, 2, 3, 4}, float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            y = MatMul (x, v)
            z = MatMul (x, w)
        }"""
    )
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    kept = tw.compile(source, rewriting=False)(x=data)
    for plan in ("greedy", "optimal"):
        stages = compile_stages(source, rewriting=True, plan=plan, dump=tmp_path / plan)
        model = tw.compile(source, rewriting=True, plan=plan)
        for before, after in zip(kept, model(x=data), strict=True):
            np.testing.assert_allclose(before, after)
        (written,) = (tmp_path / plan).glob("*rewriting-by-price*")
        assert all(str(applied) in written.read_text() for applied in stages.applied)
