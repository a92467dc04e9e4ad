"""Files that are no models, or not whole, or lead elsewhere: each gets its own sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

import tilewright as tw
from support import tiny_models
from tilewright.compile import compile_stages
from tilewright.ops.reference import evaluate_payload
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import OpaqueStep
from tilewright.support.errors import (
    ArtifactError,
    DimensionError,
    InputError,
    InvalidModelError,
    TilewrightError,
    UnsupportedError,
)


def refusal(source: object, error: type[TilewrightError] = InvalidModelError) -> str:
    with pytest.raises(error) as caught:
        tw.compile(source)  # type: ignore[arg-type]
    return str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    assert "There is no such file" in refusal(tmp_path / "missing.onnx")


def test_a_folder(tmp_path: Path) -> None:
    assert "This is a folder" in refusal(tmp_path)


def test_a_file_or_folder_in_the_place_of_an_artifact(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "m.tw").write_text("not what it is called")
    for path, way in ((tmp_path, "m.tw"), (tmp_path / "m.tw", "tilewright compile or model.save")):
        with pytest.raises(ArtifactError, match="not a tilewright artifact") as caught:
            tw.load(path)
        assert caught.value.hint is not None and way in caught.value.hint


def test_a_model_cannot_be_saved_anywhere(tmp_path: Path) -> None:
    model = tw.compile(tiny_models.two_inputs(), levels=["x86-64"])
    with pytest.raises(ArtifactError) as caught:
        model.save(tmp_path / "none" / "m.tw")
    assert caught.value.hint == f"Make the folder first: mkdir -p {tmp_path / 'none'}"
    with pytest.raises(ArtifactError, match="directory") as caught:
        model.save(tmp_path)
    assert caught.value.hint is not None and "Name a file in it" in caught.value.hint
    for name in ("", "a\0b"):
        with pytest.raises(InputError, match="names no file"):
            model.save(name)


def test_not_a_source_at_all() -> None:
    assert "A float is not a model" in refusal(3.5)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"hello, world\n" * 50, b"\x89PNG\r\n"])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.onnx"
    path.write_bytes(content)
    message = refusal(path)
    assert "not an ONNX model" in message and str(path) in message


def test_every_truncation_is_refused_or_a_smaller_model() -> None:
    whole = tiny_models.two_inputs().SerializeToString()
    refused = 0
    for length in range(0, len(whole), 3):
        try:
            tw.compile(whole[:length], levels=["x86-64"])
        except TilewrightError as error:
            refused += 1
            assert error.message
    assert refused == len(range(0, len(whole), 3))


def test_no_operator_set() -> None:
    made = tiny_models.two_inputs()
    del made.opset_import[:]
    assert "no graph or no operator sets" in refusal(made)


def test_an_opset_of_the_future() -> None:
    made = tiny_models.two_inputs()
    made.opset_import[0].version = 999
    assert "The model uses opset 999" in refusal(made, UnsupportedError)


def test_a_node_that_reads_a_missing_value() -> None:
    made = tiny_models.two_inputs()
    made.graph.node[1].input[0] = "nowhere"
    assert "nowhere" in refusal(made)


# ---------------------------------------------------------------- external data


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weights are in the file weights.bin beside it."""
    made = tiny_models.two_inputs()
    convert_model_to_external_data(made, location="weights.bin", size_threshold=0)
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    onnx.save(made, path)
    return path


