"""A few changed models and artifacts: see `scripts/fuzz.py`, which goes on as long as one likes."""

from __future__ import annotations

import os

import fuzz
import pytest

import tilewright as tw
from tilewright.support.errors import TilewrightError


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    path = tmp_path_factory.mktemp("fuzz") / "model.tw"
    models = fuzz.seeds()
    tw.compile(models[2], levels=["x86-64"]).save(path)
    return {"model": models, "artifact": [path.read_bytes()]}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["model", "artifact"])
def test_only_our_own_errors_come_out(target: str, originals: dict[str, list[bytes]]) -> None:
    attempt = fuzz.try_model if target == "model" else fuzz.try_artifact
    outcomes = {True: 0, False: 0}
    for seed in range(60):
        try:
            attempt(fuzz.case(target, originals[target], seed))
            outcomes[True] += 1
        except TilewrightError as error:
            assert str(error)
            outcomes[False] += 1
    assert all(outcomes.values()), outcomes  # both kinds, or the changes are too weak or too strong


def test_errors_of_other_kinds_and_crashes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(data: bytes) -> None:
        match int(data):
            case 3:
                raise ValueError("not ours")
            case 5:
                os.abort()
            case _:
                raise TilewrightError("refused")

    monkeypatch.setattr(fuzz, "try_model", attempt)
    monkeypatch.setattr(fuzz, "case", number_of_case)
    found = fuzz.fuzz("model", [], 0, 0.001)
    assert sorted(found) == [3, 5]
    assert "not ours" in found[3] and "exit code -6" in found[5]


def number_of_case(target: str, originals: list[bytes], seed: int) -> bytes:
    return str(seed).encode()
