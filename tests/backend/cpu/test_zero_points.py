"""Floats that are quantised with a zero point that is known: ties, ends, what is no number."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tilewright
from support.graph_kit import VECTOR_LEVELS

HEAD = '<ir_version: 10, opset_import: ["": 18]>'
SPECIAL = (0.5, 1.5, -0.5, -1.5, -0.0, 1e9, -1e9, 2.0**31, -(2.0**31), 3e38, np.inf, -np.inf)


@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize(("element", "zero"), [("uint8", z) for z in (0, 1, 110, 128, 255)]
                         + [("int8", z) for z in (-128, 0, 5)])  # fmt: skip
def test_any_number_becomes_the_nearest_byte(level: str, element: str, zero: int) -> None:
    text = f"""g (float[n] x) => ({element}[n] y)
        <float scale = {{0.5}}, {element} zero = {{{zero}}}> {{
        y = QuantizeLinear(x, scale, zero)
    }}"""
    model = tilewright.compile(parser.parse_model(f"{HEAD}\n{text}"), levels=[level])  # type: ignore[list-item]
    ends = np.iinfo(element)
    random = np.random.default_rng(zero + 128)
    for length in (0, 1, 7, 8, 9, 12, 15, 16, 17, 31, 33, 63, 64, 65, 257):
        x = random.normal(0.0, 80.0, length).astype(np.float32)
        x[: len(SPECIAL)] = np.array(SPECIAL, np.float32)[:length] / 2
        whole = np.rint(x.astype(np.float64) * 2) + zero
        expected = np.clip(whole, ends.min, ends.max).astype(element)
        np.testing.assert_array_equal(model(x=x), expected)
    nothing = np.full(37, np.nan, np.float32)
    np.testing.assert_array_equal(model(x=nothing), np.zeros(37, element))
