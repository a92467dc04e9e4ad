"""Models exported from transformers: nothing falls back, and results agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.onnx_models import run
from tilewright.frontend.onnx import Dim, import_model
from tilewright.ir.verify import problems

FOLDER = Path(__file__).parents[2] / "models"
TEXT = ("bert-2l", "albert-base", "gpt2-2l", "gpt2")
IMAGE = ("mobilenet-v2", "resnet-18", "resnet-50", "vit-2l", "vit-b16", "segformer-short")
MORE_LAYERS = ("gpt2", "resnet-50", "vit-b16")  # than others of them, which are imported alike
NAMES = [
    pytest.param(name, marks=pytest.mark.combination if name in MORE_LAYERS else ())
    for name in TEXT + IMAGE
]
TEXT_SHAPES = ((2, 7), (1, 1), (0, 3), (1, 0))
IMAGE_SHAPES = ((1, 64, 48), (2, 33, 65), (0, 64, 64))

pytestmark = [pytest.mark.peers, pytest.mark.slow]


def feeds(graph, shape):
    generator = np.random.default_rng(0)
    out = {}
    for value in graph.inputs:
        name = value.primitive.name
        if value.dtype.is_integer:
            fill = {"attention_mask": 1, "token_type_ids": 0}.get(name)
            ids = generator.integers(0, 1000, shape)
            out[name] = ids if fill is None else np.full(shape, fill, np.int64)
        else:
            batch, height, width = shape
            sizes = (batch, value.shape[1].value, height, width)
            out[name] = generator.standard_normal(sizes).astype(np.float32)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_real_model(name):
    runtime = pytest.importorskip("onnxruntime")
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip("run scripts/export_models.py first")
    image = name in IMAGE
    dims = {"height": Dim(32, 512), "width": Dim(32, 512)} if image else {}
    graph, report = import_model(path, dims=dims, fallback="error")
    assert report.fallbacks == () and report.baked == () and graph.bindings == ()
    assert problems(graph) == []
    assert graph.guards == ()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shape in IMAGE_SHAPES if image else TEXT_SHAPES:
        given = feeds(graph, shape)
        actual = run(graph, **given)
        if 0 in shape:  # peers fail there; the sizes must still follow from the inputs
            assert all(a.shape[0] == shape[0] for a in actual.values())
            continue
        expected = session.run(None, given)
        for one, (output, _) in zip(expected, graph.outputs, strict=True):
            scale = float(np.abs(one).max())
            assert actual[output].shape == one.shape
            # Sums of a few thousand products in float32, in another order.
            assert np.abs(actual[output] - one).max() <= 4096 * np.finfo(np.float32).eps * scale
