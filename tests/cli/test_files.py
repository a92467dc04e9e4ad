"""Whatever file is given, the answer says what it is and what to do next."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.small_models import encoder, save_encoder
from tilewright.support.files import what_is

Command = Callable[..., Any]


def _safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")


def _zip(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return write


def _saved_model(path: Path) -> None:
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x01x")


def _hugging_face(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    _safetensors(path / "model.safetensors")


def _folder_with_a_model(path: Path) -> None:
    path.mkdir()
    save_encoder(path / "model.onnx")


def _tensor(path: Path) -> None:
    path.write_bytes(numpy_helper.from_array(np.ones((2, 3)), "x").SerializeToString())


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


# The name of a file, how it is made, its kind, and a word of what to do.
OTHERS: tuple[tuple[str, Callable[[Path], Any], str, str], ...] = (
    ("w.safetensors", _safetensors, "safetensors", "optimum-cli"),
    ("model.py", _bytes(b"import torch\n"), "python", "Export"),
    ("x.npy", lambda path: np.save(path, np.ones(3)), "npy", "--input"),
    ("x.npz", lambda path: np.savez(path, x=np.ones(3)), "npz", "--input"),
    ("input_0.pb", _tensor, "tensor", "--input"),
    ("model.onnx", _bytes(b""), "empty", "again"),
    ("big.onnx", _bytes(b"version https://git-lfs.github.com/spec/v1\noid x\n"), "git-lfs", "pull"),
    ("model.pt", _zip("archive/data.pkl", "archive/data/0"), "torch", "torch.onnx.export"),
    ("model.pt2", _zip("m/archive_format", "m/models/model.json"), "torch-program", "torch.onnx"),
    ("old.pth", _bytes(b"\x80\x02\x8a\nl\xfc"), "pickle", "torch.onnx.export"),
    ("model.gguf", _bytes(b"GGUF\x03\0\0\0"), "gguf", "ONNX"),
    ("model.keras", _zip("config.json", "model.weights.h5"), "keras", "export"),
    ("model.h5", _bytes(b"\x89HDF\r\n\x1a\n"), "hdf5", "export"),
    ("model.tflite", _bytes(b"\x1c\0\0\0TFL3"), "tflite", "ONNX"),
    ("model.ort", _bytes(b"\x1c\0\0\0ORTM"), "ort", ".onnx"),
    ("model.xml", _bytes(b"<?xml version='1.0'?><net/>"), "xml", "ONNX"),
    ("model.onnx", _bytes(b"<!DOCTYPE html><html>"), "html", "Download"),
    ("model.zip", _zip("model.onnx"), "packed", "Unpack"),
    ("model.tar.gz", _bytes(b"\x1f\x8b\x08\0"), "packed", "Unpack"),
    ("cat.png", _bytes(b"\x89PNG\r\n\x1a\n"), "image", "numpy.save"),
    ("notes.txt", _bytes(b"hello\n"), "text", "ONNX"),
    ("saved", _saved_model, "saved-model", "tf2onnx"),
    ("bert", _hugging_face, "hugging-face", "optimum-cli"),
    ("export", _folder_with_a_model, "folder", "model.onnx"),
)


@pytest.mark.parametrize(("name", "make", "kind", "way"), OTHERS, ids=[o[2] for o in OTHERS])
def test_what_is_no_model_is_said_to_be_what_it_is(
    command: Command, tmp_path: Path, name: str, make: Callable[[Path], Any], kind: str, way: str
) -> None:
    path = tmp_path / name
    make(path)
    found = what_is(path)
    assert found.name == kind
    result = command("inspect", path)
    assert result.code == 1
    assert f"This is {found.phrase}, not " in result.err and f"where: {path}" in result.err
    assert way in result.err.partition("  try: ")[2]


def test_models_and_artifacts_are_known_by_their_content(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes((folder / "model.tw").read_bytes())
    (tmp_path / "b").write_bytes((folder / "model.onnx").read_bytes())
    assert [what_is(tmp_path / name).name for name in "ab"] == ["artifact", "onnx"]
    minimal = onnx.ModelProto(opset_import=encoder().opset_import)
    minimal.graph.name = "g"
    (tmp_path / "minimal").write_bytes(minimal.SerializeToString())
    assert what_is(tmp_path / "minimal").name == "onnx"


def test_a_cut_off_model_is_left_to_the_reader(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((folder / "model.onnx").read_bytes()[:-10])
    assert what_is(path).name == "unknown"


def test_no_file_and_no_ordinary_file(tmp_path: Path) -> None:
    assert what_is(tmp_path / "no").name == "missing"
    assert what_is("/dev/null").name == "device"
