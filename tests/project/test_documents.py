"""What README.md and docs/ show really works: their examples run, in order, beside a small model.

Fenced blocks marked ``python`` run in one namespace for each document; lines of blocks marked
``console`` that start with ``$ tilewright`` run as commands. Both find ``model.onnx``, an encoder
with the inputs input_ids and attention_mask [batch, seq], in their folder.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from small_models import save_encoder
from tilewright.cli import main

DOCUMENTS = [
    Path("README.md"),
    *(p.relative_to(ROOT) for p in sorted((ROOT / "docs").glob("*.md"))),
]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(document: Path) -> list[tuple[str, str]]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [(match[1], match[2]) for match in _BLOCK.finditer(text)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for language, source in blocks(document):
        if language == "python":
            exec(compile(source, str(document), "exec"), namespace)
            continue
        for line in source.replace("\\\n", " ").splitlines():
            if line.startswith("$ tilewright "):
                command = shlex.split(line)[2:]
                assert main(command) == 0, line


def test_the_readme_has_examples() -> None:
    languages = [language for language, _ in blocks(Path("README.md"))]
    assert "python" in languages and "console" in languages


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, Path("CONTRIBUTING.md"), Path("ARCHITECTURE.md")], ids=str
)
def test_links_lead_somewhere(document: Path) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    broken = [link for link in _LINK.findall(text) if not (ROOT / document.parent / link).exists()]
    assert broken == []
