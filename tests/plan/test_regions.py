"""Plans with several ways to compute a part: found where shapes differ, right in any of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx.parser import parse_model

from support.graph_kit import (
    Compiled,
    Space,
    apply,
    check,
    compare_outputs,
    exact,
    few_or_many,
    inputs_at,
)
from support.random_graphs import build, fill, largest
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.bench.variants import chosen_variants
from tilewright.compile import compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Alternatives, Kernel, Plan
from tilewright.plan.choosing import Array, Choice, Choosing, Part
from tilewright.plan.launches import LaunchRing, in_order
from tilewright.plan.optimal import plan_optimally
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import KernelPrices
from tilewright.plan.printing import print_plan
from tilewright.plan.problem import Problem
from tilewright.plan.solver import solve
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.tile.variants import THREADS

LEVEL = "x86-64"
SIZES = [{"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19}]


BORDERED = """
<ir_version: 9, opset_import: ["" : 18]>
bordered (float[batch, 32, height, width] x) => (float[batch, 32, h, w] y)
<float[32] gain = {GAIN}, int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}> {
    normal = InstanceNormalization (x, gain, gain)
    positive = Relu (normal)
    y = Pad <mode = "reflect"> (positive, pads)
}""".replace("GAIN", ", ".join(["0.5"] * 32))


def two_ways() -> tuple[Graph, Plan]:
    """Two operations, each a kernel of its own or both in one."""
    space = Space()
    rows, columns = space.dimensions("a b")
    x = space.input("x", DType.FLOAT32, rows, columns)
    middle = apply("exponential", x)
    graph = prepare(space.graph(apply("negate", middle)))
    (x,), (last,) = graph.inputs, graph.roots
    middle = last.inputs[0]
    apart = Kernel((), (middle,), (x,), (middle,), "exponential")
    after = Kernel((), (last,), (middle,), (last,), "negate")
    whole = Kernel((), (middle, last), (x,), (last,), "both")
    return graph, Plan((apart, after, whole), (Alternatives(((0, 1), (2,))),))


def test_a_plan_of_two_ways_is_right_and_prints_them() -> None:
    graph, plan = two_ways()
    assert problems(graph, plan) == []
    assert "  alternatives 0: kernels 0, 1 or 2\n" in print_plan(graph, plan)
    compiled = Compiled(graph, (LEVEL,), plan)
    (choice,) = compiled.levels[LEVEL].program.choices
    assert choice.names == ("exponential, negate", "both")
    for sizes in SIZES:
        for way in range(2):
            run_way(compiled, sizes, {choice.symbol: way}, 1.0)


def test_what_a_way_lacks() -> None:
    graph, plan = two_ways()
    unread = replace(plan, alternatives=(Alternatives(((1,), (0, 2))),))
    assert any("which no kernel writes" in text for text in problems(graph, unread))
    some = Plan(plan.kernels[:2], (Alternatives(((0, 1), ())),))
    assert any('no kernel writes the output "' in text for text in problems(graph, some))
    late = Plan((plan.kernels[1], plan.kernels[0], plan.kernels[2]), plan.alternatives)
    assert any("only a later kernel" in text for text in problems(graph, late))
    both = replace(plan, alternatives=(Alternatives(((0, 1, 2), (2,))),))
    assert any("is written by 2 kernels" in text for text in problems(graph, both))
    missing = Plan(plan.kernels[:2], (Alternatives(((0,), ())),))
    assert any("which not every call writes" in text for text in problems(graph, missing))


def test_wide_images_get_another_plan_than_narrow_ones() -> None:
    """Korch (section 6.4): a normalisation ends where the border is written, if images are wide."""
    dims = {name: Dim(0, 1 << 14) for name in ("batch", "height", "width")}
    made = compile_stages(parse_model(BORDERED), dims=dims, plan="optimal", target="zen4")
    ((level, plan),) = made.plans.items()
    (alternatives,) = plan.alternatives
    program = made.contents.programs[level]
    (choice,) = (c for c in program.choices if c.symbol.startswith("way"))
    taken = {
        width: chosen_variants(program, {"batch": 1, "height": 64, "width": width}, 2)[
            program.choices.index(choice)
        ]
        for width in (2, 4, 512, 4096)
    }
    assert taken[2] == taken[4] != taken[512] == taken[4096]
    ends = [plan.kernels[alternatives.ways[way][-1]] for way in (taken[2], taken[512])]
    assert len(ends[0].body) < len(ends[1].body)


def test_the_price_of_a_plan_is_that_of_its_cheaper_way() -> None:
    graph, plan = two_ways()
    points = [{"a": 1, "b": 1, THREADS: 1}, {"a": 1000, "b": 1000, THREADS: 2}]
    prices = KernelPrices(lowering_of(graph, LEVELS[LEVEL]), points)
    apart, after, whole = (prices.of(kernel) for kernel in plan.kernels)
    pairs = zip(apart, after, whole, strict=True)
    assert prices.of_plan(plan) == tuple(min(a + b, c) for a, b, c in pairs)


@pytest.mark.parametrize("count", few_or_many(3, 4, 8))
def test_any_ways_give_the_right_numbers(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices by random costs are ways: each has its own kernels, and tensors that it alone has."""
    chance = np.random.default_rng(29)

    def random_ways(
        choosing: Choosing, part: Part, first: Choice, weights: Array, least: float
    ) -> tuple[tuple[int, ...], ...]:
        assert least > 0 and weights.shape == choosing.prices(part, first.chosen).shape
        found = [random_choice(choosing.graph, part.problem, chance) for _ in range(2)]
        return tuple(dict.fromkeys([first.chosen, *found]))

    monkeypatch.setattr(f"{plan_optimally.__module__}.ways", random_ways)
    seen = 0
    while seen < count:
        numbers = chance.integers(0, 1 << 16, 90).tolist()
        graph = prepare(simplify(build(numbers, int(chance.integers(3, 12)))))
        plan = plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL])).plan
        assert problems(graph, plan) == []
        if not plan.alternatives:
            continue
        seen += len(plan.alternatives)
        scale = max(largest(graph, sizes) for sizes in SIZES)
        compiled = check(
            graph, SIZES[:2], length=4000, scale=scale, fill=fill, levels=(LEVEL,), plan=plan
        )
        for choice in compiled.levels[LEVEL].program.choices:
            for way in range(len(choice.costs)) if choice.symbol.startswith("way") else ():
                for sizes in SIZES:
                    run_way(compiled, sizes, {choice.symbol: way}, scale)


def random_choice(graph: Graph, problem: Problem, chance: np.random.Generator) -> tuple[int, ...]:
    while True:
        costs = chance.uniform(0.1, 3.0, len(problem.kernels)).tolist()
        chosen = solve(problem, costs).chosen
        try:
            in_order(graph, [problem.kernels[n] for n in chosen])
        except LaunchRing:
            continue
        return chosen


def run_way(
    compiled: Compiled, sizes: dict[str, int], chosen: dict[str, int], scale: float
) -> None:
    """Each tensor lies between unreadable pages; those of other ways have no elements."""
    inputs = inputs_at(compiled.graph, sizes, fill)
    with np.errstate(all="ignore"):
        want = exact(compiled.graph, inputs, sizes)
    got = compiled.guarded(LEVEL, inputs, sizes, chosen=chosen)
    compare_outputs(compiled.graph, got, want, (4000, scale), f"{sizes} {chosen}")
