"""Quick tests first, then those that need peers, then slow ones: a mistake shows early."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return 2 if "slow" in marks else int("peers" in marks)

    items.sort(key=rank)
