"""Turns of tests: all values or one, and every value in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import turns


@pytest.fixture(autouse=True)
def afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test that runs has all again."""
    yield
    turns.begin(request.node.nodeid, False)


def test_who_takes_no_turns_gets_all() -> None:
    turns.begin("a", False)
    assert turns.taken("xy") == turns.taken("xy") == ("x", "y")


def test_the_next_turn_is_that_of_the_next_value() -> None:
    turns.begin("a", True)
    found = [turns.taken("xyz") for _ in range(3)]
    assert sorted(found) == [("x",), ("y",), ("z",)]
    turns.begin("a", True)
    assert [turns.taken("xyz") for _ in range(3)] == found


def test_names_share_the_turns() -> None:
    met: set[str] = set()
    for number in range(20):
        turns.begin(f"test[{number}]", True)
        met.update(turns.taken("xy"))
    assert met == {"x", "y"}
