"""Operators of opsets for which onnx has no inference, or which onnx has given up since."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from support.text_models import assert_as_reference, floats
from tilewright.compile import compile_model


def _model(opset: int, text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


@pytest.mark.parametrize("opset", [18, 20])
def test_a_normalisation_of_groups_before_opset_21(opset: int):
    text = """g (float[n, 6, m] x, float[3] scale, float[3] shift) => (y)
        { y = GroupNormalization<num_groups = 3>(x, scale, shift) }"""
    feeds = [
        {"x": floats(*s), "scale": floats(3), "shift": floats(3)} for s in ((2, 6, 5), (1, 6, 1))
    ]
    assert_as_reference(_model(opset, text), *feeds)


def test_elements_are_selected_before_opset_11():
    text = """g (float[n, m] x, bool[k] c) => (y, z)
        { y = Compress<axis = 1>(x, c)  z = Compress(x, c) }"""
    chosen = np.array([True, False, True])
    assert_as_reference(
        _model(9, text), {"x": floats(2, 3), "c": chosen}, {"x": floats(0, 3), "c": chosen[:0]}
    )


def test_boxes_are_selected_before_opset_11():
    text = """g (float[n, b, 4] x, float[n, c, b] s, int64[1] k) => (y)
        <float[1] most = {0.5}, float[1] least = {1.0}>
        { y = NonMaxSuppression(x, s, k, most, least) }"""
    score = np.random.default_rng(1).permutation(12).reshape(1, 2, 6).astype(np.float32)
    feed = {"x": np.abs(floats(1, 6, 4)), "s": score, "k": np.array([2])}
    got = compile_model(_model(10, text)).run(feed)["y"]
    (want,) = ReferenceEvaluator(_model(11, text)).run(None, feed)
    np.testing.assert_array_equal(got, want)
