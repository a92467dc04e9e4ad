"""Modules compiled by several processes: the same bytes, whatever becomes of the others."""

from __future__ import annotations

import pytest

from tilewright.backend.cpu import workers
from tilewright.backend.cpu.machine import BASELINE, compile_object
from tilewright.backend.cpu.workers import compile_objects

MODULES = [
    f"define i64 @f{n}(i64 %x) {{ %y = add i64 %x, {n} ret i64 %y }}" for n in range(12)
]  # fmt: skip


@pytest.fixture(autouse=True)
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTHWHILE", 1)
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


def test_errors_are_those_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="expected"):
        compile_objects([*MODULES, "define void @f() { ret what }"], BASELINE)
