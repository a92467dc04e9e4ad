"""Values of several expressions at once: those that each has by itself, and the same errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.generating import build, environments, reference, trees
from tilewright.shape import evaluate_all, symbol
from tilewright.support.errors import DimensionError


@given(st.lists(trees, max_size=4), environments)
def test_shared_atoms_have_one_value(
    given_trees: list[object], environment: dict[str, int]
) -> None:
    try:
        made = [build(tree) for tree in given_trees]
        wanted = [reference(tree, environment) for tree in given_trees]
    except (DimensionError, ZeroDivisionError):
        return
    assert evaluate_all([*made, *reversed(made)], environment) == [*wanted, *reversed(wanted)]


def test_errors_name_the_symbols() -> None:
    with pytest.raises(DimensionError, match='"b" has no value'):
        evaluate_all([symbol("a"), symbol("b")], {"a": 1})
    with pytest.raises(DimensionError, match="ivision by zero") as raised:
        evaluate_all([symbol("a") // (symbol("c") * symbol("b"))], {"a": 1, "b": 0, "c": 2})
    assert "a = 1, b = 0, c = 2" in str(raised.value)
