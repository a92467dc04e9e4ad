"""Compiling to a file: the bytes of a saved model, without its weights in memory, or no file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.backend.cpu import pack
from tilewright.compile import compile_to_file
from tilewright.runtime.artifact import open_artifact
from tilewright.support.errors import ArtifactError, TilewrightError

ROWS, WIDTH, HIDDEN = 3001, 128, 2111  # no multiples of a panel


def save_model(folder: Path) -> Path:
    """A table that is gathered from and multiplied by, and two layers of equal weights."""
    generator = np.random.default_rng(0)
    table = generator.standard_normal((ROWS, WIDTH)).astype(np.float32)
    layer = generator.standard_normal((WIDTH, HIDDEN)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("MatMul", ["x", "w2"], ["g"]),
        helper.make_node("Mul", ["h", "g"], ["product"]),
        helper.make_node("MatMul", ["product", "back"], ["y"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["y", "turned"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", ROWS])],
        [
            numpy_helper.from_array(value, name)
            for name, value in [
                ("table", table), ("w1", layer), ("w2", layer), ("back", layer.T.copy()),
            ]
        ],
    )  # fmt: skip
    opset = helper.make_opsetid("", 17)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="m.bin")
    return folder / "m.onnx"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    return save_model(tmp_path / "in")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "out" / "m.tw"
    path.write_bytes(b"what was there before")
    return path


def untouched(artifact: Path) -> bool:
    return [*artifact.parent.iterdir()] == [artifact] and artifact.read_bytes() == (
        b"what was there before"
    )


@pytest.mark.parametrize("levels", [None, pytest.param(["x86-64", "avx2"], marks=pytest.mark.slow)])
def test_the_file_is_that_of_a_saved_model(
    model: Path, artifact: Path, tmp_path: Path, levels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_to_file(model, artifact, levels=levels)
    compiled = tw.compile(model, levels=levels)
    compiled.save(tmp_path / "saved.tw")
    assert artifact.read_bytes() == (tmp_path / "saved.tw").read_bytes()
    ids = np.array([0, 7, ROWS - 1])
    np.testing.assert_array_equal(tw.load(artifact)(ids), compiled(ids))
    # Neither the size of a part nor which thread is first shows in the file.
    copy = pack._copy

    def slowly(array: np.ndarray, begin: int, out: np.ndarray) -> None:
        time.sleep(0.002 * (begin // 3 % 5))
        copy(array, begin, out)

    monkeypatch.setattr(pack, "_copy", slowly)
    monkeypatch.setattr(pack, "_JOB", 1 << 20)
    compile_to_file(model, tmp_path / "again.tw", levels=levels)
    assert (tmp_path / "again.tw").read_bytes() == artifact.read_bytes()


def test_equal_weights_are_stored_once(model: Path, artifact: Path) -> None:
    compile_to_file(model, artifact)
    opened = open_artifact(artifact)
    large = sorted(section.size for section in opened.sections if section.size > 1 << 20)
    layer, table = WIDTH * HIDDEN * 4, ROWS * WIDTH * 4
    # The two equal layers are one; the table is there for the gather, and packed.
    assert len(large) == 4 and large[0] >= layer and large[-2] >= table
    assert opened.info.weight_bytes == sum(s.size for s in opened.sections if s.kind == "constant")


def test_the_contents_of_a_draft_run_too(model: Path, artifact: Path) -> None:
    made = compile_to_file(model, artifact)
    loaded = tw.load(artifact)
    artifact.unlink()
    ids = np.arange(5)
    runs = tw.Model.from_contents(made.contents)
    np.testing.assert_array_equal(runs(ids), loaded(ids))


def broken_by(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where code is generated, when threads are about to write."""
    begun = threading.Event()
    copy = pack._copy

    def noticed(*arguments: Any) -> None:
        begun.set()
        copy(*arguments)

    def fail(*_: Any) -> None:
        begun.wait(10)
        raise error

    monkeypatch.setattr(pack, "_copy", noticed)
    monkeypatch.setattr("tilewright.backend.cpu.library.Compilation.image", fail)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), TilewrightError("a defect")], ids=repr
)
def test_what_ends_a_compilation_leaves_no_trace(
    model: Path, artifact: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_JOB", 1 << 20)
    broken_by(error, monkeypatch)
    with pytest.raises(type(error)):
        compile_to_file(model, artifact)
    assert untouched(artifact)
    assert not any(t.name.startswith("tilewright-pack") for t in threading.enumerate())


def full_after(count: int) -> Callable[[int, Any, int], int]:
    write, lock = os.pwrite, threading.Lock()

    def limited(file: int, data: Any, offset: int) -> int:
        nonlocal count
        with lock:
            count -= len(data)
            if count < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, offset)

    return limited


@pytest.mark.parametrize("count", [0, 2 << 20])
def test_a_full_disk(
    model: Path, artifact: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", full_after(count))
    with pytest.raises(ArtifactError, match="cannot be written: No space left") as caught:
        compile_to_file(model, artifact)
    assert caught.value.where == str(artifact)
    assert untouched(artifact)


@pytest.mark.slow
def test_a_limit_of_the_size_of_files_is_an_error_of_the_command(
    model: Path, artifact: Path
) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    code = f"{limit}; import sys; from tilewright.cli import main; sys.exit(main(sys.argv[1:]))"
    artifact.unlink()
    command = [sys.executable, "-c", code, "compile", str(model), "-o", str(artifact)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode not in (0, -25), found.stderr
    assert "cannot be written: File too large" in found.stderr
    assert not [*artifact.parent.iterdir()]


def test_nothing_is_compiled_where_nothing_can_be_written(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        compile_to_file(model, tmp_path / "none" / "m.tw")
