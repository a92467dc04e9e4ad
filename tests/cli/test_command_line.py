"""The command as a process: how it starts, how it is stopped, and where its output may go."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.verbs import VERBS

Command = Callable[..., Any]
_SAYS_WHEN_IT_IMPORTS = """
import sys, tilewright.cli
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "tilewright.cli.app":
            print("ready", flush=True)
sys.meta_path.insert(0, Watch())"""
_COMMAND = "import sys; from tilewright.cli import main; sys.exit(main(sys.argv[1:]))"


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)


def test_help_imports_no_verb_and_no_array_library() -> None:
    code = (
        "import sys; from tilewright.cli import main; main(['--help']);"
        "unwanted = {'numpy', 'onnx', 'llvmlite', 'rich', 'tilewright.compile'};"
        "print(sorted(unwanted & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == "[]"
    assert all(f"  {name} " in result.stdout for name in VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_the_table_of_verbs_names_functions_with_help(name: str) -> None:
    function = getattr(importlib.import_module(VERBS[name].module), VERBS[name].function)
    assert f"Example: tilewright {name}" in (inspect.getdoc(function) or "")
    assert VERBS[name].summary.endswith(".") and len(VERBS[name].summary) < 60


@pytest.mark.parametrize("name", ["", *VERBS])
def test_help_splits_no_word(command: Command, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command(*filter(None, (name, "--help"))).out if name else command("--help").out
    assert "x86-64|avx2|avx512|avx512-vnni|avx512-bf16|avx512-amx" in text or name != "compile"
    assert "│" not in text and max(map(len, text.splitlines())) <= 80


def test_the_version_is_shown(command: Command) -> None:
    result = command("--version")
    assert result.code == 0 and result.out.startswith("tilewright ")


def test_completion_knows_the_verbs() -> None:
    environment = {
        **os.environ,
        "_TILEWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": "tilewright ben",
        "COMP_CWORD": "1",
    }
    running = process(env=environment, stdout=subprocess.PIPE)
    assert running.communicate()[0].split() == ["bench", "bench-ops"]


def test_a_full_device_is_an_error_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        running = process("--help", stdout=full)
        _, error = running.communicate()
    assert running.returncode == 1
    assert error.startswith("error: A file cannot be") and "No space left" in error
    assert "Traceback" not in error


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    running = process("--help", stdout=writing)
    os.close(writing)
    assert running.communicate()[1] == ""
    assert running.returncode == 1


def _heed_interrupts() -> None:
    """Shells let what runs in the background ignore interrupts, tests and all."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_command_that_is_terminated_leaves_nothing_half_written(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object, **__: object) -> None:
        assert len([*tmp_path.iterdir()]) == 1
        os.kill(os.getpid(), signal.SIGTERM)

    module = importlib.import_module("tilewright.compile")
    monkeypatch.setattr(module, "import_model", terminated)
    result = command("compile", folder / "model.onnx", "-o", tmp_path / "model.tw")
    assert result.code == 128 + signal.SIGTERM
    assert not [*tmp_path.iterdir()]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.4])
def test_an_interrupt_while_importing_is_no_traceback(folder: Path, seconds: float) -> None:
    code = f"{_SAYS_WHEN_IT_IMPORTS}\n{_COMMAND}"
    command = [sys.executable, "-c", code, "inspect", str(folder / "model.onnx")]
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_interrupts
    )
    assert running.stdout is not None and running.stdout.readline() == "ready\n"
    time.sleep(seconds)
    running.send_signal(signal.SIGINT)
    error = running.communicate()[1]
    assert "Traceback" not in error
    assert running.returncode == 130
