"""Write the locks: every package of a job at one version, with the hashes of its wheels.

``requirements-demo.txt`` holds what building and the demo need, ``requirements-ci.txt`` all that
tests and comparisons need beside it, ``requirements-docs.txt`` what the documentation site needs
beside it. Versions stay as they are unless ``--upgrade`` is given, and serve the oldest supported
Python; hashes are those of the wheels for every supported version of Python on x86-64 Linux.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEMO, TESTS, DOCS = (ROOT / f"requirements-{name}.txt" for name in ("demo", "ci", "docs"))
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)", re.MULTILINE)


def wanted(extras: tuple[str, ...]) -> list[str]:
    """The requirements of the package, its build and some extras, as pyproject.toml has them."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = content["project"]
    found = [*content["build-system"]["requires"], *project["dependencies"], "cmake", "ninja"]
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return [text for text in found if not text.startswith("tilewright[")]


def pinned() -> dict[str, str]:
    """The versions that the locks have."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in (DEMO, TESTS, DOCS) if p.exists())
    return dict(_PIN.findall(text))


def report(python: str, *arguments: str) -> list[dict[str, Any]]:
    """The wheels that pip would install for a version of Python, without installing them."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--only-binary=:all:", "--python-version", python, "--target", "unused"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        subprocess.run([*command, "--report", str(path), *arguments], check=True)
        return json.loads(path.read_text(encoding="utf-8"))["install"]


def versions(requirements: list[str], pins: dict[str, str]) -> dict[str, str]:
    """The versions of all that some requirements need, by name in the package index."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, version in pins.items())
        constraints.flush()
        installed = report(PYTHONS[0], "-c", constraints.name, *requirements)
    found = {item["metadata"]["name"]: item["metadata"]["version"] for item in installed}
    return {name: version.partition("+")[0] for name, version in found.items()}


def hashes(found: dict[str, str]) -> dict[str, set[str]]:
    """The hashes of the wheels of each package for every version of Python that it serves."""
    kept: dict[str, set[str]] = {name: set() for name in found}
    for python in PYTHONS:
        for item in wheels(python, [f"{name}=={version}" for name, version in found.items()]):
            kept[item["metadata"]["name"]].add(
                item["download_info"]["archive_info"]["hashes"]["sha256"]
            )
    return kept


def wheels(python: str, pins: list[str]) -> list[dict[str, Any]]:
    """The wheels of some packages for a version of Python; those that have none are left out."""
    try:
        return report(python, "--no-deps", *pins)
    except subprocess.CalledProcessError:
        if len(pins) == 1:
            print(f"no wheel of {pins[0]} for Python {python}", file=sys.stderr)
            return []
    middle = len(pins) // 2
    return wheels(python, pins[:middle]) + wheels(python, pins[middle:])


def beside(demo: dict[str, str], found: dict[str, str]) -> dict[str, str]:
    """What a lock adds to the lock of the demo, which it includes."""
    return {name: version for name, version in found.items() if name not in demo}


def write(path: Path, what: str, found: dict[str, str], kept: dict[str, set[str]]) -> None:
    """One lock, sorted by name."""
    lines = [f"# {what}", "# Made by scripts/lock_requirements.py."]
    if path != DEMO:
        lines.append(f"-r {DEMO.name}")
    for name in sorted(found, key=str.lower):
        lines.append(f"{name}=={found[name]} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in sorted(kept[name])]
        lines[-1] = lines[-1].removesuffix(" \\")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    pins = {} if parser.parse_args().upgrade else pinned()
    demo = versions(wanted(("demo",)), pins)
    tests = versions(wanted(("demo", "bench", "torch", "gpu", "test", "dev")), {**pins, **demo})
    # A package that tests and the site need has one version in both locks.
    docs = versions(wanted(("demo", "docs")), {**pins, **tests})
    kept = hashes({**docs, **tests})
    write(DEMO, "What building and the demo need.", demo, kept)
    write(TESTS, "What tests and comparisons need.", beside(demo, tests), kept)
    write(DOCS, "What the documentation site needs.", beside(demo, docs), kept)


if __name__ == "__main__":
    main()
