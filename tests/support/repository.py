"""The repository as the house tests see it: its files, its modules, and their syntax trees."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

import tilewright

ROOT = Path(__file__).resolve().parents[2]
# Where it is imported from: the repository has it in src, a wheel among the installed packages.
PACKAGE = Path(tilewright.__file__).parent
_MADE = {
    "__pycache__",
    ".venv",
    ".venv-oldest",
    "build",
    "dist",
    ".pytest_cache",
    ".hypothesis",
    ".ruff_cache",
}


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file under version control, relative to the root; of a source archive, all files."""
    if not (ROOT / ".git").exists():
        found = sorted(p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
        return tuple(p for p in found if p.name != "PKG-INFO" and not _MADE.intersection(p.parts))
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return tuple(Path(name) for name in listing.split("\0") if name and (ROOT / name).is_file())


@cache
def modules() -> tuple[Path, ...]:
    """The Python files of the package, relative to it."""
    return tuple(sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")))


@cache
def tree(module: Path) -> ast.Module:
    """The syntax tree of a module of the package."""
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"), str(module))
