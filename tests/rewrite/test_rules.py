"""Every rule: it applies to its cases, and no value changes at any size, 0 and 1 among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rewrite_cases import EXACT, x
from rewrite_harness import (
    Build,
    apply,
    assert_identical,
    fill,
    graph_of,
    simplified,
    values,
)

from tilewright.rewrite import RULES

CASES = [pytest.param(name, build, id=f"{name}-{i}") for i, (name, build) in enumerate(EXACT)]
ROUNDING = {
    "small_power",
    "scale_into_convolution",
    "scale_into_contraction",
    "scale_before_bias",
    "scale_after_contraction",
    "contract_of_flattened",
}
CORNERS = [
    {"m": m, "n": n, "k": k} for m, n, k in [(0, 2, 3), (1, 1, 1), (2, 0, 1), (3, 1, 2), (2, 5, 4)]
]


@pytest.mark.parametrize(("name", "build"), CASES)
def test_rule_applies_and_keeps_every_value(name: str, build: Build) -> None:
    before = graph_of(build())
    after, fired = simplified(build(), name)
    assert name in fired
    assert after.outputs[0][1] is not before.outputs[0][1]
    for sizes in CORNERS:
        assert_identical(values(before, sizes), values(after, sizes))


@pytest.mark.parametrize(("name", "build"), CASES)
def test_all_rules_together_keep_every_value(name: str, build: Build) -> None:
    before = graph_of(build())
    after, _ = simplified(build())
    for sizes in CORNERS:
        assert_identical(values(before, sizes), values(after, sizes))


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(EXACT),
    sizes=st.fixed_dictionaries({n: st.integers(0, 6) for n in "mnk"}),
    seed=st.integers(0, 1000),
)
def test_no_size_and_no_value_tells_them_apart(
    case: tuple[str, Build], sizes: dict[str, int], seed: int
) -> None:
    name, build = case
    after, _ = simplified(build(), name)
    assert_identical(values(graph_of(build()), sizes, seed), values(after, sizes, seed))


def test_every_rule_has_a_case_and_a_formula() -> None:
    tested = {name for name, _ in EXACT} | ROUNDING
    assert {rule.name for rule in RULES} == tested
    assert all("→" in rule.formula for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_small_powers_are_products(exponent: float) -> None:
    root = apply("power", x(), fill(exponent, x()))
    after, fired = simplified(root, "small_power")
    assert fired == ["small_power"]
    sizes = {"m": 3, "n": 40, "k": 0}
    expected = values(graph_of(root), sizes).astype(np.float64)
    # A product of three floats is rounded twice, each time by half a unit in the last place.
    tolerance = 2 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(values(after, sizes), expected, rtol=tolerance)
