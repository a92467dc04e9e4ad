"""Code that is kept: the same bytes as code that is compiled, and never more than a help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.compile import compile_stages
from tilewright.support.cache import cached_files, read_cached, write_cached

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def product(operator: str = "Relu"):
    """``operator`` of x @ w."""
    x = helper.make_tensor_value_info("x", FLOAT, ["n", "k"])
    w = helper.make_tensor_value_info("w", FLOAT, ["k", "m"])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(operator, ["h"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x, w], [helper.make_tensor_value_info("y", FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def image(model: object, level: str = "x86-64") -> bytes:
    return compile_stages(model, levels=[level]).contents.images[level].data  # pyright: ignore


def test_kept_code_is_the_same_and_models_share_it(folder: Path) -> None:
    compiled = image(product())
    files = set(cached_files())
    assert {path.name.split("-")[0] for path in files} == {"kernel", "tile"}
    assert image(product()) == compiled
    assert set(cached_files()) == files
    assert image(product("Sigmoid")) != compiled
    tiles = {path for path in cached_files() if path.name.startswith("tile-")}
    assert tiles <= files, "another epilogue needs no other tiles"
    image(product(), "avx2")
    assert len(cached_files()) > len(files)


@pytest.mark.parametrize("kind", ["kernel", "tile"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_damaged_code_is_compiled_again(kind: str, damage: str) -> None:
    compiled = image(product())
    for path in cached_files():
        if path.name.startswith(kind):
            data = path.read_bytes()
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + b"!")
    assert image(product()) == compiled
    assert image(product()) == compiled


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    model = tw.compile(product(), levels=["x86-64"])
    x, w = np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)
    assert np.array_equal(model(x, w), x @ w)


def test_what_another_user_wrote_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.code"
    write_cached(path, b"code")
    assert read_cached(path) == b"code"
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    assert read_cached(path) is None
