"""What the runtime does to its process: exits, signals, affinity, the state of the vector units."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from support.runtime_kit import add_model, buffers, chain_program, kernel, model, program
from tilewright.shape import symbol
from tilewright.support.processors import allowed_processors, default_threads, usable_units
from tilewright.target import detect

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "src" / "native"


def child(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own that can import ``support``."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


EXIT = """
import threading, time
import numpy as np
from support.runtime_kit import buffers, chain_program, kernel, model, program
from tilewright.runtime.program import OpaqueStep
from tilewright.shape import symbol

n = symbol("n")

def kernels():
    compiled = model(chain_program(3, 10_000_000), num_threads=2)
    x = np.zeros((64, 4096), np.float32)
    while True:
        compiled(x)

def converting():
    compiled, x = model(chain_program(1, 0)), [[0.5] * 100] * 100
    class Slow:
        def __array__(self, *_, **__):
            for _ in range(1000):
                pass
            return np.zeros((100, 100), np.float32)
    while True:
        compiled(Slow())

def operators():
    rows = buffers(("x", "float32", [n], "input"), ("y", "float32", [n], "output"))
    def evaluate(_, inputs):
        for _ in range(1000):
            pass
        return [inputs[0] + np.float32(1)]
    step = OpaqueStep("Slow", b"", (0,), (1,), "slow")
    compiled = model(program(rows, [step]), evaluate=evaluate)
    while True:
        compiled(np.zeros(5, np.float32))

for _ in range(3):
    threading.Thread(target=WORK, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["kernels", "converting", "operators"])
def test_a_process_ends_cleanly_while_daemon_threads_are_in_calls(work: str) -> None:
    found = child(EXIT.replace("WORK", work))
    assert (found.returncode, found.stderr) == (0, "")


def worker_affinities() -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for task in Path("/proc/self/task").iterdir():
        # Other threads end when they like.
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == "tilewright":
                found.append(frozenset(os.sched_getaffinity(int(task.name))))
    return found


@pytest.mark.skipif(len(allowed_processors()) < 2, reason="needs two processors")
def test_workers_run_where_the_process_may_whoever_calls_first() -> None:
    x = np.zeros((64, 1024), np.float32)
    all_of_them = os.sched_getaffinity(0)

    def call_pinned() -> None:
        os.sched_setaffinity(0, {min(all_of_them)})
        model(chain_program(3, 10_000_000), num_threads=len(worker_affinities()) + 2)(x)

    thread = threading.Thread(target=call_pinned)
    thread.start()
    thread.join()
    assert set(worker_affinities()) == {frozenset(all_of_them)}
    # The process moves, and its workers follow.
    compiled = model(chain_program(3, 10_000_000), num_threads=2)
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        time.sleep(0.15)
        compiled(x)
        assert set(worker_affinities()) == {frozenset({min(all_of_them)})}
    finally:
        os.sched_setaffinity(0, all_of_them)
    time.sleep(0.15)
    compiled(x)
    assert set(worker_affinities()) == {frozenset(all_of_them)}


def test_there_is_one_answer_to_how_many_threads_there_are() -> None:
    units = usable_units(allowed_processors())
    assert default_threads() == add_model().num_threads == detect().units == units


class Interrupted(Exception):
    pass


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_ends_a_long_call_between_two_kernels(threads: int) -> None:
    n = symbol("n")
    count = 60
    rows: list[Any] = [("x", "float32", [n], "input")]
    rows += [(f"t{i}", "float32", [n], "intermediate") for i in range(count)]
    rows += [("y", "float32", [n], "output")]
    steps = [kernel("exponential", [i], [i + 1], n, work=50_000_000) for i in range(count + 1)]
    compiled = model(program(buffers(*rows), steps), num_threads=threads)
    x = np.full(10_000_000, -1, np.float32)
    small = compiled(x[:1000])
    y = np.full_like(x, 99)
    with pytest.raises(Interrupted), interrupted_after(0.2):
        compiled(x, out=y)
    # The last kernel has not run; the model is as good as before.
    assert (y == 99).all()
    np.testing.assert_array_equal(compiled(x[:1000]), small)


def scaled(**options: Any) -> Any:
    """y = x + 0, in many tasks and by several threads."""
    n = symbol("n")
    rows = buffers(("x", "float32", [n], "input"), ("y", "float32", [n], "output"))
    return model(program(rows, [kernel("add", [0], [1], n, [0], work=1_000_000_000)]), **options)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_denormals_are_flushed_where_that_is_wanted_and_nowhere_else(threads: int) -> None:
    tiny = np.full(200_000, 1e-40, np.float32)
    keeping, flushing = (scaled(num_threads=threads, flush_denormals=f) for f in (False, True))
    for _ in range(3):
        assert not flushing(tiny).any()
        np.testing.assert_array_equal(keeping(tiny), tiny)
        np.testing.assert_array_equal(tiny * np.float32(1), tiny)
    keeping.flush_denormals = True
    assert not keeping(tiny).any()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_team_that_gets_no_threads_or_memory_stays_usable(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    sources = [HERE / "team_driver.cpp", NATIVE / "team.cpp"]
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-pthread", f"-I{NATIVE}", *sources, "-o", driver], check=True
    )
    found = subprocess.run([driver], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
