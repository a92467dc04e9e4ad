from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.text_models import model

Command = Callable[..., Any]
VERBS = ("inspect", "compile", "run", "verify", "bench", "doctor")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(command: Command, verb: str) -> None:
    result = command(verb, "--help")
    assert result.code == 0
    assert f"Example: tilewright {verb}" in " ".join(result.out.split())
    assert "--json" in result.out


def test_wrong_usage_exits_with_2(command: Command) -> None:
    assert command("unknown").code == 2
    assert command("compile", "model.onnx").code == 2


@pytest.mark.parametrize(
    "wrong",
    [
        "compile m.onnx -o m.tw --level sse9",
        "compile m.onnx -o m.tw --plan best",
        "verify m.onnx --precision int4",
        "verify m.onnx --reference torch",
        "regret --kind pooling",
        "model-error --level sse9",
        "regret --sweep M=1..4,N=8,K=8 --save m.onnx",
    ],
)
def test_words_that_an_option_does_not_list_are_wrong_usage(command: Command, wrong: str) -> None:
    result = command(*wrong.split())
    assert result.code == 2
    assert result.err.startswith(("error: There is no ", "error: Plots are PNG files"))


def test_options_that_list_words_may_be_left_out(command: Command) -> None:
    for verb in ("regret", "model-error"):
        assert "'a' is no range" in command(verb, "--range", "a").err


def test_errors_are_for_people(command: Command, folder: Path) -> None:
    result = command("inspect", folder / "missing.onnx")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: ") and "missing.onnx" in result.err
    assert "Traceback" not in result.err


def test_errors_as_json(command: Command, folder: Path) -> None:
    result = command("inspect", folder / "missing.onnx", "--json")
    assert result.code == 1
    assert result.json["error"]["kind"] == "InvalidModelError"
    assert "missing.onnx" in result.json["error"]["where"]
    kinds = [
        command("run", folder / "model.onnx", "--json", *more).json["error"]["kind"]
        for more in ((), ("--random", "batch=2"))
    ]
    assert kinds == ["UsageError", "DimensionError"]
    for wrong in (
        ("compile", "model.onnx"),
        ("inspect", "--bogus"),
        ("nope",),
        ("verify", "x", "--seed", "a"),
    ):
        result = command(*wrong, "--json")
        assert (result.code, result.json["error"]["kind"]) == (2, "UsageError")
        assert "Usage: tilewright" in result.err


def test_inspect(command: Command, folder: Path) -> None:
    result = command("inspect", folder / "model.onnx", "--dim", "batch=1..64%2")
    assert result.code == 0
    assert "input_ids" in result.out and "int64[batch, seq]" in result.out
    assert "1..64 % 2  declared" in result.out
    assert "0..65536" in result.out and "default" in result.out
    assert "LayerNormalization 1" in result.out


def test_inspect_as_json(command: Command, folder: Path) -> None:
    found = command("inspect", folder / "model.onnx", "--json").json
    assert found["inputs"]["input_ids"] == "int64[batch, seq]"
    assert [row["name"] for row in found["dimensions"]] == ["batch", "seq"]
    assert found["fallbacks"] == []


