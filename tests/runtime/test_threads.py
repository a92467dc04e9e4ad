"""Threads: the same bits whatever the number, in one call or in many at once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.runtime_kit import (
    add_model,
    buffers,
    chain_program,
    chain_reference,
    kernel,
    model,
    program,
)
from tilewright.shape import symbol
from tilewright.support.errors import InputError
from tilewright.support.processors import default_threads

LENGTH = 7


def samples(count: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    shapes = [(int(b), int(n)) for b, n in generator.integers(1, 60, (count, 2))]
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_same_bits_for_every_number_of_threads(threads: int) -> None:
    one = model(chain_program(LENGTH, 10_000_000), num_threads=1)
    many = model(chain_program(LENGTH, 10_000_000), num_threads=threads)
    assert many.num_threads == threads
    for x in samples(40):
        expected = one(x)
        np.testing.assert_allclose(expected, chain_reference(x, LENGTH), rtol=1e-5)
        np.testing.assert_array_equal(many(x), expected)


def test_many_calls_at_once() -> None:
    shared = model(chain_program(LENGTH, 10_000_000), num_threads=4)
    xs = samples(24)
    expected = [shared(x) for x in xs]
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(xs))
        for _ in range(5):
            wrong.extend(int(i) for i in order if not np.array_equal(shared(xs[i]), expected[i]))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_python_runs_while_kernels_do() -> None:
    """A thread that counts makes progress during one long call."""
    n = symbol("n")
    compiled = model(
        program(
            buffers(("x", "float32", [n], "input"), ("y", "float32", [n], "output")),
            [kernel("exponential", [0], [1], n)],
        )
    )
    x = np.zeros(20_000_000, np.float32)
    progress: list[float] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            progress.append(time.perf_counter())
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    begin = time.perf_counter()
    compiled(x)
    end = time.perf_counter()
    stop.set()
    counter.join()
    assert sum(begin < moment < end for moment in progress) >= 3


def test_workers_sleep_after_a_call() -> None:
    compiled = model(chain_program(LENGTH, 10_000_000), num_threads=4)
    compiled(samples(1)[0])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_a_worker_leaves_the_processor_of_the_caller() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one processor")
    compiled = model(chain_program(LENGTH, 10_000_000), num_threads=2)
    x = samples(1)[0]
    compiled(x)
    own = min(allowed)
    apart: list[bool] = []

    def call() -> None:
        os.sched_setaffinity(0, {own})  # of this thread alone
        workers = _workers()
        for worker in workers:
            os.sched_setaffinity(worker, {own})
        until = time.monotonic() + 10
        while not any(apart) and time.monotonic() < until:
            compiled(x)
            time.sleep(0.001)
            apart.append(any(os.sched_getaffinity(worker) == allowed for worker in workers))

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    for worker in _workers():
        os.sched_setaffinity(worker, allowed)
    assert any(apart)


def _workers() -> list[int]:
    """The numbers of the team's threads."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread may end meanwhile
            if (task / "comm").read_text().strip() == "tilewright":
                found.append(int(task.name))
    return found


def test_float_control_of_the_caller_does_not_matter() -> None:
    tiny = np.full(64, 1e-40, np.float32)
    compiled = model(
        program(
            buffers(("x", "float32", [64], "input"), ("y", "float32", [64], "output")),
            [kernel("add", [0], [1], 64, [0], work=1_000_000)],
        ),
        num_threads=2,
    )
    assert np.array_equal(compiled(tiny), tiny)


def test_a_forked_child_can_call() -> None:
    compiled = model(chain_program(LENGTH, 10_000_000), num_threads=4)
    x = samples(1)[0]
    expected = compiled(x)
    parent, child = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        child.send(bool(np.array_equal(compiled(x), expected)))
        os._exit(0)
    os.waitpid(pid, 0)
    assert parent.poll(1) and parent.recv()


def test_default_number_of_threads() -> None:
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    module = "tilewright.support.processors"
    code = f"from {module} import default_threads; print(default_threads())"
    environment = os.environ | {"TILEWRIGHT_NUM_THREADS": "3"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "3"


def test_setting_the_number_of_threads() -> None:
    compiled = add_model(num_threads=3)
    assert compiled.num_threads == 3
    compiled.num_threads = None
    assert compiled.num_threads == default_threads()
    with pytest.raises(InputError):
        compiled.num_threads = 0
