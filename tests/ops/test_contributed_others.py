"""Operators of com.microsoft beside ONNX Runtime's fusions, against it or, for GPUs, numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, compare, fission, run
from support.runtime_peer import DOMAIN, check_contributed
from tilewright.ops.record import NoRule
from tilewright.support.errors import InvalidModelError


def _floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, 2, shape)).astype(dtype)


@pytest.mark.peers
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper: int) -> None:
    also: list[list[Array | None]] = [[_floats(1, 1, 1), np.array(-1)]]
    check_contributed("Trilu", [_floats(2, 5, 7), np.array(1)], {"upper": upper}, also=also)
    check_contributed("Trilu", [_floats(4, 3)], {"upper": upper})


@pytest.mark.peers
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric: str, dtype: Any) -> None:
    sizes = [(5, 3, 4), (1, 1, 1), (17, 33, 8), (2, 2, 1)]
    every: list[list[Array | None]] = [
        [_floats(m, k, dtype=dtype), _floats(n, k, seed=1, dtype=dtype)] for m, n, k in sizes
    ]
    attributes = {"metric": metric}
    check_contributed("CDist", every[0], attributes, length=64, relative=1e-4, also=every[1:])
    (found,) = run(fission("CDist", every[0], attributes, opset=1, domain=DOMAIN), every[2][:2])
    left, right = (np.asarray(x, np.float64) for x in every[2])
    exact = np.square(left[:, None] - right).sum(-1)
    exact = exact if metric == "sqeuclidean" else np.sqrt(exact)
    np.testing.assert_allclose(found, exact, rtol=1e-4)


def test_distances_that_are_not_compiled() -> None:
    with pytest.raises(NoRule, match="metric 'cosine'"):
        fission("CDist", [_floats(2, 3)] * 2, {"metric": "cosine"}, opset=1, domain=DOMAIN)
    with pytest.raises(InvalidModelError, match="rows of matrices"):
        fission("CDist", [_floats(2, 3), _floats(3)], opset=1, domain=DOMAIN)


def _groups(x: Array, scale: Array, shift: Array, groups: int, is_last: bool, silu: int) -> Array:
    """In float64, of data with the channels at its end or in axis 1."""
    wide = np.moveaxis(x, -1, 1) if is_last else x
    wide = wide.astype(np.float64)
    split = wide.reshape(wide.shape[0], groups, -1)
    centred = split - split.mean(-1, keepdims=True)
    made = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    along = (-1, *[1] * (x.ndim - 2))
    made = made.reshape(wide.shape) * scale.reshape(along) + shift.reshape(along)
    made = made / (1 + np.exp(-made)) if silu else made
    return np.moveaxis(made, 1, -1) if is_last else made


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("is_last", "silu"), [(True, 1), (True, 0), (False, 1)])
@pytest.mark.parametrize("skipped", [None, "same", "batch", "pixel"])
def test_groups_of_diffusion_models(
    dtype: Any, is_last: bool, silu: int, skipped: str | None
) -> None:
    attributes = {"groups": 3, "activation": silu, "channels_last": int(is_last)}
    scale, shift, bias = (_floats(6, seed=seed) for seed in (1, 2, 3))
    for size in (5, 1):
        shape = (2, size, 4, 6) if is_last else (2, 6, size, 4)
        x = _floats(*shape, dtype=dtype)
        name, operands, total = "GroupNorm", [x, scale, shift], x.astype(np.float64)
        if skipped is not None:
            one = (2, 1, 1, 6) if is_last else (2, 6, 1, 1)
            kinds = {"same": shape, "batch": (2, 6), "pixel": one}
            skip = _floats(*kinds[skipped], seed=4, dtype=dtype)
            name, operands = "SkipGroupNorm", [*operands, skip, bias.astype(dtype)]
            added = skip.reshape(one) if skipped == "batch" else skip
            total = total + added + bias.astype(dtype).reshape(one[1:])
        outputs = 1 + (skipped is not None)
        graph = fission(
            name, operands, attributes, opset=1, outputs=outputs, domain=DOMAIN, fixed=(1, 2)
        )
        results = run(graph, operands)
        near = 1e-2 if dtype is np.float16 else 2e-5
        rounded = total.astype(dtype)
        expected = _groups(rounded, scale, shift, 3, is_last, silu)
        assert results[0].dtype == dtype
        np.testing.assert_allclose(results[0].astype(np.float64), expected, rtol=near, atol=near)
        if skipped is not None:
            compare(results[1], rounded, relative=near)


def test_gated_gelu_of_diffusion_models() -> None:
    for shape in ((2, 3, 8), (1, 1, 2), (0, 4, 6)):
        operands = [_floats(*shape), _floats(shape[-1], seed=1)]
        graph = fission("BiasSplitGelu", operands, opset=1, domain=DOMAIN)
        (found,) = run(graph, operands)
        left, right = np.split(np.add(*operands).astype(np.float64), 2, -1)
        gate = right / 2 * (1 + np.vectorize(math.erf, otypes=[float])(right / math.sqrt(2)))
        np.testing.assert_allclose(found, left * gate, rtol=2e-5, atol=2e-6)
