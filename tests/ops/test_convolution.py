"""Convolutions against loops over every output element, one graph for many sizes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from tilewright.ir.primitives import Convolve
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, InvalidModelError

Attributes = dict[str, Any]


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _listed(attributes: Attributes, name: str, rank: int, default: int) -> list[int]:
    return list(attributes.get(name, [default] * rank))


def _pads(attributes: Attributes, sizes: list[int], extents: list[int]) -> list[tuple[int, int]]:
    """Padding before and after, by the rules of the standard."""
    rank, mode = len(sizes), attributes.get("auto_pad", "NOTSET")
    strides = _listed(attributes, "strides", rank, 1)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out: list[tuple[int, int]] = []
        for size, extent, stride in zip(sizes, extents, strides, strict=True):
            whole = max(0, (-(-size // stride) - 1) * stride + extent - size)
            small, large = whole // 2, whole - whole // 2
            out.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return out
    pads = _listed(attributes, "pads", 2 * rank, 0) if mode == "NOTSET" else [0] * (2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def naive_convolution(x: Array, w: Array, bias: Array | None, attributes: Attributes) -> Array:
    """Every output element by itself, in float64 or the integers given."""
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    strides = _listed(attributes, "strides", rank, 1)
    dilations = _listed(attributes, "dilations", rank, 1)
    kernel = w.shape[2:]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(attributes, list(x.shape[2:]), extents)
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)
    padded = np.pad(wide, [(0, 0), (0, 0), *pads])
    sizes = [(n - e) // s + 1 for n, e, s in zip(padded.shape[2:], extents, strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes), wide.dtype)
    per_group, share = w.shape[0] // groups, w.shape[1]
    for o in range(w.shape[0]):
        first = (o // per_group) * share
        for where in product(*map(range, sizes)):
            cut = tuple(
                slice(i * s, i * s + e, d)
                for i, s, e, d in zip(where, strides, extents, dilations, strict=True)
            )
            patch = padded[(slice(None), slice(first, first + share), *cut)]
            axes = tuple(range(1, patch.ndim))
            out[(slice(None), o, *where)] = (patch * w[o].astype(wide.dtype)).sum(axis=axes)
    if bias is not None:
        out += bias.reshape(-1, *[1] * rank)
    return out.astype(x.dtype)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], Attributes]] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 3, 9), (4, 3, 3), {"strides": [2], "pads": [1, 2], "dilations": [2]}),
    ((1, 4, 6, 7), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 4, 6, 7), (6, 4, 3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 3]}),
    ((2, 4, 6, 7), (6, 2, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 4, 6, 7), (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ((2, 4, 7, 7), (8, 1, 3, 3), {"group": 4, "auto_pad": "VALID", "dilations": [2, 1]}),
    ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"pads": [1, 0, 0, 0, 1, 1], "strides": [1, 2, 1]}),
    ((1, 2, 5, 5), (3, 2, 1, 1), {"kernel_shape": [1, 1], "strides": [3, 3]}),
    ((1, 2, 5, 5), (3, 2, 4, 4), {"auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize(("shape", "weights", "attributes"), CONVOLUTIONS)
def test_conv_of_unknown_sizes(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: Attributes
) -> None:
    w, bias = _random(*weights, seed=1), _random(weights[0], seed=2)
    for known in ((), (1, 2)):
        operands: list[Array | None] = [_random(*shape), w, bias]
        graph = fission("Conv", operands, attributes, opset=11, constants=known)
        for grown in (0, 1, 2):
            x = _random(3, shape[1], *(n + grown for n in shape[2:]), seed=grown)
            expected = naive_convolution(x, w, bias, attributes)
            compare(run(graph, [x, w, bias])[0], expected, length=int(np.prod(weights[1:])))


def test_conv_without_bias_and_with_an_empty_batch() -> None:
    w = _random(4, 3, 3, 3)
    graph = fission("Conv", [_random(1, 3, 5, 5), w], {}, opset=11)
    assert run(graph, [_random(0, 3, 5, 6), w])[0].shape == (0, 4, 3, 4)
    (primitive,) = [n.primitive for n in graph.nodes() if isinstance(n.primitive, Convolve)]
    assert primitive.groups == 1 and primitive.spread == (1, 1)


def test_conv_of_halves_is_rounded_once() -> None:
    x, w = _random(1, 8, 6, 6).astype(np.float16), _random(4, 8, 3, 3, seed=1).astype(np.float16)
    exact = naive_convolution(x.astype(np.float32), w.astype(np.float32), None, {})
    got = run(fission("Conv", [x, w], {}, opset=11), [x, w])[0]
    compare(got, exact.astype(np.float16))


def test_conv_refuses_what_does_not_fit() -> None:
    w = _random(4, 3, 3, 3)
    graph = fission("Conv", [_random(1, 3, 5, 5), w], {}, opset=11)
    with pytest.raises(DimensionError, match="too small"):
        run(graph, [_random(1, 3, 1, 5), w])
    with pytest.raises(DimensionError, match="channels"):
        run(graph, [_random(1, 2, 5, 5), w])
    with pytest.raises(InvalidModelError):
        fission("Conv", [_random(1, 3, 5, 5), w], {"strides": [1]}, opset=11)
    with pytest.raises(InvalidModelError):
        fission("Conv", [_random(1, 3, 5, 5), w], {"strides": [0, 1]}, opset=11)
    with pytest.raises(InvalidModelError):
        fission("Conv", [_random(1, 3, 5, 5), w], {"auto_pad": "OTHER"}, opset=11)
    with pytest.raises(InvalidModelError):
        fission("Conv", [_random(1, 4, 5), w], {}, opset=11)
    with pytest.raises(NoRule):
        fission("Conv", [_random(1, 3, 5, 5), w], {"pads": [-1, 0, 0, 0]}, opset=11)


# ---------------------------------------------------------------- transposed


def naive_transposed(x: Array, w: Array, bias: Array | None, attributes: Attributes) -> Array:
    """Every input element adds its weights to the output (numpy, float64)."""
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    strides = _listed(attributes, "strides", rank, 1)
    dilations = _listed(attributes, "dilations", rank, 1)
    extra = _listed(attributes, "output_padding", rank, 0)
    mode = attributes.get("auto_pad", "NOTSET")
    pads = _listed(attributes, "pads", 2 * rank, 0) if mode == "NOTSET" else [0] * (2 * rank)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
    ]
    wanted = attributes.get("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    low = pads[:rank]
    sizes = [f - a - z for f, a, z in zip(full, low, pads[rank:], strict=True)]
    if wanted is not None:
        cut = [max(0, f - n) for f, n in zip(full, wanted, strict=True)]
        low = [c // 2 if mode == "SAME_UPPER" else c - c // 2 for c in cut]
        sizes = list(wanted)
    room = [max(f, a + n) for f, a, n in zip(full, low, sizes, strict=True)]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *room))
    share = x.shape[1] // groups
    for c, tap in product(range(x.shape[1]), product(*map(range, w.shape[2:]))):
        first = (c // share) * w.shape[1]
        where = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
        )
        added = x[:, c][:, None] * w[(c, slice(None), *tap)].reshape(-1, *[1] * rank)
        out[(slice(None), slice(first, first + w.shape[1]), *where)] += added
    cuts = tuple(slice(a, a + n) for a, n in zip(low, sizes, strict=True))
    out = out[(slice(None), slice(None), *cuts)]
    return (out if bias is None else out + bias.reshape(-1, *[1] * rank)).astype(x.dtype)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], Attributes]] = [
    ((2, 3, 5), (3, 4, 3), {}),
    ((2, 3, 5), (3, 4, 3), {"strides": [3], "pads": [1, 0], "output_padding": [2]}),
    (
        (1, 4, 3, 4),
        (4, 3, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    ((1, 4, 3, 4), (4, 3, 3, 2), {"dilations": [2, 3], "pads": [0, 1, 2, 0]}),
    ((2, 4, 3, 4), (4, 3, 3, 3), {"group": 2, "strides": [2, 1]}),
    ((2, 4, 3, 4), (4, 1, 4, 4), {"group": 4, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((2, 4, 3, 4), (4, 2, 2, 1), {"strides": [3, 2], "auto_pad": "VALID"}),
    ((1, 2, 2, 3, 2), (2, 3, 2, 2, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ((1, 2, 4, 4), (2, 3, 3, 3), {"pads": [3, 3, 1, 1], "strides": [3, 3]}),
]


@pytest.mark.parametrize(("shape", "weights", "attributes"), TRANSPOSED)
def test_conv_transpose_of_unknown_sizes(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: Attributes
) -> None:
    w = _random(*weights, seed=1)
    bias = _random(weights[1] * attributes.get("group", 1), seed=2)
    for known in ((), (1, 2)):
        operands: list[Array | None] = [_random(*shape), w, bias]
        graph = fission("ConvTranspose", operands, attributes, opset=11, constants=known)
        for grown in (0, 1, 3):
            x = _random(2, shape[1], *(n + grown for n in shape[2:]), seed=grown)
            expected = naive_transposed(x, w, bias, attributes)
            compare(run(graph, [x, w, bias])[0], expected, length=int(np.prod(weights)))


@pytest.mark.parametrize(("shape", "weights", "attributes"), TRANSPOSED)
def test_data_are_not_spread_where_the_kernel_is_known(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: Attributes
) -> None:
    operands: list[Array | None] = [_random(*shape), _random(*weights)]
    graph = fission("ConvTranspose", operands, attributes, opset=11, constants=(1,))
    (made,) = [n.primitive for n in graph.nodes() if isinstance(n.primitive, Convolve)]
    assert set(made.spread) == {1}


def test_channels_of_all_phases_take_no_more_taps_than_one() -> None:
    """A kernel of 16 with a stride of 8 is 8 kernels of 2."""
    operands: list[Array | None] = [_random(2, 6, 5), _random(6, 4, 16)]
    attributes = {"strides": [8], "pads": [4, 4], "group": 2}
    graph = fission("ConvTranspose", operands, attributes, opset=11, constants=(1,))
    (made,) = [n for n in graph.nodes() if isinstance(n.primitive, Convolve)]
    assert [str(size) for size in made.inputs[1].shape] == ["64", "3", "2"]


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("wanted", [[9, 8], [10, 9], [8, 11], [14, 16]])
def test_conv_transpose_with_an_output_shape(wanted: list[int], mode: str) -> None:
    x, w = _random(1, 2, 4, 4), _random(2, 3, 3, 3, seed=1)
    attributes = {"strides": [2, 2], "output_shape": wanted, "auto_pad": mode}
    expected = naive_transposed(x, w, None, attributes)
    assert expected.shape[2:] == tuple(wanted)
    check_node("ConvTranspose", [x, w], attributes, 11, expected=[expected], length=18)


# ---------------------------------------------------------------- integers


@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_integer(per_channel: bool) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (2, 3, 5, 5)).astype(np.uint8)
    w = generator.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    p = np.array(7, np.uint8)
    q = generator.integers(-9, 9, (4,)).astype(np.int8) if per_channel else np.array(-3, np.int8)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    filters = w.astype(np.int32) - q.astype(np.int32).reshape(-1, *[1] * (3 if per_channel else 0))
    centred = x.astype(np.int32) - np.int32(7)
    expected = naive_convolution(centred, filters, None, attributes)
    check_node("ConvInteger", [x, w, p, q], attributes, 10, expected=[expected])


@pytest.mark.slow
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_qlinear_conv(rank: int, per_channel: bool) -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (2, 4, *[5] * rank)).astype(np.uint8)
    w = generator.integers(-128, 128, (6, 2, *[3] * rank)).astype(np.int8)
    bias = generator.integers(-500, 500, 6).astype(np.int32)
    shape = (6,) if per_channel else ()
    q = generator.integers(-9, 9, shape).astype(np.int8)
    t = generator.uniform(0.01, 0.02, shape).astype(np.float32)
    s, p = np.array(0.05, np.float32), np.array(120, np.uint8)
    step, zero = np.array(0.8, np.float32), np.array(100, np.uint8)
    attributes = {"group": 2, "pads": [1] * (2 * rank)}
    trailing = [1] * (rank + 1)
    filters = w.astype(np.int32) - q.astype(np.int32).reshape(*shape, *trailing)
    centred = x.astype(np.int32) - np.int32(120)
    exact = naive_convolution(centred, filters, bias, attributes).astype(np.float32)
    scale = ((s * t) / step).reshape(*shape, *[1] * rank)
    expected = np.clip(np.rint(exact * scale) + 100, 0, 255).astype(np.uint8)
    operands = [x, s, p, w, t, q, step, zero, bias]
    check_node("QLinearConv", operands, attributes, 10, expected=[expected])


# ---------------------------------------------------------------- with a state


@pytest.mark.parametrize("known", [(), (1,)])
def test_causal_convolution_continues(known: tuple[int, ...]) -> None:
    x, w, bias = _random(2, 3, 8), _random(3, 1, 4, seed=1), _random(3, seed=2)
    whole = naive_convolution(x, w, bias, {"group": 3, "pads": [3, 0]})
    start = fission("CausalConvWithState", [x, w, bias], {}, opset=27, outputs=2, constants=known)
    first, state = run(start, [x[:, :, :5], w, bias])
    operands: list[Array | None] = [x[:, :, 5:], w, bias, state]
    going = fission("CausalConvWithState", operands, {}, opset=27, outputs=2, constants=known)
    second, last = run(going, operands)
    compare(np.concatenate([first, second], axis=2), whole, length=4)
    np.testing.assert_array_equal(last, x[:, :, 5:])