def determinant(path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"], name="the_determinant")],
        "determinant",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_what_falls_back_is_named(command: Command, tmp_path: Path) -> None:
    model = determinant(tmp_path / "det.onnx")
    result = command("compile", model, "-o", tmp_path / "det.tw")
    assert result.code == 0
    assert (
        "1 operator on the ONNX reference evaluator" in result.out
        and "the_determinant" in result.out
    )
    refused = command("compile", model, "-o", tmp_path / "no.tw", "--fallback", "error")
    assert refused.code == 1 and "the_determinant" in refused.err
    assert not (tmp_path / "no.tw").exists()
    run = command("run", tmp_path / "det.tw", "--random", "n=3", "--json")
    assert run.json["outputs"]["y"]["shape"] == []


def test_compile_summary(command: Command, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "two.tw"
    levels = ("--level", "x86-64", "--level", "avx2")
    found = command("compile", folder / "model.onnx", "-o", target, *levels, "--json").json
    assert [row["name"] for row in found["levels"]] == ["x86-64", "avx2"]
    assert all(row["kernels"] > 0 and row["functions"] > 0 for row in found["levels"])
    assert found["bytes"] == target.stat().st_size
    assert found["seconds"] > 0


def test_compile_into_a_missing_folder(command: Command, folder: Path, tmp_path: Path) -> None:
    result = command("compile", folder / "model.onnx", "-o", tmp_path / "no" / "x.tw")
    assert result.code == 2 and "does not exist" in result.err


def test_run_on_files(command: Command, folder: Path, tmp_path: Path) -> None:
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "mask.npy", np.ones_like(ids))
    inputs = [
        f"--input=input_ids={tmp_path}/ids.npy",
        f"--input=attention_mask={tmp_path}/mask.npy",
    ]
    for source in ("model.tw", "model.onnx"):
        target = tmp_path / source
        assert command("run", folder / source, *inputs, "-o", target).code == 0
    arrays = [np.load(tmp_path / source / "embedding.npy") for source in ("model.tw", "model.onnx")]
    assert arrays[0].shape == (2, 16)
    assert np.array_equal(*arrays)


def test_run_at_random_is_seeded(command: Command, folder: Path) -> None:
    def run(seed: int) -> object:
        arguments = ("--random", "batch=2,seq=5", "--seed", seed, "--json")
        return command("run", folder / "model.tw", *arguments).json["outputs"]

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "The inputs are missing"),
        (("--random", "batch=2"), "seq has no size"),
        (("--random", "batch=65,seq=1"), "outside of the range 0..64"),
        (("--input", "input_ids="), "names no file"),
        (("--input", "input_ids=missing.npy"), "no such file"),
        (("--random", "batch=1,seq=1", "--dim", "batch=1..2"), "ranges that it was compiled for"),
    ],
)
def test_run_refuses(command: Command, folder: Path, arguments: tuple[str, ...], why: str) -> None:
    result = command("run", folder / "model.tw", *arguments)
    assert result.code == 2
    assert why in " ".join(result.err.split())


def test_run_names_a_file_that_is_missing_before_inputs(command: Command, folder: Path) -> None:
    result = command("run", folder / "missing.tw")
    assert "There is no such file" in result.err and "inputs" not in result.err


@pytest.mark.parametrize(
    "dim", ["batch", "batch=", "batch=x", "batch=1..", "batch=1..4%0", "b=4..1"]
)
def test_ranges_that_are_none(command: Command, folder: Path, dim: str) -> None:
    result = command("inspect", folder / "model.onnx", "--dim", dim)
    assert result.code == 2 and f"--dim {dim}" in result.err


def test_verify_agrees(command: Command, folder: Path) -> None:
    found = command(
        "verify", folder / "model.tw", "--model", folder / "model.onnx",
        "--reference", "onnx", "--shapes", "edge,random:3", "--json",
    )  # fmt: skip
    assert found.code == 0
    assert found.json["is_right"] is True
    sizes = [check["sizes"] for check in found.json["checks"]]
    assert {"batch": 0, "seq": 0} in sizes and {"batch": 1, "seq": 1} in sizes
    assert max(check["batch"] for check in sizes) == 64
    assert found.json["counts"]["agrees"] == len(sizes) > 20


def test_verify_differs(command: Command, folder: Path) -> None:
    result = command(
        "verify", folder / "model.tw", "--model", folder / "other.onnx",
        "--reference", "onnx", "--shapes", "batch=2,seq=3",
    )  # fmt: skip
    assert result.code == 1
    assert "differs" in result.out


def test_verify_needs_a_model(command: Command, folder: Path) -> None:
    result = command("verify", folder / "model.tw")
    assert result.code == 2 and "--model" in result.err


@pytest.mark.parametrize("shapes", ["edges", "random:x", "random", ";", "batch=1"])
def test_shapes_that_are_none(command: Command, folder: Path, shapes: str) -> None:
    arguments = ("--model", folder / "model.onnx", "--reference", "onnx", "--shapes", shapes)
    result = command("verify", folder / "model.tw", *arguments)
    assert result.code == 2 and "error" in result.err


