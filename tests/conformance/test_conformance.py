"""The ONNX backend test suite in interpreter mode: a sample quickly, all of it as a slow test."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from run_suite import Outcome, run_case
from suite import KINDS, load_cases

# The expectation holds the rounding noise of one implementation where the exact value is 0, or
# differs by one unit in the last place of float16.
NOISY = {
    "test_dft_inverse_opset19",
    "test_dft_inverse_opset19_expanded",
    "test_attention_4d_causal_fp16_expanded",
}
SAMPLE = 12  # one of so many cases of kind "node"


def outcomes(kind: str, sample: int) -> Iterator[Outcome]:
    for case in load_cases(kind):
        if case.name not in NOISY and zlib.crc32(case.name.encode()) % sample == 0:
            yield run_case(case, "interpreter")


def check(rows: list[Outcome]) -> None:
    failed = [f"{r.kind}/{r.name}: {r.reason}" for r in rows if r.status == "failed"]
    assert not failed, "\n".join(failed)


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_suite(kind):
    check(list(outcomes(kind, 1)))
