"""Layouts by price: the program beside brute force, results of any choice, what is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

from support.brute_force import cheapest_layouts
from support.graph_kit import check, few_or_many
from support.random_graphs import fill, largest
from support.rewrite_harness import apply
from support.small_networks import F64, Network, results
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.compile import compile_stages
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Cast, Convolve, Input, Reduce, Transpose
from tilewright.ir.printing import print_graph
from tilewright.ir.verify import verify
from tilewright.plan import layouts
from tilewright.plan.forms import Form, FormPrices
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.layout_problem import Traffic, layout_problem
from tilewright.plan.layout_units import LayoutUnits
from tilewright.plan.layouts import Layouts, laid_out_by_price
from tilewright.plan.prepare import prepare
from tilewright.plan.solver import solve
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import counted, prefer_channels_last, spread
from tilewright.rewrite.finer import finer_axes
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Scope

LEVEL = "avx512"  # with the prices of a usual machine
SIZES = {"batch": 2, "height": 5, "width": 6}


def by_price(graph: Graph) -> Layouts:
    simple = simplify(graph)
    rule = prepare(prefer_channels_last(simple))
    found = laid_out_by_price(simple, rule, [lowering_of(simple, LEVELS[LEVEL])])
    verify(found.graph)
    assert problems(found.graph, plan_greedily(found.graph)) == []
    return found


def last(graph: Graph) -> list[bool]:
    """For every convolution whether its channels are last."""
    return [n.primitive.channels_last for n in graph.nodes() if isinstance(n.primitive, Convolve)]


def random_network(chance: np.random.Generator, layers: int) -> Network:
    net = Network(channels=4, seed=int(chance.integers(1 << 16)))
    for _ in range(layers):
        before = net.map
        match int(chance.integers(11)):
            case 0 | 1:
                net.convolution(int(chance.integers(1, 9)), int(chance.choice([1, 3])))
            case 2:
                net.depthwise(int(chance.integers(1, 3)))
            case 3:
                net.pooling(str(chance.choice(["maximum", "sum"])), 3, int(chance.integers(1, 3)))
            case 4:
                net.softmax()
            case 5:
                net.squeeze_and_excite()
            case 6:
                net.attention()
            case 7:
                net.joined(before)
            case 8:
                net.normalised_groups()
            case 9:
                net.padded()
            case _:
                net.convolution(net.channels)
                net.added(apply("negate", before))
    return net


class RandomPrices:
    """Prices by lot for all kernels; ``bound`` is a part of each."""

    def __init__(self, chance: np.random.Generator) -> None:
        self.chance = chance
        self.known: dict[object, float] = {}

    def drawn(self) -> float:
        return float(self.chance.uniform(0.1, 3.0))

    def of(self, kernels: Mapping[object, Kernel], counts: Counter[object]) -> Any:
        del kernels
        for key in counts:
            if key not in self.known:
                self.known[key] = self.drawn()
        return np.array([sum(self.known[key] * number for key, number in counts.items())])

    def bound(self, kernels: Mapping[object, Kernel], counts: Counter[object]) -> Any:
        return 0.5 * self.of(kernels, counts)


# ---------------------------------------------------------------- the binary program


@pytest.mark.parametrize("count", few_or_many(60, 500))
def test_the_solver_finds_what_brute_force_finds(count: int) -> None:
    chance = np.random.default_rng(5)
    for _ in range(count):
        tensors = [f"t{n}" for n in range(int(chance.integers(2, 7)))]
        given: dict[Hashable, Hashable] = {"t0": 0}
        units: list[list[Traffic[Hashable, Hashable]]] = []
        for number, tensor in enumerate(tensors[1:], 1):
            reads = chance.choice(number, int(chance.integers(1, min(number, 3) + 1)), False)
            ways = [
                Traffic[Hashable, Hashable](
                    {tensors[r]: int(chance.integers(3)) for r in reads},
                    {tensor: int(chance.integers(3))},
                )
                for _ in range(int(chance.integers(1, 5)))
            ]
            units.append(ways)
        wanted: list[tuple[Hashable, Hashable]] = [(tensors[-1], 0), (tensors[-1], 0)]
        problem = layout_problem(units, given, wanted)
        costs = chance.uniform(0.1, 2.0, problem.columns).tolist()
        solution = solve(problem, costs)
        assert all(row.holds(solution.chosen) for row in problem.rows)
        first = problem.columns - len(problem.conversions)
        price = dict(zip(problem.conversions, costs[first:], strict=True))
        starts = problem.ways
        expected = cheapest_layouts(
            units, given, wanted, lambda u, w, c=costs, s=starts: c[s[u] + w], price.__getitem__
        )
        assert solution.price == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("count", few_or_many(4, 20, 40))
def test_the_choice_for_a_graph_is_the_cheapest_of_all(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways that are priced late are chosen as if all had been priced at first."""
    monkeypatch.setattr(layouts, "NEAR", 1e-6)
    monkeypatch.setattr(layouts, "ROUNDS", 1000)
    chance = np.random.default_rng(3)
    found = 0
    while found < count:
        base = finer_axes(simplify(random_network(chance, 3).graph()))
        units = LayoutUnits(base, [counted(base), spread(base)])
        ways = [[unit.traffic(way) for way in unit.ways] for unit in units.units]
        if not len(units.units) > 1 or np.prod([len(own) for own in ways]) > 30_000:
            continue
        prices: Any = RandomPrices(chance)
        choice = layouts._Choice(units, prices, np.ones(1))  # pyright: ignore[reportPrivateUsage]
        price = {column.key: choice.price(column) for column in choice.columns}
        if any(c.plain is not None and price[c.key] < price[c.plain.key] for c in choice.columns):
            continue  # a way is taken to be no cheaper with a conversion inside
        found += 1
        costs = [column.share * price[column.key] for column in choice.columns]
        first = choice.problem.ways
        conversions = dict(
            zip(choice.problem.conversions, costs[len(costs) - len(choice.problem.conversions) :],
                strict=True)
        )  # fmt: skip
        expected = cheapest_layouts(
            ways, units.given(), units.wanted,
            lambda u, w, c=costs, f=first: c[f[u] + w], conversions.__getitem__,
        )  # fmt: skip
        assert sum(costs[n] for n in choice.chosen()) == pytest.approx(expected, rel=1e-3)


