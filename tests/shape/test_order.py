"""The order of atoms and expressions: one for each structure, short keys for any size of text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.generating import Tree, build, trees
from tilewright.shape import Expr, ceil_div, expr, maximum, minimum, parse, symbol
from tilewright.shape.order import LONGEST_TEXT
from tilewright.shape.printing import expression_text
from tilewright.support.errors import DimensionError

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
a, b, c = symbol("a"), symbol("b"), symbol("c")


def longer(expression: Expr, times: int) -> Expr:
    """A sum of atoms that all hold what was made before: its text doubles each time and more."""
    for number in range(times):
        expression = maximum(expression // (number + 3), b) * a + minimum(expression, c * number)
    return expression


def build_or_skip(tree: Tree, times: int) -> Expr:
    try:
        return longer(build(tree), times)
    except DimensionError:
        assume(False)
        raise


several = st.lists(st.tuples(trees, st.integers(0, 6)), min_size=3, max_size=6)


@quick
@given(several)
def test_the_order_is_total_and_tells_all_expressions_apart(pairs: list[tuple[Tree, int]]) -> None:
    found = list(dict.fromkeys(build_or_skip(*pair) for pair in pairs))
    keys = [expression.key for expression in found]
    assert len(set(keys)) == len(found)
    for x in keys:
        for y in keys:
            assert (x < y) + (y < x) + (x == y) == 1
            for z in keys:
                assert not (x < y and y < z) or x < z


@quick
@given(trees, st.integers(0, 3))
def test_long_text_reads_back_as_the_same_object(tree: Tree, times: int) -> None:
    expression = build_or_skip(tree, times)
    assert parse(str(expression)) is expression


def test_short_ones_are_ordered_by_text_and_symbols_come_first() -> None:
    assert str(minimum(c, a, b * 2)) == "min(2*b, a, c)"
    assert str(ceil_div(b, a) + c + a) == "a + c + ceil_div(b, a)"
    assert (a // 2).key < (b // 2).key < longer(a, 4).key


def test_text_that_would_not_fit_into_memory_is_never_made() -> None:
    deep = longer(a, 100)  # 2 ** 100 characters and more
    assert not deep.key.text and len(deep.key.digest) == 16
    for monomial, _ in deep.terms:
        for atom in monomial.atoms:
            assert len(atom.key.text) <= LONGEST_TEXT
    assert longer(a, 100) is deep
    assert maximum(deep, a) is maximum(a, deep)
    assert deep.key != longer(b, 100).key


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_order import longer
from tilewright.shape import maximum, symbol, total
made = [longer(symbol(name), times) for name in sys.argv[2] for times in range(5)]
largest = max(made, key=lambda expression: expression.key)
print(maximum(*made).key, largest.key, total(made))
"""


def shown(seed: str, names: str) -> str:
    command = [sys.executable, "-c", SCRIPT, os.path.dirname(__file__), names]
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout.decode()


@pytest.mark.slow
def test_the_order_depends_neither_on_hashes_nor_on_what_was_made_first() -> None:
    first = shown("1", "xyz")
    assert first == shown("2", "xyz") == shown("3", "zyx")


def test_parts_of_a_long_text_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of many characters has few parts, and a brief one names its symbols."""
    written: list[Expr] = []

    def counted(expression: Expr) -> str:
        written.append(expression)
        return expression_text(expression)

    deep = longer(a, 13)
    monkeypatch.setattr(expr, "expression_text", counted)
    text = str(deep)
    assert len(text) > 100_000 and len(written) < 100
    assert parse(text) is deep
    assert deep.brief == "a formula of a, b, c"
    assert (a + 1).brief == "a + 1"
