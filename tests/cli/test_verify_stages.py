"""``--check`` and ``--dump``: what users see of the checks of the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.stages import Stages


def test_check_says_what_was_proved(command: Any, folder: Path, tmp_path: Path) -> None:
    arguments = ["compile", folder / "model.onnx", "-o", tmp_path / "m.tw", "--check"]
    shown = command(*arguments, "--level", "avx2")
    assert shown.code == 0
    assert "Verified every stage: bounds " in shown.out
    found = command(*arguments, "--level", "avx2", "--json").json["verified"]
    assert found["bounds"]["proved"] > found["bounds"]["unknown"]
    assert set(found) == {"bounds", "readers", "scratch", "writers"}


def test_dump_writes_the_stages(command: Any, folder: Path, tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    made = command(
        "compile", folder / "model.onnx", "-o", tmp_path / "m.tw", "--dump", stages,
        "--level", "avx2",
    )  # fmt: skip
    assert made.code == 0
    names = sorted(path.name for path in stages.iterdir())
    assert names[0] == "00-import.txt"
    assert names[-1].endswith("-tile-avx2.txt")


@pytest.mark.parametrize("verb", ["run", "verify", "bench"])
def test_check_where_a_model_is_compiled_on_the_way(
    verb: str, command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def look(self: Stages, stage: str, graph: object) -> None:
        raise Seen(self.check)

    monkeypatch.setattr(Stages, "graph", look)
    monkeypatch.setenv("TILEWRIGHT_CHECK", "0")
    extra = {"run": ["--random", "batch=1,seq=2"], "verify": [], "bench": ["--shapes", "batch=1"]}
    for flags, expected in ((["--check"], True), ([], False)):
        with pytest.raises(Seen) as caught:
            command(verb, folder / "model.onnx", *extra[verb], *flags)
        assert caught.value.args == (expected,)
