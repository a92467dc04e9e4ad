"""The demo's last words: whether all was right, and a plain figure even on a busy machine."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.bench import Report, Settings, compare

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("tokenizers")
    monkeypatch.syspath_prepend(str(DEMO))
    spec = importlib.util.spec_from_file_location("demo_run", DEMO / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo_run", module)
    spec.loader.exec_module(module)
    return module


def report(fakes: SimpleNamespace, twin: float) -> Report:
    clock = fakes.Clock()
    subject: Any = fakes.Contender(
        "ours", clock, fakes.constant(0.01), twin_duration=fakes.constant(twin)
    )
    peer: Any = fakes.Contender("onnxruntime", clock, fakes.constant(0.015))
    settings = replace(Settings(), rounds=1, most_rounds=1)
    return compare(
        subject,
        [peer],
        [{"batch": 1}],
        lambda case: {"x": np.zeros(1)},
        threads=1,
        settings=settings,
        clock=clock,
    )


@pytest.mark.peers
def test_the_demo_ends_with_a_plain_result(demo: ModuleType, fakes: SimpleNamespace) -> None:
    quiet = demo.result_of(report(fakes, 0.01), 31, 75, 3e-7).plain
    assert quiet.startswith("Right at 31 different shapes: 75 sentences")
    assert quiet.endswith("1.50 times the speed of ONNX Runtime over 1 shape")
    busy = demo.result_of(report(fakes, 0.012), 31, 75, 3e-7).plain
    assert "The machine is busy (equal calls differ by up to 20%): roughly 1.50 times" in busy
    assert demo.result_of(report(fakes, 0.01), 31, 75, 0.5).plain.startswith("WRONG at 31")
