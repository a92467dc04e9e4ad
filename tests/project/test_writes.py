"""The command line writes the files it is told to write and its cache, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.small_models import save_encoder

# Runs one command and prints every path that Python opened to write or made on the way.
WATCHER = """
import os, sys
from tilewright.cli import main

written = set()
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes):
        path, _, flags = arguments
        # A folder is opened for a file without a name.
        if flags & WRITING and not os.path.isdir(path):
            written.add(os.path.abspath(os.fsdecode(path)))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
        written.update(os.path.abspath(os.fsdecode(p)) for p in arguments[:2] if isinstance(p, str))

sys.addaudithook(watch)
code = main(sys.argv[1:])
print("\\n" + "\\n".join(sorted(written)), file=sys.stderr)
sys.exit(code)
"""


def run(folder: Path, *arguments: str) -> set[Path]:
    """Run a command in ``folder`` with an empty home; what it wrote but for its cache."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    cache = folder.parent / "cache"
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
    environment["TILEWRIGHT_CACHE_DIR"] = str(cache)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", WATCHER, *arguments]
    result = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    assert list(home.iterdir()) == []
    listing = result.stderr.rpartition("\n\n")[2].split("\n")
    written = {Path(line) for line in listing if line and line != os.devnull}
    return {path for path in written if cache not in (path, path.parent)}


@pytest.mark.slow
def test_commands_write_what_they_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    save_encoder(folder / "model.onnx")
    written = run(folder, "compile", "model.onnx", "-o", "model.tw", "--dim", "batch=0..8")
    assert {path.parent for path in written} == {folder}
    assert all(path.name == "model.tw" or path.match(".*.tw") for path in written)
    assert (
        run(folder, "verify", "model.onnx", "--reference", "onnx", "--shapes", "random:1") == set()
    )
    written = run(folder, "run", "model.tw", "--random", "batch=2,seq=3", "-o", "out")
    hidden = {path for path in written if path.name.startswith(".")}  # before it is renamed
    assert written - hidden == {folder / "out", folder / "out" / "embedding.npy"}
    assert {path.parent for path in hidden} <= {folder / "out"}
    assert not any(path.exists() for path in hidden)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["model.onnx", "model.tw", "out"]
