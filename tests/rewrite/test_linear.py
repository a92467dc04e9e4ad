"""Scales that move into weights: only where nothing else reads the product, and how exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.rewrite_harness import (
    K,
    M,
    N,
    apply,
    assert_identical,
    fill,
    graph_of,
    ones,
    shape,
    simplified,
    spread,
    tensor,
    value,
)
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Contract, Convolve, Input, Reshape, Slice
from tilewright.shape import Expr, constant

CHANNELS = 4
SIZES = {"m": 2, "n": 5, "k": 3}
EPSILON = float(np.finfo(np.float32).eps)
Array = np.ndarray[Any, Any]


def _draw(*sizes: int) -> Array:
    return np.random.default_rng(3).standard_normal(sizes).astype(np.float32)


def convolution() -> Node:
    """[m, 3, n, n] with a 1 × 1 kernel to [m, 4, n, n]."""
    weights = value(_draw(CHANNELS, 3, 1, 1))
    primitive = Convolve((1, 1), (1, 1), (1, 1), (constant(0),) * 2, shape(N, N), 1)
    return node(primitive, tensor("x", M, 3, N, N), weights)


def per_channel(like: Node, seed: float) -> Node:
    return spread(value(_draw(CHANNELS) + seed), like.shape, 1)


def product(width: int = 6) -> Node:
    """[m, n, 3] times constant [3, width]."""
    return node(Contract((), ((2, 0),)), tensor("x", M, N, 3), value(_draw(3, width)))


def _run(graph: Graph) -> Array:
    inputs = {
        "x": np.random.default_rng(5).standard_normal(
            tuple(e.evaluate(SIZES) for e in graph.inputs[0].shape)
        )
    }
    return evaluate(graph, {"x": inputs["x"].astype(np.float32)}, SIZES)["out"]


def _count(graph: Graph, function: str) -> int:
    return sum(getattr(n.primitive, "function", "") == function for n in graph.nodes())


def _normalised(like: Node) -> Node:
    scaled = apply("multiply", like, per_channel(like, 1.0))
    return apply("add", scaled, per_channel(like, 2.0))


@pytest.mark.parametrize("bias", [False, True])
def test_scale_per_channel_goes_into_convolution(bias: bool) -> None:
    made = convolution()
    if bias:
        made = apply("add", made, per_channel(made, 3.0))
    root = _normalised(made)
    after, fired = simplified(root)
    assert "scale_into_convolution" in fired
    assert _count(after, "multiply") == 0
    # Three products are summed; weights, products, sums and shifts are rounded once each, and the
    # terms are at most a few units large.
    np.testing.assert_allclose(_run(after), _run(graph_of(root)), rtol=0, atol=100 * EPSILON)


def test_scale_stays_where_the_convolution_has_other_users() -> None:
    made = convolution()
    root = apply("add", apply("multiply", made, per_channel(made, 1.0)), made)
    _, fired = simplified(root)
    assert "scale_into_convolution" not in fired


def test_scale_along_another_axis_stays() -> None:
    weights = value(_draw(5, 3, 1, 1))
    primitive = Convolve((1, 1), (1, 1), (1, 1), (constant(0),) * 2, shape(5, 5), 1)
    made = node(primitive, tensor("x", M, 3, 5, 5), weights)
    _, fired = simplified(apply("multiply", made, spread(value(_draw(5)), made.shape, 2)))
    assert "scale_into_convolution" not in fired


@pytest.mark.parametrize("scale", [0.125, -4.0])
def test_power_of_two_goes_into_contraction_exactly(scale: float) -> None:
    made = apply("add", product(), spread(value(_draw(6)), product().shape, 2))
    root = apply("multiply", made, fill(scale, made))
    after, fired = simplified(root)
    assert "scale_into_contraction" in fired
    assert _count(after, "multiply") == 0
    assert_identical(_run(graph_of(root)), _run(after))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_other_scales_of_contractions_stay(scale: float) -> None:
    made = product()
    after, fired = simplified(apply("multiply", made, fill(scale, made)))
    assert fired == []
    assert _count(after, "multiply") == 1


def test_scale_that_underflows_weights_stays() -> None:
    weights = value(np.full((3, 2), 2.0**-140))
    made = node(Contract((), ((1, 0),)), tensor("x", M, 3), weights)
    _, fired = simplified(apply("multiply", made, fill(2.0**-20, made)))
    assert "scale_into_contraction" not in fired


def test_scale_of_a_contraction_of_data_stays() -> None:
    made = node(Contract((), ((1, 0),)), tensor("x", M, N), tensor("w", N, K))
    _, fired = simplified(apply("multiply", made, fill(0.5, made)))
    assert fired == []


def test_scales_of_slices_follow_the_contraction() -> None:
    whole = tensor("x", M, N, 12)
    halves = [node(Slice(shape(0, 0, start), shape(M, N, 6), ones(3)), whole) for start in (0, 6)]
    heads = [node(Reshape(shape(M, N, 2, 3)), apply("multiply", h, fill(0.35, h))) for h in halves]
    root = node(Contract(((0, 0), (2, 2)), ((3, 3),)), *heads)
    after, fired = simplified(root)
    assert fired.count("scale_after_contraction") == 1
    assert _count(after, "multiply") == 1
    expected = _run(graph_of(root))
    # Six roundings of each of three terms, which are at most about ten units large.
    np.testing.assert_allclose(_run(after), expected, rtol=0, atol=6 * 3 * 10 * EPSILON)


def test_scale_of_a_result_stays_in_its_kernel() -> None:
    made = product()
    scaled = apply("multiply", apply("add", made, made), fill(0.35, made))
    root = node(Contract(((0, 0),), ((2, 2),)), scaled, tensor("w", M, K, 6))
    assert "scale_after_contraction" not in simplified(root)[1]


@pytest.mark.parametrize("seed", range(40))
def test_reshaped_operands_keep_every_sum_over_nothing(seed: int) -> None:
    """Any pairing of axes of an operand that a guard alone says has as many elements as before."""
    generator = np.random.default_rng(seed)
    pool = [M, N, K, constant(2), constant(6), M * N, N * K]

    def some(most: int) -> list[Expr]:
        return [pool[i] for i in generator.integers(0, len(pool), generator.integers(1, most))]

    shared = some(3)
    source, target = [*shared, *some(3)], [*shared, *some(3)]
    reshaped = node(Reshape(tuple(target)), tensor("x", *source))
    count = int(generator.integers(0, len(target) + 1))
    paired = sorted(int(a) for a in generator.permutation(len(target))[:count])
    other = tensor("w", *(target[axis] for axis in paired), 2)
    pairs = tuple((axis, place) for place, axis in enumerate(paired))
    batch = pairs[: int(generator.integers(0, count + 1))]
    root = node(Contract(batch, pairs[len(batch) :]), reshaped, other)
    after, _ = simplified(root)
    for sizes in np.ndindex(4, 4, 4):
        known = dict(zip("mnk", (int(s) for s in sizes), strict=True))
        counts = [int(np.prod([e.evaluate(known) for e in side])) for side in (source, target)]
        if counts[0] == counts[1]:
            before = graph_of(root)
            inputs = {
                i.primitive.name: generator.integers(
                    -9, 9, [e.evaluate(known) for e in i.shape]
                ).astype(np.float32)
                for i in before.inputs
                if isinstance(i.primitive, Input)
            }
            want = evaluate(before, inputs, known)["out"]
            got = evaluate(after, inputs, known)["out"]
            np.testing.assert_array_equal(got, want, strict=True)
