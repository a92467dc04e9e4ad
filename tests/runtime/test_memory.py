"""Memory of calls: one pool and one limit for the process, nothing kept for long."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from support.runtime_kit import (
    add_model,
    buffers,
    chain_program,
    chain_reference,
    kernel,
    model,
    program,
)
from tilewright.runtime import _native
from tilewright.runtime.program import OpaqueStep
from tilewright.shape import symbol
from tilewright.support.errors import InputError, ResourceError

MEGA = 1 << 20


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    """Tests begin and end with an empty pool and without a limit."""
    add_model().shrink()
    yield
    tilewright.set_memory_limit(None)
    gc.collect()


def zeros(megabytes: int) -> np.ndarray[Any, Any]:
    return np.zeros((megabytes * 256, 1024), np.float32)


def test_models_share_the_memory_that_is_kept() -> None:
    models = [model(chain_program(4, 0)) for _ in range(6)]
    held: list[int] = []
    for compiled in models:
        result = compiled(zeros(4))
        del result
        held.append(compiled.stats().process_bytes)
    # Two intermediates and the result, of one model at a time.
    assert held[-1] == held[0] <= 4 * 4 * MEGA
    assert models[0].stats().process_idle_bytes == held[0]
    models[3].shrink()
    assert models[0].stats().process_idle_bytes == 0


def test_a_peak_of_callers_leaves_no_memory_of_its_own_in_every_model() -> None:
    models = [model(chain_program(4, 0)) for _ in range(3)]
    for compiled in models:
        threads = [threading.Thread(target=compiled, args=(zeros(1),)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stats = models[0].stats()
    assert stats.process_idle_bytes <= 12 * 4 * MEGA


def test_growing_shapes_do_not_leave_all_smaller_blocks_behind() -> None:
    compiled = model(chain_program(4, 0))
    x, y = zeros(8), zeros(8)
    for rows in range(100, 2000, 100):
        compiled(x[:rows], out=y[:rows])
    # The largest block, rounded, and those of a quarter of it or less.
    assert compiled.stats().process_idle_bytes <= 1.5 * compiled.memory(b=1900, n=1024).arena


def test_no_more_than_the_limit_is_held() -> None:
    compiled = model(chain_program(4, 0))
    tilewright.set_memory_limit(64 * MEGA)
    results = []
    with pytest.raises(ResourceError, match="memory limit"):
        for _ in range(20):
            results.append(compiled(zeros(4)))
    assert 8 <= len(results) <= 16
    assert compiled.stats().process_bytes <= 64 * MEGA
    # What is freed can be used again, also by other models and at other sizes.
    del results
    np.testing.assert_allclose(
        model(chain_program(4, 0))(zeros(12)), chain_reference(zeros(12), 4), rtol=1e-4
    )
    tilewright.set_memory_limit("1M")
    assert compiled.stats().process_bytes <= MEGA
    with pytest.raises(ResourceError, match="memory limit"):
        compiled(zeros(4))


def test_memory_that_is_used_again_leaves_room_for_what_a_call_needs_besides() -> None:
    b, n = symbol("b"), symbol("n")
    rows = buffers(
        ("x", "float32", [b, n], "input"),
        ("t", "float32", [b, n], "intermediate"),
        ("y", "float32", [b, n], "output"),
    )
    used: list[int] = []

    def evaluate(_: bytes, inputs: list[Any]) -> list[Any]:
        memory = _native.memory_use()
        used.append(memory["held"] - memory["idle"] - inputs[0].nbytes)
        return [inputs[0]]

    scan = kernel("scan", [0], [1], b, [n], scratch=n * 4)
    steps = [scan, OpaqueStep("Keep", b"", (1,), (2,), "keep")]
    compiled = model(program(rows, steps), evaluate=evaluate)
    x = zeros(16).reshape(4, MEGA)
    compiled(x)  # leaves blocks of 16 and 4 MiB
    compiled.max_bytes = 18 * MEGA
    compiled(x[:2])
    assert used[0] >= 20 * MEGA
    assert 12 * MEGA <= used[1] <= 18 * MEGA


@pytest.mark.parametrize("wrong", [0, -5, 2.5, "much", "2X", True, "-1G"])
def test_a_limit_that_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="number of bytes"):
        tilewright.set_memory_limit(wrong)


def test_a_limit_may_have_a_unit() -> None:
    for text, size in [("3", 3), ("2K", 2048), ("1 MiB", MEGA), ("2g", 2 << 30), ("1TB", 1 << 40)]:
        tilewright.set_memory_limit(text)
        assert _native.memory_use()["limit"] == size


def test_an_opaque_step_owns_what_it_is_given() -> None:
    n = symbol("n")
    rows = buffers(
        ("x", "float32", [n], "input"),
        ("t", "float32", [n], "intermediate"),
        ("y", "float32", [n], "output"),
    )
    kept: list[np.ndarray[Any, Any]] = []

    def evaluate(_: bytes, inputs: list[Any]) -> list[Any]:
        kept.extend(inputs)
        return [inputs[0]]

    steps = [kernel("add", [0], [1], n, [1]), OpaqueStep("Keep", b"", (1,), (2,), "keep")]
    compiled = model(program(rows, steps), evaluate=evaluate)
    x = np.arange(2 * MEGA, dtype=np.float32)
    compiled(x)
    compiled(x + 5)
    compiled.shrink()
    np.testing.assert_array_equal(kept[0], x + 1)
    np.testing.assert_array_equal(kept[1], x + 6)


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own that can import ``support``."""
    found = {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | found | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


IDLE = """
import time
import numpy as np
from support.runtime_kit import chain_program, model
compiled = model(chain_program(4, 0))
compiled(np.zeros((4096, 1024), np.float32))
assert compiled.stats().process_idle_bytes > 32 << 20
deadline = time.monotonic() + 20
while compiled.stats().process_idle_bytes and time.monotonic() < deadline:
    time.sleep(0.05)
assert compiled.stats().process_bytes == 0
"""


@pytest.mark.slow
def test_memory_that_nobody_takes_goes_back_to_the_system() -> None:
    found = child(IDLE, TILEWRIGHT_IDLE_SECONDS="0.3")
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_the_environment_limits_memory() -> None:
    code = """
import numpy as np
from support.runtime_kit import chain_program, model
try:
    model(chain_program(4, 0))(np.zeros((4096, 1024), np.float32))
except Exception as error:
    print(type(error).__name__, error)
"""
    assert "ResourceError" in child(code, TILEWRIGHT_MEMORY_LIMIT="8M").stdout
    assert child(code, TILEWRIGHT_MEMORY_LIMIT="8G").stdout == ""


@pytest.mark.parametrize("name", ["MEMORY_LIMIT", "IDLE_SECONDS", "NUM_THREADS"])
def test_nonsense_in_the_environment_is_a_sentence(name: str) -> None:
    code = """
from support.runtime_kit import add_model
try:
    add_model()
except Exception as error:
    print(type(error).__name__, error)
"""
    found = child(code, **{f"TILEWRIGHT_{name}": "-a lot"}).stdout
    assert found.startswith("ResourceError") and f"TILEWRIGHT_{name}" in found and "Set " in found
