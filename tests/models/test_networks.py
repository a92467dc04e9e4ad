"""Whole networks, compiled once for a range of shapes, beside ONNX Runtime.

A handful of shapes of each; `scripts/check_models.py` goes through all edges and many more. The
models are files that `scripts/export_models.py` writes. Networks that have a narrow or a short form
are tested in that form.
"""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
import pytest
from check_models import FOLDER, RANGES, Checked, prepare

import tilewright
from tilewright.bench.shapes import Budget
from tilewright.bench.tolerance import tolerances
from tilewright.support.errors import ExecutionError

pytestmark = [pytest.mark.slow, pytest.mark.peers]

TEXT_EDGES = ((0, 0), (0, 5), (3, 0), (1, 1), (1, 17), (2, 33), (5, 7))
BATCH_EDGES = ((0,), (1,), (2,), (3,))
IMAGE_EDGES = ((0, 32, 32), (1, 32, 32), (1, 33, 47), (2, 97, 64))
RANDOM = int(os.environ.get("TILEWRIGHT_RANDOM_SHAPES", "3"))
BUDGET = Budget(seconds=0.15)
LARGE = ("alexnet", "vgg-16", "segformer-b0")
SAMPLE = ("albert-base", "segformer-short", "vgg-16-narrow")
# It has more kernels that differ than the others together. For the oldest processors there is half
# as much code of each; for this machine's level it is compiled where all cases are asked for.
MANY_KERNELS = "segformer-short"
TESTED = [
    pytest.param(name, marks=() if name in SAMPLE else pytest.mark.combination)
    for name in RANGES
    if name not in LARGE
]


@pytest.fixture(scope="module")
def checked(request: pytest.FixtureRequest) -> Checked:
    name = request.param
    if not (FOLDER / f"{name}.onnx").exists():
        pytest.skip(f"needs models/{name}.onnx: python scripts/export_models.py {name}")
    oldest = name == MANY_KERNELS and not request.config.getoption("--all-cases")
    return prepare(name, level="x86-64" if oldest else None)


def edges(checked: Checked) -> str:
    """The shapes as text: all of the same names, in order."""
    names = [dimension.name for dimension in checked.model.dimensions]
    rows = {1: BATCH_EDGES, 2: TEXT_EDGES, 3: IMAGE_EDGES}[len(names)]
    pieces = [",".join(f"{n}={s}" for n, s in zip(names, row, strict=True)) for row in rows]
    return ";".join([*pieces, f"random:{RANDOM}"])


@pytest.mark.parametrize("checked", TESTED, indirect=True, scope="module")
def test_a_network_equals_its_reference(checked: Checked) -> None:
    assert checked.compilation.report.opaque == {}
    found = checked.compare(edges(checked), budget=BUDGET)
    wrong = [check for check in found.checks if check.verdict in ("differs", "refused")]
    assert not wrong
    # Where no reference takes the shape, there is nothing in the output to compare.
    for check in found.checks:
        assert check.verdict == "agrees" or 0 in check.sizes.values(), check
    assert found.is_right


def test_a_network_of_undeclared_ranges_without_avx512() -> None:
    """Other kernel variants stay for other ranges and levels, and share memory otherwise, too."""
    path = FOLDER / "albert-base.onnx"
    if not path.exists():
        pytest.skip("needs models/albert-base.onnx: python scripts/export_models.py albert-base")
    model = tilewright.compile(path, levels=["avx2"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokens = np.random.default_rng(0).integers(0, 1000, (2, 33))
    inputs = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "token_type_ids": np.zeros_like(tokens),
    }
    inputs = {given.name: inputs[given.name] for given in session.get_inputs()}
    (want,) = session.run(None, inputs)
    (got,) = model.run(inputs).values()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("checked", ["bert-2l"], indirect=True, scope="module")
def test_masked_tokens(checked: Checked) -> None:
    """Rows of different lengths in one batch."""
    generator = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(checked.path, providers=["CPUExecutionProvider"])
    for batch, sequence in ((1, 9), (4, 33), (3, 16)):
        lengths = generator.integers(1, sequence + 1, batch)
        inputs = {
            "input_ids": generator.integers(0, 1000, (batch, sequence)),
            "attention_mask": (np.arange(sequence) < lengths[:, None]).astype(np.int64),
            "token_type_ids": generator.integers(0, 2, (batch, sequence)),
        }
        (want,) = session.run(None, inputs)
        (got,) = checked.model.run(inputs).values()
        sizes = {"batch": batch, "sequence": sequence}
        (allowed,) = tolerances(checked.compilation.graph, sizes).values()
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed * float(np.abs(want).max()))


@pytest.mark.parametrize("checked", ["bert-2l"], indirect=True, scope="module")
def test_an_index_beyond_the_vocabulary_is_refused(checked: Checked) -> None:
    ids = np.full((2, 5), 10**6)
    with pytest.raises(ExecutionError, match="1000000 is out of bounds for an axis of size"):
        checked.model(ids, np.ones_like(ids), np.zeros_like(ids))
