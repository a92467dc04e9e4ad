"""What README.md and docs/ show really works: their examples run, in order, beside a small model.

The language of a fenced block says how it is tested, in a folder that holds ``model.onnx``, an
encoder with the inputs input_ids and attention_mask [batch, seq]:

- ``python``: all such blocks of a document run in one namespace.
- ``pycon``: a dialogue, run in the same namespace; what is printed must be what stands there.
- ``console``: lines that start with ``$ tilewright`` run as commands and must succeed.
- ``sh``: what takes minutes, or installs something, is not run. Options of ``tilewright`` must
  exist, scripts must be there and have those options, and make must know the targets.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import oldest_level
from support.repository import ROOT
from support.small_models import save_encoder
from tilewright.cli import main

DOCUMENTS = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    *(p.relative_to(ROOT) for p in sorted((ROOT / "docs").glob("*.md"))),
]
# They show a script that imports peers, or import PyTorch themselves.
NEEDS = {
    "benchmarks.md": [pytest.mark.peers],
    "from-pytorch.md": [pytest.mark.peers, pytest.mark.slow],
}
LANGUAGES = ("python", "pycon", "console", "sh")
WIDE = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(document: Path) -> list[tuple[str, str]]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = [(match[1], match[2]) for match in _BLOCK.finditer(text)]
    return [(language, source) for language, source in found if language in LANGUAGES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [pytest.param(document, marks=NEEDS.get(document.name, ())) for document in DOCUMENTS],
    ids=str,
)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(tmp_path / "model.onnx")
    oldest_level.by_default(monkeypatch)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for language, source in blocks(document):
        match language:
            case "python":
                exec(compile(source, str(document), "exec"), namespace)
            case "pycon":
                talk(source, namespace, str(document))
            case "console":
                for command in commands(source):
                    assert command[0] == "tilewright", f"{command} does not run in tests"
                    assert main(command[1:]) == 0, command
            case _:
                for command in commands(source):
                    exists(command)


def talk(source: str, namespace: dict[str, Any], name: str) -> None:
    """Run a dialogue with Python and compare what it prints."""
    test = doctest.DocTestParser().get_doctest(source, namespace, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    messages: list[str] = []
    runner.run(test, out=messages.append, clear_globs=False)
    namespace.update(test.globs)
    assert runner.failures == 0, "".join(messages)


def commands(source: str) -> list[list[str]]:
    """The commands of a block: what follows a ``$``, or every line where there is none."""
    lines = source.replace("\\\n", " ").splitlines()
    asked = [line[2:] for line in lines if line.startswith("$ ")]
    found = [shlex.split(line, comments=True) for line in asked or lines]
    return [command for command in found if command]


def exists(command: list[str]) -> None:
    """A command that is not run: its verb, script or target and its options must exist."""
    match command:
        case ["tilewright", verb, *rest]:
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                assert main([verb, "--help"]) == 0, command
            known = told.getvalue()
        case ["python" | ".venv/bin/python", script, *rest] if script.endswith(".py"):
            known = help_of(script)
        case ["make", *targets]:
            subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
            return
        case ["pip" | "git" | "cd", *_]:
            return
        case _:
            raise AssertionError(f"{command} is no command that a document may show")
    for word in rest:
        option = word.split("=")[0]
        assert not option.startswith("--") or option in known, f"{command}: no option {option}"


@functools.cache
def help_of(script: str) -> str:
    """What a script prints about its options."""
    asked = [sys.executable, str(ROOT / script), "--help"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, env=WIDE).stdout


def test_the_readme_has_examples() -> None:
    languages = [language for language, _ in blocks(Path("README.md"))]
    assert "pycon" in languages and "console" in languages


@pytest.mark.parametrize("document", [*DOCUMENTS, Path("ARCHITECTURE.md")], ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    broken = [link for link in _LINK.findall(text) if not (ROOT / document.parent / link).exists()]
    assert broken == []


def test_every_block_has_a_language_that_is_tested() -> None:
    found = {
        (str(document), match[1])
        for document in DOCUMENTS
        for match in _BLOCK.finditer((ROOT / document).read_text(encoding="utf-8"))
    }
    assert {language for _, language in found} <= {*LANGUAGES, "", "packages"}
    bare = [
        document
        for document in DOCUMENTS
        for match in _BLOCK.finditer((ROOT / document).read_text(encoding="utf-8"))
        if not match[1]
        and re.search(r"^(\$ )?(tilewright|python|make|pip) ", match[2], re.MULTILINE)
    ]
    assert bare == [], "commands that no test looks at"


@pytest.mark.slow
def test_the_table_of_operators_is_that_of_the_rules(tmp_path: Path) -> None:
    script, made = ROOT / "scripts" / "documentation.py", tmp_path / "operators.md"
    subprocess.run([sys.executable, str(script), "operators", "-o", str(made)], check=True)
    kept = ROOT / "docs" / "operators.md"
    assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), (
        "run python scripts/documentation.py operators -o docs/operators.md"
    )


@pytest.mark.slow
def test_the_page_of_schedules_shows_the_programs_of_today(tmp_path: Path) -> None:
    script, made = ROOT / "scripts" / "schedules.py", tmp_path / "schedules.md"
    subprocess.run([sys.executable, str(script), "-o", str(made)], check=True)
    kept = ROOT / "docs" / "schedules.md"
    assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), (
        "run python scripts/schedules.py -o docs/schedules.md"
    )
