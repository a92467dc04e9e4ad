"""Files and functions stay short, and every module says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from support.repository import PACKAGE, modules, tree

FILE_LINES, FUNCTION_LINES = 500, 60

# Longer than the budget, with the length that is tolerated. Entries may only shrink and go.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}


def long_files() -> dict[str, int]:
    lengths = {
        str(module): len((PACKAGE / module).read_text(encoding="utf-8").splitlines())
        for module in modules()
    }
    return {name: length for name, length in lengths.items() if length > FILE_LINES}


def long_functions() -> dict[str, int]:
    found: dict[str, int] = {}
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found[f"{module}:{node.name}"] = length
    return found


@pytest.mark.parametrize(
    ("actual", "tolerated"),
    [(long_files, LONG_FILES), (long_functions, LONG_FUNCTIONS)],
    ids=["files", "functions"],
)
def test_nothing_is_too_long(
    actual: Callable[[], dict[str, int]], tolerated: dict[str, int]
) -> None:
    found = actual()
    grown = {name: length for name, length in found.items() if length > tolerated.get(name, 0)}
    assert grown == {}, "split these by theme"
    shorter = [name for name, length in tolerated.items() if found.get(name, 0) < length]
    assert shorter == [], "shorten the list of exceptions: these have become shorter"


def test_modules_have_a_docstring() -> None:
    first = {m: (ast.get_docstring(tree(m)) or "").splitlines() for m in modules()}
    bare = [str(module) for module, lines in first.items() if not lines]
    assert bare == [], "say what the module is for, what it may import, where to start"
    vague = [str(m) for m, lines in first.items() if not lines[0].endswith((".", ":", "?"))]
    assert vague == [], "the first line is a sentence"
