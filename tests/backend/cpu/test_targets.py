"""By which machine a compilation chooses: what is described decides alone, and is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import compile_machines
from tilewright.backend.cpu.machine import LEVELS
from tilewright.compile import compile_stages
from tilewright.compile_machines import host_machine
from tilewright.cost import Machine
from tilewright.runtime.artifact import read_info
from tilewright.runtime.artifact_writer import save_artifact
from tilewright.runtime.info import ArtifactInfo
from tilewright.support.errors import UnsupportedError
from tilewright.target import CoreModel, TileTime, preset

TILES = tuple(TileTime(h, c, 1.0 + h * c / 64) for c in (16, 32, 48, 64) for h in range(1, 7))
MEASURED = CoreModel("measured", TILES, measured=("tiles",))


def product() -> onnx.ModelProto:
    """A product by constant weights of a width that several variants compete for."""
    generator = np.random.default_rng(4)
    weights = generator.standard_normal((96, 80)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 80])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(weights[0], "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def host_is(monkeypatch: pytest.MonkeyPatch, name: str, levels: int, measured: bool) -> None:
    """This machine becomes another one, with the first ``levels`` levels."""
    present = list(LEVELS.values())[:levels]
    core = MEASURED if measured else None
    monkeypatch.setattr(compile_machines, "host_levels", lambda: present)
    monkeypatch.setattr(
        compile_machines,
        "host_level",
        lambda narrow=None: [level for level in present if level.serves(narrow)][-1],
    )
    monkeypatch.setattr(compile_machines, "host_machine", lambda: Machine(preset(name), core))


def saved(path: Path, **options: object) -> tuple[bytes, ArtifactInfo]:
    save_artifact(path, compile_stages(product(), **options).contents)  # type: ignore[arg-type]
    return path.read_bytes(), read_info(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "precision"), [("x86-64", "float32"), ("zen3", "int8"), ("zen4", "bfloat16")]
)
def test_a_given_target_gives_the_same_bytes_on_any_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, precision: str
) -> None:
    made: list[bytes] = []
    for host, levels, measured in [("haswell", 2, False), ("zen5", 5, True)]:
        host_is(monkeypatch, host, levels, measured)
        made.append(saved(tmp_path / "a.tw", target=target, precision=precision)[0])
    assert made[0] == made[1]


@pytest.mark.slow
def test_every_level_chooses_by_the_target_on_any_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[bytes] = []
    for host, levels, measured in [("haswell", 2, False), ("zen5", 5, True)]:
        host_is(monkeypatch, host, levels, measured)
        made.append(saved(tmp_path / "a.tw", target="zen4", levels=list(LEVELS))[0])
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx512", "avx512-vnni", "avx512-bf16"])
def test_narrow_levels_choose_by_this_machine_and_its_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: str
) -> None:
    host_is(monkeypatch, "zen5", 5, True)
    (found,) = saved(tmp_path / "a.tw", levels=[level])[1].levels
    assert found.machine.name == "zen5" and found.machine.profile
    host_is(monkeypatch, "zen5", 5, False)
    (plain,) = saved(tmp_path / "a.tw", levels=[level])[1].levels
    assert plain.machine.digest == found.machine.digest and not plain.machine.profile


@pytest.mark.slow
def test_levels_that_this_machine_lacks_choose_by_a_usual_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host_is(monkeypatch, "haswell", 2, True)
    _, info = saved(tmp_path / "a.tw", levels=list(LEVELS))
    names = {level.name: level.machine.name for level in info.levels}
    assert names["avx2"] == "haswell" and names["avx512"] == "icelake-server"
    assert names["x86-64"] == "x86-64" and names["avx512-bf16"] == "zen4"


@pytest.mark.slow
def test_the_level_of_a_target_is_its_own() -> None:
    def levels(target: str, precision: str) -> list[str]:
        return list(compile_stages(product(), target=target, precision=precision).levels)

    assert levels("zen3", "float32") == ["avx2"]
    assert levels("icelake-server", "bfloat16") == ["avx512"]  # it has no such products
    assert levels("zen4", "bfloat16") == ["avx512-bf16"]
    assert levels("icelake-server", "int8") == ["avx512-vnni"]


@pytest.mark.parametrize("target", ["a100", "neoverse-n1"])
def test_a_target_without_a_code_generator_is_refused(target: str) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot be generated for {target}") as caught:
        compile_stages(product(), target=target, levels=["avx512"])
    assert "zen4" in str(caught.value.hint) and "a100" not in str(caught.value.hint)


def test_the_digest_of_a_machine_is_that_of_all_it_says(tmp_path: Path) -> None:
    machine = host_machine().target
    described = replace(preset("zen4"), clock_ghz=machine.clock_ghz + 1.0)
    digests = {
        saved(tmp_path / "a.tw", target=target)[1].levels[0].machine.digest
        for target in (preset("zen4"), described)
    }
    assert len(digests) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "levels"),
    [
        ("float32", ["x86-64", "avx2", "avx512"]),
        ("int8", ["x86-64", "avx2", "avx512", "avx512-vnni"]),
    ],
)
def test_portable_stands_for_every_level_that_serves(
    tmp_path: Path, precision: str, levels: list[str]
) -> None:
    _, info = saved(tmp_path / "a.tw", levels="portable", precision=precision, target="zen4")
    assert [level.name for level in info.levels] == levels
    assert info.weight_bytes < sum(level.weight_bytes for level in info.levels)
