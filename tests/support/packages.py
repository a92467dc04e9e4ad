"""The table of packages in ARCHITECTURE.md, and which imports of a module break it.

The table is a fenced block with one line for each package: ``number package: third party, …``. A
package is a package, a package within one ("backend/cpu"), or a module ("compile"); ``__init__`` is
the root package with the public names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.repository import PACKAGE

_LINE = re.compile(r"\s*(\d+)\s+([A-Za-z_/]+)\s*:\s*(.*)\Z")
_MODULE = re.compile(r"tilewright(\.[A-Za-z_]\w*)+\Z")
# The messages of protobuf, and their errors, come with onnx.
_OWNERS = {"google": "onnx"}
_PUBLIC = Path("__init__.py")


@dataclass(frozen=True)
class Package:
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


def read_table(text: str) -> dict[str, Package]:
    """The packages by name, from the one fenced block whose lines all describe packages."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = [line for line in block.splitlines() if line.strip()]
        matches = [_LINE.match(line) for line in lines]
        packages = [_package(match) for match in matches if match is not None]
        if lines and len(packages) == len(lines):
            assert len({package.name for package in packages}) == len(packages), (
                "a package is listed twice"
            )
            return {package.name: package for package in packages}
    raise AssertionError(
        "ARCHITECTURE.md has no fenced block of lines `number package: third party`"
    )


def _package(match: re.Match[str]) -> Package:
    third_party = [package.strip().replace("-", "_") for package in match[3].split(",")]
    return Package(match[2], int(match[1]), frozenset(p for p in third_party if p[:1].isalpha()))


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


def package_of(module: Path, packages: Mapping[str, Package]) -> Package | None:
    """The package that a module stands in, None for an empty one that only holds packages."""
    parts = module.with_suffix("").parts
    for length in range(len(parts), 0, -1):
        found = packages.get("/".join(parts[:length]))
        if found is not None:
            return found
    return None


def violations(module: Path, tree: ast.Module, packages: Mapping[str, Package]) -> list[str]:
    """What the imports of one module break, one sentence for each."""
    own = package_of(module, packages)
    found: list[str] = []
    for imported in imports(tree):
        top, _, rest = imported.module.partition(".")
        if top in sys.stdlib_module_names:
            continue
        where = f"{module}:{imported.line} imports {imported.module}"
        if own is None:
            found.append(f"{where}, but stands in no package")
        elif top == "tilewright":
            found += [f"{where}{why}" for why in _inside(own, module, rest, imported, packages)]
        elif _OWNERS.get(top, top) not in own.third_party:
            found.append(f"{where}, which package {own.name} may not")
    return found


def _inside(
    own: Package, module: Path, rest: str, imported: Import, packages: Mapping[str, Package]
) -> list[str]:
    other = package_of(Path(*rest.split(".")), packages) if rest else None
    other = other or packages["__init__"]
    if imported.is_lazy and module != _PUBLIC:
        return [" inside a function"]
    if other is not own and other.number >= own.number:
        return [f": package {own.number} {own.name} may not use {other.number} {other.name}"]
    return []
