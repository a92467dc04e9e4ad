"""Random graphs agree with the ONNX reference evaluator or with ONNX Runtime at every shape."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from support.fuzzing import generate
from support.fuzzing.case import Case, Finding, Recipe
from support.fuzzing.check import Outcome, check
from support.fuzzing.limits import doubtful, doubtful_of_nothing
from support.fuzzing.oracles import Reference, difference
from support.fuzzing.pool import Limits, run_one
from support.fuzzing.show import as_test
from support.fuzzing.shrink import shrink

pytestmark = pytest.mark.peers

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_graphs.py"
GRAPHS, PARTS = 80, 4


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs_agree_with_an_oracle(part: int) -> None:
    count = GRAPHS // PARTS
    numbers = ["--first", str(part * count), "--graphs", str(count), "--jobs", "1"]
    command = [sys.executable, str(SCRIPT), *numbers, "--shrink", "20"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "findings: none" in result.stdout
    idle = re.search(r"^(\d+) graphs without a call", result.stdout, re.MULTILINE)
    assert idle is not None and int(idle[1]) < count / 10


# ---------------------------------------------------------------- the fuzzer itself


def case(text: str, recipes: dict[str, Recipe], *shapes: dict[str, int]) -> Case:
    data = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    return Case(data.SerializeToString(), recipes, shapes)


CHAIN = case(
    """g (float[n, m] x) => (float[a, b] y, float[c] z)
    <int64 one = {1}> {t = Neg(x) u = CumSum(t, one) y = Exp(u) z = ReduceSum<keepdims=0>(t)}""",
    {"x": Recipe("float32", ("n", "m"))},
    {"n": 3, "m": 5},
    {"n": 0, "m": 2},
)


def test_a_number_of_a_seed_is_always_the_same_graph() -> None:
    first, second = (generate.generate(3, 14, ["x86-64"]) for _ in range(2))
    assert first == second
    assert generate.generate(3, 15, ["x86-64"]).model != first.model


def test_what_a_right_model_gives_is_compared_at_every_shape() -> None:
    outcome = check(CHAIN)
    assert outcome.finding is None
    assert outcome.compared == 6  # two shapes and the first again, with one thread and two


@pytest.mark.parametrize(
    "way", [{"level": "none"}, {"plan": "optimal"}, {"plan": "backbone"}, {"plan": "none"}]
)
def test_a_case_is_run_without_code_and_with_every_plan(way: dict[str, Any]) -> None:
    outcome = check(replace(CHAIN, **way))
    assert outcome.finding is None
    assert outcome.compared == 6


def hang(stage: object) -> Outcome:
    while True:
        pass


def crash(stage: object) -> Outcome:
    os.abort()


def swallow(stage: object) -> Outcome:
    return Outcome(compared=len(bytearray(1 << 40)))


@pytest.mark.parametrize(
    ("task", "seconds", "title"),
    [
        (hang, 0.5, "hang: in start"),
        (crash, 60.0, "crash: SIGABRT in start"),
        (swallow, 60.0, "foreign: Memory"),
    ],
)
def test_a_child_that_does_not_answer_is_a_finding(
    task: Callable[[object], Outcome], seconds: float, title: str
) -> None:
    finding = run_one(task, Limits(seconds=seconds, memory=2 << 30)).finding
    assert finding is not None and finding.title.startswith(title)


def test_results_are_compared_with_nan_in_its_place_and_what_may_be_rounded() -> None:
    one = np.array([1.0, np.nan, np.inf], np.float32)
    allowed = np.array([1e-3, 0.0, 0.0])
    assert difference(one, one, allowed) is None
    assert difference(one + np.float32(5e-4), one, allowed) is None
    assert difference(one + np.float32(5e-3), one, allowed) is not None
    assert difference(one[::-1], one, allowed) is not None
    assert difference(one[:2], one, allowed) == "shape (2,) for (3,)"
    assert difference(one.astype(float), one, allowed) == "type float64 for float32"


def test_what_cancels_may_differ_and_what_does_not_may_not() -> None:
    text = """g (float[n] x) => (float[a] y, float[b] z)
    {t = Exp(x) u = Exp(x) y = Sub(t, u) z = Add(t, u)}"""
    proto = case(text, {}).proto()
    feeds = {"x": np.full(100, 5.0, np.float32)}
    reference = Reference(proto)
    allowed = reference.allowances(feeds, reference.values(feeds), 0)
    assert 1e-4 < allowed["y"].max() < 1e-1
    assert allowed["z"].max() < 1e-4 * 2 * np.exp(5.0)


def allowed(text: str, **feeds: np.ndarray) -> np.ndarray:
    """How far result y of a graph may lie from the reference."""
    reference = Reference(case(text, {}).proto())
    return reference.allowances(feeds, reference.values(feeds), 0)["y"]


def test_a_sum_of_equal_elements_may_run() -> None:
    """Each is rounded the same way, so that errors add up; a pairwise sum has none of them."""
    x = np.full(3000, 0.1, np.float32)
    error = abs(float(np.cumsum(x)[-1]) - x.astype(np.float64).sum())
    text = "g (float[n] x) => (float[a] y) {y = ReduceSum(x)}"
    assert error < allowed(text, x=x).item() < 2e-4 * x.sum()


@pytest.mark.parametrize("x", [-3.6, -5.0])
def test_the_tail_of_a_gelu_may_cancel(x: float) -> None:
    text = 'g (float[n] x) => (float[n] y) {y = Gelu<approximate = "tanh">(x)}'
    assert 1e-7 < allowed(text, x=np.array([x], np.float32)).item() < 1e-5


def test_oracles_that_are_known_to_be_wrong_are_not_asked() -> None:
    pool = "g (float[n, 2, h, w] x) => (float[a, b, c, d] y) {{y = MaxPool<{}>(x)}}"
    kernel = "kernel_shape = [2, 2]"
    for wrong in ("pads = [1, 0, 0, 0], ceil_mode = 1", "pads = [0, 1, 0, 1]"):
        assert doubtful(case(pool.format(f"{kernel}, {wrong}"), {}).proto()) == {"y"}
    for right in ("pads = [1, 1, 1, 1]", "pads = [0, 1, 0, 0], strides = [2, 1]"):
        assert not doubtful(case(pool.format(f"{kernel}, {right}"), {}).proto())
    sums = """g (float[n, m] x) => (float[a] y)
    {axes = Constant<value = int64[1] {AXIS}>() y = ReduceSum(x, axes)}"""
    for axis, doubted in (("-1", {"y"}), ("1", set[str]())):
        assert doubtful_of_nothing(case(sums.replace("AXIS", axis), {}).proto()) == doubted


def test_windows_that_may_fit_nowhere_have_no_oracle() -> None:
    """Of no images the reference refuses the mean, so that it does not say how large it is."""
    text = """g (float[n, 1, h, h] x) => (float[a, b, c, d] y)
    {m = GlobalAveragePool(x)
     y = AveragePool<kernel_shape = [3, 1], pads = [0, 0, 1, 0], strides = [2, 3]>(m)}"""
    recipes = {"x": Recipe("float32", ("n", 1, "h", "h"))}
    outcome = check(case(text, recipes, {"n": 2, "h": 4}, {"n": 0, "h": 4}))
    assert outcome.finding is None
    assert outcome.limits == [
        "pooling by windows that fit nowhere",
        "pooling of what the reference refuses",
    ]


def test_a_finding_is_made_as_small_as_it_goes() -> None:
    def judged(candidate: Case) -> Finding | None:
        return Finding("wrong", "") if "CumSum" in candidate.operators() else None

    small, _ = shrink(CHAIN, Finding("wrong", ""), judged, 60.0)
    assert small.operators() == ["CumSum"]
    assert small.shapes == ({"n": 1, "m": 1},) or small.shapes == ({"n": 0, "m": 1},)


def test_a_finding_is_printed_as_a_test_that_runs() -> None:
    text = as_test(CHAIN, Finding("wrong", "output y", CHAIN.shapes[0]), "it")
    scope = {"np": np, "parser": parser, "tw": tw, "ReferenceEvaluator": ReferenceEvaluator}
    exec(text, scope)
    scope["test_it"]()


@pytest.mark.parametrize("seed", [5, 6])
def test_every_case_survives_being_printed(seed: int) -> None:
    made = generate.generate(seed, 0, ["x86-64"])
    compile(as_test(made, Finding("wrong", "x"), "it"), "test", "exec")
