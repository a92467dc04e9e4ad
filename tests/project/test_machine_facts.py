"""What a machine takes is stated in one package: no time has a literal where prices are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tilewright

SOURCES = Path(tilewright.__file__).parent
PACKAGES = ("cost", "plan", "policy", "tile")
TIMES = re.compile(r"(^|_)(CYCLES|NS|NANOSECONDS|PICOSECONDS|SECONDS|GHZ)($|_)", re.IGNORECASE)


def _named_numbers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names at the top of a module that are given numbers, with their lines."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _is_number(statement.value):
            for target in statement.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        yield part.id, statement.lineno


def _is_number(value: ast.expr) -> bool:
    parts = [part for part in ast.walk(value) if isinstance(part, ast.expr)]
    numbers = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp)
    return all(isinstance(part, numbers) for part in parts)


def test_times_are_entries_of_the_core_model() -> None:
    """But for what a nanosecond of work is, by which threads are given out."""
    found = [
        f"{path.relative_to(SOURCES)}:{line}: {name}"
        for package in PACKAGES
        for path in sorted((SOURCES / package).rglob("*.py"))
        for name, line in _named_numbers(ast.parse(path.read_text(encoding="utf-8")))
        if TIMES.search(name) and name != "NANOSECONDS_SHIFT"
    ]
    assert found == []


def test_no_literal_number_of_cycles_becomes_time() -> None:
    found: list[str] = []
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                    literal = [a for a in part.args if isinstance(a, ast.Constant) and a.value != 1]
                    if part.func.attr == "picoseconds" and literal:
                        found.append(f"{path.relative_to(SOURCES)}:{part.lineno}")
    assert found == []


LEAST_OF_A_CACHE = 16 << 10  # bytes: what is less is a vector, a line or a page


def test_no_sizes_of_caches_are_literals() -> None:
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for statement in tree.body:
                if isinstance(statement, ast.Assign) and _is_number(statement.value):
                    name = ast.unparse(statement.targets[0])
                    value = eval(ast.unparse(statement.value))  # a number, as just seen
                    if name.endswith("_BYTES") and value >= LEAST_OF_A_CACHE:
                        found.setdefault(str(path.relative_to(SOURCES)), set()).add(name)
    assert found == {}


def test_blocks_of_products_and_attention_and_register_tiles_are_no_literals() -> None:
    """Candidates give them: no number of rows, columns or keys becomes a tile or a block."""
    found: list[str] = []
    for package in (*PACKAGES, "backend/cpu"):
        for path in sorted((SOURCES / package).rglob("*.py")):
            for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                    made = part.func.id in ("RegisterTile", "AttentionBlock", "BlockSizes")
                    sizes = [a.value for a in part.args if isinstance(a, ast.Constant)]
                    if made and any(isinstance(size, int) and size > 1 for size in sizes):
                        found.append(f"{path.relative_to(SOURCES)}:{part.lineno}")
    assert found == []
