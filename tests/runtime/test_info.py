"""What an artifact says about itself, and which of its levels a processor takes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from support.runtime_kit import LEVEL, chain_program, contents, image
from tilewright.runtime.artifact import ArtifactContents, read_info
from tilewright.runtime.artifact_writer import save_artifact
from tilewright.runtime.info import ArtifactInfo, MachineInfo, Origin
from tilewright.runtime.levels import choose_level, runs_on
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import LEVELS, CodeImage
from tilewright.support.errors import ArtifactError

ORIGIN = Origin(
    "model.onnx", hashlib.sha256(b"").hexdigest(), "int8", "strict", {LEVEL: MachineInfo("m", "d")}
)
FEATURES = {"x86-64": (), "avx2": ("avx", "avx2"), "avx512": ("avx", "avx2", "avx512f")}


def made() -> ArtifactContents:
    base = contents(chain_program(2, 0), [])
    other = CodeImage("avx512", ("no-such-feature",), b"\xc3", {"add": 0}, (), 1)
    return ArtifactContents(
        {LEVEL: base.programs[LEVEL], "avx512": base.programs[LEVEL]},
        {LEVEL: image(), "avx512": other},
        {LEVEL: [], "avx512": []},
        ORIGIN,
    )


def test_a_model_tells_the_same_before_and_after_it_was_saved(tmp_path: Path) -> None:
    fresh = CompiledModel.from_contents(made())
    fresh.save(tmp_path / "m.tw")
    info = read_info(tmp_path / "m.tw")
    assert fresh.info == info == CompiledModel.load(tmp_path / "m.tw").info
    assert (info.source, info.precision, info.accuracy) == ("model.onnx", "int8", "strict")
    assert [level.name for level in info.levels] == [LEVEL, "avx512"]
    assert info.levels[0].machine == MachineInfo("m", "d")
    assert info.levels[0].kernels == 4 and info.code_bytes == len(image().data) + 1
    assert [str(spec) for spec in info.inputs] == ["x: float32[b, n]"]


def test_the_record_survives_json() -> None:
    info = CompiledModel.from_contents(made()).info
    assert ArtifactInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_reading_the_record_reads_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    save_artifact(path, made())
    data = path.read_bytes()
    code = data.index(image().data)
    path.write_bytes(data[:code] + b"\xff" * 16 + data[code + 16 :])
    assert read_info(path).levels[0].name == LEVEL
    with pytest.raises(ArtifactError, match="damaged"):
        CompiledModel.load(path)


def test_a_level_that_the_artifact_lacks_is_named_with_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    save_artifact(path, made())
    with pytest.raises(ArtifactError, match="no level 'avx2'; it was compiled for x86-64 and av"):
        CompiledModel.load(path, level="avx2")
    with pytest.raises(ArtifactError, match="no level 'sse9', nor has tilewright"):
        CompiledModel.load(path, level="sse9")
    with pytest.raises(ArtifactError, match="lacks no-such-feature"):
        CompiledModel.load(path, level="avx512")
    with pytest.raises(ArtifactError, match="no level 'avx2'"):
        CompiledModel.from_contents(made(), level="avx2")


def test_the_best_level_that_a_processor_runs() -> None:
    assert choose_level(FEATURES, ["avx", "avx2", "sse"]) == "avx2"
    assert choose_level(FEATURES, []) == "x86-64"
    assert choose_level(FEATURES, ["avx", "avx2", "avx512f"], "avx2") == "avx2"
    narrow = {name: FEATURES[name] for name in ("avx2", "avx512")}
    with pytest.raises(ArtifactError, match="cannot run the level avx2: it lacks avx2") as caught:
        choose_level(narrow, ["avx"], where="m.tw")
    assert "portable" in str(caught.value.hint)
    with pytest.raises(ArtifactError) as caught:
        choose_level(FEATURES, [], "avx512")
    assert caught.value.hint == "Choose the level x86-64, or leave it out"


def test_where_an_artifact_runs_is_a_sentence() -> None:
    assert "any x86-64 processor" in runs_on(LEVELS[:3])
    assert "x86-64, avx2 and avx512" in runs_on(LEVELS[:3])
    assert "AVX-512" in runs_on(["avx512"]) and "alone" in runs_on(["avx512"])
    for level in LEVELS:
        assert runs_on([level]).startswith("Runs under Linux on")


def test_weights_that_levels_share_count_once(tmp_path: Path) -> None:
    base = made()
    weights = np.arange(100, dtype=np.float32)
    shared = ArtifactContents(
        base.programs, base.images, {LEVEL: [weights], "avx512": [weights.copy()]}
    )
    save_artifact(tmp_path / "m.tw", shared)
    info = read_info(tmp_path / "m.tw")
    assert info.weight_bytes == 400 and [level.weight_bytes for level in info.levels] == [400, 400]