class Falling(RandomPrices):
    """Kernels that are seen first are dear: those of the rule."""

    def __init__(self, *_: object) -> None:
        super().__init__(np.random.default_rng(0))

    def drawn(self) -> float:
        return 0.5 ** len(self.known)

    def change(self, before: Form, after: Form) -> Any:
        del before, after
        return np.ones(1)


@pytest.fixture
def by_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices by lot for every graph, so that all kinds of choices are taken."""
    chance = np.random.default_rng(9)

    class Drawn(Falling):
        def drawn(self) -> float:
            return float(chance.uniform(0.1, 3.0))

    monkeypatch.setattr(layouts, "FormPrices", Drawn)


@pytest.mark.usefixtures("by_lot")
@pytest.mark.parametrize("count", few_or_many(25, 100, 200))
def test_whatever_is_chosen_means_the_same(count: int) -> None:
    chance = np.random.default_rng(9)
    others = 0
    for _ in range(count):
        graph = random_network(chance, int(chance.integers(2, 7))).graph()
        found = by_price(graph)
        others += bool(found.parts)
        for sizes in (SIZES, SIZES | {"batch": 1, "width": 9}, SIZES | {"batch": 0}):
            before, after = results(graph, sizes), results(found.graph, sizes)
            assert list(before) == list(after)
            for name, wanted in before.items():
                scale = float(np.abs(wanted).max(initial=1.0))
                np.testing.assert_allclose(after[name], wanted, rtol=0, atol=1e-11 * scale)
    assert others > count // 3


# ---------------------------------------------------------------- what is decided


def of_float32(net: Network, low: int, high: int) -> Graph:
    """A network for images of the same height and width in a range, as float32."""
    facts = Scope()
    facts.declare("batch", 0, 4)
    for name in ("height", "width"):
        facts.declare(name, low, high)
    made: dict[Any, Any] = {}
    for current in net.graph().nodes():
        operands = tuple(made[i] for i in current.inputs)
        match current.primitive:
            case Input(name=name):
                made[current] = node(Input(name, DType.FLOAT32, current.shape))
            case primitive if not operands and current.dtype is F64:
                made[current] = node(Cast(DType.FLOAT32), node(primitive))
            case primitive:
                made[current] = node(primitive, *operands)
    (root,) = (root for _, root in net.graph().outputs)
    return Graph("network", (made[net.input],), (("out", made[root]),), facts)


def depthwise(channels: int = 64) -> Network:
    net = Network(channels)
    net.depthwise()
    net.depthwise()
    return net


def test_few_pixels_are_convolved_with_the_channels_last() -> None:
    """The rule counts one for a depthwise convolution, and two conversions against it."""
    graph = of_float32(depthwise(32), 7, 7)
    assert last(prefer_channels_last(simplify(graph))) == [False, False]
    found = by_price(graph)
    assert last(found.graph) == [True, True]
    (part,) = found.parts
    assert part.kernels == 2 and part.saves > 0.3 and part.least > -0.01
    assert (part.has, part.had) == ((0, 2, 3, 1), (0, 1, 2, 3))
    assert "saves" in str(part)
    moved = [n for n in found.graph.nodes() if isinstance(n.primitive, Transpose)]
    assert len(moved) == 2


def test_one_choice_that_is_dearer_at_some_shapes_is_not_taken() -> None:
    graph = of_float32(depthwise(), 1, 512)
    found = by_price(graph)
    assert found.units == 2 and not found.parts
    assert last(found.graph) == [False, False]


def test_few_channels_stay_first_where_the_rule_has_them_last() -> None:
    """Rows are whole vectors: of shorter ones, windows along them wait for what they copy."""
    net = Network(8)
    net.depthwise()
    net.depthwise()
    net.convolution(8, 1)
    graph = of_float32(net, 16, 16)
    assert all(last(prefer_channels_last(simplify(graph))))
    assert not any(last(by_price(graph).graph))


def test_a_region_ends_where_it_gains_no_more() -> None:
    """The rule lets the order of a convolution reach the softmax over its channels as well."""
    net = Network(24)
    net.convolution(24)
    net.softmax()
    graph = of_float32(net, 112, 112)

    def summed(made: Graph) -> set[tuple[int, ...]]:
        return {n.primitive.axes for n in made.nodes() if isinstance(n.primitive, Reduce)}

    assert summed(prefer_channels_last(simplify(graph))) == {(3,)}
    found = by_price(graph).graph
    assert summed(found) == {(1,)} and last(found) == [True]


def test_the_rule_is_kept_where_nothing_is_cheaper() -> None:
    net = Network()
    net.convolution(32)
    net.pooling()
    net.convolution(64)
    graph = of_float32(net, 1, 224)
    simple = simplify(graph)
    rule = prepare(prefer_channels_last(simple))
    found = laid_out_by_price(simple, rule, [lowering_of(simple, LEVELS[LEVEL])])
    assert found.graph is rule and found.units == 3


def test_the_graph_is_never_dearer_than_by_the_rule() -> None:
    chance = np.random.default_rng(29)
    for _ in range(3):
        graph = of_float32(random_network(chance, 3), 14, 14)
        simple = simplify(graph)
        rule = prepare(prefer_channels_last(simple))
        lowering = lowering_of(simple, LEVELS[LEVEL])
        found = laid_out_by_price(simple, rule, [lowering])
        prices = FormPrices(rule, [lowering])
        before, after = (
            prices.of(form.kernels, form.counts) for form in map(Form.of, (rule, found.graph))
        )
        assert np.mean(after / before) <= 1.0


def test_the_same_graph_is_laid_out_alike() -> None:
    first, second = (by_price(of_float32(depthwise(32), 7, 7)) for _ in range(2))
    assert first.parts == second.parts
    assert print_graph(first.graph) == print_graph(second.graph)


def test_a_graph_without_a_choice_is_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FormPrices", None)
    net = Network()
    net.with_number("maximum", 0.0)
    assert by_price(of_float32(net, 1, 64)).units == 0


@pytest.mark.usefixtures("by_lot")
@pytest.mark.parametrize("count", few_or_many(1, 4, 12))
def test_chosen_graphs_give_the_right_numbers(count: int) -> None:
    chance = np.random.default_rng(31)
    others = 0
    while others < count:
        graph = of_float32(random_network(chance, 3), 0, 64)
        found = by_price(graph)
        if found.parts:
            others += 1
            cases = [SIZES, {"batch": 1, "height": 1, "width": 17}, SIZES | {"batch": 0}]
            scale = max(largest(found.graph, sizes) for sizes in cases)
            check(found.graph, cases, length=4000, scale=scale, fill=fill, levels=("x86-64",))


DIMS = {"batch": (0, 4)}
MODEL = """<ir_version: 9, opset_import: ["" : 18]>
depthwise (float[batch, 64, 7, 7] x) => (float[batch, 64, 7, 7] y) {
    z = Conv <group = 64, pads = [1, 1, 1, 1]> (x, v)
    r = Relu (z)
    y = Conv <group = 64, pads = [1, 1, 1, 1]> (r, w)
}"""


def test_a_compiled_model_says_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layouts, "FormPrices", Falling)
    source = parser.parse_model(MODEL)
    weights = np.random.default_rng(1).standard_normal((64, 1, 3, 3)).astype(np.float32)
    source.graph.initializer.extend(from_array(weights, name) for name in "vw")
    data = np.random.default_rng(2).standard_normal((2, 64, 7, 7)).astype(np.float32)
    greedy = compile_stages(source, dims=DIMS)
    assert greedy.layouts.units == 0  # nothing is priced for it

    with caplog.at_level("INFO", "tilewright"):
        made = compile_stages(source, plan="optimal", dump=tmp_path, dims=DIMS, levels=["x86-64"])
    (part,) = made.layouts.parts
    (written,) = tmp_path.glob("*layouts-by-price*")
    assert str(part) in written.read_text() and f"layouts: {part}" in caplog.text
    models = [CompiledModel.from_contents(stages.contents) for stages in (greedy, made)]
    first, second = (model(x=data) for model in models)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
