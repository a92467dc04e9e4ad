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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def model(*operators: str):
    """The operators one after the other, of x, or first of x @ w."""
    x = helper.make_tensor_value_info("x", FLOAT, ["n", "k"])
    w = helper.make_tensor_value_info("w", FLOAT, ["k", "m"])
    names = ["x", *(f"v{number}" for number in range(1, len(operators))), "y"]
    nodes = [
        helper.make_node(operator, [name, "w"] if operator == "MatMul" else [name], [following])
        for operator, name, following in zip(operators, names, names[1:], strict=False)
    ]
    out = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x, w] if "MatMul" in operators else [x], [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def image(model: object, level: str = "x86-64") -> bytes:
    """Code for sizes that fit the caches: elementwise kernels have one variant then."""
    dims = {"n": (0, 64), "k": (0, 64)}
    made = compile_stages(model, dims=dims, levels=[level])  # pyright: ignore
    return made.contents.images[level].data


@pytest.mark.slow
def test_kept_code_is_the_same_and_models_share_it() -> None:
    compiled = image(model("MatMul"))
    files = set(cached_files())
    assert {path.name.split("-")[0] for path in files} == {"kernel", "shared"}
    assert image(model("MatMul")) == compiled
    assert set(cached_files()) == files
    assert image(model("MatMul", "Relu")) != compiled
    more = set(cached_files()) - files
    assert more and all(path.name.startswith("kernel-") for path in more)
    for path in cached_files():
        if path.name.startswith("shared-"):
            path.unlink()
    assert image(model("MatMul")) == compiled


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_damaged_code_is_compiled_again(damage: str) -> None:
    compiled = image(model("Relu"))
    (path,) = cached_files()
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + b"!")
    assert image(model("Relu")) == compiled
    assert path.read_bytes() == data


def test_levels_and_kernels_have_files_of_their_own() -> None:
    for level, operator in (("x86-64", "Relu"), ("avx2", "Relu"), ("x86-64", "Sigmoid")):
        image(model(operator), level)
    assert len(cached_files()) == 3


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    compiled = tw.compile(model("Abs"), levels=["x86-64"])
    assert np.array_equal(compiled(-np.ones((2, 3), np.float32)), np.ones((2, 3)))


def test_what_another_user_wrote_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.code"
    write_cached(path, b"code")
    assert read_cached(path) == b"code"
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    assert read_cached(path) is None
