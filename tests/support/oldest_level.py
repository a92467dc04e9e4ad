"""Compilations for the oldest processors, by tests that ask what the compiler says and writes.

Code for wide registers takes two to four times as long to make, as there is more of it. Other tests
compile for this machine, and for every level.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright import compile_machines
from tilewright.backend.cpu.machine import BASELINE, Level, host_level


def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no level is named, code of float32 is for the oldest one."""

    def level(narrow: str | None = None) -> Level:
        return BASELINE if narrow == "float32" else host_level(narrow)

    monkeypatch.setattr(compile_machines, "host_level", level)


@pytest.fixture(autouse=True, scope="module")
def of_a_module() -> Iterator[None]:
    """The same for all tests of each module that imports this, or whose ``conftest`` does."""
    with pytest.MonkeyPatch.context() as patch:
        by_default(patch)
        yield
