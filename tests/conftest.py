"""For all tests: quick ones first, so that a mistake shows early.

Compiled code is kept in a folder of the run, which all its workers share. Every compilation
verifies what its stages make.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile

import pytest

# Modules that compare with ONNX Runtime all the way; without it the others can still be collected.
collect_ignore = (
    []
    if importlib.util.find_spec("onnxruntime")
    else ["models/test_generation.py", "models/test_networks.py", "robustness/test_fuzz_graphs.py"]
)

_CACHE = "TILEWRIGHT_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a run makes the cache directory, its workers inherit it."""
    if not hasattr(config, "workerinput"):
        os.environ[_CACHE] = tempfile.mkdtemp(prefix="tilewright-tests-")
    os.environ.setdefault("TILEWRIGHT_CHECK", "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The first process removes it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[_CACHE], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need peers come after the others, slow ones last."""

    def rank(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return 2 if "slow" in marks else int("peers" in marks)

    items.sort(key=rank)