def test_unknown_reference(command: Command, folder: Path) -> None:
    arguments = ("--model", folder / "model.onnx", "--reference", "numpy")
    result = command("verify", folder / "model.tw", *arguments)
    assert result.code == 2 and "onnxruntime, onnx" in result.err


@pytest.mark.peers
def test_bench(command: Command, folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "bench.json"
    result = command(
        "bench", folder / "model.onnx", "--shapes", "batch=2,seq=5", "--rounds", "1",
        "--threads", "1", "--save", saved, "--json",
    )  # fmt: skip
    assert result.code == 0
    assert [t["contender"] for t in result.json["rows"][0]["timings"]] == [
        "tilewright",
        "onnxruntime",
    ]
    assert saved.read_text() == result.out


def test_doctor(command: Command) -> None:
    found = command("doctor", "--no-measure", "--json").json
    assert found["missing"] == []
    assert found["level"] in ("x86-64", "avx2", "avx512")
    assert 1 <= found["default_threads"] <= found["cores"]


@pytest.mark.slow
def test_doctor_measures(command: Command) -> None:
    found = command("doctor", "--json").json
    # Any processor that can run this does a billion operations and reads 100 MB in a second.
    assert found["flops_per_core"] > 1e9
    assert found["read_bytes_per_second_per_core"] > 1e8


@pytest.mark.slow
@pytest.mark.peers
def test_bench_takes_an_artifact_and_writes_a_table_and_a_plot(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    files = ("--csv", tmp_path / "x.csv", "--plot", tmp_path / "x.png")
    arguments = ("--shapes", "batch=1,seq=5;batch=1,seq=9", "--rounds", "1", "--threads", "1")
    model = ("--model", folder / "model.onnx")
    result = command("bench", folder / "model.tw", *model, *arguments, *files)
    assert result.code == 0, result.err
    assert "batch=1, seq=9" in result.out and "onnxruntime" in result.out
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 5
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    again = command("bench", folder / "model.tw", *model, *arguments, *files)
    assert again.code == 0, "older figures are replaced"
    wrong = command("bench", folder / "model.tw", *arguments, "--plot", tmp_path / "x.pdf")
    assert wrong.code == 2 and "Plots are PNG files" in wrong.err


@pytest.mark.slow
def test_bench_of_an_artifact_alone_says_how_to_get_peers(command: Command, folder: Path) -> None:
    arguments = ("bench", folder / "model.tw", "--shapes", "batch=1,seq=5", "--rounds", "1")
    alone = command(*arguments)
    assert alone.code == 0 and "add --model model.onnx" in alone.out
    asked = command(*arguments, "--against", "onnxruntime")
    assert asked.code == 2 and "add --model model.onnx" in asked.err.lower()


@pytest.mark.slow
def test_bench_with_a_precision(command: Command, folder: Path) -> None:
    arguments = ("--shapes", "batch=1,seq=5", "--rounds", "1", "--against", "none", "--json")
    result = command("bench", folder / "model.onnx", *arguments, "--precision", "int8")
    assert result.json["precision"] == "int8"


def test_run_writes_strings_and_the_elements_of_sequences(command: Command, tmp_path: Path) -> None:
    words = model("g (string[n] x) => (string[n] y) { y = Identity(x) }")
    onnx.save(words, tmp_path / "words.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "bc"]))
    given = ("--input", f"x={tmp_path / 'x.npy'}")
    assert command("run", tmp_path / "words.onnx", *given, "-o", tmp_path / "out").code == 0
    assert np.load(tmp_path / "out" / "y.npy").tolist() == ["a", "bc"]
    parts = model(
        "g (float[n] x) => (seq(float[m]) y) <int64[2] p = {1, 3}> { y = SplitToSequence(x, p) }"
    )
    onnx.save(parts, tmp_path / "parts.onnx")
    result = command("run", tmp_path / "parts.onnx", "--random", "n=4", "-o", tmp_path / "out")
    assert result.code == 0 and "y[1]" in result.out
    found = [np.load(tmp_path / "out" / f"y[{number}].npy") for number in (0, 1)]
    assert [part.shape for part in found] == [(1,), (3,)]
