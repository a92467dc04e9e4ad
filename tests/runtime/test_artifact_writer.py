"""An artifact that is written while its constants are made is the one that is written at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.runtime_kit import LEVEL, buffers, contents, kernel, program
from tilewright.runtime.artifact import ArtifactContents, open_artifact
from tilewright.runtime.artifact_writer import LARGE, ArtifactDraft, save_artifact
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.sections import PART
from tilewright.shape import symbol
from tilewright.support.errors import ArtifactError

SMALL = np.arange(1000, dtype=np.float32)
FIRST = np.random.default_rng(1).integers(0, 255, 3 * PART + 17, np.uint8)
SECOND = np.random.default_rng(2).standard_normal((3, LARGE // 4)).astype(np.float32)


def model(constants: list[np.ndarray]) -> ArtifactContents:
    """y[n] = the first n elements of SMALL + 1, with constants that nobody reads."""
    n = symbol("n")
    rows = buffers(
        ("x", "float32", [n], "input"),
        *((f"c{i}", str(c.dtype), list(c.shape), "constant") for i, c in enumerate(constants)),
        ("y", "float32", [n], "output"),
    )
    return contents(program(rows, [kernel("add", [1], [len(rows) - 1], n, [1])]), constants)


def test_parts_in_any_order_make_the_same_file(tmp_path: Path) -> None:
    save_artifact(tmp_path / "whole.tw", model([SMALL, FIRST, SMALL + 0, SECOND]))
    with ArtifactDraft(tmp_path / "parts.tw") as draft:
        first, second = draft.reserve(FIRST.nbytes), draft.reserve(SECOND.nbytes)
        second.write(PART, SECOND.reshape(-1).view(np.uint8)[PART:])
        first.write(3 * PART, FIRST[3 * PART :])
        second.write(0, SECOND.reshape(-1).view(np.uint8)[:PART])
        first.write(0, FIRST[: 3 * PART])
        placed = [
            first.finished(FIRST.dtype, FIRST.shape),
            second.finished(SECOND.dtype, SECOND.shape),
        ]
        np.testing.assert_array_equal(placed[1], SECOND)
        draft.finish(model([SMALL, placed[0], SMALL + 0, placed[1]]))
    assert (tmp_path / "parts.tw").read_bytes() == (tmp_path / "whole.tw").read_bytes()
    loaded = CompiledModel.load(tmp_path / "parts.tw")
    np.testing.assert_array_equal(loaded(np.zeros(5, np.float32)), SMALL[:5] + 1)
    found = open_artifact(tmp_path / "parts.tw").contents([LEVEL]).constants[LEVEL]
    np.testing.assert_array_equal(found[1], FIRST)


def test_large_constants_are_the_first_sections(tmp_path: Path) -> None:
    save_artifact(tmp_path / "model.tw", model([SMALL, FIRST, SECOND, FIRST + 0]))
    sections = open_artifact(tmp_path / "model.tw").sections
    sizes = [s.size for s in sections if s.kind == "constant"]
    assert sizes == [FIRST.nbytes, SECOND.nbytes, SMALL.nbytes]
    assert [s.kind for s in sections[:2]] == ["constant"] * 2


def test_a_draft_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    save_artifact(path, model([SMALL]))
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), ArtifactDraft(path) as draft:
        draft.reserve(FIRST.nbytes).write(0, FIRST)
        raise KeyboardInterrupt
    with pytest.raises(ArtifactError, match="no level"), ArtifactDraft(path) as draft:
        draft.finish(ArtifactContents({}, {}, {}))
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
