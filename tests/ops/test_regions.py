"""Deformable convolutions and aligned regions against loops, one graph for many sizes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, compare, fission, run
from tilewright.support.errors import DimensionError

Attributes = dict[str, Any]


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _sample(picture: Array, y: float, x: float) -> float:
    """Bilinear interpolation of [H, W] with zeros outside."""
    height, width = picture.shape
    top, left = int(np.floor(y)), int(np.floor(x))
    total = 0.0
    for i, j in product((0, 1), (0, 1)):
        row, column = top + i, left + j
        if 0 <= row < height and 0 <= column < width:
            weight = (1 - abs(y - row)) * (1 - abs(x - column))
            total += weight * float(picture[row, column])
    return total


def naive_deformable(operands: list[Array | None], attributes: Attributes) -> Array:
    data, weights, offset, bias, mask = operands
    assert data is not None and weights is not None and offset is not None
    groups, shifts = attributes.get("group", 1), attributes.get("offset_group", 1)
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0, 0, 0, 0])
    (batch, channels), (outputs, share, kh, kw) = data.shape[:2], weights.shape
    oh, ow = offset.shape[2:]
    moved = offset.reshape(batch, shifts, kh, kw, 2, oh, ow)
    factor = np.ones((batch, shifts, kh, kw, oh, ow)) if mask is None else mask.reshape(
        batch, shifts, kh, kw, oh, ow)  # fmt: skip
    out = np.zeros((batch, outputs, oh, ow))
    for n, o, c in product(range(batch), range(outputs), range(share)):
        channel = (o // (outputs // groups)) * share + c
        g = channel // (channels // shifts)
        for a, b, i, j in product(range(kh), range(kw), range(oh), range(ow)):
            y = i * strides[0] - pads[0] + a * dilations[0] + moved[n, g, a, b, 0, i, j]
            x = j * strides[1] - pads[1] + b * dilations[1] + moved[n, g, a, b, 1, i, j]
            value = _sample(data[n, channel], float(y), float(x)) * factor[n, g, a, b, i, j]
            out[n, o, i, j] += value * weights[o, c, a, b]
    out += 0 if bias is None else bias.reshape(-1, 1, 1)
    return out.astype(np.float32)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1], "group": 2},
        {"strides": [2, 1], "dilations": [1, 2], "offset_group": 2, "pads": [0, 1, 0, 1]},
    ],
)
def test_deformable_convolution(attributes: Attributes, complete: bool) -> None:
    groups, shifts = attributes.get("group", 1), attributes.get("offset_group", 1)
    weights, bias = _random(4, 4 // groups, 2, 2, seed=1), _random(4, seed=2)

    def operands(batch: int, height: int, width: int) -> list[Array | None]:
        pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
        spread = attributes.get("dilations", [1, 1])
        oh = (height + pads[0] + pads[2] - spread[0] - 1) // strides[0] + 1
        ow = (width + pads[1] + pads[3] - spread[1] - 1) // strides[1] + 1
        offset = _random(batch, shifts * 8, oh, ow, seed=3)
        mask = _random(batch, shifts * 4, oh, ow, seed=4)
        extras: list[Array | None] = [bias, mask] if complete else [None, None]
        return [_random(batch, 4, height, width), weights, offset, *extras]

    graph = fission("DeformConv", operands(1, 4, 5), attributes, opset=19)
    for batch, height, width in [(1, 4, 5), (2, 5, 3)]:
        values = operands(batch, height, width)
        compare(run(graph, values)[0], naive_deformable(values, attributes), length=64)


def naive_regions(operands: list[Array], attributes: Attributes, half: bool) -> Array:
    data, regions, batches = operands
    rows, columns = attributes["output_height"], attributes["output_width"]
    ratio, scale = attributes.get("sampling_ratio", 0), attributes["spatial_scale"]
    height, width = data.shape[2:]
    out = np.zeros((len(regions), data.shape[1], rows, columns))
    for r, c in product(range(len(regions)), range(data.shape[1])):
        x1, y1, x2, y2 = regions[r].astype(np.float64) * scale - (0.5 if half else 0.0)
        tall, wide = y2 - y1, x2 - x1
        if not half:
            tall, wide = max(tall, 1.0), max(wide, 1.0)
        for i, j in product(range(rows), range(columns)):
            values: list[list[float]] = []
            high, broad = (ratio or max(int(np.ceil(s)), 0) for s in (tall / rows, wide / columns))
            for a, b in product(range(high), range(broad)):
                y = y1 + (i + (a + 0.5) / high) * tall / rows
                x = x1 + (j + (b + 0.5) / broad) * wide / columns
                values.append(_parts(data[batches[r], c], y, x, height, width))
            best = max((max(v) for v in values), default=0.0)
            mean = sum(sum(v) for v in values) / max(len(values), 1)
            out[r, c, i, j] = best if attributes.get("mode") == "max" else mean
    return out.astype(np.float32)


def _parts(picture: Array, y: float, x: float, height: int, width: int) -> list[float]:
    """The four weighted neighbours of a sample, moved to the edge if it is near."""
    if y < -1 or y > height or x < -1 or x > width:
        return [0.0] * 4
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = int(y), int(x)
    parts: list[float] = []
    for i, j in product((0, 1), (0, 1)):
        row, column = min(top + i, height - 1), min(left + j, width - 1)
        weight = (1 - abs(y - top - i)) * (1 - abs(x - left - j))
        parts.append(weight * float(picture[row, column]))
    return parts


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("opset", "half"), [(10, False), (16, True), (16, False), (22, True)])
def test_regions(opset: int, half: bool, mode: str) -> None:
    attributes: Attributes = {
        "output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5,
        "mode": mode,
    }  # fmt: skip
    if opset > 10 and not half:
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
    corners = np.array(
        [[0, 0, 9, 9], [3, 2, 12, 20], [5, 5, 5.5, 5.5], [-4, -6, 3, 1], [14, 14, 30, 30]],
        np.float32,
    )
    first: list[Array] = [_random(2, 3, 6, 7), corners[:2], np.array([0, 1])]
    graph = fission("RoiAlign", first, attributes, opset=opset)
    for values in (first, [_random(3, 1, 9, 8, seed=1), corners, np.array([2, 0, 1, 1, 0])]):
        compare(run(graph, values)[0], naive_regions(values, attributes, half), relative=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("half", [True, False])
def test_regions_with_as_many_samples_as_they_are_large(half: bool, mode: str) -> None:
    attributes: Attributes = {
        "output_height": 3, "output_width": 7, "spatial_scale": 0.5, "mode": mode,
        "coordinate_transformation_mode": "half_pixel" if half else "output_half_pixel",
    }  # fmt: skip
    # Whole numbers of samples, no samples of an empty or a turned region, and none at all.
    some = [[0, 0, 14 * i, 6 * j] for i, j in product(range(4), range(4))]
    corners = np.array([*some, [5, 5, 2, 9], [-4, -6, 3, 1], [3, 2, 60, 41]], np.float32)
    batches = np.arange(len(corners)) % 2
    first: list[Array] = [_random(2, 3, 6, 7), corners[:2], batches[:2]]
    graph = fission("RoiAlign", first, attributes, opset=16)
    sizes: list[list[Array]] = [
        first, [_random(3, 1, 9, 8), corners, batches], [first[0], corners[:0], batches[:0]],
    ]  # fmt: skip
    for values in sizes:
        compare(run(graph, values)[0], naive_regions(values, attributes, half), relative=1e-5)


def test_regions_and_their_batch_indices_must_fit() -> None:
    values: list[Array] = [_random(1, 1, 4, 4), _random(2, 4), np.array([0, 0])]
    graph = fission("RoiAlign", values, {"sampling_ratio": 1}, opset=16)
    with pytest.raises(DimensionError):
        run(graph, [values[0], _random(3, 4), values[2]])
