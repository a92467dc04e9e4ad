"""For all tests: quick ones first, so that a mistake shows early.

Compiled code is kept in a folder of the run, which all its workers share. Every compilation
verifies what its stages make.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from support import turns
from tilewright.backend.cpu import workers
from tilewright.bench import clock

# Modules that compare with ONNX Runtime all the way; without it the others can still be collected.
collect_ignore = (
    []
    if importlib.util.find_spec("onnxruntime")
    else ["models/test_generation.py", "models/test_networks.py", "robustness/test_fuzz_graphs.py"]
)

_CACHE = "TILEWRIGHT_CACHE_DIR"
_BYTECODE = "PYTHONPYCACHEPREFIX"
_ALLOCATIONS = 200_000  # more than are freed, after which Python looks for garbage
_module: list[Path] = []  # of the test that ran last
_LONGEST = ("models", "project", "conformance", "plan")  # folders of whole networks and the like


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all-cases`` as ``make test-all`` gives it."""
    parser.addoption("--all-cases", action="store_true", help="leave no parameter set out")


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a run makes the cache directory, its workers inherit it.

    They share what Python translates, too, where it may not be kept beside the sources.
    """
    if not hasattr(config, "workerinput"):
        os.environ[_CACHE] = tempfile.mkdtemp(prefix="tilewright-tests-")
        if sys.dont_write_bytecode:  # every process of the run would translate what it imports
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ[_BYTECODE] = tempfile.mkdtemp(prefix="tilewright-bytecode-")
    else:  # all processors are busy with tests, and each process optimises what kernels share anew
        workers.MOST_WORKERS = 1
        clock.PATIENCE = 0.2  # for the same reason processors only seem to be far apart
    os.environ.setdefault("TILEWRIGHT_CHECK", "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The first process removes it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[_CACHE], ignore_errors=True)
        if sys.dont_write_bytecode:
            shutil.rmtree(os.environ[_BYTECODE], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need peers come after the others, slow ones last; nothing twice, and samples.

    Of the slow ones the longest begin first, so that no worker waits at the end for another one's.
    """

    def rank(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        if "slow" in marks:
            return 2 if item.path.parent.name in _LONGEST else 3
        return int("peers" in marks)

    left_out = [] if config.option.markexpr else _repeated(items)
    if not config.getoption("--all-cases"):
        left_out += _left_out(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in dropped]
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """The garbage collector comes seldom: most of what tests make goes without it, and at once."""
    gc.set_threshold(_ALLOCATIONS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What other modules left is collected, or stays: the collector need not look at it again.

    Modules and items of thousands of tests are more than what most tests make, and so is what the
    compiler remembers of them. A slow test takes turns with what others try all of, unless all
    cases are asked for.
    """
    if _module[:] != [item.path]:
        _module[:] = [item.path]
        gc.collect()
        gc.freeze()
    slow = item.get_closest_marker("slow") is not None
    turns.begin(item.nodeid, slow and not item.config.getoption("--all-cases"))


def _repeated(items: list[pytest.Item]) -> list[pytest.Item]:
    """Beginnings of slow parameter sets that run as well."""
    slow = {_test_of(item) for item in items if item.get_closest_marker("slow") is not None}
    begun = (item for item in items if item.get_closest_marker("beginning") is not None)
    return [item for item in begun if _test_of(item) in slow]


def _test_of(item: pytest.Item) -> str:
    """The name of a test without its parameters."""
    return item.nodeid.partition("[")[0]


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of every test with many parameter sets, those that a sample does without: always the same."""
    families: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            families[_test_of(item), mark.args[0]].append(item)
    left_out = [item for item in items if item.get_closest_marker("combination") is not None]
    for (_, share), family in families.items():
        family.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        left_out += family[-(-len(family) // share) :]
    return left_out
