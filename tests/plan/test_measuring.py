"""Plans decided by measurement: by clocks that lie as a test wants, and once by the real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from onnx.parser import parse_model

from support.graph_kit import Space, fixed, softmax
from support.random_graphs import build
from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.backend.cpu.program import build_program, lowering_of
from tilewright.bench.variants import chosen_variants
from tilewright.compile import compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.primitives import Contract
from tilewright.options import CompileOptions
from tilewright.plan.alone import alone
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.measuring import timed_points
from tilewright.plan.optimal import plan_optimally
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import KernelPrices
from tilewright.plan.printing import print_plan
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.artifact_writer import describe
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import KernelStep
from tilewright.support.errors import InputError
from tilewright.tile.alike import LoweringOnce, outline_key
from tilewright.tile.variants import THREADS
from tilewright.tune import Budget, KernelTimes

LEVEL = "x86-64"
Factor = Callable[[Kernel, Mapping[str, int]], float]


def rows_graph() -> Graph:
    """A product, and the softmax of its rows."""
    space = Space()
    rows = space.dimension("rows", 1, 4096)
    x = space.input("x", DType.FLOAT32, rows, 64)
    weights = fixed(np.full((64, 256), 0.125, np.float32))
    return prepare(space.graph(softmax(node(Contract((), ((1, 0),)), x, weights))))


@dataclass
class Clock:
    """Says that kernels take their modelled time, times a factor; keeps what it was asked."""

    lowering: LoweringOnce
    factor: Factor
    asked: list[Kernel] = field(default_factory=list[Kernel])

    def __call__(
        self, graph: Graph, kernels: Sequence[Kernel], points: Sequence[Mapping[str, int]]
    ) -> list[tuple[float, ...] | None]:
        self.asked += kernels
        prices = KernelPrices(self.lowering, points)
        return [
            tuple(p * self.factor(k, at) for p, at in zip(prices.of(k), points, strict=True))
            for k in kernels
        ]


def planned(graph: Graph, factor: Factor) -> tuple[Plan, Clock]:
    lowering = lowering_of(graph, LEVELS[LEVEL])
    clock = Clock(lowering, factor)
    return plan_optimally(graph, lowering, measure=clock).plan, clock


def by_prices(graph: Graph) -> Plan:
    return plan_optimally(graph, lowering_of(graph, LEVELS[LEVEL])).plan


def test_what_is_slow_is_taken_apart() -> None:
    space = Space()
    rows = space.dimension("rows", 1, 4096)
    graph = prepare(space.graph(softmax(space.input("x", DType.FLOAT32, rows, 256))))
    usual = by_prices(graph)
    assert usual.kernels == plan_greedily(graph).kernels and not usual.corrections
    whole = max(usual.kernels, key=lambda kernel: len(kernel.body))

    slow, clock = planned(graph, lambda kernel, _: 50.0 if kernel == whole else 1.0)
    assert problems(graph, slow) == []
    assert whole in clock.asked and whole not in slow.kernels and len(slow.kernels) > 1
    assert len(slow.corrections) == len(slow.measured) > 0
    # As said by the model, or all slower alike: nothing changes but that it was measured.
    for same in (1.0, 3.0):
        plan, _ = planned(graph, lambda _, __, same=same: same)
        assert plan.kernels == usual.kernels and plan.corrections


def test_what_is_chosen_by_price_is_left_again() -> None:
    """The other way: where prices prefer another plan, measurement may prefer the greedy one."""
    chance = np.random.default_rng(5)
    seen = 0
    while seen < 2:
        graph = prepare(simplify(build(chance.integers(0, 1 << 16, 90).tolist(), 11)))
        greedy, usual = plan_greedily(graph).kernels, by_prices(graph).kernels
        if set(greedy) == set(usual):
            continue
        seen += 1
        plan, _ = planned(graph, lambda k, _, own=greedy: 1.0 if k in own else 50.0)
        assert set(plan.kernels) == set(greedy)
        assert problems(graph, plan) == []
        fast, _ = planned(graph, lambda k, _, own=greedy: 50.0 if k in own else 1.0)
        assert problems(graph, fast) == [] and set(fast.kernels) != set(greedy)


def test_kernels_that_all_choices_share_and_that_are_alike_are_not_timed() -> None:
    space = Space()
    rows = space.dimension("rows", 1, 4096)
    made = [softmax(space.input(name, DType.FLOAT32, rows, 256)) for name in ("x", "y")]
    graph = prepare(space.graph(*made))
    plan, clock = planned(graph, lambda _, __: 1.0)
    keys = [outline_key(kernel) for kernel in clock.asked]
    assert len(set(keys)) == len(keys)
    assert {outline_key(plan.kernels[n]) for n, _ in plan.corrections} <= set(keys)


def test_a_kernel_without_a_time_leaves_its_part_to_prices() -> None:
    graph = rows_graph()
    usual = by_prices(graph)
    lowering = lowering_of(graph, LEVELS[LEVEL])
    clock = Clock(lowering, lambda kernel, _: 50.0 if kernel in usual.kernels else 1.0)

    def partly(graph: Graph, kernels: Sequence[Kernel], points: Sequence[Mapping[str, int]]):
        return [*clock(graph, kernels, points)[:-1], None]

    assert plan_optimally(graph, lowering, measure=partly).plan == usual


def test_calls_choose_as_the_planner_did() -> None:
    """The whole kernel is fast for few rows and slow for many: both ways stay, each where it is."""
    graph = rows_graph()
    whole = max(plan_greedily(graph).kernels, key=lambda kernel: len(kernel.body))

    def factor(kernel: Kernel, point: Mapping[str, int]) -> float:
        return (0.2 if point["rows"] < 20 else 20.0) if kernel == whole else 1.0

    lowering = lowering_of(graph, LEVELS[LEVEL])
    plan = plan_optimally(graph, lowering, measure=Clock(lowering, factor)).plan
    (alternatives,) = plan.alternatives
    assert "  priced by measurement: kernels 0, " in print_plan(graph, plan)
    made = build_program(graph, plan, LEVELS[LEVEL], lowering=lowering)
    program = made.program
    model = CompiledModel.from_contents(
        ArtifactContents({LEVEL: program}, {LEVEL: made.image}, {LEVEL: made.constants})
    )
    place = next(n for n, c in enumerate(program.choices) if c.symbol.startswith("way"))
    taken: set[int] = set()
    for rows in (1, 3, 64, 300, 4096):
        for threads in (1, 2):
            point = {"rows": rows, THREADS: threads}
            way = chosen_variants(program, {"rows": rows}, threads)[place]
            costs = [
                KernelPrices(lowering, [point]).of_plan(one_way(plan, alternatives.ways[way]))[0]
                for way in range(len(alternatives.ways))
            ]
            assert costs[way] <= min(costs) * 1.001
            assert (whole in [plan.kernels[n] for n in alternatives.ways[way]]) == (rows < 20)
            taken.add(way)
            model.num_threads = threads
            steps = (program.steps[use.step] for use in model.explain(rows=rows))
            launched = {step.kernel for step in steps if isinstance(step, KernelStep)}
            assert launched == set(alternatives.ways[way])
    assert len(taken) == 2


def one_way(plan: Plan, kept: Sequence[int]) -> Plan:
    """The plan with the kernels of one way alone."""
    optional = plan.memberships()
    numbers = [n for n in range(len(plan.kernels)) if n not in optional or n in kept]
    place = {number: position for position, number in enumerate(numbers)}
    corrections = tuple((place[n], own) for n, own in plan.corrections if n in place)
    return replace(
        plan, kernels=tuple(plan.kernels[n] for n in numbers), alternatives=(),
        corrections=corrections,
    )  # fmt: skip


def test_points_are_small_middling_and_large_on_each_number_of_threads() -> None:
    points = [{"a": size, THREADS: t} for t in (1, 2) for size in (5, 1, 9, 3, 7)]
    times = np.array([5.0, 1.0, 9.0, 3.0, 7.0] * 2) * 1e6
    assert timed_points(points, times) == [1, 0, 2, 6, 5, 7]
    assert timed_points(points, times * 1e9) == [1, 6]  # all too long: the shortest
    assert timed_points([{THREADS: 1}], np.array([1.0])) == [0]


def test_a_kernel_alone_reads_what_it_read() -> None:
    chance = np.random.default_rng(11)
    for _ in range(12):
        graph = prepare(simplify(build(chance.integers(0, 1 << 16, 90).tolist(), 8)))
        for kernel in plan_greedily(graph).kernels:
            own, moved = alone(graph, kernel)
            assert problems(own, Plan((moved,))) == []
            assert len(moved.body) == len(kernel.body)
            assert [n.type for n in moved.outputs] == [n.type for n in kernel.outputs]


# ---------------------------------------------------------------- the real clock

MODEL = """
<ir_version: 9, opset_import: ["" : 18]>
rows (float[batch, 32] x) => (float[batch, 96] y)
<float[32, 96] w = {WEIGHTS}> {
    z = MatMul (x, w)
    y = Softmax <axis = -1> (z)
}""".replace("WEIGHTS", ", ".join(["0.125", "-0.25", "0.5"] * 1024))
OPTIONS: CompileOptions = {"dims": {"batch": Dim(0, 256)}, "plan": "optimal"}


def test_a_model_is_measured_once_and_compiled_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    plain = compile_stages(parse_model(MODEL), **OPTIONS)
    assert "measured" not in str(describe(plain.contents).to_json())
    options: CompileOptions = {**OPTIONS, "measure": True}
    first, again = (compile_stages(parse_model(MODEL), **options) for _ in range(2))
    assert first.measured is not None and again.measured is not None
    assert first.measured.timed > 0 and first.measured.missing == 0
    assert (again.measured.timed, again.measured.missing) == (0, 0)
    assert again.measured.kept == first.measured.timed
    models = [CompiledModel.from_contents(made.contents) for made in (first, again, plain)]
    files = [tmp_path / name for name in ("first", "again")]
    for model, path in zip(models, files, strict=False):
        model.save(path)
    assert files[0].read_bytes() == files[1].read_bytes()
    (level,) = models[0].info.levels
    (plan,) = first.plans.values()
    assert level.measured == plan.measured != ()
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    assert np.allclose(models[0](x), models[2](x), rtol=1e-4, atol=1e-6)


def test_a_budget_that_is_spent_leaves_kernels_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = rows_graph()
    kernels = plan_greedily(graph).kernels
    points = [{"rows": rows, THREADS: 1} for rows in (1, 4, 9)]
    ticks = iter(range(1_000_000))
    budget = Budget(seconds=1.0, clock=lambda: float(next(ticks)))  # each look takes a second
    lowering = lowering_of(graph, host_level())
    times = KernelTimes(host_level(), lowering, budget)
    assert times(graph, kernels, points) == [None] * len(kernels)
    assert budget.timed == len(kernels) and budget.missing == 2 * len(kernels)
    budget.tell()
    assert "compile again to measure more" in caplog.text
    more = Budget()
    found = KernelTimes(host_level(), lowering, more)(graph, kernels, points)
    assert all(own is not None and min(own) > 0 for own in found)
    assert more.kept == len(kernels) and more.timed == 2 * len(kernels) and not more.missing


def test_where_measuring_makes_no_sense() -> None:
    with pytest.raises(InputError, match="makes one only"):
        compile_stages(parse_model(MODEL), measure=True)
    with pytest.raises(InputError, match="describes"):
        compile_stages(parse_model(MODEL), measure=True, plan="optimal", target="zen4")
    with pytest.raises(InputError):
        compile_stages(parse_model(MODEL), measure="yes", plan="optimal")  # type: ignore[arg-type]
