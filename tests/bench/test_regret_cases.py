"""What is drawn depends on the seed alone, lies within its limits, and is what it says it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tilewright.bench.operators import AnyGroup
from tilewright.bench.regret_cases import KINDS, Drawn, Setting, draw_groups
from tilewright.bench.suites import AnyCase
from tilewright.bench.table_reference import evaluate
from tilewright.bench.tables import TableCase, make_table_problem, read_table, resize_case
from tilewright.support.errors import InputError


def drawn(setting: Setting) -> Drawn:
    """With every other program of a table taken as one that has a choice."""
    seen: list[AnyGroup] = []

    def every_other(group: AnyGroup) -> bool:
        seen.append(group)
        return len(seen) % 2 == 0

    return draw_groups(setting, every_other)


def cases_of(setting: Setting) -> list[AnyCase]:
    return [case for group in drawn(setting).groups for case in group.cases]


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_depend_on_the_seed_alone(kind: str) -> None:
    setting = Setting(kind, samples=8, seed=3)
    assert cases_of(setting) == cases_of(setting)
    assert cases_of(setting) != cases_of(Setting(kind, samples=8, seed=4))
    assert len(cases_of(setting)) == 8


@pytest.mark.parametrize("kind", ("attention", "memory"))
def test_shapes_are_within_the_limits_and_ranges(kind: str) -> None:
    setting = Setting(kind, samples=90, most_bytes=1 << 25, largest_flops=1e8)
    for group in drawn(setting).groups:
        for case in group.cases:
            assert case.bytes <= 1 << 25
            assert case.flops <= 1e8
            assert all(low <= case.sizes[n] <= high for n, (low, high) in group.ranges.items())


def test_sizes_of_a_table_are_not_those_listed_and_programs_draw_for_themselves() -> None:
    both = cases_of(Setting("memory", samples=200, families=("softmax", "pooling")))
    one = {case.describe() for case in both if case.suite == "pooling"}
    assert len(one) > 50
    listed = {(case.name, case.describe()) for case in read_table("memory")}
    assert not listed & {(case.name, case.describe()) for case in both}


def test_every_family_of_attention_is_drawn() -> None:
    cases = cases_of(Setting("attention", samples=48, largest_flops=1e7))
    assert len({case.suite for case in cases}) == 12
    few = [case.sizes for case in cases if case.suite.startswith("few rows")]
    assert all(sizes["steps"] <= sizes["source"] for sizes in few)


def test_a_causal_row_sees_the_keys_up_to_its_own() -> None:
    """The last row sees all keys: what comes later may be anything."""
    setting = Setting("attention", samples=4, families=("few rows, causal",), largest_flops=1e6)
    (case, *_) = (case for case in cases_of(setting) if case.sizes["steps"] > 1)
    assert isinstance(case, TableCase)
    problem = make_table_problem(case)
    inputs = dict(problem.inputs)
    (before,) = evaluate(onnx.load_from_string(problem.model), inputs)
    inputs["v"] = inputs["v"].copy()
    inputs["v"][:, :, -1] += 100
    (after,) = evaluate(onnx.load_from_string(problem.model), inputs)
    np.testing.assert_array_equal(before[:, :, :-1], after[:, :, :-1])
    assert np.all(np.abs(after[:, :, -1] - before[:, :, -1]) > 1e-3)


def test_what_is_not_defined_is_not_drawn() -> None:
    cases = {(case.suite, case.name): case for case in read_table("memory")}
    scatter = cases["scattering", "rows by tuples"]
    assert resize_case(scatter, {"rows": 5, "count": 6}) is None
    found = resize_case(scatter, {"rows": 6, "count": 5})
    assert found is not None
    assert found.bytes == 4 * 769 * (6 + 5 + 6) + 8 * 5
    pooled = cases["pooling", "max 3, stride 2, one dimension"]
    assert resize_case(pooled, {"batch": 0, "length": 9}) is None


def test_unknown_kinds_families_and_ranges_are_named() -> None:
    for setting in (
        Setting("sums"),
        Setting(level="sse"),
        Setting("memory", families=("sums",)),
        Setting("gemm", families=("sums",)),
        Setting(sizes=(5, 4)),
        Setting("attention", sizes=(2000, 2000), largest_flops=1.0),
    ):
        with pytest.raises(InputError):
            drawn(setting)
