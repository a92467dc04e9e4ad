"""The ONNX backend test suite: a sample interpreted quickly, all of it compiled as slow tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from run_suite import Outcome, run_case

from support.conformance_suite import KINDS, load_cases
from tilewright.ops.record import OPERATORS

# The expectation holds the rounding noise of one implementation where the exact value is 0, or
# differs by one unit in the last place of float16.
NOISY = {
    "test_dft_inverse_opset19",
    "test_dft_inverse",
    "test_attention_4d_causal_fp16_expanded",
}
# Operators with rules for some of their forms only: random masks.
PARTIAL = {"Dropout"}
SHARES = {"node": 48, "light": 4}  # parts of a kind, for several workers
SAMPLE = 12  # one of so many cases of kind "node"


def outcomes(kind: str, sample: int) -> Iterator[Outcome]:
    for case in load_cases(kind):
        if case.name not in NOISY and zlib.crc32(case.name.encode()) % sample == 0:
            yield run_case(case, "interpreter")


def check(rows: list[Outcome]) -> None:
    failed = [f"{r.kind}/{r.name}: {r.reason}" for r in rows if r.status == "failed"]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_a_sample_of_single_operators():
    rows = list(outcomes("node", SAMPLE))
    check(rows)
    compiled = sum(r.status == "compiled" for r in rows)
    assert compiled >= 0.75 * len(rows) > 50


def test_converted_modules_compile_whole():
    rows = list(outcomes("pytorch-operator", 1)) + list(outcomes("pytorch-converted", 2))
    check(rows)
    assert [r.name for r in rows if r.status != "compiled"] == []


def test_simple_models():
    check(list(outcomes("simple", 1)))


def unexcused(rows: list[Outcome]) -> list[str]:
    """Cases that used the reference evaluator for an operator with a rule, not for its types."""
    ruled = {name for _, name in OPERATORS}
    found: list[str] = []
    for row in rows:
        for fallback in row.fallbacks:
            operator, reason = fallback.split(": ", 1)
            if operator in ruled and operator not in PARTIAL and "type" not in reason:
                found.append(f"{row.name}: {fallback}")
    return found


@pytest.mark.slow
@pytest.mark.sampled(24)
@pytest.mark.parametrize(
    ("kind", "share"), [(kind, share) for kind in KINDS for share in range(SHARES.get(kind, 1))]
)
def test_all_compiled(kind: str, share: int):
    rows = [
        run_case(case, "compiled")
        for number, case in enumerate(load_cases(kind))
        if number % SHARES.get(kind, 1) == share
    ]
    check([row for row in rows if row.name not in NOISY])
    assert unexcused(rows) == []
