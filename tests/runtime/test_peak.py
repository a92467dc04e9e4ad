"""The formula of the memory between kernels, beside what calls are given.

Needs the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.text_models import model
from tilewright.runtime.peak import largest, peak_bytes
from tilewright.shape import constant, parse

ALIGNMENT = 64  # of each tensor in the arena


def chain() -> Any:
    """Tensors between kernels, one of which is needed by two of them."""
    return model(
        """g (float[n, m] x, float[m, 8] w) => (float[n, 8] y) <int64 zero = {0}> {
            t = Softmax <axis = 0> (x)
            c = CumSum (t, zero)
            s = Softmax <axis = -1> (c)
            d = CumSum <reverse = 1> (s, zero)
            e = Add (d, t)
            y = MatMul (e, w)
        }"""
    )


def test_the_formula_is_what_calls_need() -> None:
    compiled = tw.compile(chain(), dims={"n": (0, 4096), "m": (0, 4096)})
    formula = peak_bytes(compiled.program)
    chance = np.random.default_rng(0)
    intermediates = [b for b in compiled.program.buffers if b.kind == "intermediate"]
    for n, m in (*chance.integers(1, 900, (12, 2)).tolist(), (0, 5), (7, 0), (1, 1)):
        arena = compiled.memory(n=n, m=m).arena
        sizes = {"n": n, "m": m, compiled.program.threads_symbol: compiled.num_threads}
        assert arena <= formula.evaluate(sizes) + ALIGNMENT * len(intermediates)
        compiled(np.ones((n, m), np.float32), np.ones((m, 8), np.float32))
    assert "n" in formula.free_symbols


def test_a_model_of_one_kernel_needs_nothing() -> None:
    text = "g (float[n] x) => (float[n] y) { y = Tanh (x) }"
    assert peak_bytes(tw.compile(model(text)).program) is constant(0)


def test_an_artifact_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.cli import main

    compiled = tw.compile(chain(), dims={"n": (0, 64), "m": (0, 64)})
    compiled.save(tmp_path / "chain.tw")
    (level,) = tw.load(tmp_path / "chain.tw").info.levels
    assert level.peak_bytes == str(peak_bytes(compiled.program))
    assert main(["inspect", str(tmp_path / "chain.tw")]) == 0
    assert "Bytes between kernels: " in capsys.readouterr().out


def test_sums_that_others_cover_are_left_out() -> None:
    sums = [parse(text) for text in ("4*n", "4*n + 8", "4*n*m", "n", "4*n + 8")]
    assert str(largest(sums)) == str(largest([parse("4*n*m"), parse("4*n + 8")]))
    assert largest([]) is constant(0)
