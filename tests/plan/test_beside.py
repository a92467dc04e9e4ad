"""Kernels that are alike stand side by side, and plans stay what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model

import tilewright as tw
from support.graph_kit import Space, apply
from support.random_graphs import build
from tilewright.ir.correction import Correction
from tilewright.ir.dtype import DType
from tilewright.plan.backbone import plan_without_fusion
from tilewright.plan.beside import alike_beside
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.plan.verify import problems
from tilewright.rewrite import simplify
from tilewright.runtime.jobs import ends_of_jobs
from tilewright.runtime.program import KernelStep
from tilewright.shape import constant

NUMBERS = st.lists(st.integers(0, 1 << 16), min_size=12, max_size=90)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

TWO_DIRECTIONS = """
<ir_version: 9, opset_import: ["" : 18]>
both (float[length, batch, 64] x, float[2, 256, 64] w, float[2, 256, 64] r)
    => (float[l, d, b, h] y)
{
    y = LSTM <hidden_size = 64, direction = "bidirectional"> (x, w, r)
}"""


@given(NUMBERS, st.integers(3, 12), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_any_plan_stays_right(numbers: list[int], steps: int, fused: bool) -> None:
    graph = prepare(simplify(build(numbers, steps)))
    plan = plan_greedily(graph) if fused else plan_without_fusion(graph)
    moved = alike_beside(graph, plan)
    assert problems(graph, moved) == []
    assert set(moved.kernels) == set(plan.kernels)


def test_what_was_measured_stays_with_its_kernel() -> None:
    space = Space()
    (rows,) = space.dimensions("a")
    x = space.input("x", DType.FLOAT32, rows)
    first, second = apply("exponential", x), apply("sine", x)
    graph = prepare(space.graph(apply("negate", first), apply("negate", second)))
    plan = plan_without_fusion(graph)
    late = replace(plan, corrections=((2, Correction(((1, ((10, 20),)),))),))
    moved = alike_beside(graph, late)
    ((number, _),) = moved.corrections
    assert number != 2
    assert moved.kernels[number] is plan.kernels[2]


def test_both_directions_run_side_by_side() -> None:
    model = tw.compile(parse_model(TWO_DIRECTIONS), num_threads=2)
    uses = model.explain(length=100, batch=1)
    recurrences = [use for use in uses if use.work > 50_000]
    assert len(recurrences) == 2
    first, second = recurrences
    assert any(use.step <= first.step < second.step < use.step + use.steps for use in uses)
    chance = np.random.default_rng(5)
    inputs = {
        "x": chance.standard_normal((100, 1, 64), np.float32),
        "w": chance.standard_normal((2, 256, 64), np.float32),
        "r": chance.standard_normal((2, 256, 64), np.float32),
    }
    alone = tw.compile(parse_model(TWO_DIRECTIONS), num_threads=1)
    np.testing.assert_array_equal(model.run(inputs)["y"], alone.run(inputs)["y"])


def kernels(*needs: set[int]) -> list[KernelStep]:
    """Kernel n writes tensor n and reads some earlier ones."""
    none = constant(0)
    return [
        KernelStep("f", (), (*read, n), (n,), none, none, none, str(n), kernel=n)
        for n, read in enumerate(needs)
    ]


@pytest.mark.parametrize(
    ("needs", "ends"),
    [
        (((), (), ()), [2, 2, 2]),
        (((), {0}, {1}), [0, 1, 2]),
        (((), {0}, {0}, {1, 2}), [0, 2, 2, 3]),
        (((), {0}, (), {2}), [0, 2, 2, 3]),
        (((),) * 10, [7] * 8 + [9] * 2),
    ],
)
def test_which_steps_could_end_together(needs: tuple[set[int], ...], ends: list[int]) -> None:
    assert ends_of_jobs(kernels(*map(set, needs))) == ends
