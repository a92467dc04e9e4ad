"""What compile and inspect say of an artifact, and what verify makes of its precision."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.small_models import save_encoder
from tilewright.target import preset, preset_names

Command = Callable[..., Any]


def save_products(path: Path, columns: int = 32, width: int = 64, hidden: int = 33) -> Path:
    """Two layers of ``width`` by ``hidden``, an odd number, by ``columns``."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [weight("first", width, hidden), weight("second", hidden, columns)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.parametrize("precision", [pytest.param("bfloat16", marks=pytest.mark.slow), "int8"])
def test_verify_knows_the_precision_of_an_artifact(
    command: Command, tmp_path: Path, precision: str
) -> None:
    # So large that the narrow form of the first layer is taken at some of the sizes.
    model, artifact = save_products(tmp_path / "m.onnx", 32, 512, 511), tmp_path / "m.tw"
    assert command("compile", model, "-o", artifact, "--precision", precision).code == 0
    shapes = ("--reference", "onnx", "--shapes", "n=1;n=7;n=100", "--json")
    found = command("verify", artifact, "--model", model, *shapes)
    assert found.code == 0, found.out
    assert found.json["precision"] == precision
    own = command("verify", model, "--precision", precision, *shapes)
    tolerances = {check["tolerance"] for check in (*found.json["checks"], *own.json["checks"])}
    assert len(tolerances) == 1, "the same from the artifact and from the model"
    exact = command("verify", model, *shapes).json["checks"][0]
    assert exact["tolerance"] < 1e-4 < found.json["checks"][0]["tolerance"]
    assert exact["difference"] <= exact["tolerance"]
    # What was verified is the narrow form, which float32 would not let pass.
    assert exact["tolerance"] < max(check["difference"] for check in found.json["checks"])
    other = save_products(tmp_path / "other.onnx", 32, 512, 511)
    wrong = onnx.load(other)
    wrong.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((512, 511), np.float32), "first")
    )
    onnx.save(wrong, other)
    differs = command("verify", artifact, "--model", other, *shapes[:-1])
    assert differs.code == 1
    assert "compiled from m.onnx with other contents" in differs.out


@pytest.mark.slow
def test_verify_takes_no_precision_beside_an_artifact(command: Command, folder: Path) -> None:
    arguments = ("--model", folder / "model.onnx", "--precision", "int8")
    result = command("verify", folder / "model.tw", *arguments)
    assert result.code == 2 and "the precision that it was compiled for" in result.err


def test_compile_says_which_products_are_narrow(command: Command, tmp_path: Path) -> None:
    model = save_products(tmp_path / "m.onnx")
    result = command("compile", model, "-o", tmp_path / "m.tw", "--precision", "int8")
    assert "1 of 2 products in int8" in result.out
    assert "its depth is not a multiple of 4" in result.out


@pytest.mark.slow
def test_compile_says_that_no_product_is_narrow(command: Command, tmp_path: Path) -> None:
    model = save_encoder(tmp_path / "m.onnx")
    few = onnx.load(model)
    weight = numpy_helper.to_array(few.graph.initializer[1])[:, :8]
    few.graph.initializer[1].CopyFrom(numpy_helper.from_array(weight.copy(), "dense"))
    for name in ("scale", "bias"):
        index = next(i for i, w in enumerate(few.graph.initializer) if w.name == name)
        vector = numpy_helper.to_array(few.graph.initializer[index])[:8]
        few.graph.initializer[index].CopyFrom(numpy_helper.from_array(vector.copy(), name))
    few.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8
    onnx.save(few, model)
    result = command("compile", model, "-o", tmp_path / "m.tw", "--precision", "int8")
    assert "Nothing is held in int8: none of 1 product can be" in result.out
    assert "its weights have fewer than 16 columns" in result.out


@pytest.mark.parametrize("target", ["a100", "neoverse-n1", "a1000"])
def test_a_target_that_code_cannot_be_made_for_is_an_error(
    command: Command, folder: Path, tmp_path: Path, target: str
) -> None:
    result = command("compile", folder / "model.onnx", "-o", tmp_path / "x.tw", "--target", target)
    assert result.code == 2 and not (tmp_path / "x.tw").exists()
    hint = result.err.partition("  try: ")[2]
    unfit = [
        name for name in preset_names() if preset(name).isa not in ("x86-64", "avx2", "avx512")
    ]
    assert "zen3" in hint and not any(name in hint for name in unfit)
    assert ("it is a GPU" in result.err) is (target == "a100")


@pytest.mark.slow
def test_compile_says_where_the_artifact_runs_and_whose_costs_count(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    arguments = (folder / "model.onnx", "-o", tmp_path / "m.tw")
    one = command("compile", *arguments, "--target", "zen3").out
    assert "Runs under Linux on x86-64 processors with AVX2" in one
    assert "Chooses kernel variants by the costs of zen3 (description " in one
    portable = command("compile", *arguments, "--level", "portable").out
    assert "Runs under Linux on any x86-64 processor" in portable


def test_compile_says_which_dimensions_have_the_default_range(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    arguments = (folder / "model.onnx", "-o", tmp_path / "m.tw", "--dim", "batch=1..4")
    result = command("compile", *arguments)
    assert "Not declared: seq has the default range 0..65536" in result.out
    assert "add --dim seq=LOW..HIGH" in result.out
    declared = command("compile", *arguments, "--dim", "seq=1..9")
    assert "Not declared" not in declared.out


def test_inspect_shows_what_an_artifact_is(command: Command, folder: Path) -> None:
    shown = command("inspect", folder / "model.tw")
    assert shown.code == 0
    for words in (
        "made by tilewright",
        "Compiled from model.onnx, SHA-256 ",
        "Precision float32, accuracy standard, policy auto",
        "input_ids",
        "0..512",
        "7 operators compiled",
        "of code",
        "of weights",
        "Runs under Linux",
        "Chooses kernel variants by the costs of",
    ):
        assert words in shown.out, words
    found = command("inspect", folder / "model.tw", "--json").json
    assert found["bytes"] == (folder / "model.tw").stat().st_size
    assert found["levels"][0]["machine"][0]
    refused = command("inspect", folder / "model.tw", "--dim", "batch=1..2")
    assert refused.code == 2


@pytest.mark.parametrize("shapes", ["batch=99999999,seq=1", "batch=1,seq=513"])
def test_shapes_outside_of_the_range_are_wrong_usage(
    command: Command, folder: Path, shapes: str
) -> None:
    arguments = ("--model", folder / "model.onnx", "--reference", "onnx", "--shapes", shapes)
    result = command("verify", folder / "model.tw", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "is outside of the range 0.." in result.err
    timed = command("bench", folder / "model.tw", "--shapes", shapes)
    assert timed.code == 2 and "is outside of the range 0.." in timed.err


@pytest.mark.slow
def test_quiet_prints_nothing_and_verbose_what_happens(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    arguments = ("compile", folder / "model.onnx", "-o", tmp_path / "m.tw")
    quiet = command(*arguments, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    stages = command(*arguments, "--verbose").err
    assert "tilewright: stage import" in stages and "tilewright: stage plan" in stages
    details = command(*arguments, "-vv").err
    assert len(details.splitlines()) > len(stages.splitlines())
    assert command(*arguments).err.count("tilewright: ") == 0
    assert logging.getLogger("tilewright").level == logging.NOTSET
