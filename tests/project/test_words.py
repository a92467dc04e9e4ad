"""The repository speaks of tilewright only: no traces of where and how it was written."""

from __future__ import annotations

import re

import pytest

from support.repository import ROOT, tracked_files

FORBIDDEN = {
    "a machine's path": r"(?<![\w.])/(?:work|root|home)/\w",
    "how it was made": r"\bworkplaces?\b|\b(?:this|your|my|our|coding|agent'?s) sessions?\b",
    "who made it": r"\b(?:chat ?bot|AI[- ]assistant|coding agent|language model wrote)\b",
    "an issue's number": r"\b(?:issue|pull request|PR|ticket) ?#?\d+\b|(?<![\w&])#\d{2,}\b",
    "a package registry": r"--(?:extra-)?index-url|--find-links|pythonhosted\.org|pypi\.org/simple",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b",
}
TEXT = {".py", ".pyi", ".md", ".txt", ".toml", ".cpp", ".hpp", ".cfg", ".yml", ".yaml", ""}
FILES = [path for path in tracked_files() if path.suffix in TEXT and path.name != "LICENSE"]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_words(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.IGNORECASE)
    own = "tests/project/test_words.py"
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in FILES
        if str(path) != own
        for number, line in enumerate(
            (ROOT / path).read_text(encoding="utf-8").splitlines(), start=1
        )
        if pattern.search(line)
    ]
    assert found == []
