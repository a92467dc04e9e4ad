"""The table of rooms in ARCHITECTURE.md, and which imports of a module break it.

The table is a fenced block with one line for each room: ``number room: third party, …``. A room is
a package, a package within one ("backend/cpu"), or a module ("compile"); ``__init__`` is the root
package with the public names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repository import PACKAGE

_LINE = re.compile(r"\s*(\d+)\s+([A-Za-z_/]+)\s*:\s*(.*)\Z")
_MODULE = re.compile(r"tilewright(\.[A-Za-z_]\w*)+\Z")
# The messages of protobuf, and their errors, come with onnx.
_OWNERS = {"google": "onnx"}
_PUBLIC = Path("__init__.py")


@dataclass(frozen=True)
class Room:
    """One line of the table."""

    name: str
    number: int
    third_party: frozenset[str]


@dataclass(frozen=True)
class Import:
    """One imported module; ``is_lazy`` inside a function."""

    module: str
    line: int
    is_lazy: bool


def read_table(text: str) -> dict[str, Room]:
    """The rooms by name, from the one fenced block whose lines all describe rooms."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = [line for line in block.splitlines() if line.strip()]
        matches = [_LINE.match(line) for line in lines]
        rooms = [_room(match) for match in matches if match is not None]
        if lines and len(rooms) == len(lines):
            assert len({room.name for room in rooms}) == len(rooms), "a room is listed twice"
            return {room.name: room for room in rooms}
    raise AssertionError("ARCHITECTURE.md has no fenced block of lines `number room: third party`")


def _room(match: re.Match[str]) -> Room:
    packages = [package.strip().replace("-", "_") for package in match[3].split(",")]
    return Room(match[2], int(match[1]), frozenset(p for p in packages if p[:1].isalpha()))


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import of a module: at the top, under TYPE_CHECKING, in functions, and by name."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if node is not function
    }
    for node in ast.walk(tree):
        is_lazy = id(node) in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_lazy)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, is_lazy)
        elif isinstance(node, ast.Constant) and _names_a_module(node.value):
            yield Import(str(node.value), node.lineno, False)


def _names_a_module(value: object) -> bool:
    """Whether a constant is the name of a module: it is there to be imported by that name."""
    if not isinstance(value, str) or not _MODULE.match(value):
        return False
    path = PACKAGE.parent.joinpath(*value.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def room_of(module: Path, rooms: Mapping[str, Room]) -> Room | None:
    """The room of a module of the package, None for an empty package that only holds rooms."""
    parts = module.with_suffix("").parts
    for length in range(len(parts), 0, -1):
        found = rooms.get("/".join(parts[:length]))
        if found is not None:
            return found
    return None


def violations(module: Path, tree: ast.Module, rooms: Mapping[str, Room]) -> list[str]:
    """What the imports of one module break, one sentence for each."""
    own = room_of(module, rooms)
    found: list[str] = []
    for imported in imports(tree):
        top, _, rest = imported.module.partition(".")
        if top in sys.stdlib_module_names:
            continue
        where = f"{module}:{imported.line} imports {imported.module}"
        if own is None:
            found.append(f"{where}, but stands in no room")
        elif top == "tilewright":
            found += [f"{where}{why}" for why in _inside(own, module, rest, imported, rooms)]
        elif _OWNERS.get(top, top) not in own.third_party:
            found.append(f"{where}, which room {own.name} may not")
    return found


def _inside(
    own: Room, module: Path, rest: str, imported: Import, rooms: Mapping[str, Room]
) -> list[str]:
    other = room_of(Path(*rest.split(".")), rooms) if rest else None
    other = other or rooms["__init__"]
    if imported.is_lazy and module != _PUBLIC:
        return [" inside a function"]
    if other is not own and other.number >= own.number:
        return [f": room {own.number} {own.name} may not use {other.number} {other.name}"]
    return []
