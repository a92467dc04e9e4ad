"""What a machine takes is stated in one package, and every other number says what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tilewright

SOURCES = Path(tilewright.__file__).parent
PACKAGES = ("cost", "plan", "policy", "tile")
WRITERS = (*PACKAGES, "backend/cpu")
SAYING = (*WRITERS, "frontend", "ir", "rewrite", "runtime", "shape", "tune")
TIMES = re.compile(r"(^|_)(CYCLES|NS|NANOSECONDS|PICOSECONDS|SECONDS|GHZ)($|_)", re.IGNORECASE)
# Whose numbers are those of the ELF format, by their names there.
OF_A_FORMAT = ("backend/cpu/link.py", "backend/cpu/object_file.py")


class Number(NamedTuple):
    """A number, or several, at the top of a module: ``said`` is what comments say of it."""

    module: str
    line: int
    name: str
    value: str
    said: str

    @property
    def where(self) -> str:
        return f"{self.module}:{self.line}: {self.name}"


def _numbers(packages: tuple[str, ...]) -> Iterator[Number]:
    for package in packages:
        for path in sorted((SOURCES / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            module, lines = str(path.relative_to(SOURCES)), text.splitlines()
            for statement in ast.parse(text).body:
                match statement:
                    case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                        value = statement.value
                    case _:
                        continue
                if value is not None and _is_number(value):
                    said = _comments(lines, statement)
                    for name, part in _named(target, value):
                        yield Number(module, statement.lineno, name, ast.unparse(part), said)


def _named(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=True):
            yield ast.unparse(name), part
    else:
        yield ast.unparse(target), value


def _is_number(value: ast.expr) -> bool:
    """Whether a value is made of literals alone, numbers among them."""
    parts = [part for part in ast.walk(value) if isinstance(part, ast.expr)]
    numbers = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp)
    literals = [part.value for part in parts if isinstance(part, ast.Constant)]
    return all(isinstance(part, numbers) for part in parts) and any(
        isinstance(literal, int | float) and not isinstance(literal, bool) for literal in literals
    )


def _comments(lines: list[str], statement: ast.stmt) -> str:
    """Those in the lines of a statement, and right above it."""
    end = statement.end_lineno or statement.lineno
    found = [line.partition("#")[2] for line in lines[statement.lineno - 1 : end]]
    above = statement.lineno - 2
    while above >= 0 and lines[above].startswith("#"):
        found.insert(0, lines[above].lstrip("#"))
        above -= 1
    return " ".join(found).strip()


def test_times_are_entries_of_the_core_model() -> None:
    """But for what a nanosecond of work is, by which threads are given out."""
    found = [
        number.where
        for number in _numbers(PACKAGES)
        if TIMES.search(number.name) and number.name != "NANOSECONDS_SHIFT"
    ]
    assert found == []


def test_every_number_says_what_it_is() -> None:
    """Where it comes from, or what it limits."""
    found = [
        number.where
        for number in _numbers(SAYING)
        if not number.said and number.module not in OF_A_FORMAT
    ]
    assert found == []


def test_no_number_stands_twice() -> None:
    """What several modules call alike, and is alike, has one definition."""
    places: dict[tuple[str, str], set[str]] = {}
    for number in _numbers(WRITERS):
        places.setdefault((number.name.strip("_"), number.value), set()).add(number.module)
    assert {key: found for key, found in places.items() if len(found) > 1} == {}


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
    """By their names, or by what is said of them."""
    found: list[str] = []
    for number in _numbers(WRITERS):
        is_size = number.name.endswith("_BYTES") or {"bytes", "cache"} <= set(number.said.split())
        value = eval(number.value)  # of literals, as just seen
        if is_size and isinstance(value, int | float) and value >= LEAST_OF_A_CACHE:
            found.append(number.where)
    assert found == []


def test_blocks_of_products_and_attention_and_register_tiles_are_no_literals() -> None:
    """Candidates give them: no number of rows, columns or keys becomes a tile or a block."""
    found: list[str] = []
    for package in WRITERS:
        for path in sorted((SOURCES / package).rglob("*.py")):
            for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                    made = part.func.id in ("RegisterTile", "AttentionBlock", "BlockSizes")
                    sizes = [a.value for a in part.args if isinstance(a, ast.Constant)]
                    if made and any(isinstance(size, int) and size > 1 for size in sizes):
                        found.append(f"{path.relative_to(SOURCES)}:{part.lineno}")
    assert found == []
