"""No command overwrites what it was given, nor what no command of its kind wrote."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from support.small_models import encoder, save_encoder
from tilewright.cli.writing import replacing

Command = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_encoder(tmp_path / "model.onnx")


def refused(result: Any, *words: str) -> None:
    assert (result.code, result.out) == (2, "")
    assert all(word in result.err for word in words), result.err


def test_compile_never_overwrites_its_source(command: Command, source: Path) -> None:
    before = source.read_bytes()
    refused(command("compile", source, "-o", source), "an input", "another name")
    assert source.read_bytes() == before


def test_compile_never_overwrites_its_source_through_a_link(command: Command, source: Path) -> None:
    before = source.read_bytes()
    for make in ("symlink_to", "hardlink_to"):
        link = source.parent / make
        getattr(link, make)(source)
        refused(command("compile", source, "-o", link), "an input")
        refused(command("compile", link, "-o", source), "an input")
    assert source.read_bytes() == before


def test_compile_never_overwrites_external_data_or_another_model(
    command: Command, tmp_path: Path
) -> None:
    model = encoder()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "model.onnx")
    weights = tmp_path / "weights.bin"
    before = weights.read_bytes()
    refused(command("compile", tmp_path / "model.onnx", "-o", weights), "would be overwritten")
    assert weights.read_bytes() == before
    other = save_encoder(tmp_path / "other.onnx")
    refused(command("compile", tmp_path / "model.onnx", "-o", other), "This is an ONNX model")


def test_compile_into_a_folder_or_a_device_is_a_sentence(
    command: Command, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    refused(command("compile", source, "-o", "."), "This is a folder", "try: Name a file in it")
    refused(command("compile", source, "-o", "/dev/null"), "a device")
    assert Path("/dev/null").is_char_device()


def test_compile_replaces_an_older_artifact(command: Command, source: Path) -> None:
    target = source.with_suffix(".tw")
    for _ in range(2):
        assert command("compile", source, "-o", target, "--quiet").code == 0


def test_run_never_overwrites_its_inputs(command: Command, folder: Path, tmp_path: Path) -> None:
    ids = np.ones((1, 2), np.int64)
    np.save(tmp_path / "embedding.npy", ids)
    file = tmp_path / "embedding.npy"
    inputs = (f"--input=input_ids={file}", f"--input=attention_mask={file}")
    refused(command("run", folder / "model.tw", *inputs, "-o", tmp_path), "an input")
    assert np.array_equal(np.load(file), ids)


def test_bench_writes_no_figures_over_a_model(command: Command, source: Path) -> None:
    for option in ("--save", "--csv", "--plot"):
        refused(command("bench", source, "--shapes", "batch=1,seq=1", option, source), "an input")


def test_what_cannot_be_written_as_a_whole_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left") as caught, replacing(path) as beside:
        beside.write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "before"
    with replacing(path) as beside:
        beside.write_text("after")
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "after"


def test_a_file_that_cannot_be_written_is_named_in_json(command: Command, tmp_path: Path) -> None:
    name = "n" * 300
    kinds = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in ("x", name)
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], [name])], "g", kinds[:1], kinds[1:]
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx"
    )
    result = command("run", tmp_path / "m.onnx", "--random", "", "-o", tmp_path / "out", "--json")
    assert result.code == 1
    assert result.json["error"]["message"].endswith("File name too long")
    assert name in result.json["error"]["where"]


def test_outputs_of_like_names_are_all_written(command: Command, tmp_path: Path) -> None:
    names = ["a/b", "a_b", "a_b-2", "a//b", "s", "s[0]"]
    nodes = [
        onnx.helper.make_node("Mul", ["x", f"c{number}"], [name])
        for number, name in enumerate(names)
        if name != "s"
    ]
    nodes.append(onnx.helper.make_node("SequenceConstruct", ["x", "x"], ["s"]))
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n"])
    sequence = onnx.helper.make_sequence_type_proto(kind)
    graph = onnx.helper.make_graph(
        nodes,
        "outputs",
        [onnx.helper.make_value_info("x", kind)],
        [onnx.helper.make_value_info(n, sequence if n == "s" else kind) for n in names],
        [onnx.numpy_helper.from_array(np.float32(i), f"c{i}") for i in range(len(names))],
    )
    opset = onnx.helper.make_opsetid("", 17)
    file = tmp_path / "outputs.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), file)
    np.save(tmp_path / "x.npy", np.ones(2, np.float32))
    arguments = ("--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out", "--json")
    result = command("run", file, *arguments)
    assert result.code == 0, result.err
    files = result.json["files"]
    assert len(files) == len(set(files.values())) == len(names) + 1
    assert Path(files["a_b"]).name == "a_b.npy"
    for number, name in enumerate(names):
        if name != "s":
            np.testing.assert_array_equal(np.load(files[name]), [number, number])
