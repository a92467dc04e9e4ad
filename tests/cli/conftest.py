"""A small model and its artifact, made once, and a way to run commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.oldest_level import of_a_module
from support.small_models import save_encoder
from tilewright.cli import main

__all__ = ["command", "folder", "of_a_module"]


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process."""

    def run(*arguments: object) -> Result:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``model.onnx``, its artifact ``model.tw``, and ``other.onnx`` with other weights."""
    path = tmp_path_factory.mktemp("models")
    save_encoder(path / "model.onnx")
    save_encoder(path / "other.onnx", seed=1)
    arguments = ["-o", str(path / "model.tw"), "--dim", "batch=0..64", "--dim", "seq=0..512"]
    assert main(["compile", str(path / "model.onnx"), "--level", "x86-64", *arguments]) == 0
    return path
