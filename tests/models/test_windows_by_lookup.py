"""Windows that a model looks up at sums of positions, as PyTorch writes ``unfold``.

Needs: a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from support.graph_kit import BOTH_LEVELS

Array = np.ndarray[Any, Any]

# Attention of every pixel to its 3 x 3 neighbours with the channels in the middle.
LOCAL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[b, 4, h, w] q, float[b, 4, h, w] k) => (float[b, 4, h, w] y) {
  zero = Constant<value: tensor = int64 {0}>()
  one = Constant<value: tensor = int64 {1}>()
  taps = Constant<value: tensor = int64[3, 1] {0, 1, 2}>()
  first = Constant<value: tensor = int64[1] {1}>()
  second = Constant<value: tensor = int64[1] {2}>()
  pads = Constant<value: tensor = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>()
  flat = Constant<value: tensor = int64[4] {0, 4, 9, -1}>()
  single = Constant<value: tensor = int64[4] {0, 4, 1, -1}>()
  high = Shape<start = 2, end = 3>(q)
  wide = Shape<start = 3, end = 4>(q)
  height = Squeeze(high)
  width = Squeeze(wide)
  lines = Range(zero, height, one)
  pixels = Range(zero, width, one)
  rows = Add(taps, lines)
  columns = Add(taps, pixels)
  padded = Pad(k, pads)
  some = Gather<axis = 2>(padded, rows)
  all = Gather<axis = 4>(some, columns)
  turned = Transpose<perm = [0, 1, 2, 4, 3, 5]>(all)
  unfolded = Reshape(turned, flat)
  queries = Reshape(q, single)
  products = Mul(queries, unfolded)
  scores = ReduceSum<keepdims = 0>(products, first)
  shares = Softmax<axis = 1>(scores)
  given = Unsqueeze(shares, first)
  weighted = Mul(given, unfolded)
  sums = ReduceSum<keepdims = 0>(weighted, second)
  shape = Shape(q)
  y = Reshape(sums, shape)
}"""


def wanted(q: Array, k: Array) -> Array:
    """The same in float64."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    b, c, h, w = q.shape
    padded = np.pad(k, ((0, 0), (0, 0), (1, 1), (1, 1)))
    taps = [padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    unfolded = np.stack(taps, 2).reshape(b, c, 9, h, w)
    scores = (q[:, :, None] * unfolded).sum(1)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    return (shares[:, None] * unfolded).sum(2)


@pytest.mark.parametrize("level", BOTH_LEVELS)
def test_attention_to_neighbours(level: str) -> None:
    compiled = tw.compile(onnx.parser.parse_model(LOCAL), levels=[level])
    random = np.random.default_rng(0)
    for shape in ((1, 4, 1, 1), (2, 4, 3, 5), (1, 4, 17, 31), (1, 4, 2, 130), (0, 4, 3, 3)):
        q, k = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
        np.testing.assert_allclose(compiled(q, k), wanted(q, k), rtol=1e-4, atol=1e-5)


def test_known_positions_are_not_looked_up() -> None:
    """No kernel reads a table of positions, nor checks any."""
    compiled = tw.compile(onnx.parser.parse_model(LOCAL))
    program = compiled.program
    assert not any(b.kind == "constant" and b.dtype == "int64" for b in program.buffers)
    assert not any(getattr(step, "checks", ()) for step in program.steps)


def test_a_position_beyond_the_end_is_still_refused() -> None:
    text = LOCAL.replace("{0, 1, 2}", "{0, 1, 3}")
    compiled = tw.compile(onnx.parser.parse_model(text))
    q = np.zeros((1, 4, 3, 3), np.float32)
    with pytest.raises(tw.errors.ExecutionError, match="out of bounds"):
        compiled(q, q)
