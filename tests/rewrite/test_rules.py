"""Every rule: it applies to its cases, and no value changes at any size, 0 and 1 among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rewrite_cases import EXACT, x
from support.rewrite_harness import (
    Build,
    apply,
    assert_identical,
    fill,
    graph_of,
    simplified,
    tensor,
    values,
)
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Node
from tilewright.rewrite import RULES

CASES = [pytest.param(name, build, id=f"{name}-{i}") for i, (name, build) in enumerate(EXACT)]
ROUNDING = {
    "small_power",
    "fractional_power",
    "scaled_quotient",
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


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, -2.0])
def test_small_powers_are_products(exponent: float) -> None:
    root = apply("power", x(), fill(exponent, x()))
    after, fired = simplified(root, "small_power")
    assert fired == ["small_power"]
    sizes = {"m": 3, "n": 40, "k": 0}
    expected = values(graph_of(root), sizes).astype(np.float64)
    # A product of three floats is rounded twice, each time by half a unit in the last place; the
    # square of a reciprocal counts the rounding of that twice, and once its own.
    tolerance = 2 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(values(after, sizes), expected, rtol=tolerance)


@pytest.mark.parametrize(("divisor", "factor"), [(5.0, 1e-4), (-3.0, 0.7), (1e30, 1e20)])
def test_quotients_are_scaled_once(divisor: float, factor: float) -> None:
    quotient = apply("divide", x(), fill(divisor, x()))
    root = apply("multiply", quotient, fill(factor, x()))
    after, fired = simplified(root, "scaled_quotient")
    assert fired == ["scaled_quotient"]
    sizes = {"m": 3, "n": 40, "k": 0}
    expected = values(graph_of(root), sizes)
    # Two roundings before, two after (of the constants' quotient and of the product).
    tolerance = 2 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(values(after, sizes), expected, rtol=tolerance)


ABSOLUTE = [0.0, np.inf, np.nan, 1.0, 3.0, 1e-45, 2e-41, 1e-38, 1e-12, 5e17, 1e19, 1e30, 3.4e38]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("exponent", [0.5, 0.25, 0.75, -0.5, -0.25])
def test_fractional_powers_are_roots(exponent: float, dtype: DType) -> None:
    largest = 38 if dtype is DType.FLOAT32 else 300
    drawn = 10.0 ** np.random.default_rng(0).uniform(-largest, largest, 20000)
    near = np.random.default_rng(1).uniform(1.0, 16.0, 20000)
    data = np.concatenate([ABSOLUTE, drawn, near]).astype(dtype.numpy)
    operand = tensor("data", data.size, dtype=dtype)
    for positive in (apply("absolute", operand), _shifted_square(operand)):
        root = apply("power", positive, fill(exponent, operand))
        after, fired = simplified(root, "fractional_power")
        assert fired == ["fractional_power"]
        found = evaluate(after, {"data": data}, {})["out"]
        base = evaluate(graph_of(positive), {"data": data}, {})["out"]
        with np.errstate(divide="ignore"):
            exact = base.astype(np.longdouble) ** np.longdouble(exponent)
        # Three roundings, of which roots halve what went before: at most two units.
        unit = np.spacing(np.abs(exact).astype(dtype.numpy)).astype(np.longdouble)
        fine = np.isfinite(exact)
        assert np.all(np.abs(found[fine] - exact[fine]) <= 2 * unit[fine])
        np.testing.assert_array_equal(found[~fine], exact[~fine].astype(dtype.numpy))
        known = ~np.isnan(found)
        assert not np.signbit(found[known]).any()


def _shifted_square(operand: Node) -> Node:
    return apply("add", apply("multiply", operand, operand), fill(1.0, operand))
