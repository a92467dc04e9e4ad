"""Stitched row kernels: softmax, normalisations, and what hangs on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import F32, FLOATS, Space, apply, check, kept, kinds, scalar, softmax, spread
from support.only_variant import only_variant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Cast, Dimension, Reduce, Reshape
from tilewright.shape import constant

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
ROWS = [{"a": a, "b": b} for a, b in ((0, 3), (1, 1), (2, 16), (5, 17), (3, 131), (17, 8))]


def normalise(x: Node, axes: tuple[int, ...], count: Node) -> Node:
    mean = apply("divide", kept(x, "sum", axes), spread(count, x.shape))
    centred = apply("subtract", x, mean)
    squares = kept(apply("multiply", centred, centred), "sum", axes)
    variance = apply("divide", squares, spread(count, x.shape))
    return apply("divide", centred, apply("square_root", apply("add", variance, scalar(1e-5))))


def count_of(x: Node, axis: int) -> Node:
    return node(Cast(x.dtype), node(Dimension(x.shape[axis])))


def test_softmax_is_one_kernel() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    assert kinds(check(space.graph(softmax(x)), ROWS, length=16)) == ["rows"]


def test_softmax_with_mask_and_scale() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x, mask = space.input("x", F32, a, b), space.input("mask", DType.BOOL, b)
    scaled = apply("multiply", x, scalar(0.125))
    masked = apply("select", spread(mask, (a, b)), scaled, spread(scalar(-1e9), (a, b)))
    check(space.graph(softmax(masked)), ROWS, length=16)


def test_softmax_of_values_that_overflow_without_the_maximum() -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        return (np.arange(np.prod(shape)).reshape(shape) * 100.0 - 200).astype(np.float32)

    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    check(space.graph(softmax(x)), ROWS, length=16, fill=fill)


@pytest.mark.slow
def test_layer_normalisation_with_residual_outputs() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x, y = space.input("x", F32, a, b), space.input("y", F32, a, b)
    gain, bias = space.input("gain", F32, b), space.input("bias", F32, b)
    total = apply("add", x, y)
    normal = normalise(total, (1,), count_of(total, 1))
    shifted = apply("add", apply("multiply", normal, gain), bias)
    after = apply("hyperbolic_tangent", shifted)
    compiled = check(space.graph(after, shifted, total), ROWS, length=150)
    assert kinds(compiled).count("rows") == 1


@pytest.mark.slow
def test_normalisation_over_two_axes() -> None:
    """Instance normalisation: statistics of a plane, gain and bias of a channel."""
    space = Space()
    n, c, h, w = space.dimensions("n c h w")
    x = space.input("x", F32, n, c, h, w)
    gain = space.input("gain", F32, c)
    count = apply("multiply", count_of(x, 2), count_of(x, 3))
    normal = normalise(x, (2, 3), count)
    scaled = apply("multiply", normal, node(Broadcast(x.shape, (1,)), gain))
    rows = ((1, 1, 1, 1), (0, 2, 3, 3), (2, 3, 5, 7), (1, 2, 16, 9))
    cases = [dict(zip("nchw", row, strict=True)) for row in rows]
    check(space.graph(scaled, normal), cases, length=150)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [None, 3, 8])
def test_one_group_in_parts(channels: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each channel has its own scale, so that elements are no one loop: channels are cut, or not.

    Fewer than there are parts are not; every part has a share of each.
    """
    only_variant(monkeypatch, "lower_rows", "parts")
    space = Space()
    a, b, c = space.dimensions("a b c")
    shape = (a, b if channels is None else channels, c)
    x, scale = space.input("x", F32, *shape), space.input("scale", F32, shape[1])
    count = apply("multiply", count_of(x, 1), count_of(x, 2))
    scaled = apply("multiply", normalise(x, (1, 2), count), spread(scale, x.shape, (1,)))
    sizes = [(0, 2, 3), (1, 1, 1), (1, 7, 5), (2, 8, 17), (1, 17, 33), (3, 5, 1)]
    cases = [{"a": a, "b": b, "c": c} for a, b, c in sizes]
    assert kinds(check(space.graph(scaled), cases, length=600)) == ["rows"]


def test_a_result_that_a_sweep_has_written_keeps_its_values() -> None:
    """What later sweeps keep cannot lie in it: three sweeps follow, and it is a result."""
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b)
    length = apply("square_root", kept(apply("multiply", x, x), "sum", (1,)))
    scaled = apply("divide", x, apply("add", length, spread(scalar(1.0), (a, b))))
    weights = softmax(scaled)
    squares = node(Reduce("sum", (1,)), apply("multiply", weights, weights))
    check(space.graph(scaled, apply("square_root", squares)), ROWS, length=16)


def test_statistics_are_outputs_too() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    mean = apply(
        "divide", node(Reduce("sum", (1,)), x), node(Cast(F32), node(Dimension(x.shape[1])))
    )
    centred = apply("subtract", x, spread(mean, x.shape, [0]))
    squares = node(Reduce("sum", (1,)), apply("multiply", centred, centred))
    column = node(Reshape((x.shape[0], constant(1))), squares)
    check(space.graph(centred, mean, column), ROWS[1:], length=150)


@pytest.mark.slow
def test_two_softmaxes_in_a_row() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    check(space.graph(softmax(softmax(x))), ROWS, length=32)


def test_rows_of_two_operands_of_one_group() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    y = space.input("y", F32, x.shape[0], x.shape[1])
    check(space.graph(apply("add", softmax(x), softmax(y))), ROWS, length=32)


@pytest.mark.parametrize("dtype", FLOATS, ids=[d.value for d in FLOATS])
def test_softmax_of_every_type(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"))
    made = softmax(node(Cast(F32), x) if dtype.is_half else x)
    check(space.graph(node(Cast(dtype), made) if dtype.is_half else made), ROWS, length=16)


def test_a_reduction_along_rows_then_across_them() -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("a b"))
    powers = softmax(x)
    check(space.graph(node(Reduce("sum", (0,)), powers), powers), ROWS, length=40)
