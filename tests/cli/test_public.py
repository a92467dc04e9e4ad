from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw


def test_ranges_as_tuples_and_sizes(folder: Path) -> None:
    ranges = {"batch": 3, "seq": (0, 64, 8)}
    model = tw.compile(folder / "model.onnx", dims=ranges)
    found = {d.name: (d.low, d.high, d.multiple_of) for d in model.dimensions}
    assert found == {"batch": (3, 3, 1), "seq": (0, 64, 8)}
    ids = np.ones((3, 8), np.int64)
    assert model(ids, ids).shape == (3, 16)
    with pytest.raises(tw.errors.DimensionError):
        model(ids[:, :7], ids[:, :7])


def test_what_is_no_range(folder: Path) -> None:
    with pytest.raises(tw.TilewrightError, match='dimension "batch"'):
        tw.compile(folder / "model.onnx", dims={"batch": "1..4"})  # type: ignore[dict-item]


def test_compile_stays_the_function() -> None:
    import tilewright.compile  # noqa: F401

    assert callable(tw.compile)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = tw.missing  # type: ignore[attr-defined]


def test_an_artifact_runs_without_the_compiler(folder: Path) -> None:
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        f"model = tw.load({str(folder / 'model.tw')!r})\n"
        "ids = np.ones((2, 3), np.int64)\n"
        "assert model(ids, ids).shape == (2, 16)\n"
        "print(sorted({'llvmlite', 'onnx', 'tilewright.compile'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"
