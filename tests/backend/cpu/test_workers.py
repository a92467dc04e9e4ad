"""Modules compiled by several processes: the same bytes, whatever becomes of the others."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from tilewright.backend.cpu import workers
from tilewright.backend.cpu.machine import BASELINE, ModuleText, compile_object
from tilewright.backend.cpu.workers import compile_objects

MODULES = [
    ModuleText(f"define i64 @f{n}(i64 %x) {{ %y = add i64 %x, {n} ret i64 %y }}")
    for n in range(12)
]  # fmt: skip


@pytest.fixture(autouse=True)
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTHWHILE", 1)
    monkeypatch.setattr(workers, "MOST_WORKERS", 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))


def expected() -> list[bytes]:
    return [compile_object(module, BASELINE) for module in MODULES]


def test_workers_make_the_same_bytes_in_order() -> None:
    assert compile_objects(MODULES, BASELINE) == expected()
    assert compile_objects([], BASELINE) == []


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/bin/false", "/bin/cat"])
def test_workers_that_do_not_start_or_are_none(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", executable)
    assert compile_objects(MODULES, BASELINE) == expected()


def test_a_worker_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    monkeypatch.setattr(workers, "_SERVE", "import time; time.sleep(60)")
    assert compile_objects(MODULES, BASELINE) == expected()


def test_modules_are_compiled_while_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    received = workers._receive
    begun = threading.Event()

    def noticed(stream: IO[bytes]) -> bytes:
        made = received(stream)
        begun.set()
        return made

    def written() -> Iterator[ModuleText]:
        yield from MODULES[:6]
        assert begun.wait(60)
        yield from MODULES[6:]

    monkeypatch.setattr(workers, "_receive", noticed)
    assert compile_objects(written(), BASELINE) == expected()


def test_nothing_is_left_of_modules_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = workers._start

    def noticed() -> subprocess.Popen[bytes] | None:
        worker = start()
        started.extend([] if worker is None else [worker])
        return worker

    def written() -> Iterator[ModuleText]:
        yield from MODULES
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_start", noticed)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        compile_objects(written(), BASELINE)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert len(started) == 2 and all(worker.wait(60) is not None for worker in started)


def test_errors_are_those_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="expected"):
        compile_objects([*MODULES, ModuleText("define void @f() { ret what }")], BASELINE)
