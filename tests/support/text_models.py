"""Models in ONNX's text format, and their results compared with ONNX's reference."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator

import tilewright as tw


def model(text: str) -> onnx.ModelProto:
    """A model of one graph from ONNX's text format."""
    header = '<ir_version: 9, opset_import: ["" : 18]>\n'
    return onnx.parser.parse_model(header + text)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape)


def assert_as_reference(
    source: str | onnx.ModelProto, *feeds: dict[str, np.ndarray], dims: dict | None = None
) -> None:
    """Compiled once, a graph gives what ONNX's reference gives for each of the feeds."""
    proto = model(source) if isinstance(source, str) else source
    compiled = tw.compile(proto, dims=dims)
    for feed in feeds:
        with np.errstate(all="ignore"):
            want = ReferenceEvaluator(proto).run(None, feed)
        got = compiled.run(feed)
        names = [value.name for value in proto.graph.output]
        for name, expected in zip(names, want, strict=True):
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(got[name], expected)
