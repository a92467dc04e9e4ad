"""Wrong usage has an exit code of its own, whichever part of a command finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]

WRONG = (
    "compile {model} -o {out} --target zz",
    "compile {model} -o {out} --target missing.toml",
    "compile {model} -o {out} --max-arena 1Q",
    "compile {model} -o {out} --max-arena 1M",
    "compile {model} -o {out} --measure",
    "compile {model} -o {out} --dim zz=1",
    "compile {model} -o {out} --dim seq=0..8@zz",
    "compile {model} -o {out} --constants zz={array}",
    "inspect {model} --dim zz=1",
    "verify {model} --dim zz=1",
    "run {model} --random batch=1,seq=1 --threads 99999999999",
    "run {artifact} --random seq=1 --input attention_mask={array}",
    "explain {model} --plan zz",
    "explain {model} --measure",
    "simulate {model} --plan zz",
    "bench-ops --suite missing.csv",
    "bench-ops --suite memory --only zz",
    "bench-ops --shapes zz",
    "bench-ops --shapes M=5,N=4,K=3 --constant zz",
    "bench-ops --shapes M=5,N=4,K=3 --against zz",
    "regret --range 5..1",
    "regret --sweep zz",
    "regret --family zz",
    "model-error --range 5..1",
)


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_has_its_own_exit_code(
    command: Command, folder: Path, tmp_path: Path, line: str
) -> None:
    np.save(tmp_path / "array.npy", np.ones((2, 1), np.float32))
    places = {"model": folder / "model.onnx", "artifact": folder / "model.tw"}
    places |= {"out": tmp_path / "out.tw", "array": tmp_path / "array.npy"}
    result = command(*(word.format(**places) for word in line.split()))
    assert result.code == 2, result.err
    assert "error: " in result.err.lower() and not (tmp_path / "out.tw").exists()


@pytest.mark.parametrize("line", ["compile {model} -o {out}", "inspect {model}", "run {model}"])
def test_a_model_that_cannot_be_read_is_a_failure(
    command: Command, tmp_path: Path, line: str
) -> None:
    places = {"model": tmp_path / "missing.onnx", "out": tmp_path / "out.tw"}
    words = [word.format(**places) for word in line.split()]
    assert command(*words, *(["--random", "x=1"] if "run" in words else [])).code == 1
