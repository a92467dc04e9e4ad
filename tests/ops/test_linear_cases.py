"""The ONNX project's cases for products, convolutions, pooling, attention, recurrence, spectra."""

from __future__ import annotations

from functools import cache

import pytest

from support.node_suite import Outcome, run_suite

OPERATORS = [
    "Attention",
    "AveragePool",
    "BlackmanWindow",
    "CausalConvWithState",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DFT",
    "DeformConv",
    "Einsum",
    "GRU",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HammingWindow",
    "HannWindow",
    "LSTM",
    "LinearAttention",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "MaxPool",
    "MaxUnpool",
    "QLinearConv",
    "QLinearMatMul",
    "RNN",
    "RoiAlign",
    "RotaryEmbedding",
    "STFT",
]
# Their cases take seconds to load (the expectations are computed by loops); see test_pooling.
SLOW = ("AveragePool", "LpPool", "MaxPool")
# Forms that need a size: steps to unroll, or the length of a vector that decides sizes.
NEED_SIZES = ("GRU", "LSTM", "LinearAttention", "MaxUnpool", "RNN")


@cache
def outcomes(symbolic: bool) -> tuple[Outcome, ...]:
    names = [n for n in OPERATORS if n not in SLOW and (n in NEED_SIZES) is not symbolic]
    return tuple(run_suite(names, symbolic=symbolic))


def _assert_pass(found: list[Outcome], allowed: tuple[str, ...]) -> None:
    bad = [f"{o.case}: {o.verdict} {o.detail}" for o in found if o.verdict not in allowed]
    assert any(o.verdict == "pass" for o in found)
    assert not bad, "\n".join(bad)


@pytest.mark.slow
@pytest.mark.parametrize("operator", [n for n in OPERATORS if n not in (*SLOW, *NEED_SIZES)])
def test_cases_pass_with_unknown_sizes(operator: str) -> None:
    _assert_pass([o for o in outcomes(True) if o.operator == operator], ("pass",))


@pytest.mark.parametrize("operator", NEED_SIZES)
def test_cases_pass_with_known_sizes(operator: str) -> None:
    _assert_pass([o for o in outcomes(False) if o.operator == operator], ("pass",))


@pytest.mark.slow
@pytest.mark.parametrize("operator", SLOW)
def test_pooling_cases_pass(operator: str) -> None:
    _assert_pass(run_suite([operator]), ("pass",))


@pytest.mark.slow
def test_every_case_is_looked_at() -> None:
    assert len(outcomes(True)) + len(outcomes(False)) >= 230