def relocate(path: Path, **changes: str) -> None:
    made = onnx.load(path, load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = changes.get(entry.key, entry.value)
    path.write_bytes(made.SerializeToString())


@pytest.mark.slow
def test_external_data_is_read(external: Path) -> None:
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
    expected = x @ np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(tw.compile(external)(x, y), expected)


def test_external_data_missing(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    message = refusal(external)
    assert "A file with the model's data is missing" in message and "weights.bin" in message


def test_external_data_too_short(external: Path) -> None:
    (external.parent / "weights.bin").write_bytes(b"\x00" * 20)
    assert "The tensor needs 48 bytes" in refusal(external)


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", ""])
def test_external_data_outside_of_the_folder(external: Path, place: str) -> None:
    (external.parent.parent / "secret.bin").write_bytes(b"\x00" * 48)
    relocate(external, location=place)
    assert "The model refers to a file outside of its folder" in refusal(external)


def test_external_data_through_a_link_that_leads_outside(external: Path) -> None:
    secret = external.parent.parent / "secret.bin"
    secret.write_bytes(b"\x00" * 48)
    (external.parent / "weights.bin").unlink()
    os.symlink(secret, external.parent / "weights.bin")
    assert "The model refers to a file outside of its folder" in refusal(external)


def test_external_data_with_a_wild_offset(external: Path) -> None:
    relocate(external, offset="-4")
    assert "An offset or length is '-4'" in refusal(external)


def test_external_data_of_bytes(external: Path) -> None:
    message = refusal(external.read_bytes())
    assert "The model keeps data in other files, but was not given as a file" in message


# ---------------------------------------------------------------- operators and dimensions


def test_an_unknown_operator() -> None:
    made = tiny_models.unary("Frobnicate")
    with pytest.raises(TilewrightError, match="Frobnicate"):
        tw.compile(made)


def test_an_operator_of_a_layout_for_one_machine_says_what_to_do() -> None:
    made = tiny_models.unary("Conv")
    made.graph.node[0].domain = "com.microsoft.nchwc"
    made.opset_import.add(domain="com.microsoft.nchwc", version=1)
    with pytest.raises(UnsupportedError, match=r"(?s)nchwc::Conv \(1\).*ORT_ENABLE_EXTENDED"):
        tw.compile(made)


def test_an_operator_without_a_rule_is_refused_on_request() -> None:
    made = tiny_models.model(
        [helper.make_node("Det", ["x"], ["y"])],
        [("x", tiny_models.FLOAT, ["n", 3, 3])],
        [("y", tiny_models.FLOAT, ["n"])],
    )
    assert tw.compile(made).stats().opaque_operators == {"Det": 1}
    with pytest.raises(UnsupportedError, match="Det"):
        tw.compile(made, fallback="error")


def test_a_range_for_a_dimension_that_is_not_there() -> None:
    with pytest.raises(DimensionError) as caught:
        tw.compile(tiny_models.two_inputs(), dims={"sequence": (0, 5)})
    assert "sequence" in str(caught.value) and "batch" in str(caught.value)


@pytest.mark.parametrize("given", [(5, 2), (-1, 4), "7", 2.5, (1, 2, 3, 4)])
def test_a_range_that_is_none(given: object) -> None:
    with pytest.raises(DimensionError):
        tw.compile(tiny_models.two_inputs(), dims={"batch": given})  # type: ignore[dict-item]


def test_an_unknown_level() -> None:
    with pytest.raises(UnsupportedError, match="There is no level 'sse9'"):
        tw.compile(tiny_models.two_inputs(), levels=["sse9"])


@pytest.mark.parametrize("sizes", [[1 << 40], [1 << 40, 1 << 40], [1 << 32, 1 << 32, 1]])
def test_a_constant_spread_beyond_all_bounds(sizes: list[int]) -> None:
    """Compiles, as one element of it may be all that is wanted."""
    made = tiny_models.model(
        [
            helper.make_node("Expand", ["one", "sizes"], ["t"]),
            helper.make_node("Add", ["t", "row"], ["u"]),
            helper.make_node("GatherND", ["u", "at"], ["v"]),
            helper.make_node("Add", ["v", "x"], ["y"]),
        ],
        [("x", tiny_models.FLOAT, [1])],
        [("y", tiny_models.FLOAT, [1])],
        {
            "one": np.ones(1, np.float32),
            "row": np.ones(1, np.float32),
            "sizes": np.array(sizes),
            "at": np.zeros((1, len(sizes)), np.int64),
        },
    )
    compiled = tw.compile(made, levels=["x86-64"])
    np.testing.assert_array_equal(compiled(np.ones(1, np.float32)), [3.0])


# ---------------------------------------------------------------- artifacts


@pytest.mark.slow
def test_artifacts_that_are_none(tmp_path: Path) -> None:
    whole = tmp_path / "whole.tw"
    tw.compile(tiny_models.two_inputs(), levels=["x86-64"]).save(whole)
    content = whole.read_bytes()
    broken = tmp_path / "broken.tw"
    with pytest.raises(ArtifactError, match=r"no such file|cannot be"):
        tw.load(broken)
    broken.write_bytes(b"not an artifact at all")
    with pytest.raises(ArtifactError, match="not a tilewright artifact"):
        tw.load(broken)
    for length in (0, 10, 63, 64, 100, len(content) // 2, len(content) - 1):
        broken.write_bytes(content[:length])
        with pytest.raises(ArtifactError, match=r"damaged|empty|not a tilewright artifact"):
            tw.load(broken)
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 0x10
        broken.write_bytes(bytes(changed))
        try:
            loaded = tw.load(broken)
        except ArtifactError:
            continue
        x, y = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
        np.testing.assert_array_equal(loaded(x, y), tw.load(whole)(x, y))  # a byte between sections


@pytest.mark.parametrize("number", [99, -1])
def test_an_artifact_with_an_operand_that_is_not_there(number: int) -> None:
    made = tiny_models.model(
        [helper.make_node("Unique", ["x"], ["y"], sorted=1)],
        [("x", tiny_models.FLOAT, ["n"])],
        [("y", tiny_models.FLOAT, ["u"])],
    )
    contents = compile_stages(made, levels=["x86-64"]).contents
    program = contents.programs["x86-64"]
    steps = [
        replace(step, inputs=(number,)) if isinstance(step, OpaqueStep) else step
        for step in program.steps
    ]
    broken = replace(contents, programs={"x86-64": replace(program, steps=tuple(steps))})
    with pytest.raises(ArtifactError, match=f"there is no buffer {number}"):
        CompiledModel.from_contents(broken, evaluate=evaluate_payload)
