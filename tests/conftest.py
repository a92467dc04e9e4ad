"""For all tests: quick ones first, so that a mistake shows early; `small_models` for everyone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need peers come after the others, slow ones last."""

    def rank(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return 2 if "slow" in marks else int("peers" in marks)

    items.sort(key=rank)
