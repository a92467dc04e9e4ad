"""Inputs of run, verify and bench: from files, or random where the model can use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Command = Callable[..., Any]
ROWS = 10


def save_lookup(path: Path, shift: int = 0) -> Path:
    """Rows of a table of ten: indices [n] plus ``shift`` to [n, 4]."""
    generator = np.random.default_rng(0)
    table = generator.standard_normal((ROWS, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Add", ["index", "shift"], ["shifted"]),
        helper.make_node("Gather", ["table", "shifted"], ["rows"]),
    ]
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 4])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array(shift, np.int64), "shift"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lookup(tmp_path_factory.mktemp("lookup") / "lookup.onnx")


@pytest.mark.parametrize("shift", [0, 2])
def test_an_index_into_ten_rows_is_below_ten(command: Command, tmp_path: Path, shift: int) -> None:
    model = save_lookup(tmp_path / "shifted.onnx", shift)
    found = command("verify", model, "--reference", "onnx", "--shapes", "n=500;n=0", "--json")
    assert found.code == 0 and found.json["counts"]["agrees"] == 2


@pytest.mark.slow
def test_an_artifact_knows_the_ranges_of_its_inputs(
    command: Command, lookup: Path, tmp_path: Path
) -> None:
    artifact = tmp_path / "lookup.tw"
    assert command("compile", lookup, "-o", artifact).code == 0
    assert command("inspect", artifact, "--json").json["ranges"] == {"index": ["0", "9"]}
    assert command("run", artifact, "--random", "n=500").code == 0
    assert command("bench", artifact, "--shapes", "n=9", "--rounds", 1).code == 0


@pytest.mark.slow
def test_run_takes_arrays_from_every_kind_of_file(
    command: Command, lookup: Path, tmp_path: Path
) -> None:
    index = np.array([3, 1, 4], np.int64)
    np.save(tmp_path / "x.npy", index)
    np.savez(tmp_path / "x.npz", index=index)
    np.savez(tmp_path / "other.npz", index=index, more=index)
    tensor = numpy_helper.from_array(index, "index")
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    wanted: list[Any] = []
    for text in ("index={}/x.npy", "{}/x.npy", "{}/x.npz", "index={}/other.npz", "{}/x.pb"):
        option = text.format(tmp_path)
        result = command("run", lookup, "--input", option, "--json")
        assert result.code == 0, result.err
        wanted.append(result.json["outputs"])
    assert wanted[0]["rows"]["shape"] == [3, 4]
    assert all(outputs == wanted[0] for outputs in wanted)
    assert command("verify", lookup, "--reference", "onnx", "--input", tmp_path / "x.pb").code == 0
    timed = command("bench", lookup, "--against", "none", "--rounds", 1, "--json",
                    "--input", tmp_path / "x.npz")  # fmt: skip
    assert timed.json["rows"][0]["case"] == {"n": 3}


def test_what_files_do_not_give_is_random(command: Command, folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.ones((2, 3), np.int64))
    mask = ("--input", f"attention_mask={tmp_path}/mask.npy")
    missing = command("run", folder / "model.tw", *mask)
    assert missing.code == 2 and "no values for input_ids" in missing.err
    assert command("run", folder / "model.tw", *mask, "--random", "").code == 0
    other = command("run", folder / "model.tw", *mask, "--random", "batch=5")
    assert other.code == 2 and "batch is 2 in the files, but 5" in other.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("wrong={}/x.npy", "no input 'wrong'"),
        ("index={}/picture.png", "This is an image, not a NumPy array"),
        ("index={}/no.npy", "no such file"),
        ("{}/names.npz", "no input 'a'"),
        ("index={}/objects.npy", "cannot be read"),
    ],
)
def test_files_that_hold_no_input_are_named(
    command: Command, lookup: Path, tmp_path: Path, text: str, why: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1, np.int64))
    np.savez(tmp_path / "names.npz", a=np.zeros(1), b=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    result = command("run", lookup, "--input", text.format(tmp_path))
    assert result.code == 2 and why in result.err, result.err


def test_what_run_writes_it_reads(command: Command, tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
    back = [helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT)]
    for name, node, ends in (("down", nodes, ("x", "y")), ("up", back, ("y", "z"))):
        kinds = {"x": TensorProto.FLOAT, "y": TensorProto.BFLOAT16, "z": TensorProto.FLOAT}
        values = [helper.make_tensor_value_info(end, kinds[end], ["n"]) for end in ends]
        graph = helper.make_graph(node, name, values[:1], values[1:])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, tmp_path / f"{name}.onnx")
    down = command("run", tmp_path / "down.onnx", "--random", "n=3", "-o", tmp_path, "--json")
    assert down.code == 0
    written = np.load(tmp_path / "y.npy")
    assert written.dtype.kind == "V"
    result = command("run", tmp_path / "up.onnx", "--input", tmp_path / "y.npy", "--json")
    mean = written.view(ml_dtypes.bfloat16).astype(np.float64).mean()
    assert result.json["outputs"]["z"]["mean"] == pytest.approx(mean)
    assert down.json["outputs"]["y"]["mean"] == pytest.approx(mean)


# ---------------------------------------------------------------- inputs that are constants


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The negative of a sum over axes that are an input, which decides the rank of the sum."""
    path = tmp_path_factory.mktemp("summed")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, m] x, int64[1] axes) => (float y) {
        s = ReduceSum<keepdims = 0>(x, axes)
        y = Neg(s)
    }"""
    onnx.save(onnx.parser.parse_model(text), path / "summed.onnx")
    np.save(path / "axes.npy", np.array([1]))
    return path


def test_inspect_names_the_inputs_that_have_to_be_constants(command: Command, summed: Path) -> None:
    shown = command("inspect", summed / "summed.onnx")
    assert shown.code == 0 and "--constants axes=FILE.npy" in shown.out
    found = command("inspect", summed / "summed.onnx", "--json").json
    assert found["structural_inputs"] == ["axes"]
    assert "x" in found["inputs"] and "rank" in found["problem"]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "reference", ["onnx", pytest.param("onnxruntime", marks=pytest.mark.peers)]
)
def test_every_verb_that_compiles_takes_constants(
    command: Command, summed: Path, reference: str
) -> None:
    model, artifact = summed / "summed.onnx", summed / "summed.tw"
    given = ("--constants", f"axes={summed / 'axes.npy'}")
    inspected = command("inspect", model, *given, "--json")
    assert inspected.code == 0 and list(inspected.json["inputs"]) == ["x"]
    assert command("compile", model, "-o", artifact, *given).code == 0
    run = command("run", model, *given, "--random", "n=2,m=3", "--json")
    assert run.json["outputs"]["y"]["shape"] == [2]
    shapes = ("--reference", reference, "--shapes", "n=2,m=3", "--json")
    checked = command("verify", model, *given, *shapes).json["checks"]
    assert [(c["verdict"], c["reference"]) for c in checked] == [("agrees", reference)]
    checked = command("verify", artifact, "--model", model, *given, *shapes).json["checks"]
    assert [c["verdict"] for c in checked] == ["agrees"]
    timed = command("bench", model, *given, "--shapes", "n=2,m=3", "--rounds", 1, "--json")
    assert timed.code == 0 and not timed.json.get("failures")


def test_constants_that_do_not_fit(command: Command, summed: Path) -> None:
    model, file = summed / "summed.onnx", summed / "axes.npy"
    nameless = command("inspect", model, "--constants", file)
    assert nameless.code == 2 and "--constants NAME=" in nameless.err
    twice = command("run", model, "--constants", f"axes={file}", "--constants", f"axes={file}")
    assert twice.code == 2
    unknown = command("compile", model, "-o", summed / "no.tw", "--constants", f"b={file}")
    assert unknown.code == 2 and "b" in unknown.err
    artifact = summed / "own.tw"
    given = ("--constants", f"axes={file}")
    assert command("compile", model, "-o", artifact, *given).code == 0
    for verb in (("inspect",), ("run", "--random", "n=1,m=1")):
        refused = command(verb[0], artifact, *verb[1:], *given)
        assert refused.code == 2 and "--constants" in refused.err
