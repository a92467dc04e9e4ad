"""Pooling against loops over every window, one graph for many sizes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from tilewright.ir.primitives import Iota
from tilewright.support.errors import DimensionError, InvalidModelError

Attributes = dict[str, Any]


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _axis(
    size: int, axis: int, rank: int, attributes: Attributes
) -> tuple[int, int, list[list[int]]]:
    """Padding before and after, and the positions of every window, of one axis."""
    kernel = attributes["kernel_shape"][axis]
    stride = attributes.get("strides", [1] * rank)[axis]
    dilation = attributes.get("dilations", [1] * rank)[axis]
    mode = attributes.get("auto_pad", "NOTSET")
    extent = (kernel - 1) * dilation + 1
    pads = attributes.get("pads", [0] * (2 * rank))
    low, high = (pads[axis], pads[axis + rank]) if mode == "NOTSET" else (0, 0)
    if mode.startswith("SAME"):
        count = -(-size // stride)
        whole = max(0, (count - 1) * stride + extent - size)
        low = whole // 2 if mode == "SAME_UPPER" else whole - whole // 2
        high = whole - low
    elif attributes.get("ceil_mode"):
        count = -(-(size + low + high - extent) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
    else:
        count = (size + low + high - extent) // stride + 1
    windows = [[o * stride - low + t * dilation for t in range(kernel)] for o in range(count)]
    return low, high, windows


def naive_pool(x: Array, attributes: Attributes, kind: str) -> tuple[Array, Array]:
    """The pooled tensor and, for maxima, their positions."""
    rank = x.ndim - 2
    axes = [_axis(n, a, rank, attributes) for a, n in enumerate(x.shape[2:])]
    sizes = [len(windows) for _, _, windows in axes]
    out = np.zeros((*x.shape[:2], *sizes))
    where = np.zeros(out.shape, np.int64)
    include = attributes.get("count_include_pad", 0)
    order: Any = "F" if attributes.get("storage_order") else "C"
    for n, c in product(*map(range, x.shape[:2])):
        for o in product(*map(range, sizes)):
            taps = list(product(*(axes[a][2][i] for a, i in enumerate(o))))
            inside = [
                t for t in taps if all(0 <= p < s for p, s in zip(t, x.shape[2:], strict=True))
            ]
            padded = [
                t for t in taps
                if all(-lo <= p < s + hi
                       for p, s, (lo, hi, _) in zip(t, x.shape[2:], axes, strict=True))
            ]  # fmt: skip
            values = np.array([x[(n, c, *t)] for t in inside], np.float64)
            if kind == "maximum":
                best = int(np.argmax(values))
                out[(n, c, *o)] = values[best]
                flat = int(np.ravel_multi_index(inside[best], x.shape[2:], order=order))
                where[(n, c, *o)] = (n * x.shape[1] + c) * int(np.prod(x.shape[2:])) + flat
            elif kind == "average":
                out[(n, c, *o)] = values.sum() / len(padded if include else inside)
            else:
                p = attributes.get("p", 2)
                out[(n, c, *o)] = (np.abs(values) ** p).sum() ** (1 / p)
    return out.astype(x.dtype), where


POOLS: list[tuple[tuple[int, ...], Attributes]] = [
    ((2, 3, 9), {"kernel_shape": [3]}),
    ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 2], "dilations": [2]}),
    ((1, 2, 6, 7), {"kernel_shape": [2, 3], "pads": [1, 1, 0, 2], "strides": [2, 2]}),
    ((1, 2, 6, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    (
        (1, 2, 6, 7),
        {"kernel_shape": [3, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    ),
    (
        (1, 2, 8, 7),
        {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "dilations": [2, 3]},
    ),
    ((2, 1, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 1, 6, 7), {"kernel_shape": [2, 4], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ((2, 1, 6, 7), {"kernel_shape": [2, 4], "strides": [2, 2], "auto_pad": "VALID"}),
    (
        (1, 2, 4, 5, 4),
        {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 2]},
    ),
]


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_max_pool_with_indices(
    shape: tuple[int, ...], attributes: Attributes, storage_order: int
) -> None:
    attributes = {**attributes, "storage_order": storage_order}
    graph = fission("MaxPool", [_random(*shape)], attributes, opset=12, outputs=2)
    for grown in (0, 1, 2):
        x = _random(*shape[:2], *(n + grown for n in shape[2:]), seed=grown)
        for own, wanted in zip(run(graph, [x]), naive_pool(x, attributes, "maximum"), strict=True):
            compare(own, wanted)


def test_max_pool_of_equal_and_least_values_points_inside() -> None:
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    for x in (np.zeros((1, 1, 5, 5), np.uint8), np.full((1, 1, 5, 5), -128, np.int8)):
        expected = naive_pool(x, attributes, "maximum")
        check_node("MaxPool", [x], attributes, 12, 2, expected=list(expected))
    below = np.full((1, 1, 4, 4), -np.inf, np.float32)
    expected = naive_pool(below, attributes, "maximum")
    check_node("MaxPool", [below], attributes, 12, 2, expected=list(expected))


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_average_pool(shape: tuple[int, ...], attributes: Attributes, include: int) -> None:
    attributes = {**attributes, "count_include_pad": include}
    graph = fission("AveragePool", [_random(*shape)], attributes, opset=19)
    for grown in (0, 1, 2):
        x = _random(*shape[:2], *(n + grown for n in shape[2:]), seed=grown)
        compare(run(graph, [x])[0], naive_pool(x, attributes, "average")[0], length=12)


def test_an_average_of_whole_windows_has_a_constant_divisor() -> None:
    x = _random(1, 2, 6, 6)
    for attributes in (
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ):
        graph = fission("AveragePool", [x], attributes, opset=19)
        assert not any(isinstance(n.primitive, Iota) for n in graph.nodes())


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_lp_pool(shape: tuple[int, ...], attributes: Attributes, order: int) -> None:
    attributes = {**attributes, "p": order}
    graph = fission("LpPool", [_random(*shape)], attributes, opset=18)
    for grown in (0, 2):
        x = _random(*shape[:2], *(n + grown for n in shape[2:]), seed=grown)
        compare(run(graph, [x])[0], naive_pool(x, attributes, "norm")[0], length=12)


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 3, 4), (1, 1)])
def test_global_pools(sizes: tuple[int, ...]) -> None:
    x = _random(2, 3, *sizes)
    axes = tuple(range(2, x.ndim))
    wide = x.astype(np.float64)
    expected = {
        "GlobalAveragePool": wide.mean(axis=axes, keepdims=True),
        "GlobalMaxPool": wide.max(axis=axes, keepdims=True),
        "GlobalLpPool": (np.abs(wide) ** 3).sum(axis=axes, keepdims=True) ** (1 / 3),
    }
    for name, wanted in expected.items():
        attributes = {"p": 3} if name == "GlobalLpPool" else {}
        check_node(name, [x], attributes, 13, expected=[wanted.astype(x.dtype)], length=24)


def test_unpooling_undoes_pooling() -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    x = _random(2, 3, 6, 8)
    values, where = naive_pool(x, attributes, "maximum")
    expected = np.zeros(x.size, np.float32)
    expected[where.reshape(-1)] = values.reshape(-1)
    expected = expected.reshape(x.shape)
    check_node("MaxUnpool", [values, where], attributes, 11, expected=[expected])
    larger = np.array([2, 3, 7, 10])
    wider = np.pad(expected, [(0, 0), (0, 0), (0, 1), (0, 2)])
    for known in ((2,), ()):
        check_node(
            "MaxUnpool", [values, where, larger], attributes, 11,
            constants=known, fixed=(2,), expected=[wider],
        )  # fmt: skip


def _naive_region_pool(x: Array, regions: Array, cells: tuple[int, int], scale: float) -> Array:
    out = np.zeros((len(regions), x.shape[1], *cells), np.float32)
    for r, region in enumerate(regions):
        corners = [int(np.floor(v * scale + 0.5)) for v in region[1:]]
        x1, y1, x2, y2 = corners
        for i, j in product(*map(range, cells)):
            tall, wide = max(y2 - y1 + 1, 1) / cells[0], max(x2 - x1 + 1, 1) / cells[1]
            top, bottom = y1 + int(np.floor(i * tall)), y1 + int(np.ceil((i + 1) * tall))
            left, right = x1 + int(np.floor(j * wide)), x1 + int(np.ceil((j + 1) * wide))
            cut = x[int(region[0]), :, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
            if cut.size:
                out[r, :, i, j] = cut.max(axis=(1, 2))
    return out


def test_maxima_of_regions() -> None:
    attributes: Attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.5}
    regions = np.array(
        [[0, 0, 0, 9, 11], [1, 3, 2, 8, 4], [1, 7, 7, 7, 7], [0, 10, 10, 60, 60]], np.float32
    )
    first: list[Array] = [_random(2, 3, 8, 7), regions]
    graph = fission("MaxRoiPool", first, attributes, opset=13)
    for values in (first, [_random(3, 1, 5, 9, seed=1), regions[:2]]):
        expected = _naive_region_pool(values[0], values[1], (3, 2), 0.5)
        compare(run(graph, values)[0], expected)


def test_pools_refuse_what_does_not_fit() -> None:
    graph = fission("MaxPool", [_random(1, 1, 5)], {"kernel_shape": [4]}, opset=12)
    with pytest.raises(DimensionError, match="too small"):
        run(graph, [_random(1, 1, 2)])
    with pytest.raises(InvalidModelError):
        fission("MaxPool", [_random(1, 1, 5)], {"kernel_shape": [4, 4]}, opset=12)
    with pytest.raises(InvalidModelError):
        fission("MaxPool", [_random(1, 1, 5)], {"kernel_shape": [0]}, opset=12)
